/** The search box: finds names, marks what was found, goes from one to the next. */

import type { Hits } from "../data/contracts";
import { showHits } from "../panels/explanation";
import { element, fill } from "../shared/dom";
import type { Timeline } from "./context";

const MOST_FOUND_SHOWN = 500;

export class Search {
  readonly box = element("input", {
    type: "search",
    placeholder: "Search names (/)",
    "aria-label": "Search names",
  });
  readonly panel = element("section", { "aria-label": "Search results" });
  private hits: Hits | null = null;
  private at = -1;
  /** What `hits` answers. */
  private done = "";

  constructor(
    private readonly timeline: Timeline,
    private readonly navigateTo: (place: { track: number; row: number }) => Promise<void>,
  ) {
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter") void this.search(event.shiftKey ? -1 : 1);
      if (event.key !== "Escape") return;
      this.box.value = "";
      void this.search(1);
      timeline.timelineView.rows.focus();
    });
    this.box.addEventListener("search", () => {
      if (!this.box.value) void this.search(1);
    });
  }

  find(text: string): void {
    this.box.value = text;
    void this.search(1);
  }

  private async search(step: number): Promise<void> {
    const { timeline } = this;
    const text = this.box.value.trim();
    if (!text) {
      this.hits = null;
      this.done = "";
      timeline.marks.found = [];
      fill(this.panel);
      timeline.changed();
      return;
    }
    if (this.done !== text) {
      // /text/ is a regular expression, as in many tools
      const regex = /^\/(.+)\/$/.exec(text);
      const found = await timeline.asking(timeline.source.search(regex ? regex[1] : text, regex !== null));
      if (!found) return;
      this.done = text;
      this.hits = found;
      this.at = -1;
      timeline.marks.found = found.hits.slice(0, MOST_FOUND_SHOWN);
      showHits(this.panel, found, text, (place) => void this.navigateTo(place));
    }
    const hits = this.hits?.hits ?? [];
    if (!hits.length) {
      timeline.changed();
      return;
    }
    this.at = (this.at + step + hits.length) % hits.length;
    await this.navigateTo(hits[this.at]);
  }
}

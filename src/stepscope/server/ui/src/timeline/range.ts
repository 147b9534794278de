/** The chosen range of time, and its statistics beside the timeline. */

import { whole } from "../data/types";
import { showStatistics } from "../panels/explanation";
import { element, fill } from "../shared/dom";
import type { Timeline } from "./context";

/** While a range is drawn, it changes with every move of the pointer. */
const PAUSE_MS = 60;

export class RangePanel {
  readonly panel = element("section", { "aria-label": "Range" });
  private timer = 0;

  constructor(private readonly timeline: Timeline) {}

  /** Asks for the statistics of the range, soon. */
  ask(): void {
    clearTimeout(this.timer);
    const { timeline } = this;
    const { range } = timeline.marks;
    if (!range) {
      fill(this.panel);
      return;
    }
    this.timer = window.setTimeout(async () => {
      const { begin, end } = whole(range);
      const found = await timeline.asking(timeline.source.statistics(begin, end));
      if (found && timeline.marks.range === range) showStatistics(this.panel, found, timeline.actions);
    }, PAUSE_MS);
  }

  zoom(): void {
    const { range } = this.timeline.marks;
    if (range) this.timeline.view.frame(range.begin, range.end, 0.02);
    this.timeline.changed();
  }
}

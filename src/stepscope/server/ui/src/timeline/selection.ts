/** What is selected: a slice, or a place that a finding points at; and how one goes on from there. */

import type { Details, Diagnosed, Instance, Place } from "../data/contracts";
import type { Row } from "../data/types";
import { instanceText, showDetails } from "../panels/explanation";
import { element, fill } from "../shared/dom";
import { clean, time, words } from "../shared/format";
import type { Timeline } from "./context";
import { arrowPairs } from "./links";
import { nearest } from "./pointer_controls";
import { depths, lowerBound, type TrackView } from "./tracks";

export class Selection {
  readonly panel = element("section", { "aria-label": "Selection" });
  details: Details | null = null;
  /** Whose findings are gone through. */
  diagnosed: Diagnosed | null = null;
  /** Finding and instance that are shown. */
  private place: [number, number] | null = null;

  constructor(private readonly timeline: Timeline) {}

  async select(track: number, row: number, reveal = true): Promise<void> {
    const { timeline } = this;
    const { marks } = timeline;
    const details = await timeline.asking(timeline.source.row(track, row));
    if (!details) return;
    this.details = details;
    marks.selected = details;
    marks.arrows = arrowPairs(details);
    if (reveal) timeline.timelineView.reveal(details);
    showDetails(this.panel, details, timeline.layout, timeline.actions);
    timeline.message(`selected ${clean(details.name, 100)}, ${time(details.end - details.start)}`);
    timeline.changed();
  }

  /** Selects a row and brings it into view. */
  async navigateTo(place: { track: number; row: number }): Promise<void> {
    await this.select(place.track, place.row);
    const { selected } = this.timeline.marks;
    if (!selected) return;
    const { view } = this.timeline;
    const length = selected.end - selected.start;
    const inside = selected.start >= view.begin && selected.end <= view.end;
    // keep the scale where it shows the slice, so that hopping does not make one dizzy
    if (length > view.span * 0.9 || length < view.span / 400) view.frame(selected.start, selected.end, 8);
    else if (!inside) {
      const half = view.span / 2;
      const middle = (selected.start + selected.end) / 2;
      view.set(middle - half, middle + half);
    }
    this.timeline.changed();
  }

  /** Goes to the end of an arrow or link, or message that there is none. */
  follow(to: Place | undefined, none: string): void {
    if (to) void this.navigateTo(to);
    else this.timeline.message(none);
  }

  async near(step: number, same: boolean): Promise<void> {
    const { selected } = this.timeline.marks;
    if (!selected) {
      await this.first();
      return;
    }
    const next = await this.timeline.asking(this.timeline.source.near(selected.track, selected.row, step, same));
    if (next) await this.navigateTo(next);
    else this.timeline.message(`no ${step > 0 ? "later" : "earlier"} one on this track`);
  }

  /** With nothing selected, the keyboard begins with the first slice in view of the first track that has one. */
  private async first(): Promise<void> {
    const { view, timelineView, tracks } = this.timeline;
    for (const trackView of tracks.open()) {
      if (trackView.y + trackView.height < timelineView.scroller.scrollTop || !trackView.tile) continue;
      for (const row of trackView.tile.rows) {
        const low = lowerBound(row.start, view.begin);
        if (low < row.start.length && row.start[low] < view.end) {
          await this.select(trackView.info.id, row.row[low]);
          return;
        }
      }
    }
  }

  /** Selects what runs at the same time on the next row, or the next track. */
  async depth(step: number): Promise<void> {
    const { view, tracks, source } = this.timeline;
    const { selected } = this.timeline.marks;
    if (!selected) return this.first();
    const rows: [TrackView, Row][] = [];
    for (const trackView of tracks.open())
      for (const row of trackView.tile?.rows ?? []) if (row.depth < depths(trackView)) rows.push([trackView, row]);
    let at = rows.findIndex(([l, r]) => l.info.id === selected.track && r.depth === selected.depth);
    const middle = (selected.start + selected.end) / 2;
    for (at += step; at >= 0 && at < rows.length; at += step) {
      const [trackView, row] = rows[at];
      const place = nearest(source, trackView, row, middle, view.span);
      if (place) return this.select(place.track, place.row);
    }
    this.timeline.message(step > 0 ? "nothing further down" : "nothing further up");
  }

  /** Shows the next or previous step, or the one in the middle where none is shown whole. */
  async step(by: number): Promise<void> {
    const { timeline } = this;
    const { view, tracks, source } = timeline;
    const trackView = [...tracks.trackViews.values()].find(({ info, tile }) => info.table === "step" && tile);
    const row = trackView?.tile?.rows[0];
    const at = trackView && row ? nearest(source, trackView, row, (view.begin + view.end) / 2, view.span) : null;
    if (!at) {
      timeline.message("no steps are known yet");
      return;
    }
    const whole = at.start >= view.begin && at.end <= view.end && at.end - at.start > view.span / 2;
    const next = whole ? await timeline.asking(source.near(at.track, at.row, by, false)) : at;
    if (!next) {
      timeline.message(`no ${by > 0 ? "later" : "earlier"} step`);
      return;
    }
    view.frame(next.start, next.end, 0.05);
    timeline.message(`${clean(next.name, 80)}, ${time(next.end - next.start)}`);
    timeline.changed();
  }

  /** Shows a place of a finding and what is responsible for it. */
  instance(finding: number, at: number): void {
    const instance = this.diagnosed?.instances[finding]?.[at];
    if (!instance) return;
    const { view, timelineView, marks } = this.timeline;
    this.forget();
    this.place = [finding, at];
    marks.gap = { begin: instance.begin, end: instance.end };
    marks.attributed = instance.responsible;
    marks.waiting = instance.waiting;
    timelineView.gather(this.tracksOf(instance));
    view.frame(instance.begin, instance.end, 0.7);
    const doing = instance.responsible.map((place) => clean(place.name, 60)).join(", ");
    const silent = "no range, operator or call was recorded; sample or annotate the host code";
    const meanwhile = instance.thread >= 0 ? `; meanwhile on thread ${instance.thread}: ${doing || silent}` : "";
    const { diagnosis } = this.diagnosed!;
    const cause = words(diagnosis.findings[finding].cause);
    const late = instance.waiting.length ? `; rank ${instance.rank} is late: ${doing || silent}` : meanwhile;
    this.timeline.message(`${cause}, ${instanceText(instance)}${late}`);
    for (const item of document.querySelectorAll<HTMLElement>(".finding"))
      item.setAttribute("aria-current", String(item.dataset.number === String(finding)));
    this.timeline.changed();
  }

  /** Tracks that show an instance: why the device waits, what is responsible, who waits. */
  private tracksOf(instance: Instance): TrackView[] {
    const { trackViews } = this.timeline.tracks;
    const idle = instance.tracks.filter((id) => trackViews.get(id)?.info.table === "idle_gap");
    const places = [...instance.responsible, ...instance.waiting].map(({ track }) => track);
    const ids = new Set([...(idle.length ? idle : instance.tracks.slice(0, 1)), ...places]);
    return [...ids].flatMap((id) => trackViews.get(id) ?? []);
  }

  /** The next or previous place of all findings. */
  finding(step: number): void {
    const all = (this.diagnosed?.instances ?? []).flatMap((places, finding) =>
      places.map((_, at): [number, number] => [finding, at]),
    );
    if (!all.length) return;
    const now = this.place
      ? all.findIndex(([f, i]) => f === this.place![0] && i === this.place![1])
      : step > 0 ? -1 : 0; // prettier-ignore
    this.instance(...all[(now + step + all.length) % all.length]);
  }

  clear(): void {
    const { marks } = this.timeline;
    this.forget();
    this.place = null;
    marks.gap = null;
    marks.attributed = [];
    marks.waiting = [];
    marks.found = [];
    this.timeline.tracks.spotlight([]);
    for (const item of document.querySelectorAll<HTMLElement>(".finding")) item.removeAttribute("aria-current");
    this.timeline.changed();
  }

  /** No slice is selected. */
  private forget(): void {
    const { marks } = this.timeline;
    marks.selected = null;
    marks.arrows = [];
    this.details = null;
    fill(this.panel);
  }
}

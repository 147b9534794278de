/** Pointer and wheel on the timeline: moving, zooming, choosing a range, selecting, the tip. */

import type { Place } from "../data/contracts";
import type { Row, Source } from "../data/types";
import { clean } from "../shared/format";
import { CLICK_PX, follow, showTip, wheelZoom } from "../shared/pointer";
import type { Timeline } from "./context";
import { levelTip } from "./counters";
import { hint } from "./painter";
import { lowerBound, type TrackView } from "./tracks";

interface Under {
  trackView: TrackView;
  depth: number;
  place: Place | null;
  count: number;
  share: number;
}

export interface PointerActions {
  select(place: Place): Promise<void>;
  range(range: { begin: number; end: number }): void;
}

export class PointerControls {
  /** Where the pointer was last, as a share of the width. */
  share = 0.5;

  constructor(
    private readonly timeline: Timeline,
    private readonly actions: PointerActions,
  ) {
    const { rows, axis } = timeline.timelineView;
    rows.addEventListener("wheel", (e) => this.wheel(e, e.ctrlKey || e.metaKey), { passive: false });
    axis.addEventListener("wheel", (e) => this.wheel(e, true), { passive: false });
    rows.addEventListener("pointerdown", (event) => this.press(event, event.shiftKey));
    axis.addEventListener("pointerdown", (event) => this.press(event, true));
    rows.addEventListener("pointermove", (event) => this.hover(event));
    rows.addEventListener("pointerleave", () => {
      timeline.timelineView.tip.hidden = true;
      timeline.marks.cursor = null;
      timeline.changed();
    });
    rows.addEventListener("dblclick", () => {
      timeline.view.fit();
      timeline.changed();
    });
  }

  private point(event: MouseEvent): number {
    const box = this.timeline.timelineView.root.getBoundingClientRect();
    const x = event.clientX - box.left;
    this.share = Math.min(1, Math.max(0, x / Math.max(1, box.width)));
    return x;
  }

  private wheel(event: WheelEvent, zooming: boolean): void {
    const { view, timelineView } = this.timeline;
    this.point(event);
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (!zooming && !sideways) return; // the browser scrolls
    event.preventDefault();
    if (zooming) wheelZoom(view, event, this.share);
    else view.pan((event.deltaX || event.deltaY) / timelineView.width);
    this.timeline.changed();
  }

  private press(event: PointerEvent, ranging: boolean): void {
    if (event.button !== 0) return;
    const { view, timelineView } = this.timeline;
    const { width } = timelineView;
    const selects = event.currentTarget === timelineView.rows;
    const from = this.point(event);
    const anchor = view.time(from, width);
    const { begin, end } = view;
    const top = timelineView.scroller.scrollTop + event.clientY;
    let moved = false;
    follow(
      event,
      (next) => {
        const x = this.point(next);
        moved ||= Math.abs(x - from) > CLICK_PX || Math.abs(next.clientY - event.clientY) > CLICK_PX;
        if (!moved) return;
        if (ranging) {
          const at = view.time(x, width);
          this.actions.range({ begin: Math.min(anchor, at), end: Math.max(anchor, at) });
        } else {
          const by = ((x - from) / width) * (end - begin);
          view.set(begin - by, end - by);
          timelineView.scroller.scrollTop = top - next.clientY;
          this.timeline.changed();
        }
      },
      (last) => {
        if (!moved && last.type === "pointerup" && selects) void this.click(last);
        timelineView.focus();
      },
    );
  }

  private hover(event: PointerEvent): void {
    const { view, timelineView, marks } = this.timeline;
    marks.cursor = view.time(this.point(event), timelineView.width);
    const trackView = this.timeline.tracks.at(timelineView.y(event));
    const under = this.under(event);
    let message = under ? hint(under.place, under.count, under.share) : "";
    if (trackView?.tile?.counter) message = clean(levelTip(trackView.info, trackView.tile, marks.cursor), 200);
    showTip(timelineView.tip, timelineView.root, event, message);
    this.timeline.changed();
  }

  /** What lies under the pointer as far as the loaded tile tells. */
  private under(event: PointerEvent): Under | null {
    const { view, timelineView, tracks, source } = this.timeline;
    const y = timelineView.y(event);
    const trackView = tracks.at(y);
    if (!trackView?.tile || trackView.tile.counter) return null;
    const depth = tracks.depthAt(trackView, y);
    const at = view.time(event.clientX - timelineView.scroller.getBoundingClientRect().left, timelineView.width);
    const row = trackView.tile.rows.find((candidate) => candidate.depth === depth);
    const none = { trackView, depth, place: null, count: 0, share: 0 };
    if (!row) return none;
    const place = nearest(source, trackView, row, at, 2 * (view.span / timelineView.width));
    if (place) return { ...none, place };
    const column = Math.floor((at - trackView.tile.begin) / trackView.tile.bucket);
    for (const index of [column, column - 1, column + 1]) {
      const found = row.column.indexOf(index);
      if (found >= 0) return { ...none, count: Math.max(1, row.count[found]), share: row.share[found] };
    }
    return none;
  }

  private async click(event: PointerEvent): Promise<void> {
    const under = this.under(event);
    if (under?.place) await this.actions.select(under.place);
    else if (under?.count) await this.clickShort(under, event);
  }

  /** Short events under the pointer: ask for them one by one, and take the nearest. */
  private async clickShort(under: Under, event: PointerEvent): Promise<void> {
    const { view, timelineView, source } = this.timeline;
    const { width } = timelineView;
    const x = event.clientX - timelineView.scroller.getBoundingClientRect().left;
    const pixel = view.span / width;
    const at = view.time(x, width);
    const bucket = Math.max(1, Math.floor(pixel / 512));
    const columns = Math.min(8192, Math.ceil((6 * pixel) / bucket));
    const begin = Math.floor(at - 3 * pixel);
    const signal = new AbortController().signal;
    const tiles = await this.timeline.asking(source.tiles([under.trackView.info.id], begin, bucket, columns, signal));
    const row = tiles?.get(under.trackView.info.id)?.rows.find((r) => r.depth === under.depth);
    const place = row ? nearest(source, under.trackView, row, at, 3 * pixel) : null;
    if (place) await this.actions.select(place);
    else this.timeline.message("zoom in to select");
  }
}

/** The slice of a row nearest to a time, not farther off than `slop` ns. */
export function nearest(source: Source, trackView: TrackView, row: Row, at: number, slop: number): Place | null {
  const high = lowerBound(row.start, at + slop);
  let best = -1;
  let distance = slop;
  for (let i = Math.max(0, high - 8); i < high; i++) {
    const off = Math.max(row.start[i] - at, at - row.end[i], 0);
    if (off < distance || (off === 0 && distance === 0)) [best, distance] = [i, off];
  }
  if (best < 0) return null;
  return {
    track: trackView.info.id,
    row: row.row[best],
    depth: row.depth,
    start: row.start[best],
    end: row.end[best],
    name: source.name(row.name[best]),
  };
}

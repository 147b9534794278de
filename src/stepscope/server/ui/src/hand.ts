/** Pointer and wheel on the timeline: moving, zooming, choosing a range, selecting, the tip. */

import { hint, lowerBound } from "./canvas";
import { levelSays } from "./counters";
import { clean } from "./format";
import { CLICK_PX, follow, showTip, wheelZoom } from "./pointer";
import type { Timeline } from "./timeline";
import type { Lane } from "./tracks";
import type { Place, Row, Source } from "./types";

interface Under {
  lane: Lane;
  depth: number;
  place: Place | null;
  count: number;
  share: number;
}

export interface HandActions {
  select(place: Place): Promise<void>;
  range(range: { begin: number; end: number }): void;
}

export class Hand {
  /** Where the pointer was last, as a share of the width. */
  share = 0.5;

  constructor(
    private readonly timeline: Timeline,
    private readonly actions: HandActions,
  ) {
    const { rows, axis } = timeline.stage;
    rows.addEventListener("wheel", (e) => this.wheel(e, e.ctrlKey || e.metaKey), { passive: false });
    axis.addEventListener("wheel", (e) => this.wheel(e, true), { passive: false });
    rows.addEventListener("pointerdown", (event) => this.press(event, event.shiftKey));
    axis.addEventListener("pointerdown", (event) => this.press(event, true));
    rows.addEventListener("pointermove", (event) => this.hover(event));
    rows.addEventListener("pointerleave", () => {
      timeline.stage.tip.hidden = true;
      timeline.marks.cursor = null;
      timeline.changed();
    });
    rows.addEventListener("dblclick", () => {
      timeline.view.fit();
      timeline.changed();
    });
  }

  private point(event: MouseEvent): number {
    const box = this.timeline.stage.root.getBoundingClientRect();
    const x = event.clientX - box.left;
    this.share = Math.min(1, Math.max(0, x / Math.max(1, box.width)));
    return x;
  }

  private wheel(event: WheelEvent, zooming: boolean): void {
    const { view, stage } = this.timeline;
    this.point(event);
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (!zooming && !sideways) return; // the browser scrolls
    event.preventDefault();
    if (zooming) wheelZoom(view, event, this.share);
    else view.pan((event.deltaX || event.deltaY) / stage.width);
    this.timeline.changed();
  }

  private press(event: PointerEvent, ranging: boolean): void {
    if (event.button !== 0) return;
    const { view, stage } = this.timeline;
    const { width } = stage;
    const selects = event.currentTarget === stage.rows;
    const from = this.point(event);
    const anchor = view.time(from, width);
    const { begin, end } = view;
    const top = stage.scroller.scrollTop + event.clientY;
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
          stage.scroller.scrollTop = top - next.clientY;
          this.timeline.changed();
        }
      },
      (last) => {
        if (!moved && last.type === "pointerup" && selects) void this.click(last);
        stage.focus();
      },
    );
  }

  private hover(event: PointerEvent): void {
    const { view, stage, marks } = this.timeline;
    marks.cursor = view.time(this.point(event), stage.width);
    const lane = this.timeline.tracks.at(stage.y(event));
    const under = this.under(event);
    let says = under ? hint(under.place, under.count, under.share) : "";
    if (lane?.tile?.counter) says = clean(levelSays(lane.info, lane.tile, marks.cursor), 200);
    showTip(stage.tip, stage.root, event, says);
    this.timeline.changed();
  }

  /** What lies under the pointer as far as the loaded tile tells. */
  private under(event: PointerEvent): Under | null {
    const { view, stage, tracks, source } = this.timeline;
    const y = stage.y(event);
    const lane = tracks.at(y);
    if (!lane?.tile || lane.tile.counter) return null;
    const depth = tracks.depthAt(lane, y);
    const at = view.time(event.clientX - stage.scroller.getBoundingClientRect().left, stage.width);
    const row = lane.tile.rows.find((candidate) => candidate.depth === depth);
    const none = { lane, depth, place: null, count: 0, share: 0 };
    if (!row) return none;
    const place = nearest(source, lane, row, at, 2 * (view.span / stage.width));
    if (place) return { ...none, place };
    const column = Math.floor((at - lane.tile.begin) / lane.tile.bucket);
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
    const { view, stage, source } = this.timeline;
    const { width } = stage;
    const x = event.clientX - stage.scroller.getBoundingClientRect().left;
    const pixel = view.span / width;
    const at = view.time(x, width);
    const bucket = Math.max(1, Math.floor(pixel / 512));
    const columns = Math.min(8192, Math.ceil((6 * pixel) / bucket));
    const begin = Math.floor(at - 3 * pixel);
    const signal = new AbortController().signal;
    const tiles = await this.timeline.asking(source.tiles([under.lane.info.id], begin, bucket, columns, signal));
    const row = tiles?.get(under.lane.info.id)?.rows.find((r) => r.depth === under.depth);
    const place = row ? nearest(source, under.lane, row, at, 3 * pixel) : null;
    if (place) await this.actions.select(place);
    else this.timeline.says("zoom in to select");
  }
}

/** The slice of a row nearest to a time, not farther off than `slop` ns. */
export function nearest(source: Source, lane: Lane, row: Row, at: number, slop: number): Place | null {
  const high = lowerBound(row.start, at + slop);
  let best = -1;
  let distance = slop;
  for (let i = Math.max(0, high - 8); i < high; i++) {
    const off = Math.max(row.start[i] - at, at - row.end[i], 0);
    if (off < distance || (off === 0 && distance === 0)) [best, distance] = [i, off];
  }
  if (best < 0) return null;
  return {
    track: lane.info.id,
    row: row.row[best],
    depth: row.depth,
    start: row.start[best],
    end: row.end[best],
    name: source.name(row.name[best]),
  };
}

/** Draws the timeline: axis above, rows below. Reads state, changes none. */

import type { Place } from "../data/contracts";
import type { Row, Source } from "../data/types";
import { fit, FONT, scaled, ticks } from "../shared/canvas";
import { colourOf, markColour, type Colours } from "../shared/colours";
import { clean, percent, tick, time } from "../shared/format";
import { themeNow, type Theme } from "../shared/theme";
import type { View } from "../shared/window";
import { amount } from "./counters";
import { LABELLED, ROW_PX } from "./track_bitmap";
import { constant, CONSTANT_PX, COUNTER_PX, depths, GROUP_PX, lowerBound, type TrackView, type Tracks } from "./tracks";

export const AXIS_PX = 44;
const LEAST_LABEL_PX = 28;
/** Desynchronized: the picture goes to the screen without waiting for the page's own layers, which
 * halves what a frame costs the main thread where no graphics card draws. */
const CONTEXT: CanvasRenderingContext2DSettings = { alpha: false, desynchronized: true };
const MOST_ARROWS = 50;

export interface Marks {
  selected: Place | null;
  /** Arrows of the selection: from, to. */
  arrows: [Place, Place][];
  /** What a finding holds responsible. */
  attributed: Place[];
  /** What waits meanwhile. */
  waiting: Place[];
  gap: { begin: number; end: number } | null;
  range: { begin: number; end: number } | null;
  found: Place[];
  cursor: number | null;
}

export class Painter {
  theme: Theme;

  constructor(
    private readonly axis: HTMLCanvasElement,
    private readonly rows: HTMLCanvasElement,
    private readonly source: Source,
    readonly colours: Colours,
  ) {
    this.theme = themeNow();
  }

  resize(width: number, height: number): void {
    fit(this.axis, width, AXIS_PX);
    fit(this.rows, width, height);
  }

  paint(view: View, tracks: Tracks, scroll: number, marks: Marks): void {
    this.paintAxis(view, tracks, marks);
    const { context, width, height } = scaled(this.rows, CONTEXT);
    context.fillStyle = this.theme.back;
    context.fillRect(0, 0, width, height);
    this.grid(context, view, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    context.imageSmoothingEnabled = true;
    for (const [group, trackViews] of tracks.visible()) {
      const y = group.y - scroll;
      if (y < height && y > -GROUP_PX) {
        context.fillStyle = this.theme.band;
        context.fillRect(0, y, width, GROUP_PX);
      }
      if (group.folded) continue;
      for (const trackView of trackViews) {
        const top = trackView.y - scroll;
        if (top > height || top + trackView.height < 0 || !trackView.tile) continue;
        context.save();
        context.beginPath();
        context.rect(0, top, width, trackView.height);
        context.clip();
        if (trackView.tile.counter) this.counter(context, trackView, view, top, width);
        else this.slices(context, trackView, view, top, width, tracks.rowPx);
        context.restore();
      }
    }
    this.overlays(context, view, tracks, scroll, width, height, marks);
  }

  private grid(context: CanvasRenderingContext2D, view: View, width: number, height: number): void {
    context.strokeStyle = this.theme.line;
    context.lineWidth = 1;
    context.beginPath();
    for (const at of ticks(view, width).times) {
      const x = Math.round(view.x(at, width)) + 0.5;
      context.moveTo(x, 0);
      context.lineTo(x, height);
    }
    context.stroke();
  }

  private slices(
    context: CanvasRenderingContext2D,
    trackView: TrackView,
    view: View,
    top: number,
    width: number,
    rowPx: number,
  ): void {
    const tile = trackView.tile!;
    const shown = depths(trackView);
    if (trackView.picture) {
      const from = (view.begin - tile.begin) / tile.bucket;
      const to = (view.end - tile.begin) / tile.bucket;
      const first = Math.max(0, Math.floor(from));
      const last = Math.min(tile.columns, Math.ceil(to));
      if (last > first) {
        const x = ((first - from) / (to - from)) * width;
        const wide = ((last - first) / (to - from)) * width;
        const [flat, high] = [shown * ROW_PX, shown * rowPx];
        context.drawImage(trackView.picture, first, 0, last - first, flat, x, top, wide, high);
      }
    }
    const least = LABELLED * tile.bucket;
    for (const row of tile.rows) {
      if (row.depth >= shown) continue;
      const y = top + row.depth * rowPx;
      const [low, high] = between(row, view);
      let before = -1;
      for (let i = low; i < high; i++) {
        if (row.end[i] - row.start[i] < least || row.end[i] < view.begin) continue;
        const x = Math.max(-2, view.x(row.start[i], width));
        const wide = Math.min(width + 2, view.x(row.end[i], width)) - x;
        const code = row.code[i];
        if (code !== before) context.fillStyle = this.colours.css[(before = code)];
        context.fillRect(x, y, Math.max(1, wide - (wide > 4 ? 1 : 0)), rowPx - 1);
        if (wide >= LEAST_LABEL_PX) {
          const label = this.label(context, this.source.name(row.name[i]), wide - 8);
          if (label) {
            context.fillStyle = this.colours.text[code];
            context.fillText(label, Math.max(x, 0) + 4, y + rowPx / 2);
            before = -1;
          }
        }
      }
    }
  }

  private label(context: CanvasRenderingContext2D, name: string, room: number): string {
    const most = Math.min(Math.floor(room / 5), 160);
    if (most < 3) return "";
    const text = clean(name, 160);
    if (text.length <= most && context.measureText(text).width <= room) return text;
    let low = 0;
    let high = Math.min(text.length, most * 2);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
      else high = middle - 1;
    }
    return low >= 2 ? `${text.slice(0, low)}…` : "";
  }

  private counter(
    context: CanvasRenderingContext2D,
    trackView: TrackView,
    view: View,
    top: number,
    width: number,
  ): void {
    const tile = trackView.tile!;
    const { column, low, high, last, before, limits } = tile.counter!;
    if (constant(trackView)) {
      const text = `${amount(trackView.info, limits[0])} throughout`;
      context.fillStyle = this.theme.faint;
      context.fillText(text, 4, top + CONSTANT_PX / 2);
      return;
    }
    const most = Math.max(limits[1], 0);
    const least = Math.min(limits[0], 0);
    const room = COUNTER_PX - 8;
    const y = (value: number): number =>
      top + 4 + room - (most > least ? ((value - least) / (most - least)) * room : 0);
    const x = (at: number): number => view.x(tile.begin + at * tile.bucket, width);
    context.beginPath();
    let level = before[0];
    if (!Number.isNaN(level)) {
      // the last sample before the window holds until the first one inside
      context.moveTo(x(0), y(least));
      context.lineTo(x(0), y(level));
    }
    for (let i = 0; i < column.length; i++) {
      const at = x(column[i]);
      if (!Number.isNaN(level)) context.lineTo(at, y(level));
      else context.moveTo(at, y(least));
      context.lineTo(at, y(high[i]));
      context.lineTo(at, y(low[i]));
      level = last[i];
      context.lineTo(x(column[i] + 1), y(level));
    }
    if (!Number.isNaN(level)) {
      const end = x(tile.columns);
      context.lineTo(end, y(level));
      context.lineTo(end, y(least));
    }
    context.closePath();
    const colour = markColour("counter");
    context.fillStyle = `${colour}80`;
    context.fill();
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.stroke();
    const text = `max ${amount(trackView.info, limits[1])}`;
    context.fillStyle = this.theme.back; // the curve would run through it
    context.fillRect(2, top + 1, context.measureText(text).width + 4, 15);
    context.fillStyle = this.theme.faint;
    context.fillText(text, 4, top + 9);
  }

  private overlays(
    context: CanvasRenderingContext2D,
    view: View,
    tracks: Tracks,
    scroll: number,
    width: number,
    height: number,
    marks: Marks,
  ): void {
    const blame = markColour("mark");
    const band = (begin: number, end: number, fill: string, line: string): void => {
      const x = view.x(begin, width);
      const wide = Math.max(1, view.x(end, width) - x);
      context.fillStyle = fill;
      context.fillRect(x, 0, wide, height);
      context.strokeStyle = line;
      context.lineWidth = 1;
      context.strokeRect(Math.round(x) + 0.5, -1, Math.round(wide), height + 2);
    };
    if (marks.gap) band(marks.gap.begin, marks.gap.end, `${blame}1c`, blame);
    if (marks.range) band(marks.range.begin, marks.range.end, `${markColour("range")}2a`, markColour("range"));
    const box = (place: Place): [number, number, number] | null => {
      const trackView = tracks.trackViews.get(place.track);
      if (!trackView || !isOpen(tracks, trackView)) return null;
      const y = trackView.y - scroll + Math.min(place.depth, depths(trackView) - 1) * tracks.rowPx;
      const x = view.x(place.start, width);
      return [x, y, Math.max(2, view.x(place.end, width) - x)];
    };
    const outline = (place: Place, colour: string, thick: number): void => {
      const at = box(place);
      if (!at || at[0] > width || at[0] + at[2] < 0) return;
      context.strokeStyle = colour;
      context.lineWidth = thick;
      const x = Math.max(-4, at[0]);
      const wide = Math.min(width + 4, at[0] + at[2]) - x;
      context.strokeRect(x, at[1], wide, tracks.rowPx - 1);
    };
    for (const place of marks.found) outline(place, markColour("found"), 2);
    context.setLineDash([4, 3]);
    for (const place of marks.waiting) outline(place, blame, 2);
    context.setLineDash([]);
    for (const place of marks.attributed) {
      outline(place, blame, 3);
      const at = box(place);
      if (at) flag(context, at, width, marks.waiting.length ? "late" : "responsible", blame);
    }
    for (const place of marks.waiting) {
      const at = box(place);
      if (at) flag(context, at, width, "waits", this.theme.strong, this.theme.back);
    }
    if (marks.selected) {
      outline(marks.selected, this.theme.strong, 2.5);
      for (const ends of marks.arrows.slice(0, MOST_ARROWS)) {
        for (const place of ends) if (place !== marks.selected) outline(place, this.theme.strong, 1.5);
        // from the end of the launching call to the begin of what it launched
        const [call, work] = ends.map(box);
        if (!call || !work) continue;
        arrow(context, call[0] + call[2], call[1] + tracks.rowPx / 2, work[0], work[1] + tracks.rowPx / 2,
          this.theme.strong); // prettier-ignore
      }
    }
    if (marks.cursor !== null) {
      const x = Math.round(view.x(marks.cursor, width)) + 0.5;
      context.strokeStyle = this.theme.faint;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, height);
      context.stroke();
    }
  }

  private paintAxis(view: View, tracks: Tracks, marks: Marks): void {
    const { context, width } = scaled(this.axis, CONTEXT);
    context.fillStyle = this.theme.band;
    context.fillRect(0, 0, width, AXIS_PX);
    context.font = FONT;
    context.textBaseline = "middle";
    const { times, step } = ticks(view, width);
    for (const at of times) {
      const x = Math.round(view.x(at, width)) + 0.5;
      context.strokeStyle = this.theme.line;
      context.beginPath();
      context.moveTo(x, 16);
      context.lineTo(x, 22);
      context.stroke();
      context.fillStyle = this.theme.text;
      context.textAlign = "left";
      context.fillText(tick(at, step), x + 3, 9);
    }
    if (tracks.ruler?.tile) this.ruler(context, tracks.ruler, view, width);
    const range = marks.range ?? marks.gap;
    if (range) {
      const x = view.x(range.begin, width);
      const wide = Math.max(1, view.x(range.end, width) - x);
      context.fillStyle = `${markColour(marks.range ? "range" : "mark")}40`;
      context.fillRect(x, 0, wide, AXIS_PX);
      const text = time(range.end - range.begin);
      const half = context.measureText(text).width / 2 + 6;
      const middle = Math.min(Math.max(x + wide / 2, half), width - half);
      context.fillStyle = this.theme.back;
      context.fillRect(middle - half, 1, 2 * half, 16);
      context.fillStyle = this.theme.strong;
      context.textAlign = "center";
      context.fillText(text, middle, 9);
      context.textAlign = "left";
    }
    context.strokeStyle = this.theme.line;
    context.beginPath();
    context.moveTo(0, AXIS_PX - 0.5);
    context.lineTo(width, AXIS_PX - 0.5);
    context.stroke();
  }

  private ruler(
    context: CanvasRenderingContext2D,
    trackView: TrackView,
    view: View,
    width: number,
  ): void {
    const steady = colourOf("step_steady");
    for (const row of trackView.tile!.rows) {
      const [low, high] = between(row, view);
      for (let i = low; i < high; i++) {
        const x = Math.max(-2, view.x(row.start[i], width));
        const wide = Math.min(width + 2, view.x(row.end[i], width)) - x;
        if (wide < 1) continue;
        context.fillStyle = this.colours.css[row.code[i]];
        context.globalAlpha = this.colours.css[row.code[i]] === steady ? 1 : 0.5;
        context.fillRect(x, 25, Math.max(1, wide - 1), 15);
        context.globalAlpha = 1;
        const length = row.end[i] - row.start[i];
        const label = this.label(context, `${this.source.name(row.name[i])} · ${time(length)}`, wide - 8);
        context.fillStyle = "#10141a";
        if (label) context.fillText(label, Math.max(0, x) + 4, 33);
      }
    }
  }
}

function isOpen(tracks: Tracks, trackView: TrackView): boolean {
  for (const other of tracks.open()) if (other === trackView) return true;
  return false;
}

/** First row, and one past the last, that the view may show. Starts are sorted; so, nearly, are ends. */
export function between(row: Row, view: View): [number, number] {
  const low = Math.max(0, lowerBound(row.end, view.begin) - 1);
  return [low, lowerBound(row.start, view.end)];
}

/** A word at the right end of a box that is marked, inside it where there is room. */
function flag(
  context: CanvasRenderingContext2D,
  [x, y, wide]: [number, number, number],
  width: number,
  text: string,
  back: string,
  front = "#ffffff",
): void {
  const room = context.measureText(text).width + 6;
  const right = Math.min(x + wide, width);
  if (right < 0 || x > width) return;
  const left = Math.min(Math.max(right - Math.max(x, 0) > 2 * room ? right - room - 2 : right + 3, 0), width - room);
  context.fillStyle = back;
  context.fillRect(left, y + 1, room, ROW_PX - 3);
  context.fillStyle = front;
  context.fillText(text, left + 3, y + ROW_PX / 2);
}

function arrow(
  context: CanvasRenderingContext2D,
  x0: number,
  y0: number,
  x1: number,
  y1: number,
  colour: string,
): void {
  const bend = Math.min(80, Math.max(12, Math.abs(x1 - x0) / 2));
  context.strokeStyle = colour;
  context.fillStyle = colour;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
  context.stroke();
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x1 - 7, y1 - 4);
  context.lineTo(x1 - 7, y1 + 4);
  context.fill();
}

/** What the pointer is over, in words. */
export function hint(place: Place | null, more: number, share: number): string {
  if (place) return `${clean(place.name)} · ${time(place.end - place.start)}`;
  return more > 0 ? `${more} short events here, busy ${percent(share)}; zoom in or click` : "";
}

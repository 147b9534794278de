/** A layer above the rows: instances of a table's row, notes, arrows between operators. */

import type { Details, Instances, Note, Place } from "../data/contracts";
import { fit, FONT, scaled } from "../shared/canvas";
import { markColour } from "../shared/colours";
import { clean } from "../shared/format";
import type { View } from "../shared/window";
import { linkPairs } from "./links";
import { depths, lowerBound, type Tracks } from "./tracks";

const MOST_LINES = 100;
const FLAG_PX = 15;

/** Instances of one track and depth, sorted by begin. */
interface Run {
  track: number;
  depth: number;
  start: Float64Array;
  end: Float64Array;
}

export class Overlay {
  readonly canvas = document.createElement("canvas");
  notes: Note[] = [];
  details: Details | null = null;
  private runs: Run[] = [];

  constructor() {
    this.canvas.className = "overlay";
    this.canvas.setAttribute("aria-hidden", "true");
  }

  highlight(found: Instances | null): void {
    const rows = new Map<string, number[]>();
    found?.start.forEach((_, i) => {
      const key = `${found.track[i]} ${found.depth[i]}`;
      const known = rows.get(key);
      if (known) known.push(i);
      else rows.set(key, [i]);
    });
    this.runs = [...rows.values()].map((at) => ({
      track: found!.track[at[0]],
      depth: found!.depth[at[0]],
      start: Float64Array.from(at, (i) => found!.start[i]),
      end: Float64Array.from(at, (i) => found!.end[i]),
    }));
  }

  paint(view: View, tracks: Tracks, scroll: number, width: number, height: number): void {
    fit(this.canvas, width, height);
    const { context } = scaled(this.canvas);
    context.clearRect(0, 0, width, height);
    const shown = new Set([...tracks.open()].map((trackView) => trackView.info.id));
    const top = (track: number, depth: number): number | null => {
      const trackView = tracks.trackViews.get(track);
      if (!trackView || !shown.has(track)) return null;
      return trackView.y - scroll + Math.min(depth, depths(trackView) - 1) * tracks.rowPx;
    };
    this.instances(context, view, width, tracks.rowPx, top);
    this.arrows(context, view, width, tracks.rowPx, top);
    this.flags(context, view, width, height);
  }

  /** A frame around what is wide enough, a bar for all that share a pixel. */
  private instances(
    context: CanvasRenderingContext2D,
    view: View,
    width: number,
    rowPx: number,
    top: (track: number, depth: number) => number | null,
  ): void {
    const pixel = view.span / width;
    for (const run of this.runs) {
      const y = top(run.track, run.depth);
      if (y === null) continue;
      for (let i = lowerBound(run.end, view.begin); i < run.start.length && run.start[i] < view.end; ) {
        const x = view.x(run.start[i], width);
        const wide = view.x(run.end[i], width) - x;
        context.strokeStyle = "#10141a";
        if (wide >= 5) {
          const from = Math.max(-3, x);
          const room = Math.min(width + 3, x + wide) - from;
          context.lineWidth = 3.5;
          context.strokeRect(from, y, room, rowPx - 1);
          context.strokeStyle = markColour("found");
          context.lineWidth = 2;
          context.strokeRect(from, y, room, rowPx - 1);
          i++;
        } else {
          context.fillStyle = "#10141a";
          context.fillRect(x - 1, y - 1, Math.max(2, wide) + 2, 5);
          context.fillStyle = markColour("found");
          context.fillRect(x, y, Math.max(2, wide), 3);
          // the next that begins in another pixel
          i = Math.max(i + 1, lowerBound(run.start, run.start[i] + pixel));
        }
      }
    }
  }

  private arrows(
    context: CanvasRenderingContext2D,
    view: View,
    width: number,
    rowPx: number,
    top: (track: number, depth: number) => number | null,
  ): void {
    const style = getComputedStyle(document.documentElement);
    const accent = style.getPropertyValue("--accent").trim();
    for (const [from, to] of linkPairs(this.details).slice(0, MOST_LINES)) {
      const [y0, y1] = [top(from.track, from.depth), top(to.track, to.depth)];
      if (y0 === null || y1 === null) continue;
      for (const [place, y] of [[from, y0], [to, y1]] as [Place, number][]) {
        const x = Math.max(-4, view.x(place.start, width));
        const wide = Math.max(2, Math.min(width + 4, view.x(place.end, width)) - x);
        context.strokeStyle = accent;
        context.lineWidth = 1.5;
        if (x <= width && x + wide >= 0) context.strokeRect(x, y, wide, rowPx - 1);
      }
      const [x0, x1] = [view.x(from.end, width), view.x(to.start, width)];
      const middle = rowPx / 2;
      const bend = Math.min(120, Math.max(16, Math.abs(x1 - x0) / 2));
      context.setLineDash([5, 3]);
      context.beginPath();
      context.moveTo(x0, y0 + middle);
      context.bezierCurveTo(x0 + bend, y0 + middle, x1 - bend, y1 + middle, x1, y1 + middle);
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = accent;
      context.beginPath();
      context.moveTo(x1, y1 + middle);
      context.lineTo(x1 - 7, y1 + middle - 4);
      context.lineTo(x1 - 7, y1 + middle + 4);
      context.fill();
    }
  }

  private flags(context: CanvasRenderingContext2D, view: View, width: number, height: number): void {
    context.font = FONT;
    context.textBaseline = "middle";
    let taken = -Infinity; // labels that would cover each other are left out
    for (const note of this.notes) {
      if (note.end < view.begin || note.begin > view.end) continue;
      const x = Math.round(view.x(note.begin, width));
      const wide = Math.round(view.x(note.end, width)) - x;
      context.fillStyle = `${markColour("note")}26`;
      if (note.end > note.begin) context.fillRect(x, 0, Math.max(1, wide), height);
      context.fillStyle = markColour("note");
      context.fillRect(x - 1, 0, 2, height);
      if (note.end > note.begin) {
        context.fillRect(x + wide - 1, 0, 2, height);
        context.fillRect(x, 0, wide, 3);
      }
      const label = clean(note.text, 60) || (note.end > note.begin ? "note" : "mark");
      const left = Math.max(0, x);
      const size = Math.min(context.measureText(label).width + 8, 260);
      if (left < taken) continue;
      taken = left + size + 2;
      context.fillRect(left, 0, size, FLAG_PX);
      context.fillStyle = "#10141a";
      context.fillText(label, left + 4, FLAG_PX / 2, 252);
    }
  }
}

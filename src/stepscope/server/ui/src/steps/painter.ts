/**
 * Draws rows of steps. Busy time is solid and grows from below, idle time is hatched and hangs from
 * above: kinds of work and causes of idle time share hues, so the texture tells them apart. Rows
 * too thin for that show whichever takes more of the cell.
 */

import { NOTHING, type Figures, type Grid } from "../data/steps";
import { AXIS_PX, drawAxis, fit, FONT, scaled } from "../shared/canvas";
import { markColour, type Colours } from "../shared/colours";
import type { Theme } from "../shared/theme";
import type { View } from "../shared/window";

export const LEFT_PX = 74;
export const RIGHT_PX = 130;
const STACKED_PX = 5;
const PHASES_FROM_PX = 10;
const FRAMED_PX = 6;
const FAINT = 70;

/** What is drawn over the picture. */
export interface Overlay {
  figures: Figures;
  order: Uint32Array;
  outlier: Set<number>;
  /** Steps in a row, and pixels of a row. */
  group: number;
  rowPx: number;
  scroll: number;
  selected: number;
  hovered: number;
  longest: number;
}

export function picture(grid: Grid, rowPx: number, colours: Colours): HTMLCanvasElement {
  const made = document.createElement("canvas");
  made.width = grid.columns;
  made.height = Math.max(1, grid.rows * rowPx);
  const context = made.getContext("2d")!;
  const image = context.createImageData(made.width, made.height);
  const pixels = new Uint32Array(image.data.buffer);
  const seam = rowPx >= 4 ? 1 : 0;
  const thick = Math.max(2, Math.round(rowPx / 8));
  const strip = grid.phase && rowPx >= PHASES_FROM_PX ? thick + 1 : 0;
  const full = rowPx - seam - strip;
  const unknown = colours.classes.findIndex(({ key }) => key === "phase_none");
  const width = grid.columns;
  for (let row = 0; row < grid.rows; row++) {
    const top = row * rowPx;
    for (let x = 0; x < width; x++) {
      const cell = row * width + x;
      const [busy, idle] = [grid.busy[cell], grid.idle[cell]];
      if (strip && grid.phase![cell] !== NOTHING && grid.phase![cell] !== unknown) {
        const colour = colours.pixel[grid.phase![cell]];
        for (let y = rowPx - seam - thick; y < rowPx - seam; y++) pixels[(top + y) * width + x] = colour;
      }
      if (!busy && !idle) continue;
      let low = busy ? Math.max(1, Math.round((full * busy) / 255)) : 0;
      let high = idle ? Math.max(1, Math.round((full * idle) / 255)) : 0;
      if (full < STACKED_PX) [low, high] = busy >= idle ? [full, 0] : [0, full];
      if (low + high > full) {
        if (busy >= idle) low = full - high;
        else high = full - low;
      }
      const thin = full < STACKED_PX && busy + idle < 128 ? FAINT + busy + idle : 255;
      if (low) {
        const colour = faded(colours.pixel[grid.busy_code[cell]], thin);
        for (let y = full - low; y < full; y++) pixels[(top + y) * width + x] = colour;
      }
      if (high) {
        const colour = colours.pixel[grid.idle_code[cell]];
        for (let y = 0; y < high; y++)
          pixels[(top + y) * width + x] = faded(colour, (x + top + y) & 2 ? Math.min(thin, FAINT) : thin);
      }
    }
  }
  context.putImageData(image, 0, 0);
  return made;
}

function faded(colour: number, alpha: number): number {
  return ((colour & 0x00ffffff) | (alpha << 24)) >>> 0;
}

export class StepPainter {
  theme: Theme;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    theme: Theme,
  ) {
    this.theme = theme;
  }

  resize(width: number, height: number): void {
    fit(this.canvas, width, height);
  }

  paint(view: View, shown: { grid: Grid; image: HTMLCanvasElement; first: number; rowPx: number } | null, over: Overlay): void {
    const { context, width, height } = scaled(this.canvas);
    context.fillStyle = this.theme.back;
    context.fillRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    const chart = Math.max(1, width - LEFT_PX - RIGHT_PX);
    context.save();
    context.beginPath();
    context.rect(LEFT_PX, AXIS_PX, chart, height - AXIS_PX);
    context.clip();
    if (shown) {
      const { grid, image } = shown;
      const scale = over.rowPx / over.group / (shown.rowPx / grid.group);
      const y = AXIS_PX + (shown.first / over.group) * over.rowPx - over.scroll;
      const x = LEFT_PX + view.x(grid.begin, chart);
      const wide = ((grid.bucket * grid.columns) / view.span) * chart;
      context.imageSmoothingEnabled = false;
      context.drawImage(image, x, y, wide, image.height * scale);
    }
    this.zero(context, view, chart, height);
    context.restore();
    this.rows(context, view, chart, height, over);
    this.axis(context, view, chart, width);
  }

  private zero(context: CanvasRenderingContext2D, view: View, chart: number, height: number): void {
    const x = LEFT_PX + view.x(0, chart);
    if (x < LEFT_PX + 1) return;
    context.strokeStyle = this.theme.strong;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, AXIS_PX);
    context.lineTo(Math.round(x) + 0.5, height);
    context.stroke();
    context.setLineDash([]);
  }

  private rows(context: CanvasRenderingContext2D, view: View, chart: number, height: number, over: Overlay): void {
    const { figures, order, group, rowPx } = over;
    const count = Math.ceil(order.length / group);
    const from = Math.max(0, Math.floor(over.scroll / rowPx));
    const to = Math.min(count, Math.ceil((over.scroll + height - AXIS_PX) / rowPx));
    const right = LEFT_PX + chart;
    let labelled = -Infinity;
    context.save();
    context.beginPath();
    context.rect(0, AXIS_PX, right + RIGHT_PX, height - AXIS_PX);
    context.clip();
    for (let row = from; row < to; row++) {
      const y = AXIS_PX + row * rowPx - over.scroll;
      const steps = order.subarray(row * group, (row + 1) * group);
      const has = (test: (step: number) => boolean): boolean => steps.some(test);
      const longest = steps.reduce((most, s) => Math.max(most, figures.end[s] - figures.begin[s]), 0);
      const aside = steps.every((s) => s < figures.first || s > figures.last);
      const outlier = has((s) => over.outlier.has(s));
      const median = has((s) => s === figures.median);
      if (aside) {
        context.globalAlpha = 0.55;
        context.fillStyle = this.theme.back;
        context.fillRect(LEFT_PX, y, chart, rowPx);
        context.globalAlpha = 1;
      }
      const end = LEFT_PX + view.x(figures.end[steps[0]] - figures.zero[steps[0]], chart);
      if (rowPx >= 3 && end >= LEFT_PX && end <= right) {
        context.fillStyle = this.theme.text;
        context.fillRect(Math.round(end), y, 1, rowPx);
      } else if (end > right && rowPx >= 8) {
        context.fillStyle = this.theme.text;
        context.fillText("▸", right - 9, y + rowPx / 2);
      }
      // the strip of step times
      context.fillStyle = outlier ? markColour("mark") : aside ? this.theme.line : this.theme.faint;
      const bar = (RIGHT_PX - 12) * (longest / over.longest);
      context.fillRect(right + 8, y, Math.max(1, bar), Math.max(1, rowPx > 3 ? rowPx - 1 : rowPx));
      if (median) {
        context.fillStyle = markColour("median");
        context.fillRect(LEFT_PX - 4, y, 4, Math.max(2, rowPx - 1));
        context.fillRect(right + 2, y, 4, Math.max(2, rowPx - 1));
      }
      if (outlier) {
        context.fillStyle = markColour("mark");
        context.fillRect(LEFT_PX - 4, y, 4, Math.max(1, rowPx - 1));
      }
      const chosen = steps.includes(over.selected);
      const pointed = steps.includes(over.hovered);
      if (chosen || pointed) {
        const colour = chosen ? this.theme.strong : this.theme.faint;
        context.strokeStyle = context.fillStyle = colour;
        context.lineWidth = chosen ? 2 : 1;
        if (rowPx >= FRAMED_PX) context.strokeRect(LEFT_PX + 0.5, y - 0.5, chart - 1, rowPx);
        else
          for (const x of [LEFT_PX - 7, right]) context.fillRect(x, y - 1, 7, rowPx + 2); // a frame would hide it
        context.lineWidth = 1;
      }
      const important = median || outlier || chosen;
      const middle = y + Math.max(rowPx, 2) / 2;
      if (middle < AXIS_PX + 6) continue; // its label would be cut
      if (y - labelled >= 12 || (important && y - labelled >= 10)) {
        context.fillStyle = important ? this.theme.strong : this.theme.faint;
        context.textAlign = "right";
        const sign = median ? "◆ " : outlier ? "▲ " : "";
        // of several steps in a row the first is named; what is pointed at is named in full
        context.fillText(`${sign}${steps[0]}${steps.length > 1 ? "…" : ""}`, LEFT_PX - 8, middle);
        context.textAlign = "left";
        labelled = y;
      }
    }
    const typical = figures.end[figures.median] - figures.begin[figures.median];
    const at = right + 8 + (RIGHT_PX - 12) * (typical / over.longest);
    context.fillStyle = markColour("median");
    context.fillRect(Math.round(at), AXIS_PX, 1, height);
    context.restore();
  }

  private axis(context: CanvasRenderingContext2D, view: View, chart: number, width: number): void {
    drawAxis(context, this.theme, view, LEFT_PX, chart, width);
    context.fillStyle = this.theme.faint;
    context.fillText("step", 8, AXIS_PX / 2);
    context.fillText("step time", LEFT_PX + chart + 8, AXIS_PX / 2);
  }
}

/** Step times of the counted steps in bins; returns what the bins are, for clicks. */
export function histogram(canvas: HTMLCanvasElement, figures: Figures, theme: Theme, outlier: Set<number>, selected: number): { low: number; width: number; bins: number[][] } {
  const [width, height] = [330, 90];
  fit(canvas, width, height);
  const lengths: [number, number][] = [];
  for (let s = figures.first; s <= figures.last; s++) lengths.push([s, figures.end[s] - figures.begin[s]]);
  const low = lengths.reduce((least, [, ns]) => Math.min(least, ns), Infinity);
  const high = lengths.reduce((most, [, ns]) => Math.max(most, ns), 0);
  const count = Math.max(1, Math.min(30, Math.ceil(2 * Math.sqrt(lengths.length))));
  const bin = Math.max(1, (high - low) / count);
  const bins: number[][] = Array.from({ length: count }, () => []);
  for (const [step, ns] of lengths) bins[Math.min(count - 1, Math.floor((ns - low) / bin))].push(step);
  const most = bins.reduce((m, b) => Math.max(m, b.length), 1);
  const { context } = scaled(canvas);
  context.clearRect(0, 0, width, height);
  bins.forEach((steps, i) => {
    if (!steps.length) return;
    const tall = Math.max(2, (steps.length / most) * (height - 4));
    const share = steps.filter((s) => outlier.has(s)).length / steps.length;
    const x = (i * width) / count;
    context.fillStyle = theme.faint;
    context.fillRect(x, height - tall, width / count - 1, tall);
    context.fillStyle = markColour("mark");
    context.fillRect(x, height - tall * share, width / count - 1, tall * share);
    if (steps.includes(figures.median)) {
      context.fillStyle = markColour("median");
      context.fillRect(x, height - 4, width / count - 1, 4);
    }
    if (steps.includes(selected)) {
      context.strokeStyle = theme.strong;
      context.strokeRect(x + 0.5, height - tall + 0.5, width / count - 2, tall - 1);
    }
  });
  return { low, width: bin, bins };
}

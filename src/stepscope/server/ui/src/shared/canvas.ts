/** Canvases: their size on screens of any density, and the time axis above the rows of steps. */

import { tick } from "./format";
import type { Theme } from "./theme";
import type { View } from "./window";

export const FONT = "11px system-ui, sans-serif";
/** Height of the axis of the step view and of the comparison. */
export const AXIS_PX = 24;
/** Least distance of ticks that leaves room for what stands beside them. */
const TICK_PX = 110;

/** Gives a canvas its size in CSS pixels; does nothing, and clears nothing, where it has that size. */
export function fit(canvas: HTMLCanvasElement, width: number, height: number): void {
  const ratio = window.devicePixelRatio || 1;
  const size = `${width} ${height} ${ratio}`;
  if (canvas.dataset.size === size) return;
  canvas.dataset.size = size;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

/** What draws on a canvas, in CSS pixels, and how many of them there are. */
export function scaled(
  canvas: HTMLCanvasElement,
  settings?: CanvasRenderingContext2DSettings,
): { context: CanvasRenderingContext2D; width: number; height: number } {
  const ratio = window.devicePixelRatio || 1;
  const context = canvas.getContext("2d", settings)!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width: canvas.width / ratio, height: canvas.height / ratio };
}

/** Times of the ticks of an axis so many pixels wide, and their distance, ns. */
export function ticks(view: View, width: number): { times: number[]; step: number } {
  const rough = view.span / Math.max(1, width / TICK_PX);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? power * 10;
  const times: number[] = [];
  for (let at = Math.ceil(view.begin / step) * step; at <= view.end; at += step) times.push(at);
  return { times, step };
}

/** The axis of a chart that begins at `left` and is `chart` pixels wide; what is beside it stays empty. */
export function drawAxis(context: CanvasRenderingContext2D, theme: Theme, view: View, left: number, chart: number, width: number): void {
  context.fillStyle = theme.band;
  context.fillRect(0, 0, width, AXIS_PX);
  context.fillStyle = theme.text;
  const { times, step } = ticks(view, Math.max(2 * TICK_PX, chart));
  for (const at of times) {
    const x = left + view.x(at, chart);
    context.fillRect(Math.round(x), AXIS_PX - 5, 1, 5);
    const text = tick(at, step);
    if (x + 3 + context.measureText(text).width <= left + chart) context.fillText(text, x + 3, AXIS_PX / 2);
  }
  // labels must not reach into what stands beside the chart
  context.fillStyle = theme.band;
  context.fillRect(0, 0, left, AXIS_PX);
  context.fillRect(left + chart, 0, width - left - chart, AXIS_PX);
}

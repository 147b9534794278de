/** Draws one step of each run on one time scale, row above row. */

import type { Compared } from "../data/contracts";
import { NO_ROW, SIDES, type Boxes, type PairStep, type Side } from "../data/comparison";
import { cells } from "../data/steps";
import { AXIS_PX, drawAxis, fit, FONT, scaled } from "../shared/canvas";
import { markColour, type Colours } from "../shared/colours";
import { clean } from "../shared/format";
import type { Theme } from "../shared/theme";
import type { View } from "../shared/window";
import { picture } from "../steps/painter";

export const LEFT_PX = 150;
const MOST_STREAMS = 6;
const GAP_PX = 10;
export const TIMES_PX = 96;

export type Kind = "kernel" | "range" | "operator" | "cause";
export interface Chosen {
  kind: Kind;
  row: number;
}

export interface Line {
  side: Side;
  what: "pieces" | "spans" | "operations";
  stream: number;
  title: string;
  y: number;
  height: number;
}

/**
 * Rows from top to bottom: of each kind before and after, so that like stands under like.
 *
 * @param grown how much higher than at least, where there is room
 */
export function lines(steps: Record<Side, PairStep | null>, grown = 1): Line[] {
  const found: Line[] = [];
  let y = AXIS_PX + 4;
  const add = (side: Side, what: Line["what"], stream: number, title: string, least: number): void => {
    const height = Math.round(what === "spans" ? least : least * grown);
    found.push({ side, what, stream, title, y, height });
    y += height + 2;
  };
  for (const side of SIDES) add(side, "pieces", -1, `${side}: GPU`, 34);
  y += GAP_PX;
  if (SIDES.some((side) => steps[side]?.spans.start.length)) {
    for (const side of SIDES) add(side, "spans", -1, `${side}: ranges`, 20);
    y += GAP_PX;
  }
  for (const side of SIDES) {
    const streams = steps[side]?.streams ?? [];
    streams.slice(0, MOST_STREAMS).forEach((id, i) => {
      const last = i === MOST_STREAMS - 1 && streams.length > MOST_STREAMS;
      const rest = last ? ` and ${streams.length - MOST_STREAMS} more` : "";
      add(side, "operations", i, `${side}: stream ${id}${rest}`, 26);
    });
    y += GAP_PX / 2;
  }
  return found;
}

export function streamOf(step: PairStep, i: number): number {
  return Math.min(step.operations.stream[i], MOST_STREAMS - 1);
}

/** Whether a box belongs to what is chosen. */
export function belongs(step: PairStep, what: Line["what"], i: number, chosen: Chosen, cause: number): boolean {
  if (what === "pieces") return chosen.kind === "cause" && step.pieces.code[i] === cause;
  if (what === "spans") return chosen.kind === "range" && step.spans.row[i] === chosen.row;
  if (chosen.kind === "range") return step.range_sets[step.operations.range[i]].includes(chosen.row);
  const rows = { kernel: step.operations.kernel, operator: step.operations.operator };
  return chosen.kind !== "cause" && rows[chosen.kind][i] === chosen.row;
}

export class PairPainter {
  constructor(
    private readonly canvas: HTMLCanvasElement,
    public theme: Theme,
    private readonly colours: Colours,
  ) {}

  resize(width: number, height: number): void {
    fit(this.canvas, width, height);
  }

  paint(
    view: View,
    rows: Line[],
    steps: Record<Side, PairStep | null>,
    zero: (step: PairStep) => number,
    compared: Compared,
    chosen: Chosen | null,
    cause: number,
  ): void {
    const { context, width, height } = scaled(this.canvas);
    context.fillStyle = this.theme.back;
    context.fillRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    const chart = Math.max(1, width - LEFT_PX);
    for (const line of rows) {
      context.fillStyle = this.theme.faint;
      context.fillText(line.title, 8, line.y + line.height / 2, LEFT_PX - 14);
      const step = steps[line.side];
      if (!step) continue;
      context.save();
      context.beginPath();
      context.rect(LEFT_PX, line.y - 1, chart, line.height + 2);
      context.clip();
      this.line(context, view, chart, line, step, zero(step), compared, chosen, cause);
      context.restore();
    }
    this.ends(context, view, chart, rows, steps, zero);
    drawAxis(context, this.theme, view, LEFT_PX, chart, width);
  }

  private line(
    context: CanvasRenderingContext2D,
    view: View,
    chart: number,
    line: Line,
    step: PairStep,
    zero: number,
    compared: Compared,
    chosen: Chosen | null,
    cause: number,
  ): void {
    if (line.what === "pieces") {
      this.pieces(context, view, chart, line, step, zero, chosen, cause);
      return;
    }
    const boxes: Boxes = step[line.what];
    const dims = chosen !== null && chosen.kind !== "cause" && (chosen.kind === "range" || line.what === "operations");
    let drawn = -1; // what falls into a pixel that is painted already is left out
    for (const lit of dims ? [false, true] : [true]) {
      drawn = -1;
      for (let i = 0; i < boxes.start.length; i++) {
        if (line.what === "operations" && streamOf(step, i) !== line.stream) continue;
        if (dims && belongs(step, line.what, i, chosen!, cause) !== lit) continue;
        const left = LEFT_PX + view.x(boxes.start[i] - zero, chart);
        const right = LEFT_PX + view.x(boxes.end[i] - zero, chart);
        if (right < LEFT_PX || left > LEFT_PX + chart) continue;
        const long = Math.max(right - left, lit && dims ? 1.5 : 0.7);
        if (right < drawn && long < 1) continue;
        drawn = Math.floor(left) + 1;
        context.globalAlpha = lit ? 1 : 0.16;
        this.box(context, line, step, i, left, long, compared);
        if (lit && dims && long > 3) {
          context.strokeStyle = this.theme.strong;
          context.strokeRect(left + 0.5, line.y + 0.5, long - 1, line.height - 1);
        }
      }
    }
    context.globalAlpha = 1;
  }

  /** What the device does, as in the step view: each pixel tells how much of it is what. */
  private pieces(
    context: CanvasRenderingContext2D,
    view: View,
    chart: number,
    line: Line,
    step: PairStep,
    zero: number,
    chosen: Chosen | null,
    cause: number,
  ): void {
    const { start, end, code } = step.pieces;
    const columns = Math.round(chart);
    const bucket = Math.max(1, Math.ceil(view.span / columns));
    const begin = Math.floor(view.begin);
    const idle = this.colours.classes.map(({ key }) => key.startsWith("idle_"));
    const draw = (kept: number[] | null, alpha: number): void => {
      const of = <T extends Float64Array | Uint8Array>(values: T): T => (kept ? (values.filter((_, i) => kept.includes(code[i])) as T) : values);
      const [from, to] = [of(start), of(end)];
      const length = to.map((at, i) => at - from[i]);
      const one = { start: from, length, step: new Uint32Array(from.length), first: Uint32Array.of(0, from.length) };
      const asked = { device: 0, align: "", sort: "index", colour: "kind", first: 0, count: 1, group: 1, begin, bucket, columns, phases: false } as const;
      const grid = cells(one, of(code), idle, Float64Array.of(zero), Uint32Array.of(0), asked);
      context.globalAlpha = alpha;
      context.imageSmoothingEnabled = false;
      const wide = ((bucket * columns) / view.span) * chart;
      context.drawImage(picture(grid, line.height, this.colours), LEFT_PX + view.x(begin, chart), line.y, wide, line.height);
      context.globalAlpha = 1;
    };
    if (chosen?.kind === "cause") {
      draw(null, 0.16);
      draw([cause], 1);
    } else draw(null, 1);
  }

  private box(
    context: CanvasRenderingContext2D,
    line: Line,
    step: PairStep,
    i: number,
    left: number,
    long: number,
    compared: Compared,
  ): void {
    const code =
      line.what === "spans"
        ? this.colours.classes.findIndex((c) => c.key === `name_${step.spans.row[i] % 8}`)
        : step[line.what].code[i];
    context.fillStyle = this.colours.css[code];
    context.fillRect(left, line.y, Math.max(0.5, long - (long > 4 ? 1 : 0)), line.height);
    const name = line.what === "spans" ? compared.comparison.ranges[step.spans.row[i]]?.name : step.names[step.operations.name[i]];
    if (name && long > 34) {
      context.save();
      context.beginPath();
      context.rect(left, line.y, long - 3, line.height);
      context.clip();
      context.fillStyle = this.colours.text[code];
      context.fillText(clean(name, Math.ceil(long / 4)), Math.max(left, LEFT_PX) + 4, line.y + line.height / 2);
      context.restore();
    }
  }

  private ends(context: CanvasRenderingContext2D, view: View, chart: number, rows: Line[], steps: Record<Side, PairStep | null>, zero: (step: PairStep) => number): void {
    for (const line of rows) {
      const step = steps[line.side];
      if (!step) continue;
      for (const at of [0, step.length]) {
        const x = view.x(at - zero(step), chart);
        if (x < 0 || x > chart) continue;
        context.fillStyle = this.theme.strong;
        context.fillRect(Math.round(LEFT_PX + x), line.y - 1, 1, line.height + 2);
      }
    }
  }
}

export function rowOf(step: PairStep, what: Line["what"], i: number): Chosen | null {
  if (what === "pieces") return null;
  if (what === "spans") return { kind: "range", row: step.spans.row[i] };
  const { kernel, operator } = step.operations;
  if (kernel[i] !== NO_ROW) return { kind: "kernel", row: kernel[i] };
  return operator[i] !== NO_ROW ? { kind: "operator", row: operator[i] } : null;
}

/** Step times of both runs, the earlier above; a click chooses a step. */
export function times(
  canvas: HTMLCanvasElement,
  width: number,
  devices: Record<Side, { lengths: number[]; first: number; last: number; median: number }>,
  chosen: Record<Side, number>,
  theme: Theme,
): void {
  fit(canvas, width, TIMES_PX);
  const { context } = scaled(canvas);
  context.clearRect(0, 0, width, TIMES_PX);
  context.font = FONT;
  const counted = SIDES.flatMap((side) => devices[side].lengths.slice(devices[side].first, devices[side].last + 1));
  const most = counted.reduce((a, b) => Math.max(a, b), 1);
  SIDES.forEach((side, i) => {
    const { lengths, first, last, median } = devices[side];
    const base = ((i + 1) * TIMES_PX) / 2 - 2;
    const room = TIMES_PX / 2 - 8;
    const each = (width - LEFT_PX) / lengths.length;
    context.fillStyle = theme.faint;
    context.fillText(`${side}: step times`, 8, base - room / 2, LEFT_PX - 14);
    lengths.forEach((ns, step) => {
      const tall = Math.max(1, room * Math.min(1, ns / most));
      context.fillStyle =
        step === chosen[side] ? theme.strong : step === median ? markColour("median") : step < first || step > last ? theme.line : theme.faint;
      context.fillRect(LEFT_PX + step * each, base - tall, Math.max(0.5, each - (each > 3 ? 1 : 0)), tall);
    });
  });
}

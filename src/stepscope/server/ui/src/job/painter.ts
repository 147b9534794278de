/** Draws the heat map: a row a rank or node, a column a step, the median of each row beside it. */

import type { RankRow } from "../data/contracts";
import { AXIS_PX, fit, FONT, scaled } from "../shared/canvas";
import { markColour } from "../shared/colours";
import { clean, time } from "../shared/format";
import type { Theme } from "../shared/theme";
import type { Group, Line } from "./rows";
import type { Scale } from "./scale";

export const LEFT_PX = 150;
export const RIGHT_PX = 128;
const LABEL_PX = 12;
const SEAM_FROM_PX = 8;
const MOST_COLUMN_PX = 90;

export interface Heat {
  ranks: RankRow[];
  groups: Group[];
  steps: number[];
  cells: number[][];
  medians: Float64Array;
  /** Whether ranks of a node stand together. */
  together: boolean;
}

export interface Cell {
  line: number;
  column: number;
}

/** Pixels a step. */
export function columnPx(width: number, steps: number): number {
  return Math.min(MOST_COLUMN_PX, Math.max(1, width - LEFT_PX - RIGHT_PX) / Math.max(1, steps));
}

export class HeatPainter {
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

  paint(heat: Heat, lines: Line[], scale: Scale, scroll: number, chosen: Cell | null, hovered: Cell | null): void {
    const { context, width, height } = scaled(this.canvas);
    context.fillStyle = this.theme.back;
    context.fillRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    const wide = columnPx(width, heat.steps.length);
    const first = lines.findIndex((line) => line.top + line.px > scroll);
    let last = first;
    while (last >= 0 && last < lines.length && lines[last].top < scroll + height) last++;
    context.save();
    context.beginPath();
    context.rect(0, AXIS_PX, width, height - AXIS_PX);
    context.clip();
    this.cells(context, heat, lines.slice(Math.max(first, 0), Math.max(last, 0)), scale, scroll, wide);
    this.margins(context, heat, lines, [Math.max(first, 0), Math.max(last, 0)], scroll, wide, chosen);
    for (const [cell, colour, thick] of [
      [hovered, this.theme.faint, 1],
      [chosen, this.theme.strong, 2],
    ] as const) {
      const line = cell && lines[cell.line];
      if (!line) continue;
      context.strokeStyle = colour;
      context.lineWidth = thick;
      const px = Math.max(line.px, 4); // a thinner frame would hide what it frames
      if (cell.column >= 0) context.strokeRect(LEFT_PX + cell.column * wide - 0.5, AXIS_PX + line.top - scroll - 0.5, wide, px);
      else context.strokeRect(LEFT_PX - 0.5, AXIS_PX + line.top - scroll - 0.5, wide * heat.steps.length, px);
      context.lineWidth = 1;
    }
    context.restore();
    this.axis(context, heat, wide, width, chosen);
  }

  private cells(context: CanvasRenderingContext2D, heat: Heat, lines: Line[], scale: Scale, scroll: number, wide: number): void {
    const seamX = wide >= SEAM_FROM_PX ? 1 : 0;
    for (const line of lines) {
      const y = AXIS_PX + line.top - scroll;
      const seamY = line.px >= SEAM_FROM_PX ? 1 : 0;
      for (let column = 0; column < heat.steps.length; column++) {
        context.fillStyle = scale.colour(heat.cells[line.row][column]);
        context.fillRect(LEFT_PX + column * wide, y, wide - seamX, line.px - seamY);
      }
    }
  }

  /** Names of the rows to the left, their medians to the right. */
  private margins(
    context: CanvasRenderingContext2D,
    heat: Heat,
    lines: Line[],
    [from, to]: [number, number],
    scroll: number,
    wide: number,
    chosen: Cell | null,
  ): void {
    const right = LEFT_PX + wide * heat.steps.length;
    const largest = Array.from(heat.medians).reduce((most, v) => Math.max(most, Math.abs(v)), 1);
    let [labelled, named, node] = [-Infinity, -Infinity, -1];
    const isImportant = (at: number): boolean => at === chosen?.line || lines[at].rows.some((row) => heat.ranks[row].late);
    const kept: number[] = []; // no other label comes near these
    for (let at = from; at < to; at++) if (isImportant(at)) kept.push(AXIS_PX + lines[at].top - scroll + lines[at].px / 2);
    for (let at = from; at < to; at++) {
      const line = lines[at];
      const y = AXIS_PX + line.top - scroll;
      const late = line.rows.some((row) => heat.ranks[row].late);
      const important = isImportant(at);
      const middle = y + line.px / 2;
      const median = heat.medians[line.row];
      context.fillStyle = late ? markColour("mark") : this.theme.faint;
      const bar = (50 * Math.abs(median)) / largest;
      context.fillRect(right + 8, y, Math.max(1, bar), Math.max(1, line.px > 3 ? line.px - 1 : line.px));
      if (late) context.fillRect(LEFT_PX - 5, y, 4, Math.max(2, line.px - 1));
      const free = important || !kept.some((other) => Math.abs(other - middle) < LABEL_PX);
      const room = free && middle - labelled >= LABEL_PX - (important ? 2 : 0);
      const whole = middle - 5 >= AXIS_PX;
      if (room && whole) {
        labelled = middle;
        context.fillStyle = important ? this.theme.strong : this.theme.faint;
        context.textAlign = "right";
        const text = line.node ? `${line.open ? "▾" : "▸"} ${nodeName(heat, line)}` : `${late ? "▲ " : ""}${heat.ranks[line.rows[0]].rank}`;
        context.fillText(text, LEFT_PX - 9, middle, LEFT_PX - 14);
        context.textAlign = "left";
        context.fillText(minus(time(median)), right + 62, middle);
      }
      // in rows of ranks the node is named where it begins, or else beside each
      if (!line.node && (line.group !== node || !heat.together) && heat.groups.length > 1) {
        const begins = at > 0 && lines[at - 1].group !== line.group && heat.together;
        if (begins) {
          context.fillStyle = this.theme.line;
          context.fillRect(0, Math.round(y) - 1, right, 1);
        }
        if (!lines.some((l) => l.node) && (heat.together ? middle - named >= LABEL_PX : labelled === middle) && whole) {
          named = middle;
          context.fillStyle = this.theme.faint;
          context.fillText(clean(heat.groups[line.group].name, 40), 6, middle, LEFT_PX - 60);
        }
      }
      node = line.group;
    }
  }

  private axis(context: CanvasRenderingContext2D, heat: Heat, wide: number, width: number, chosen: Cell | null): void {
    context.fillStyle = this.theme.band;
    context.fillRect(0, 0, width, AXIS_PX);
    context.fillStyle = this.theme.faint;
    context.fillText(heat.groups.length > 1 ? "node" : "", 6, AXIS_PX / 2);
    context.textAlign = "right";
    context.fillText("rank \\ step", LEFT_PX - 9, AXIS_PX / 2);
    context.textAlign = "center";
    let free = LEFT_PX;
    heat.steps.forEach((step, column) => {
      const text = String(step);
      const x = LEFT_PX + (column + 0.5) * wide;
      const half = context.measureText(text).width / 2 + 3;
      const own = chosen?.column === column;
      if (x - half < free && !own) return;
      free = x + half;
      context.fillStyle = own ? this.theme.strong : this.theme.text;
      context.fillText(text, x, AXIS_PX / 2);
    });
    context.textAlign = "left";
    context.fillStyle = this.theme.faint;
    context.fillText("median step", LEFT_PX + wide * heat.steps.length + 8, AXIS_PX / 2);
  }
}

const minus = (text: string): string => text.replace(/^-/, "−");

function nodeName(heat: Heat, line: Line): string {
  const { rank } = heat.ranks[line.rows[0]];
  const last = heat.ranks[line.rows[line.rows.length - 1]].rank;
  const name = clean(heat.groups[line.group].name, 40);
  return name.startsWith("ranks ") ? name : `${name} · ${rank}–${last}`;
}

/** The colours with their meaning, as a picture of so many pixels. */
export function drawLegend(canvas: HTMLCanvasElement, scale: Scale): void {
  const [width, height] = [160, 10];
  fit(canvas, width, height);
  const { context } = scaled(canvas);
  for (let x = 0; x < width; x++) {
    const share = scale.signed ? (2 * x) / (width - 1) - 1 : x / (width - 1);
    context.fillStyle = scale.at(share);
    context.fillRect(x, 0, 1, height);
  }
}

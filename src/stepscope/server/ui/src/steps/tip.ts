/** What the pointer is over in the step view, in words. */

import { NOTHING, type Figures, type Grid } from "../data/steps";
import type { Colours } from "../shared/colours";
import { percent, time } from "../shared/format";
import { partsOf } from "./aside";

/** What a row of one or several steps is: which, how long, what stands out, what they consist of. */
export function rowTip(f: Figures, steps: Uint32Array, outlier: Set<number>, here: string | null): string {
  const lengths = Array.from(steps, (s) => f.end[s] - f.begin[s]);
  const which =
    steps.length > 1
      ? `steps ${steps[0]}–${steps[steps.length - 1]}, ${time(Math.min(...lengths))} to ${time(Math.max(...lengths))}`
      : `step ${steps[0]}, ${time(lengths[0])}`;
  const marks = [
    steps.includes(f.median) ? "median" : "",
    Array.from(steps).some((s) => outlier.has(s)) ? "outlier" : "",
    steps.length === 1 && (steps[0] < f.first || steps[0] > f.last) ? "set aside" : "",
  ].filter(Boolean);
  const parts = [marks.length ? `${which} (${marks.join(", ")})` : which];
  if (here !== null) parts.push(here);
  if (steps.length === 1) parts.push(...partsOf(f, steps[0]).map(([message, ns]) => `${message} ${time(ns)}`));
  return parts.join(" · ");
}

/** What a row holds at a time, as far as the loaded picture tells. */
export function cellTip(grid: Grid, row: number, at: number, colours: Colours): string {
  const column = Math.floor((at - grid.begin) / grid.bucket);
  if (row < 0 || row >= grid.rows || column < 0 || column >= grid.columns) return "";
  const i = row * grid.columns + column;
  const message = (share: number, code: number, before: string): string =>
    code === NOTHING ? "" : `${before}${colours.message[code]} ${percent(share / 255)}`;
  const phase = grid.phase && grid.phase[i] !== NOTHING ? colours.message[grid.phase[i]] : "";
  return [message(grid.busy[i], grid.busy_code[i], ""), phase, message(grid.idle[i], grid.idle_code[i], "idle by ")]
    .filter(Boolean)
    .join(", ");
}

/** What lies under the pointer in the comparison, and what is said of it. */

import type { Comparison } from "../data/contracts";
import { NO_ROW, type PairStep } from "../data/comparison";
import type { Colours } from "../shared/colours";
import { clean, time } from "../shared/format";
import { about } from "./aside";
import { streamOf, type Line } from "./painter";

export interface UnderPair {
  line: Line;
  step: PairStep;
  /** Number of the box in its line. */
  i: number;
}

/** The box of a line nearest to a time of the step, not farther off than `slop` ns. */
export function boxAt(line: Line, step: PairStep, at: number, slop: number): UnderPair | null {
  const boxes = step[line.what];
  let [best, distance] = [-1, slop];
  for (let i = 0; i < boxes.start.length; i++) {
    if (line.what === "operations" && streamOf(step, i) !== line.stream) continue;
    const off = Math.max(boxes.start[i] - at, at - boxes.end[i], 0);
    if (off < distance || (off === 0 && distance === 0)) [best, distance] = [i, off];
  }
  return best < 0 ? null : { line, step, i: best };
}

export function boxTip({ line, step, i }: UnderPair, c: Comparison, colours: Colours): string {
  const boxes = step[line.what];
  const message = [`${line.side}, step ${step.step}`];
  if (line.what === "pieces") {
    const code = step.pieces.code[i];
    const idle = colours.classes[code].key.startsWith("idle_");
    message.push(`${idle ? "idle by " : ""}${colours.message[code]}`);
  } else if (line.what === "spans") message.push(clean(c.ranges[step.spans.row[i]]?.name ?? "", 200));
  else {
    message.push(clean(step.names[step.operations.name[i]], 200), colours.message[step.operations.code[i]]);
    const row = step.operations.kernel[i];
    if (row !== NO_ROW) message.push(about(c.kernels[row]));
  }
  message.push(time(boxes.end[i] - boxes.start[i]));
  return message.join(" · ");
}

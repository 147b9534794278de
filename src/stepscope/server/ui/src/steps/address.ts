/** What the step view shows, as its link tells it. */

import { COLOURINGS, SORTS, type Colouring, type Sort } from "../data/steps";
import type { View } from "../shared/window";

export const MOST_ROW_PX = 40;

export interface StepState {
  device: number;
  /** `start`, `kernel`, or `range:` and its number. */
  align: string;
  sort: Sort;
  colour: Colouring;
  /** The chosen step; -1 for none. */
  selected: number;
  /** Pixels a step; 0 for as many as fit. */
  stepPx: number;
}

/** Two numbers with an underscore between, the later behind: a window of time. */
export function readWindow(text: string | null): [number, number] | null {
  const parts = (text ?? "").split("_").map(Number);
  return parts.length === 2 && parts.every(Number.isFinite) && parts[1] > parts[0] ? [parts[0], parts[1]] : null;
}

export function writeWindow(view: View): string {
  return `${Math.round(view.begin)}_${Math.round(view.end)}`;
}

export function readSteps(hash: string): { asks: boolean; state: StepState; window: [number, number] | null } {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  const integer = (name: string): number => {
    const value = Number(parameters.get(name) ?? NaN);
    return Number.isInteger(value) ? value : -1;
  };
  const align = parameters.get("salign") ?? "start";
  const px = Number(parameters.get("spx") ?? 0);
  return {
    asks: parameters.get("view") === "steps",
    state: {
      device: Math.max(0, integer("sdev")),
      align: /^(start|kernel|range:\d{1,4})$/.test(align) ? align : "start",
      sort: SORTS.find((s) => s === parameters.get("ssort")) ?? "index",
      colour: COLOURINGS.find((c) => c === parameters.get("scolour")) ?? "kind",
      selected: integer("step"),
      stepPx: px > 0 && px <= MOST_ROW_PX ? px : 0,
    },
    window: readWindow(parameters.get("st")),
  };
}

/** Words of the link; what is as at first is left out. */
export function writeSteps(state: StepState, view: View): Record<string, string> {
  return {
    ...(state.device ? { sdev: String(state.device) } : {}),
    ...(state.align !== "start" ? { salign: state.align } : {}),
    ...(state.sort !== "index" ? { ssort: state.sort } : {}),
    ...(state.colour !== "kind" ? { scolour: state.colour } : {}),
    ...(state.selected >= 0 ? { step: String(state.selected) } : {}),
    ...(state.stepPx ? { spx: String(state.stepPx) } : {}),
    st: writeWindow(view),
  };
}

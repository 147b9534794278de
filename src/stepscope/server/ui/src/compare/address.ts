/** What the comparison shows, as its link tells it. */

import { SIDES, type Side } from "../data/comparison";
import type { View } from "../shared/window";
import { readWindow, writeWindow } from "../steps/address";
import type { Chosen, Kind } from "./painter";

const KINDS: Kind[] = ["cause", "kernel", "range", "operator"];

export interface PairState {
  device: Record<Side, number>;
  /** The step of each run; -1 for the median. */
  number: Record<Side, number>;
  /** `start`, `kernel`, or `range:` and the row of a range that both steps hold. */
  align: string;
  chosen: Chosen | null;
}

export function readPair(hash: string): { state: PairState; window: [number, number] | null } {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  const device = { before: 0, after: 0 };
  const number = { before: -1, after: -1 };
  for (const side of SIDES) {
    const parts = /^(\d{1,9})-(\d{1,9})$/.exec(parameters.get(side) ?? "");
    if (parts) [device[side], number[side]] = [Number(parts[1]), Number(parts[2])];
  }
  const align = parameters.get("align") ?? "start";
  const chosen = /^([a-z]+)-(\d{1,9})$/.exec(parameters.get("sel") ?? "");
  const kind = KINDS.find((k) => k === chosen?.[1]);
  return {
    state: {
      device,
      number,
      align: /^(start|kernel|range:\d{1,9})$/.test(align) ? align : "start",
      chosen: kind && chosen ? { kind, row: Number(chosen[2]) } : null,
    },
    window: readWindow(parameters.get("t")),
  };
}

export function writePair(state: PairState, view: View): string {
  const parameters = new URLSearchParams();
  for (const side of SIDES) parameters.set(side, `${state.device[side]}-${state.number[side]}`);
  if (state.align !== "start") parameters.set("align", state.align);
  if (state.chosen) parameters.set("sel", `${state.chosen.kind}-${state.chosen.row}`);
  parameters.set("t", writeWindow(view));
  return `#${parameters}`;
}

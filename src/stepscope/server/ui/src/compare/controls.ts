/** The row of choices above two runs: device and step of each, and what they are aligned at. */

import type { Compared } from "../data/contracts";
import { SIDES, type PairStep, type Side } from "../data/comparison";
import { element, fill } from "../shared/dom";
import { clean, time } from "../shared/format";
import { code, typed, type Key } from "../shared/keys";
import { labelled } from "../steps/controls";
import type { PairState } from "./address";

const MOST_ALIGNMENTS = 40;

export interface PairChoices {
  device(side: Side, device: number): void;
  step(side: Side, step: number): void;
  medians(): void;
  align(align: string): void;
}

/** What both steps can be aligned at: keys and words. */
export function alignments(compared: Compared, { before, after }: Record<Side, PairStep | null>): [string, string][] {
  const found: [string, string][] = [["start", "step start"], ["kernel", "first kernel"]];
  if (!before || !after) return found;
  const theirs = new Set(after.spans.row);
  for (const row of new Set(before.spans.row))
    if (theirs.has(row)) found.push([`range:${row}`, `range ${compared.comparison.ranges[row].name}`]);
  return found.slice(0, MOST_ALIGNMENTS);
}

/** @param timelines whether each run has a timeline to lead to */
export function showPairChoices(
  parent: HTMLElement,
  compared: Compared,
  steps: Record<Side, PairStep | null>,
  now: PairState,
  timelines: boolean,
  choose: PairChoices,
): void {
  const all: HTMLElement[] = [];
  for (const side of SIDES) {
    const tools: HTMLElement[] = [];
    const devices = compared.devices[side];
    const device = devices[now.device[side]];
    const number = now.number[side];
    if (devices.length > 1) {
      const pick = element(
        "select",
        { "aria-label": `Device ${side}`, change: (event) => choose.device(side, Number((event.target as HTMLSelectElement).value)) },
        ...devices.map((d, i) => element("option", { value: String(i), selected: i === now.device[side] }, clean(d.title, 60))),
      );
      tools.push(element("label", {}, `${side} `, pick));
    }
    const box = element("input", {
      type: "number",
      min: 0,
      max: device.count - 1,
      value: number,
      "aria-label": `Step ${side}`,
      change: (event) => {
        const value = Number((event.target as HTMLInputElement).value);
        if (Number.isInteger(value)) choose.step(side, value);
      },
    });
    const about = [
      number === device.median ? "median" : "",
      number < device.first || number > device.last ? "set aside" : "",
      time(device.lengths[number]),
    ];
    tools.push(element("label", {}, `${side}: step `, box, ` of ${device.count} (${about.filter(Boolean).join(", ")})`));
    if (timelines) {
      const step = steps[side];
      const span = step ? `${step.begin}-${step.begin + step.length}` : "";
      const range = step ? `#t=${span}&range=${span}` : "";
      tools.push(element("a", { href: `${side}/${range}`, "aria-label": `Timeline of ${side}` }, "timeline"));
    }
    // what belongs to one run stays together where the line is too short
    all.push(element("span", { class: "side" }, ...tools));
  }
  all.push(
    element("button", { click: () => choose.medians() }, "Median steps (M)"),
    labelled("Aligned at", alignments(compared, steps), now.align, (value) => choose.align(value)),
  );
  fill(parent, ...all);
}

export interface PairCommands {
  row(by: number): void;
  /** The next or previous step of both runs, or of one. */
  pair(by: number, only: Side | null): void;
  medians(): void;
  align(): void;
  zoom(factor: number): void;
  pan(share: number): void;
  fit(): void;
  theme(): void;
  help(): void;
  clear(): void;
}

export function pairKeys(c: PairCommands): Key[] {
  return [
    { match: code("ArrowDown"), shows: "↓ ↑", message: "highlight the next, previous cause, kernel, range", run: () => c.row(1) },
    { match: code("ArrowUp"), shows: "", message: "", run: () => c.row(-1) },
    { match: typed("."), shows: ". ,", message: "next, previous step of both runs", run: () => c.pair(1, null) },
    { match: typed(","), shows: "", message: "", run: () => c.pair(-1, null) },
    { match: typed("]"), shows: "] [", message: "next, previous step of the later run only", run: () => c.pair(1, "after") },
    { match: typed("["), shows: "", message: "", run: () => c.pair(-1, "after") },
    { match: code("KeyM"), shows: "M", message: "the median step of each", run: () => c.medians() },
    { match: code("KeyI"), shows: "I", message: "align at: step start, first kernel, ranges", run: () => c.align() },
    { match: code("KeyW"), shows: "W S, Ctrl+wheel", message: "zoom", run: () => c.zoom(0.75) },
    { match: code("KeyS"), shows: "", message: "", run: () => c.zoom(1 / 0.75) },
    { match: code("KeyA", "ArrowLeft"), shows: "A D, ← →, drag", message: "move", run: () => c.pan(-0.12) },
    { match: code("KeyD", "ArrowRight"), shows: "", message: "", run: () => c.pan(0.12) },
    { match: typed("0"), shows: "0, double click", message: "show both steps whole", run: () => c.fit() },
    { match: code("KeyL"), shows: "L", message: "dark or light", run: () => c.theme() },
    { match: typed("?"), shows: "?", message: "this help", run: () => c.help() },
    { match: typed("Escape"), shows: "Esc", message: "highlight nothing", run: () => c.clear() },
  ];
}

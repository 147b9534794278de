/** The row of choices above the steps, and what is to be said of them. */

import { element, fill } from "./dom";
import { clean, count } from "./format";
import { COLOURINGS, SORTS, type Colouring, type Figures, type Sort } from "./stepsource";
import type { StepState } from "./stepstate";

const COLOURING_SAYS: Record<Colouring, string> = {
  kind: "by kind of work",
  family: "by kernel family",
  phase: "by phase",
};
const SORT_SAYS: Record<Sort, string> = { index: "as they ran", duration: "longest first" };

export interface StepChoices {
  device(device: number): void;
  align(align: string): void;
  sort(sort: Sort): void;
  colour(colour: Colouring): void;
}

/** A choice with its label before it. */
export function labelled(label: string, options: [string, string][], value: string, then: (value: string) => void): HTMLElement {
  const made = element(
    "select",
    { "aria-label": label, change: (event) => then((event.target as HTMLSelectElement).value) },
    ...options.map(([key, says]) => element("option", { value: key, selected: key === value }, clean(says, 60))),
  );
  return element("label", {}, `${label} `, made);
}

export function showChoices(parent: HTMLElement, f: Figures, now: StepState, choose: StepChoices): void {
  const ranges = f.ranges.map((name, i): [string, string] => [`range:${i}`, `range ${name}`]);
  fill(
    parent,
    ...(f.titles.length > 1
      ? [labelled("Device", f.titles.map((t, i) => [String(i), t]), String(now.device), (v) => choose.device(Number(v)))]
      : []),
    labelled("Aligned at", [["start", "step start"], ["kernel", "first kernel"], ...ranges], now.align, (v) => choose.align(v)),
    labelled("Sorted", SORTS.map((s) => [s, SORT_SAYS[s]]), now.sort, (v) => choose.sort(v as Sort)),
    labelled("Coloured", COLOURINGS.map((c) => [c, COLOURING_SAYS[c]]), now.colour, (v) => choose.colour(v as Colouring)),
  );
}

/** What the rows cannot show. */
export function remark(f: Figures): string {
  const missing = f.missing ? `${count(f.missing)} of ${count(f.count)} steps do not hold it and begin at their start.` : "";
  const none = f.found === "whole_capture" ? `${f.says}; annotate the steps to see them side by side.` : "";
  return clean([none, missing].filter(Boolean).join(" "), 400);
}

/** The row of choices above the steps, and what is to be said of them. */

import { COLOURINGS, SORTS, type Colouring, type Figures, type Sort } from "../data/steps";
import { element, fill } from "../shared/dom";
import { clean, count } from "../shared/format";
import { code, typed, type Key } from "../shared/keys";
import type { StepState } from "./address";

const COLOURING_SAYS: Record<Colouring, string> = {
  kind: "by kind of work",
  category: "by kernel category",
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
    ...options.map(([key, message]) => element("option", { value: key, selected: key === value }, clean(message, 60))),
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
  const none = f.found === "whole_capture" ? `${f.message}; annotate the steps to see them side by side.` : "";
  return clean([none, missing].filter(Boolean).join(" "), 400);
}

export interface StepCommands {
  /** Chooses a row so many further on. */
  step(by: number): void;
  /** Chooses the first or the last row. */
  end(last: boolean): void;
  open(): void;
  median(): void;
  outlier(by: number): void;
  sort(): void;
  align(): void;
  colour(): void;
  device(by: number): void;
  zoom(factor: number): void;
  pan(share: number): void;
  higher(factor: number): void;
  /** Shows steps of usual length. */
  usual(): void;
  /** Shows the longest step, too. */
  fit(): void;
}

export function stepKeys(c: StepCommands): Key[] {
  return [
    { match: code("ArrowDown"), shows: "↓ ↑, Shift", message: "next, previous step; ten with Shift", run: (e) => c.step(e.shiftKey ? 10 : 1) },
    { match: code("ArrowUp"), shows: "", message: "", run: (e) => c.step(e.shiftKey ? -10 : -1) },
    { match: code("Home"), shows: "Home, End", message: "first, last row", run: () => c.end(false) },
    { match: code("End"), shows: "", message: "", run: () => c.end(true) },
    { match: code("Enter", "NumpadEnter"), shows: "Enter, click", message: "open the step in the timeline; Shift+click only chooses it", run: () => c.open() },
    { match: code("KeyM"), shows: "M", message: "select the median step", run: () => c.median() },
    { match: code("KeyG"), shows: "G, Shift+G", message: "next, previous outlier step", run: (e) => c.outlier(e.shiftKey ? -1 : 1) },
    { match: code("KeyO"), shows: "O", message: "sort: as they ran, longest first", run: () => c.sort() },
    { match: code("KeyI"), shows: "I", message: "align at: step start, first kernel, ranges", run: () => c.align() },
    { match: code("KeyC"), shows: "C", message: "colour by kind, category, phase", run: () => c.colour() },
    { match: code("KeyN"), shows: "N, Shift+N", message: "next, previous device", run: (e) => c.device(e.shiftKey ? -1 : 1) },
    { match: code("KeyW"), shows: "W S, Ctrl+wheel", message: "zoom in time", run: () => c.zoom(0.75) },
    { match: code("KeyS"), shows: "", message: "", run: () => c.zoom(1 / 0.75) },
    { match: code("KeyA", "ArrowLeft"), shows: "A D, ← →, drag", message: "move in time", run: () => c.pan(-0.12) },
    { match: code("KeyD", "ArrowRight"), shows: "", message: "", run: () => c.pan(0.12) },
    { match: typed("+", "="), shows: "+ −", message: "higher, lower rows", run: () => c.higher(2) },
    { match: typed("-", "_"), shows: "", message: "", run: () => c.higher(0.5) },
    { match: typed("0"), shows: "0, Shift+0", message: "show the steps, all of the longest", run: () => c.usual() },
    { match: (e) => e.code === "Digit0" && e.shiftKey, shows: "", message: "", run: () => c.fit() },
  ];
}

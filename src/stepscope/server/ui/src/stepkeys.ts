/** Keys of the step view. */

import { code, typed, type Key } from "./keys";

export interface StepCommands {
  /** Chooses a row so many further on. */
  step(by: number): void;
  /** Chooses the first or the last row. */
  end(last: boolean): void;
  open(): void;
  median(): void;
  odd(by: number): void;
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
    { match: code("ArrowDown"), shows: "↓ ↑, Shift", says: "next, previous step; ten with Shift", run: (e) => c.step(e.shiftKey ? 10 : 1) },
    { match: code("ArrowUp"), shows: "", says: "", run: (e) => c.step(e.shiftKey ? -10 : -1) },
    { match: code("Home"), shows: "Home, End", says: "first, last row", run: () => c.end(false) },
    { match: code("End"), shows: "", says: "", run: () => c.end(true) },
    { match: code("Enter", "NumpadEnter"), shows: "Enter, click", says: "open the step in the timeline; Shift+click only chooses it", run: () => c.open() },
    { match: code("KeyM"), shows: "M", says: "select the median step", run: () => c.median() },
    { match: code("KeyG"), shows: "G, Shift+G", says: "next, previous odd step", run: (e) => c.odd(e.shiftKey ? -1 : 1) },
    { match: code("KeyO"), shows: "O", says: "sort: as they ran, longest first", run: () => c.sort() },
    { match: code("KeyI"), shows: "I", says: "align at: step start, first kernel, ranges", run: () => c.align() },
    { match: code("KeyC"), shows: "C", says: "colour by kind, family, phase", run: () => c.colour() },
    { match: code("KeyN"), shows: "N, Shift+N", says: "next, previous device", run: (e) => c.device(e.shiftKey ? -1 : 1) },
    { match: code("KeyW"), shows: "W S, Ctrl+wheel", says: "zoom in time", run: () => c.zoom(0.75) },
    { match: code("KeyS"), shows: "", says: "", run: () => c.zoom(1 / 0.75) },
    { match: code("KeyA", "ArrowLeft"), shows: "A D, ← →, drag", says: "move in time", run: () => c.pan(-0.12) },
    { match: code("KeyD", "ArrowRight"), shows: "", says: "", run: () => c.pan(0.12) },
    { match: typed("+", "="), shows: "+ −", says: "higher, lower rows", run: () => c.higher(2) },
    { match: typed("-", "_"), shows: "", says: "", run: () => c.higher(0.5) },
    { match: typed("0"), shows: "0, Shift+0", says: "show the steps, all of the longest", run: () => c.usual() },
    { match: (e) => e.code === "Digit0" && e.shiftKey, shows: "", says: "", run: () => c.fit() },
  ];
}

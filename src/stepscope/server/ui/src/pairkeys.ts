/** Keys of the comparison of two runs. */

import { code, typed, type Key } from "./keys";
import type { Side } from "./pairsource";

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
    { match: code("ArrowDown"), shows: "↓ ↑", says: "highlight the next, previous cause, kernel, range", run: () => c.row(1) },
    { match: code("ArrowUp"), shows: "", says: "", run: () => c.row(-1) },
    { match: typed("."), shows: ". ,", says: "next, previous step of both runs", run: () => c.pair(1, null) },
    { match: typed(","), shows: "", says: "", run: () => c.pair(-1, null) },
    { match: typed("]"), shows: "] [", says: "next, previous step of the later run only", run: () => c.pair(1, "after") },
    { match: typed("["), shows: "", says: "", run: () => c.pair(-1, "after") },
    { match: code("KeyM"), shows: "M", says: "the median step of each", run: () => c.medians() },
    { match: code("KeyI"), shows: "I", says: "align at: step start, first kernel, ranges", run: () => c.align() },
    { match: code("KeyW"), shows: "W S, Ctrl+wheel", says: "zoom", run: () => c.zoom(0.75) },
    { match: code("KeyS"), shows: "", says: "", run: () => c.zoom(1 / 0.75) },
    { match: code("KeyA", "ArrowLeft"), shows: "A D, ← →, drag", says: "move", run: () => c.pan(-0.12) },
    { match: code("KeyD", "ArrowRight"), shows: "", says: "", run: () => c.pan(0.12) },
    { match: typed("0"), shows: "0, double click", says: "show both steps whole", run: () => c.fit() },
    { match: code("KeyL"), shows: "L", says: "dark or light", run: () => c.theme() },
    { match: typed("?"), shows: "?", says: "this help", run: () => c.help() },
    { match: typed("Escape"), shows: "Esc", says: "highlight nothing", run: () => c.clear() },
  ];
}

/** The row of choices above the heat map, and its keys. */

import type { JobGrid } from "../data/contracts";
import { element, fill } from "../shared/dom";
import { time } from "../shared/format";
import { code, typed, type Key } from "../shared/keys";
import { labelled } from "../steps/controls";
import type { JobState, Mode, Order } from "./address";
import { drawLegend } from "./painter";
import type { Scale } from "./scale";

export interface JobChoices {
  value(value: string): void;
  mode(mode: Mode): void;
  order(order: Order): void;
}

export interface RowsNow {
  /** Whether rows are nodes, and whether there is a choice. */
  nodes: boolean;
  several: boolean;
  /** Whether least of the value comes first. */
  least: boolean;
}

export function showJobChoices(parent: HTMLElement, grid: JobGrid, now: JobState, rows: RowsNow, scale: Scale, choose: JobChoices): void {
  const shown = grid.values.find(({ key }) => key === now.value) ?? grid.values[0];
  const bar = element("canvas", { role: "img", "aria-label": "Colours of the heat map" });
  drawLegend(bar, scale);
  const { low, high, below, above } = scale.range;
  const ends = scale.signed
    ? [`${below ? "≤ " : ""}−${time(-low)}`, `+${time(high)}${above ? " or more" : ""}`]
    : [time(low), time(high)];
  fill(
    parent,
    labelled("Shown", grid.values.map(({ key, title }) => [key, title]), shown.key, (v) => choose.value(v)),
    ...(rows.several
      ? [labelled("Rows", [["nodes", "nodes, a click opens one"], ["ranks", "ranks"]], rows.nodes ? "nodes" : "ranks", (v) => choose.mode(v as Mode))]
      : []),
    labelled("Sorted", [["rank", "by rank"], ["most", rows.least ? "least first" : "most first"]], now.order, (v) => choose.order(v as Order)),
    element("span", { class: "side scale", title: shown.message }, ends[0], bar, ends[1]),
  );
}

export interface JobCommands {
  row(by: number): void;
  column(by: number): void;
  end(last: boolean): void;
  open(): void;
  close(): void;
  timeline(): void;
  late(by: number): void;
  value(by: number): void;
  mode(): void;
  order(): void;
  higher(factor: number): void;
  fit(): void;
  theme(): void;
  help(): void;
}

export function jobKeys(c: JobCommands): Key[] {
  return [
    { match: code("ArrowDown"), shows: "↓ ↑, Shift", message: "next, previous row; ten with Shift", run: (e) => c.row(e.shiftKey ? 10 : 1) },
    { match: code("ArrowUp"), shows: "", message: "", run: (e) => c.row(e.shiftKey ? -10 : -1) },
    { match: code("ArrowRight"), shows: "→ ←", message: "next, previous step", run: () => c.column(1) },
    { match: code("ArrowLeft"), shows: "", message: "", run: () => c.column(-1) },
    { match: code("Home"), shows: "Home, End", message: "first, last row", run: () => c.end(false) },
    { match: code("End"), shows: "", message: "", run: () => c.end(true) },
    { match: code("Enter", "NumpadEnter"), shows: "Enter, click", message: "open the rank; of a node its ranks, too", run: () => c.open() },
    { match: code("KeyT"), shows: "T", message: "open the rank's timeline at the step", run: () => c.timeline() },
    { match: code("Escape"), shows: "Esc", message: "back to the job", run: () => c.close() },
    { match: code("KeyG"), shows: "G, Shift+G", message: "next, previous late rank", run: (e) => c.late(e.shiftKey ? -1 : 1) },
    { match: code("KeyC"), shows: "C, Shift+C", message: "next, previous value", run: (e) => c.value(e.shiftKey ? -1 : 1) },
    { match: code("KeyR"), shows: "R", message: "rows: nodes, ranks", run: () => c.mode() },
    { match: code("KeyO"), shows: "O", message: "sort: by rank, most first", run: () => c.order() },
    { match: typed("+", "="), shows: "+ −, Ctrl+wheel", message: "higher, lower rows", run: () => c.higher(1.4) },
    { match: typed("-"), shows: "", message: "", run: () => c.higher(1 / 1.4) },
    { match: code("Digit0"), shows: "0", message: "as many rows as fit", run: () => c.fit() },
    { match: code("KeyL"), shows: "L", message: "dark or light", run: () => c.theme() },
    { match: typed("?"), shows: "?", message: "all keys", run: () => c.help() },
  ];
}

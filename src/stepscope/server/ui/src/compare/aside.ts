/** What stands beside two runs: the verdict, what is highlighted, and the tables of differences. */

import type { Compared, Comparison, KernelDifference } from "../data/contracts";
import { SIDES, type PairStep, type Side } from "../data/comparison";
import { coloursLegend, type Colours } from "../shared/colours";
import { element, fill, swatch } from "../shared/dom";
import { clean, percent, time, words } from "../shared/format";
import { belongs, type Chosen, type Kind } from "./painter";

type Steps = Record<Side, PairStep | null>;

/** Number of the class of a chosen cause; -1 where something else is chosen. */
export function causeCode(colours: Colours, c: Comparison, chosen: Chosen | null): number {
  if (chosen?.kind !== "cause") return -1;
  const part = c.parts[chosen.row]?.part ?? "";
  return colours.classes.findIndex(({ key }) => key === keyOfPart(part));
}

export class PairAside {
  readonly root = element("aside", { "aria-label": "Comparison" }, element("p", { class: "note", role: "status" }, "Comparing …"));
  /** Whether kernels that did not change are listed, too. */
  all = false;
  private readonly highlighted = element("section", { "aria-label": "Highlighted" });
  private readonly tables = element("section", { "aria-label": "Differences" });
  private compared: Compared | null = null;
  private chosen: Chosen | null = null;

  constructor(
    private readonly colours: Colours,
    private readonly choose: (chosen: Chosen) => void,
  ) {}

  show(compared: Compared, chosen: Chosen | null, steps: Steps): void {
    this.compared = compared;
    this.chosen = chosen;
    const { comparison, facts, notes } = compared;
    fill(
      this.root,
      element("section", { "aria-label": "Verdict", class: `verdict ${comparison.verdict}` }, element("h2", {}, `${clean(comparison.message, 800)}.`), ...facts.map((line) => element("p", { class: "note" }, clean(line, 600)))),
      this.highlighted,
      this.tables,
      coloursLegend(),
      element("details", {}, element("summary", {}, `Notes (${notes.length})`), element("ul", { class: "plain" }, ...notes.map((n) => element("li", {}, clean(n, 600))))),
    );
    this.differences();
    this.count(steps);
  }

  fail(message: string): void {
    fill(this.root, element("h2", {}, "No comparison"), element("p", { role: "alert" }, clean(message, 800)));
  }

  /** Highlights a row, or none; returns its name. */
  highlight(chosen: Chosen | null, steps: Steps): string {
    this.chosen = chosen;
    if (chosen?.kind === "kernel" && !this.tables.querySelector(`tr[data-kind=kernel][data-row="${chosen.row}"]`)) {
      this.all = true;
      this.differences();
    } else this.mark();
    this.count(steps);
    return chosen ? (this.highlighted.querySelector(".name")?.textContent ?? "") : "";
  }

  /** Tells how often, and how long, what is highlighted is in the two steps shown. */
  count(steps: Steps): void {
    const { chosen } = this;
    const c = this.compared?.comparison;
    if (!c || !chosen) {
      fill(this.highlighted);
      return;
    }
    const cause = causeCode(this.colours, c, chosen);
    const what = chosen.kind === "cause" ? "pieces" : "operations";
    const counted = SIDES.map((side): [Side, number, number, number] | [Side] => {
      const step = steps[side];
      if (!step) return [side];
      let [n, ns] = [0, 0];
      for (let i = 0; i < step[what].start.length; i++) {
        if (!belongs(step, what, i, chosen, cause)) continue;
        n++;
        ns += step[what].end[i] - step[what].start[i];
      }
      return [side, step.step, n, ns];
    });
    showHighlighted(this.highlighted, c, chosen, counted);
  }

  /** The next row of the tables, in the order in which they stand; null at their end. */
  next(by: number): Chosen | null {
    const rows = [...this.tables.querySelectorAll<HTMLElement>("tr[data-kind]")];
    if (!rows.length) return null;
    const at = rows.findIndex((r) => r.classList.contains("chosen"));
    const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1);
    return next === at ? null : { kind: rows[next].dataset.kind as Kind, row: Number(rows[next].dataset.row) };
  }

  private differences(): void {
    showDifferences(this.tables, this.compared!.comparison, this.colours, {
      all: this.all,
      choose: (chosen) => this.choose(chosen),
      toggle: () => {
        this.all = !this.all;
        this.differences();
      },
    });
    this.mark();
  }

  private mark(): void {
    for (const row of this.tables.querySelectorAll<HTMLElement>("tr[data-kind]")) {
      const own = row.dataset.kind === this.chosen?.kind && Number(row.dataset.row) === this.chosen?.row;
      row.classList.toggle("chosen", own);
      if (own) row.scrollIntoView({ block: "nearest" });
    }
  }
}

const MOST_ROWS = 400;

export interface DifferenceActions {
  /** Whether kernels that did not change are listed, too. */
  all: boolean;
  choose(chosen: Chosen): void;
  toggle(): void;
}

export function showDifferences(parent: HTMLElement, c: Comparison, colours: Colours, actions: DifferenceActions): void {
  const section = (title: string, kind: Kind, rows: [number, string, number | null, number | null, string, string?][], note = ""): HTMLElement => {
    const made = element("table", { class: "facts differences", "aria-label": title });
    made.append(element("tr", {}, ...["", "before", "after", "difference"].map((h) => element("th", {}, h))));
    for (const [row, message, before, after, hint, tag] of rows) {
      const button = element("button", { class: "link", "data-kind": kind, "data-row": row, title: clean(hint, 300), click: () => actions.choose({ kind, row }) }, clean(message, 90));
      const cell = element("td", {}, ...(kind === "cause" ? [square(c.parts[row].part, colours), " "] : []), button, ...(tag ? [" ", element("span", { class: "severity" }, tag)] : []));
      made.append(
        element("tr", { "data-kind": kind, "data-row": row }, cell, element("td", { class: "figure" }, timeOrUnknown(before)), element("td", { class: "figure" }, timeOrUnknown(after)), element("td", { class: "figure" }, before === null || after === null ? "" : signed(after - before))),
      );
    }
    return element("div", {}, element("h2", {}, title), ...(note ? [element("p", { class: "note" }, note)] : []), made);
  };
  const parts = c.parts
    .map((p, i): [number, string, number, number, string] => [i, words(p.part.replace("idle:", "idle: ")), p.before_ns, p.after_ns, `± ${time(p.error_ns)}`])
    .filter(([, , before, after]) => before || after);
  const kernels = c.kernels.map((k, i): [KernelDifference, number] => [k, i]);
  const changed = kernels.filter(([k]) => k.changed);
  const shown = (actions.all || !changed.length ? kernels : changed).slice(0, MOST_ROWS);
  const ranges = c.ranges
    .map((r, i): [number, string, number | null, number | null, string] => [i, r.name, r.device_before_ns, r.device_after_ns, `on the host ${timeOrUnknown(r.host_before_ns)} before, ${timeOrUnknown(r.host_after_ns)} after`])
    .slice(0, MOST_ROWS);
  const operators = c.operators
    .map((r, i): [number, string, number | null, number | null, string] => [i, r.name, r.device_before_ns, r.device_after_ns, ""])
    .slice(0, MOST_ROWS);
  const kernelRows = shown.map(([k, i]): [number, string, number, number, string, string] => [i, kernelName(k), k.before_ns, k.after_ns, about(k), k.relation === "same" ? "" : words(k.relation)]);
  const all = element(
    "button",
    { click: () => actions.toggle() },
    actions.all ? "Show those that changed" : `Show all ${kernels.length}`,
  );
  const message = `time a step; ${changed.length} of ${kernels.length} changed by more than noise (${percent(c.kernel_floor)})`;
  fill(
    parent,
    section("By cause", "cause", parts, "mean of the counted steps and devices; the differences sum to that of the step"),
    section("By kernel", "kernel", kernelRows, message),
    element("p", {}, all),
    ...(ranges.length ? [section("By range", "range", ranges, "device time a step of what the range launches, nested ranges included")] : []),
    ...(operators.length ? [section("By operator", "operator", operators, "device time a step")] : []),
  );
}

/**
 * What is highlighted.
 *
 * @param counted of each run: its step, how often it is in it, how long in all in ns
 */
export function showHighlighted(parent: HTMLElement, c: Comparison, { kind, row }: Chosen, counted: ([Side, number, number, number] | [Side])[]): void {
  const name =
    kind === "kernel" ? kernelName(c.kernels[row])
    : kind === "cause" ? words(c.parts[row].part.replace("idle:", "idle: "))
    : c[kind === "range" ? "ranges" : "operators"][row].name; // prettier-ignore
  const listed = counted.map(([side, step, n, ns]) => (step === undefined ? side : `${side}, step ${step}: ${n} ×, ${time(ns!)}`));
  fill(
    parent,
    element("h2", {}, "Highlighted"),
    element("p", { class: "name" }, clean(name, 400)),
    ...(kind === "kernel" ? [element("p", { class: "note" }, clean(about(c.kernels[row]), 300))] : []),
    element("ul", { class: "plain" }, ...listed.map((text) => element("li", {}, text))),
  );
}

function square(part: string, colours: Colours): HTMLElement {
  const key = keyOfPart(part);
  const made = swatch(colours.css[colours.classes.findIndex((c) => c.key === key)] ?? "transparent");
  if (key.startsWith("idle_")) made.classList.add("hatched");
  return made;
}

/** Class of a part of the step. */
export function keyOfPart(part: string): string {
  if (part.startsWith("idle:")) return `idle_${part.slice(5)}`;
  return `busy_${part.replace("exposed_", "")}`;
}

function timeOrUnknown(ns: number | null): string {
  return ns === null ? "not recorded" : time(ns);
}

function signed(ns: number): string {
  if (!ns) return "0";
  return `${ns > 0 ? "+" : "−"}${time(Math.abs(ns))}`;
}

export function kernelName(k: KernelDifference): string {
  const side = (names: string[]): string => names.slice(0, 2).join(" + ") + (names.length > 2 ? ` + ${names.length - 2} more` : "");
  const [before, after] = [side(k.before), side(k.after)];
  if (before === after || !after) return before;
  return before ? `${before} → ${after}` : after;
}

/** Whether the comparison has such a row: a link may tell of another one. */
export function hasRow(c: Comparison, { kind, row }: Chosen): boolean {
  const lists = { kernel: c.kernels, range: c.ranges, operator: c.operators, cause: c.parts };
  return row >= 0 && row < lists[kind].length;
}

/** What became of a kernel. */
export function about(k: KernelDifference): string {
  const each = k.each_ratio === null ? "" : `, ${k.each_ratio >= 1 ? "+" : "−"}${percent(Math.abs(k.each_ratio - 1))} a call`;
  const calls = `${k.calls_before} → ${k.calls_after} calls a step`;
  return `${k.relation.replaceAll("_", " ")}, ${calls}${each}${k.changed ? ", changed" : ", within noise"}`;
}

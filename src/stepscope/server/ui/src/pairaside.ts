/** What stands beside two runs: the verdict, what is highlighted, and the tables of differences. */

import { coloursLegend, type Colours } from "./colours";
import { element, fill } from "./dom";
import { clean } from "./format";
import { keyOfPart, showDifferences, showHighlighted } from "./pairpanel";
import { belongs, type Chosen, type Kind } from "./pairpaint";
import { SIDES, type Compared, type Comparison, type PairStep, type Side } from "./pairsource";

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
      element("section", { "aria-label": "Verdict", class: `verdict ${comparison.verdict}` }, element("h2", {}, `${clean(comparison.says, 800)}.`), ...facts.map((line) => element("p", { class: "note" }, clean(line, 600)))),
      this.highlighted,
      this.tables,
      coloursLegend(),
      element("details", {}, element("summary", {}, `Notes (${notes.length})`), element("ul", { class: "plain" }, ...notes.map((n) => element("li", {}, clean(n, 600))))),
    );
    this.differences();
    this.count(steps);
  }

  fail(says: string): void {
    fill(this.root, element("h2", {}, "No comparison"), element("p", { role: "alert" }, clean(says, 800)));
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

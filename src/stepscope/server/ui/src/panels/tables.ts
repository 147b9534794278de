/** Kernels or operators of a window: a table that sorts, filters and leads to the timeline. */

import { GROUPINGS, type Instances, type TableAnswer } from "../data/contracts";
import type { GroupRow, Span } from "../data/types";
import { element, fill } from "../shared/dom";
import { clean, count, percent, time, words } from "../shared/format";
import { waiting } from "../shared/progress";
import { command, copyButton, tableQuery, tabSeparated } from "./copy";
import { choice, windowOf, type Host, type Panel } from "./panel";

const FIRST_ROWS = 200;

interface Column {
  key: keyof GroupRow | "per_step" | "per_step_count";
  title: string;
  message: string;
  value: (row: GroupRow, table: TableAnswer) => number | string;
  text: (row: GroupRow, table: TableAnswer) => string;
}

const perStep = (value: number, table: TableAnswer): number => (table.steps ? value / table.steps : NaN);

const FIGURES: Column[] = [
  { key: "count", title: "count", message: "how many begin in the window", value: (r) => r.count, text: (r) => count(r.count) },
  { key: "total_ns", title: "total", message: "their time, all devices together", value: (r) => r.total_ns, text: (r) => time(r.total_ns) },
  { key: "mean_ns", title: "mean", message: "mean length", value: (r) => r.mean_ns, text: (r) => time(r.mean_ns) },
  { key: "median_ns", title: "median", message: "median length", value: (r) => r.median_ns, text: (r) => time(r.median_ns) },
  { key: "p95_ns", title: "p95", message: "95 % are shorter", value: (r) => r.p95_ns, text: (r) => time(r.p95_ns) },
  { key: "share", title: "share", message: "share of the window's wall time, all devices together", value: (r) => r.share, text: (r) => percent(r.share) },
  {
    key: "per_step",
    title: "per step",
    message: "time a step and device, over the steps that begin in the window",
    value: (r, t) => perStep(r.total_ns, t),
    text: (r, t) => (t.steps ? time(perStep(r.total_ns, t)) : ""),
  },
  {
    key: "per_step_count",
    title: "count per step",
    message: "how many a step and device",
    value: (r, t) => perStep(r.count, t),
    text: (r, t) => (t.steps ? perStep(r.count, t).toFixed(2) : ""),
  },
];

const SCOPES: [string, string][] = [
  ["auto", "Range, else steady steps"],
  ["steady", "Steady steps"],
  ["all", "Whole capture"],
];

export class Tables implements Panel {
  readonly body: HTMLElement;
  private by: string;
  private scope = "auto";
  private sort = "total_ns";
  private descending = true;
  private table: TableAnswer | null = null;
  private rows: GroupRow[] = [];
  /** Those that pass the filter, in their order. */
  private shown: GroupRow[] = [];
  private most = FIRST_ROWS;
  private chosen: string | null = null;
  private found: Instances | null = null;
  private at = -1;
  private asked = 0;

  private readonly scopeBox: HTMLSelectElement;
  private readonly byBox: HTMLSelectElement;
  private readonly findBox: HTMLInputElement;
  private readonly scrolled: HTMLElement;
  private readonly summary = element("span", { class: "note", role: "status" });
  private readonly walker = element("span", { class: "row walker" });
  private readonly copies = element("span", { class: "row", hidden: true });
  private readonly grid = element("table", { class: "grid" });

  constructor(
    private readonly host: Host,
    readonly title: string,
    readonly key: string,
    private readonly groupings: string[],
    first = groupings[0],
  ) {
    this.by = first;
    this.scopeBox = choice("Window of the table", SCOPES, () => {
      this.scope = this.scopeBox.value;
      this.refresh();
    });
    this.byBox = choice("Group by", groupings.map((by) => [by, `by ${GROUPINGS[by].title}`]), () => {
      this.by = this.byBox.value;
      this.choose(null);
      this.refresh();
    });
    this.byBox.value = first;
    this.byBox.hidden = groupings.length < 2;
    this.findBox = element("input", {
      type: "search",
      placeholder: "Filter, regex",
      "aria-label": `Filter ${title.toLowerCase()} by regular expression`,
      input: () => this.show(),
      keydown: (event) => {
        const key = (event as KeyboardEvent).key;
        if (key === "Escape") {
          event.stopPropagation();
          if (this.findBox.value) {
            this.findBox.value = "";
            this.show();
          } else this.host.leave();
        }
        if (key === "Enter" || key === "ArrowDown") {
          event.preventDefault();
          this.focusRow(0);
        }
      },
    });
    this.scrolled = element("div", { class: "scrolled", tabindex: -1 }, this.grid);
    this.scrolled.addEventListener("keydown", (event) => {
      if (event.target !== this.scrolled || !["ArrowDown", "Escape"].includes(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
      if (event.key === "Escape") this.host.leave();
      else this.focusRow(0);
    });
    this.grid.addEventListener("keydown", (event) => this.move(event));
    const told = (text: string): void => host.say(text);
    fill(
      this.copies,
      copyButton("Copy rows", "Copy the rows as tab-separated values", () => (this.table ? tabSeparated(this.table, this.shown.map((r) => ({ ...r }))) : ""), told),
      copyButton("Copy query", "Copy the command that computes this table", () => command(host.layout, tableQuery(host.layout, this.by, this.window())), told),
    );
    this.body = element(
      "div",
      { class: "fill" },
      element("div", { class: "row tools" }, this.scopeBox, this.byBox, this.findBox, this.summary, this.walker, this.copies),
      this.scrolled,
    );
  }

  /** Takes the keyboard without taking letters: they are keys of the page until somebody goes to the box. */
  focus(): void {
    this.scrolled.focus({ preventScroll: true });
  }

  refresh(): void {
    void this.ask();
  }

  state(): Record<string, string> {
    return {
      by: this.by,
      scope: this.scope,
      sort: `${this.descending ? "-" : ""}${this.sort}`,
      ...(this.findBox.value ? { find: this.findBox.value } : {}),
      ...(this.chosen ? { row: this.chosen } : {}),
    };
  }

  restore(state: Record<string, string>): void {
    if (this.groupings.includes(state.by)) this.by = this.byBox.value = state.by;
    if (SCOPES.some(([scope]) => scope === state.scope)) this.scope = this.scopeBox.value = state.scope;
    const sort = (state.sort ?? "-total_ns").replace(/^-/, "");
    if (sort === "name" || FIGURES.some(({ key }) => key === sort)) {
      this.sort = sort;
      this.descending = (state.sort ?? "-").startsWith("-");
    }
    this.findBox.value = state.find ?? "";
    this.chosen = state.row ?? null;
  }

  /** Goes to the next or previous instance of the chosen row. */
  async step(by: number): Promise<void> {
    const found = this.found;
    if (!found || !found.start.length) {
      this.host.say("choose a row of a table first");
      return;
    }
    const size = found.start.length;
    this.at = this.at < 0 ? (by > 0 ? 0 : size - 1) : (this.at + by + size) % size;
    this.showWalker();
    await this.host.navigateTo({ track: found.track[this.at], row: found.row[this.at] });
  }

  private window(): Span | null {
    return windowOf(this.host, this.scope, this.scope === "all");
  }

  private async ask(): Promise<void> {
    const number = ++this.asked;
    const { source } = this.host;
    const asked = waiting(source.table(this.by, this.window()), () => source.progress(), (text) => {
      if (number === this.asked) this.summary.textContent = text;
    });
    const found = await this.host.asking(asked);
    if (number !== this.asked) return; // something later has been asked since
    if (!found) {
      fill(this.grid);
      this.copies.hidden = true;
      this.summary.textContent = `no table: ${this.host.failure() || "see below"}`;
      return;
    }
    this.table = found;
    this.copies.hidden = false;
    const c = found.columns;
    this.rows = c.group.map((group, i) => ({
      group,
      names: c.names[i],
      count: c.count[i],
      total_ns: c.total_ns[i],
      mean_ns: c.mean_ns[i],
      median_ns: c.median_ns[i],
      p95_ns: c.p95_ns[i],
      share: c.share[i],
      longest_kernel: c.longest_kernel[i],
    }));
    this.most = FIRST_ROWS;
    this.show();
    const chosen = this.rows.find((row) => keyOf(row) === this.chosen);
    if (chosen) await this.mark(chosen);
    else if (this.chosen !== null) this.choose(null);
  }

  private choose(row: GroupRow | null): void {
    this.chosen = row ? keyOf(row) : null;
    if (row) return;
    this.found = null;
    this.at = -1;
    this.host.highlight(null);
    this.showWalker();
  }

  /** Highlights the instances of a row. */
  private async mark(row: GroupRow): Promise<void> {
    this.choose(row);
    for (const shown of this.grid.querySelectorAll("tbody tr"))
      shown.setAttribute("aria-selected", String((shown as HTMLElement).dataset.key === this.chosen));
    const found = await this.host.asking(this.host.source.instances(this.by, row.group, this.window()));
    if (!found || this.chosen !== keyOf(row)) return;
    this.found = found;
    this.at = -1;
    this.host.highlight(found);
    this.showWalker();
    this.host.changed();
  }

  private showWalker(): void {
    const found = this.found;
    if (!found) {
      fill(this.walker);
      return;
    }
    const size = found.start.length;
    const more = found.total > size ? ` (the first of ${count(found.total)})` : "";
    fill(
      this.walker,
      element("button", { click: () => void this.step(-1), "aria-label": "Previous instance", title: "Shift+X" }, "‹"),
      element("button", { click: () => void this.step(1), "aria-label": "Next instance", title: "X" }, "›"),
      element("span", { class: "note", role: "status" }, `${this.at < 0 ? "" : `${count(this.at + 1)} of `}${count(size)} instances${more}`),
      element("button", { click: () => this.clear(), "aria-label": "No row" }, "✕"),
    );
  }

  private clear(): void {
    this.choose(null);
    this.show();
    this.host.changed();
  }

  private show(): void {
    const table = this.table;
    if (!table) return;
    let pattern: RegExp | null = null;
    try {
      pattern = this.findBox.value ? new RegExp(this.findBox.value, "i") : null;
      this.findBox.setCustomValidity("");
    } catch {
      this.findBox.setCustomValidity("no regular expression");
      this.summary.textContent = "no regular expression";
      return;
    }
    const shown = this.rows.filter((row) => !pattern || row.names.some((name) => pattern.test(name)));
    this.shown = shown;
    const column = FIGURES.find(({ key }) => key === this.sort);
    const sign = this.descending ? -1 : 1;
    shown.sort((a, b) => {
      if (!column) return sign * compare(a.names[0], b.names[0]);
      return sign * compare(column.value(a, table), column.value(b, table)) || compare(a.names[0], b.names[0]);
    });
    const total = shown.reduce((sum, row) => sum + row.total_ns, 0);
    const of = shown.length < this.rows.length ? ` of ${count(this.rows.length)}` : "";
    const window = this.window() ? time(table.end - table.begin) : "the steady steps";
    const left = table.left_out ? `; ${count(table.left_out)} rarer ones are left out` : "";
    this.summary.textContent =
      `${count(shown.length)}${of} rows, ${time(total)} (${percent(total / Math.max(1, table.wall_ns))}) in ${window}` +
      `${table.steps ? `, ${count(table.steps)} ${table.steps === 1 ? "step" : "steps"}` : ""}${left}`;
    const others = table.keys.slice(1);
    const head = element(
      "tr",
      {},
      this.header("name", GROUPINGS[this.by].title, "name"),
      ...others.map((key) => element("th", { scope: "col" }, words(key))),
      ...FIGURES.map(({ key, title, message }) => this.header(key, title, message)),
    );
    const rows = shown.slice(0, this.most).map((row, i) => this.row(row, table, i));
    const rest = shown.length - rows.length;
    if (rest > 0)
      rows.push(
        element(
          "tr",
          {},
          element(
            "td",
            { colspan: String(1 + others.length + FIGURES.length) },
            element(
              "button",
              {
                class: "link",
                click: () => {
                  this.most += 1000;
                  this.show();
                },
              },
              `${count(rest)} more rows`,
            ),
          ),
        ),
      );
    fill(this.grid, element("caption", { class: "hidden" }, `${this.title} of ${window}`), element("thead", {}, head), element("tbody", {}, ...rows));
  }

  private header(key: string, title: string, message: string): HTMLElement {
    const sorted = this.sort === key;
    return element(
      "th",
      {
        scope: "col",
        "data-key": key,
        class: key === "name" ? "" : "figure",
        "aria-sort": sorted ? (this.descending ? "descending" : "ascending") : "none",
      },
      element(
        "button",
        {
          title: `${message}; click to sort`,
          click: () => {
            this.descending = sorted ? !this.descending : key !== "name";
            this.sort = key;
            this.show();
            (this.grid.querySelector(`th[data-key="${key}"] button`) as HTMLElement | null)?.focus();
            this.host.changed();
          },
        },
        `${title}${sorted ? (this.descending ? " ↓" : " ↑") : ""}`,
      ),
    );
  }

  private row(row: GroupRow, table: TableAnswer, number: number): HTMLTableRowElement {
    const [name, ...others] = row.names;
    const made = element(
      "tr",
      {
        tabindex: number ? -1 : 0,
        "data-key": keyOf(row),
        "aria-selected": keyOf(row) === this.chosen ? "true" : "false",
        click: () => void this.mark(row).then(() => made.focus()),
        ...(this.by === "kernel" ? {} : { title: `longest: ${clean(row.longest_kernel, 200)}` }),
      },
      element("th", { scope: "row", class: "name" }, clean(name, 160)),
      ...others.map((text) => element("td", {}, clean(text, 40))),
      ...FIGURES.map(({ text }) => element("td", { class: "figure" }, text(row, table))),
    );
    made.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      void this.mark(row).then(() => this.step(event.shiftKey ? -1 : 1));
    });
    return made;
  }

  private move(event: KeyboardEvent): void {
    const rows = [...this.grid.querySelectorAll<HTMLElement>("tbody tr[data-key]")];
    const at = rows.indexOf(event.target as HTMLElement);
    if (at < 0) return;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1, PageDown: at + 10, PageUp: at - 10 }[event.key];
    if (event.key === "Escape") {
      event.stopPropagation();
      this.findBox.focus();
    }
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.focusRow(Math.max(0, Math.min(rows.length - 1, to)));
  }

  private focusRow(number: number): void {
    this.grid.querySelectorAll<HTMLElement>("tbody tr[data-key]")[number]?.focus();
  }
}

/** What names a row in a link: the same in another run on the same capture. */
function keyOf(row: GroupRow): string {
  return row.names.join("\u0001").slice(0, 400);
}

function compare(a: number | string, b: number | string): number {
  if (typeof a === "string" || typeof b === "string") return a < b ? -1 : a > b ? 1 : 0;
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) ? (Number.isNaN(b) ? 0 : -1) : 1;
  return a - b;
}

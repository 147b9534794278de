/** Two runs side by side: one step of each on one scale, and what differs. */

import { Colours } from "./colours";
import { element, fill } from "./dom";
import { clean, time, words } from "./format";
import type { Key } from "./keys";
import { about, keyOfPart, kernelName, showDifferences } from "./pairpanel";
import { LEFT_PX, PairPainter, TIMES_PX, belongs, lines, rowOf, streamOf, times, type Chosen, type Kind, type Line } from "./pairpaint";
import { NO_ROW, SIDES, type Compared, type PairDevice, type PairLayout, type PairSource, type PairStep, type Side } from "./pairsource";
import { AXIS_PX } from "./sheet";
import { startTheme, themeNow, toggleTheme } from "./theme";
import { View } from "./view";

const MOST_ALIGNMENTS = 40;
/** Rows grow where there is room, up to this many times their least height. */
const MOST_GROWN = 2.5;
const KINDS: Kind[] = ["cause", "kernel", "range", "operator"];

export class CompareApp {
  private readonly canvas = element("canvas", {
    class: "pairrows",
    tabindex: 0,
    role: "application",
    "aria-label":
      "One step of each run on one scale. Up and down choose a kernel, full stop and comma the next and previous pair of steps, question mark shows all keys.",
  });
  private readonly scroller = element("div", { class: "scroll" }, this.canvas);
  private readonly tip = element("div", { class: "tip", hidden: true });
  private readonly stage = element("div", { class: "stage" }, this.scroller, this.tip);
  private readonly times = element("canvas", { class: "times", role: "img", "aria-label": "Step times of both runs" });
  private readonly tools = element("div", { class: "tools" });
  private readonly aside = element("aside", { "aria-label": "Comparison" });
  private readonly chosenPanel = element("section", { "aria-label": "Highlighted" });
  private readonly tables = element("section", { "aria-label": "Differences" });
  private readonly status = element("span", { role: "status", "aria-live": "polite" });
  private readonly failure = element("span", { class: "error", role: "alert" });
  private readonly where = element("span", {});
  private readonly helpBox = element("dialog", { "aria-label": "Keys" });
  private readonly colours: Colours;
  private readonly painter: PairPainter;
  private readonly keys: Key[];
  private compared: Compared | null = null;
  private readonly device: Record<Side, number> = { before: 0, after: 0 };
  private readonly number: Record<Side, number> = { before: -1, after: -1 };
  private readonly steps: Record<Side, PairStep | null> = { before: null, after: null };
  private view = new View(0, 1);
  private wanted: [number, number] | null = null;
  /** `start`, `kernel`, or `range:` and the row of a range that both steps hold. */
  private align = "start";
  private chosen: Chosen | null = null;
  private rows: Line[] = [];
  private frame = 0;
  private asking = 0;
  private turn = 0;
  private linkTimer = 0;
  private pointerX = 0.5;
  private allKernels = false;

  constructor(
    root: HTMLElement,
    private readonly source: PairSource,
    private readonly layout: PairLayout,
  ) {
    startTheme();
    this.colours = new Colours(layout.classes);
    this.painter = new PairPainter(this.canvas, themeNow(), this.colours);
    this.keys = this.ownKeys();
    this.build(root);
    this.listen();
    this.restore();
    void this.load();
  }

  private build(root: HTMLElement): void {
    const name = (side: Side): string => {
      const paths = this.layout.pair[side];
      return clean((paths[0] ?? "").replace(/\/+$/, "").split("/").pop() ?? "", 120);
    };
    document.title = `${name("before")} and ${name("after")} · Stepscope`;
    const files = `before: ${name("before")} · after: ${name("after")}`;
    fill(
      root,
      element(
        "header",
        {},
        element("h1", {}, "Stepscope"),
        element("span", { class: "file", title: files }, files),
        element("button", { click: () => this.theme(), "aria-label": "Dark or light" }, "◐"),
        element("button", { click: () => this.help(), "aria-label": "Keys and mouse" }, "?"),
      ),
      element(
        "div",
        { class: "steps compare" },
        element("div", { class: "stepsmain" }, this.tools, element("p", { class: "note" }), this.stage, this.times),
        this.aside,
      ),
      element("footer", {}, this.where, this.status, this.failure),
      this.helpBox,
    );
    fill(this.aside, element("p", { class: "note", role: "status" }, "Comparing …"));
  }

  // --- asking ------------------------------------------------------------------------------------

  private async load(): Promise<void> {
    this.asking++;
    document.documentElement.dataset.idle = "false";
    try {
      this.compared = await this.source.comparison();
      for (const side of SIDES) {
        const devices = this.compared.devices[side];
        if (this.device[side] >= devices.length) this.device[side] = 0;
        const device = devices[this.device[side]];
        if (this.number[side] < 0 || this.number[side] >= device.count) this.number[side] = device.median;
      }
      if (this.chosen && !this.exists(this.chosen)) this.chosen = null;
      this.panel();
      await this.fetch();
    } catch (error) {
      const says = clean(error instanceof Error ? error.message : String(error), 800);
      fill(this.aside, element("h2", {}, "No comparison"), element("p", { role: "alert" }, says));
    } finally {
      this.asking--;
      this.changed();
    }
  }

  /** Gets the chosen pair of steps. */
  private async fetch(): Promise<void> {
    const turn = ++this.turn;
    this.asking++;
    document.documentElement.dataset.idle = "false";
    this.toolbar();
    try {
      const found = await Promise.all(SIDES.map((side) => this.source.step(side, this.device[side], this.number[side])));
      if (turn !== this.turn) return;
      const first = !this.steps.before;
      SIDES.forEach((side, i) => (this.steps[side] = found[i]));
      this.failure.textContent = "";
      this.toolbar();
      this.scale(first);
      this.highlighted();
    } catch (error) {
      this.failure.textContent = clean(error instanceof Error ? error.message : String(error), 400);
    } finally {
      this.asking--;
      this.changed();
    }
  }

  private readonly zero = (step: PairStep): number => {
    if (this.align === "kernel") return step.first_kernel;
    const first = step.spans.row.indexOf(Number(this.align.slice(6)));
    return this.align === "start" || first < 0 ? 0 : step.spans.start[first];
  };

  /** What both steps can be aligned at. */
  private alignments(): [string, string][] {
    const found: [string, string][] = [["start", "step start"], ["kernel", "first kernel"]];
    const { before, after } = this.steps;
    if (!before || !after) return found;
    const theirs = new Set(after.spans.row);
    for (const row of new Set(before.spans.row))
      if (theirs.has(row)) found.push([`range:${row}`, `range ${this.compared!.comparison.ranges[row].name}`]);
    return found.slice(0, MOST_ALIGNMENTS);
  }

  /** One scale for both: from the earlier begin to the later end. */
  private scale(first: boolean): void {
    const shown = SIDES.map((side) => this.steps[side]).filter((s) => s !== null);
    const low = Math.min(...shown.map((s) => -this.zero(s)));
    const high = Math.max(...shown.map((s) => s.length - this.zero(s)), low + 1);
    const old: [number, number] | null = this.wanted ?? (first ? null : [this.view.begin, this.view.end]);
    const whole = !old || (!this.wanted && this.view.begin <= this.view.first && this.view.end >= this.view.last);
    this.view = new View(low, high);
    if (whole) this.view.fit();
    else this.view.set(old![0], old![1]);
    this.wanted = null;
  }

  // --- drawing -----------------------------------------------------------------------------------

  private changed(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private get chart(): number {
    return Math.max(50, this.scroller.clientWidth - LEFT_PX);
  }

  private draw(): void {
    if (this.compared) {
      const room = this.stage.clientHeight - 2;
      const needed = bottom(lines(this.steps)) - AXIS_PX;
      this.rows = lines(this.steps, Math.min(MOST_GROWN, Math.max(1, (room - AXIS_PX) / Math.max(1, needed))));
      const width = this.scroller.clientWidth;
      const height = Math.max(bottom(this.rows), room);
      this.painter.resize(width, height);
      // whole nanoseconds, as the link tells them: it then gives the same picture
      const shown = new View(this.view.first, this.view.last, Math.round(this.view.begin), Math.round(this.view.end));
      this.painter.paint(shown, this.rows, this.steps, this.zero, this.compared, this.chosen, this.causeCode());
      const devices = { before: this.shownDevice("before"), after: this.shownDevice("after") };
      times(this.times, width, devices, this.number, this.painter.theme);
      this.where.textContent = `${time(this.view.span)} shown`;
    }
    document.documentElement.dataset.idle = String(this.asking === 0);
    this.remember();
  }

  private shownDevice(side: Side): PairDevice {
    return this.compared!.devices[side][this.device[side]];
  }

  private causeCode(): number {
    if (this.chosen?.kind !== "cause") return -1;
    const part = this.compared!.comparison.parts[this.chosen.row]?.part ?? "";
    return this.colours.classes.findIndex((c) => c.key === keyOfPart(part));
  }

  // --- panels ------------------------------------------------------------------------------------

  private toolbar(): void {
    const compared = this.compared!;
    const tools: HTMLElement[] = [];
    for (const side of SIDES) {
      const devices = compared.devices[side];
      const device = devices[this.device[side]];
      if (devices.length > 1) {
        const pick = element(
          "select",
          {
            "aria-label": `Device ${side}`,
            change: (event) => {
              this.device[side] = Number((event.target as HTMLSelectElement).value);
              this.number[side] = devices[this.device[side]].median;
              void this.fetch();
            },
          },
          ...devices.map((d, i) => element("option", { value: String(i), selected: i === this.device[side] }, clean(d.title, 60))),
        );
        tools.push(element("label", {}, `${side} `, pick));
      }
      const box = element("input", {
        type: "number",
        min: 0,
        max: device.count - 1,
        value: this.number[side],
        "aria-label": `Step ${side}`,
        change: (event) => {
          const value = Number((event.target as HTMLInputElement).value);
          if (Number.isInteger(value)) this.go(side, value);
        },
      });
      const about = [
        this.number[side] === device.median ? "median" : "",
        this.number[side] < device.first || this.number[side] > device.last ? "set aside" : "",
        time(device.lengths[this.number[side]]),
      ];
      tools.push(element("label", {}, `${side}: step `, box, ` of ${device.count} (${about.filter(Boolean).join(", ")})`));
      if (this.source.timelines) {
        const step = this.steps[side];
        const range = step ? `#t=${step.begin}-${step.begin + step.length}&range=${step.begin}-${step.begin + step.length}` : "";
        tools.push(element("a", { href: `${side}/${range}`, "aria-label": `Timeline of ${side}` }, "timeline"));
      }
    }
    tools.push(
      element("button", { click: () => this.medians() }, "Median steps (M)"),
      element(
        "label",
        {},
        "Aligned at ",
        element(
          "select",
          { "aria-label": "Aligned at", change: (event) => this.setAlign((event.target as HTMLSelectElement).value) },
          ...this.alignments().map(([key, says]) => element("option", { value: key, selected: key === this.align }, clean(says, 60))),
        ),
      ),
    );
    fill(this.tools, ...tools);
  }

  private panel(): void {
    const { comparison, facts, notes } = this.compared!;
    fill(
      this.aside,
      element("section", { "aria-label": "Verdict", class: `verdict ${comparison.verdict}` }, element("h2", {}, `${clean(comparison.says, 800)}.`), ...facts.map((line) => element("p", { class: "note" }, clean(line, 600)))),
      this.chosenPanel,
      this.tables,
      element("details", {}, element("summary", {}, `Notes (${notes.length})`), element("ul", { class: "plain" }, ...notes.map((n) => element("li", {}, clean(n, 600))))),
    );
    this.differences();
    this.highlighted();
  }

  private differences(): void {
    showDifferences(this.tables, this.compared!.comparison, this.colours, {
      all: this.allKernels,
      choose: (chosen) => this.choose(chosen),
      toggle: () => {
        this.allKernels = !this.allKernels;
        this.differences();
      },
    });
    this.mark();
  }

  private mark(): void {
    for (const row of this.tables.querySelectorAll<HTMLElement>("tr[data-kind]")) {
      const own = this.chosen !== null && row.dataset.kind === this.chosen.kind && Number(row.dataset.row) === this.chosen.row;
      row.classList.toggle("chosen", own);
      if (own) row.scrollIntoView({ block: "nearest" });
    }
  }

  /** What is highlighted, and how often and how long it is in the two steps shown. */
  private highlighted(): void {
    const c = this.compared?.comparison;
    if (!c || !this.chosen) {
      fill(this.chosenPanel);
      return;
    }
    const { kind, row } = this.chosen;
    const name =
      kind === "kernel" ? kernelName(c.kernels[row])
      : kind === "cause" ? words(c.parts[row].part.replace("idle:", "idle: "))
      : c[kind === "range" ? "ranges" : "operators"][row].name; // prettier-ignore
    const lines_ = SIDES.map((side) => {
      const step = this.steps[side];
      if (!step) return element("li", {}, side);
      const what = kind === "cause" ? "pieces" : "operations";
      let [n, ns] = [0, 0];
      for (let i = 0; i < step[what].start.length; i++)
        if (belongs(step, what, i, this.chosen!, this.causeCode())) {
          n++;
          ns += step[what].end[i] - step[what].start[i];
        }
      return element("li", {}, `${side}, step ${step.step}: ${n} × , ${time(ns)}`.replace(" × ,", " ×,"));
    });
    fill(
      this.chosenPanel,
      element("h2", {}, "Highlighted"),
      element("p", { class: "name" }, clean(name, 400)),
      ...(kind === "kernel" ? [element("p", { class: "note" }, clean(about(c.kernels[row]), 300))] : []),
      element("ul", { class: "plain" }, ...lines_),
    );
  }

  // --- doing -------------------------------------------------------------------------------------

  private exists({ kind, row }: Chosen): boolean {
    const c = this.compared!.comparison;
    const lists = { kernel: c.kernels, range: c.ranges, operator: c.operators, cause: c.parts };
    return row >= 0 && row < lists[kind].length;
  }

  private choose(chosen: Chosen | null): void {
    const again = chosen && this.chosen?.kind === chosen.kind && this.chosen.row === chosen.row;
    this.chosen = again ? null : chosen;
    if (this.chosen?.kind === "kernel" && !this.tables.querySelector(`tr[data-kind=kernel][data-row="${this.chosen.row}"]`)) {
      this.allKernels = true;
      this.differences();
    }
    this.mark();
    this.highlighted();
    this.status.textContent = this.chosen ? (this.chosenPanel.querySelector(".name")?.textContent ?? "") : "";
    this.changed();
  }

  private go(side: Side, step: number): void {
    const count = this.compared!.devices[side][this.device[side]].count;
    this.number[side] = Math.min(Math.max(step, 0), count - 1);
    void this.fetch();
  }

  /** The next or previous step of both, or of one side. */
  private pair(by: number, only: Side | null): void {
    if (!this.compared) return;
    for (const side of only ? [only] : SIDES) {
      const count = this.compared.devices[side][this.device[side]].count;
      this.number[side] = Math.min(Math.max(this.number[side] + by, 0), count - 1);
    }
    void this.fetch();
  }

  private medians(): void {
    if (!this.compared) return;
    for (const side of SIDES) this.number[side] = this.compared.devices[side][this.device[side]].median;
    void this.fetch();
  }

  private nextAlign(): void {
    const keys = this.alignments().map(([key]) => key);
    if (this.compared) this.setAlign(keys[(keys.indexOf(this.align) + 1) % keys.length]);
  }

  private setAlign(align: string): void {
    this.align = align;
    this.toolbar();
    if (this.steps.before) this.scale(false);
    this.changed();
  }

  /** The next row of the tables, in the order in which they stand. */
  private stepRow(by: number): void {
    const rows = [...this.tables.querySelectorAll<HTMLElement>("tr[data-kind]")];
    if (!rows.length) return;
    const at = rows.findIndex((r) => r.classList.contains("chosen"));
    const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1);
    if (next === at) return;
    this.choose({ kind: rows[next].dataset.kind as Kind, row: Number(rows[next].dataset.row) });
  }

  private theme(): void {
    this.painter.theme = toggleTheme();
    this.changed();
  }

  private help(): void {
    const list = element("dl", {});
    for (const { shows, says } of this.keys) if (shows) list.append(element("dt", {}, shows), element("dd", {}, says));
    list.append(element("dt", {}, "click"), element("dd", {}, "highlight a kernel or range in both runs"));
    fill(
      this.helpBox,
      element("h2", {}, "Keys and mouse"),
      list,
      element("p", {}, element("button", { click: () => this.helpBox.close() }, "Close (Esc)")),
    );
    this.helpBox.showModal();
  }

  private ownKeys(): Key[] {
    const code =
      (...codes: string[]) =>
      (e: KeyboardEvent): boolean =>
        codes.includes(e.code) && !e.ctrlKey && !e.metaKey && !e.altKey;
    const typed =
      (...characters: string[]) =>
      (e: KeyboardEvent): boolean =>
        characters.includes(e.key) && !e.ctrlKey && !e.metaKey && !e.altKey;
    const then = (change: () => void) => (): void => {
      change();
      this.changed();
    };
    return [
      { match: code("ArrowDown"), shows: "↓ ↑", says: "highlight the next, previous cause, kernel, range", run: () => this.stepRow(1) },
      { match: code("ArrowUp"), shows: "", says: "", run: () => this.stepRow(-1) },
      { match: typed("."), shows: ". ,", says: "next, previous step of both runs", run: () => this.pair(1, null) },
      { match: typed(","), shows: "", says: "", run: () => this.pair(-1, null) },
      { match: typed("]"), shows: "] [", says: "next, previous step of the later run only", run: () => this.pair(1, "after") },
      { match: typed("["), shows: "", says: "", run: () => this.pair(-1, "after") },
      { match: code("KeyM"), shows: "M", says: "the median step of each", run: () => this.medians() },
      { match: code("KeyI"), shows: "I", says: "align at: step start, first kernel, ranges", run: () => this.nextAlign() },
      { match: code("KeyW"), shows: "W S, Ctrl+wheel", says: "zoom", run: then(() => this.view.zoom(0.75, this.pointerX)) },
      { match: code("KeyS"), shows: "", says: "", run: then(() => this.view.zoom(1 / 0.75, this.pointerX)) },
      { match: code("KeyA", "ArrowLeft"), shows: "A D, ← →, drag", says: "move", run: then(() => this.view.pan(-0.12)) },
      { match: code("KeyD", "ArrowRight"), shows: "", says: "", run: then(() => this.view.pan(0.12)) },
      { match: typed("0"), shows: "0, double click", says: "show both steps whole", run: then(() => this.view.fit()) },
      { match: code("KeyL"), shows: "L", says: "dark or light", run: () => this.theme() },
      { match: typed("?"), shows: "?", says: "this help", run: () => this.help() },
      { match: typed("Escape"), shows: "Esc", says: "highlight nothing", run: () => this.choose(null) },
    ];
  }

  // --- pointer and keys --------------------------------------------------------------------------

  private listen(): void {
    new ResizeObserver(() => this.changed()).observe(this.stage);
    window.addEventListener("keydown", (event) => {
      const target = event.target as HTMLElement;
      if (["INPUT", "SELECT"].includes(target.tagName) || this.helpBox.open) return;
      if (["BUTTON", "SUMMARY", "A"].includes(target.tagName) && (event.key === "Enter" || event.key === " ")) return;
      const key = this.keys.find((candidate) => candidate.match(event));
      if (!key) return;
      event.preventDefault();
      key.run(event);
    });
    window.addEventListener("hashchange", () => {
      this.restore();
      void this.load();
    });
    this.times.addEventListener("click", (event) => {
      if (!this.compared) return;
      const box = this.times.getBoundingClientRect();
      const side = SIDES[event.clientY - box.top < TIMES_PX / 2 ? 0 : 1];
      const share = (event.clientX - box.left - LEFT_PX) / (box.width - LEFT_PX);
      if (share >= 0) this.go(side, Math.floor(share * this.shownDevice(side).count));
    });
    this.canvas.addEventListener("dblclick", () => {
      this.view.fit();
      this.changed();
    });
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
  }

  private point(event: MouseEvent): number {
    const x = event.clientX - this.canvas.getBoundingClientRect().left - LEFT_PX;
    this.pointerX = Math.min(1, Math.max(0, x / this.chart));
    return x;
  }

  private wheel(event: WheelEvent): void {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.point(event);
    this.view.zoom(Math.exp(event.deltaY * 0.0022), this.pointerX);
    this.changed();
  }

  private press(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    const from = this.point(event);
    const [begin, end] = [this.view.begin, this.view.end];
    let moved = false;
    const move = (next: PointerEvent): void => {
      moved ||= Math.abs(next.clientX - event.clientX) > 4;
      if (!moved) return;
      const by = ((this.point(next) - from) / this.chart) * (end - begin);
      this.view.set(begin - by, end - by);
      this.changed();
    };
    const stop = (last: PointerEvent): void => {
      this.canvas.removeEventListener("pointermove", move);
      this.canvas.removeEventListener("pointerup", stop);
      this.canvas.removeEventListener("pointercancel", stop);
      const under = !moved && last.type === "pointerup" ? this.under(last) : null;
      if (under) this.clicked(under);
      this.canvas.focus({ preventScroll: true });
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", stop);
    this.canvas.addEventListener("pointercancel", stop);
  }

  private clicked({ line, step, i }: { line: Line; step: PairStep; i: number }): void {
    if (line.what === "pieces") {
      const key = this.colours.classes[step.pieces.code[i]].key;
      const row = this.compared!.comparison.parts.findIndex((p) => keyOfPart(p.part) === key);
      if (row >= 0) this.choose({ kind: "cause", row });
      return;
    }
    const chosen = rowOf(step, line.what, i);
    if (chosen) this.choose(chosen);
    else this.status.textContent = "the comparison has no row for this";
  }

  private under(event: PointerEvent): { line: Line; step: PairStep; i: number } | null {
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const line = y < AXIS_PX ? undefined : this.rows.find((l) => y >= l.y && y < l.y + l.height);
    const step = line ? this.steps[line.side] : null;
    const x = event.clientX - box.left - LEFT_PX;
    if (!line || !step || x < 0) return null;
    const at = this.view.time(x, this.chart) + this.zero(step);
    const slop = (2 * this.view.span) / this.chart;
    const boxes = step[line.what];
    let [best, distance] = [-1, slop];
    for (let i = 0; i < boxes.start.length; i++) {
      if (line.what === "operations" && streamOf(step, i) !== line.stream) continue;
      const off = Math.max(boxes.start[i] - at, at - boxes.end[i], 0);
      if (off < distance || (off === 0 && distance === 0)) [best, distance] = [i, off];
    }
    return best < 0 ? null : { line, step, i: best };
  }

  private hover(event: PointerEvent): void {
    this.point(event);
    const under = this.under(event);
    this.tip.hidden = !under || event.buttons !== 0;
    if (!under) return;
    const { line, step, i } = under;
    const boxes = step[line.what];
    const c = this.compared!.comparison;
    const says = [`${line.side}, step ${step.step}`];
    if (line.what === "pieces") {
      const code = step.pieces.code[i];
      const idle = this.colours.classes[code].key.startsWith("idle_");
      says.push(`${idle ? "idle by " : ""}${this.colours.says[code]}`);
    } else if (line.what === "spans") says.push(clean(c.ranges[step.spans.row[i]]?.name ?? "", 200));
    else {
      says.push(clean(step.names[step.operations.name[i]], 200), this.colours.says[step.operations.code[i]]);
      const row = step.operations.kernel[i];
      if (row !== NO_ROW) says.push(about(c.kernels[row]));
    }
    says.push(time(boxes.end[i] - boxes.start[i]));
    this.tip.textContent = says.join(" · ");
    const box = this.stage.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const right = left > box.width * 0.5;
    this.tip.style.left = right ? "auto" : `${left + 14}px`;
    this.tip.style.right = right ? `${box.width - left + 14}px` : "auto";
    this.tip.style.top = `${Math.min(top + 16, box.height - 30)}px`;
  }

  // --- link --------------------------------------------------------------------------------------

  private remember(): void {
    clearTimeout(this.linkTimer);
    if (!this.steps.before) return;
    this.linkTimer = window.setTimeout(() => {
      const told = new URLSearchParams();
      told.set("before", `${this.device.before}-${this.number.before}`);
      told.set("after", `${this.device.after}-${this.number.after}`);
      if (this.align !== "start") told.set("align", this.align);
      if (this.chosen) told.set("sel", `${this.chosen.kind}-${this.chosen.row}`);
      told.set("t", `${Math.round(this.view.begin)}_${Math.round(this.view.end)}`);
      const text = `#${told}`;
      if (text !== location.hash) history.replaceState(null, "", text);
    }, 250);
  }

  private restore(): void {
    const told = new URLSearchParams(location.hash.replace(/^#/, ""));
    for (const side of SIDES) {
      const parts = /^(\d{1,9})-(\d{1,9})$/.exec(told.get(side) ?? "");
      this.device[side] = parts ? Number(parts[1]) : 0;
      this.number[side] = parts ? Number(parts[2]) : -1;
    }
    const align = told.get("align") ?? "start";
    this.align = /^(start|kernel|range:\d{1,9})$/.test(align) ? align : "start";
    const chosen = /^([a-z]+)-(\d{1,9})$/.exec(told.get("sel") ?? "");
    const kind = KINDS.find((k) => k === chosen?.[1]);
    this.chosen = kind && chosen ? { kind, row: Number(chosen[2]) } : null;
    this.allKernels = kind === "kernel";
    const window_ = (told.get("t") ?? "").split("_").map(Number);
    this.wanted = window_.length === 2 && window_.every(Number.isFinite) && window_[1] > window_[0] ? [window_[0], window_[1]] : null;
  }
}

function bottom(rows: Line[]): number {
  const last = rows[rows.length - 1];
  return last.y + last.height + 10;
}

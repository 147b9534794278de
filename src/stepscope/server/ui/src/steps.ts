/** The step view: all steps side by side. Holds its state, answers pointer and keys. */

import { Colours } from "./colours";
import { element, fill } from "./dom";
import { clean, count, percent, time } from "./format";
import type { Key } from "./keys";
import { AXIS_PX } from "./sheet";
import { LEFT_PX, RIGHT_PX, StepPainter, histogram, picture } from "./steppaint";
import { legend, partsOf, showFigures, showStep } from "./steppanel";
import { COLOURINGS, NOTHING, SORTS, order, type Colouring, type Figures, type Grid, type Sort, type StepSource } from "./stepsource";
import { themeNow } from "./theme";
import { View } from "./view";

const MOST_ROW_PX = 40;
const MOST_COLUMNS = 2048;
const MOST_STEPPED = 1e6;
const PAUSE_MS = 50;
/** Longer than this many median steps is cut off at first: one long step would squash all others. */
const SHOWN_MEDIANS = 2;
const COLOURING_SAYS: Record<Colouring, string> = {
  kind: "by kind of work",
  family: "by kernel family",
  phase: "by phase",
};
const SORT_SAYS: Record<Sort, string> = { index: "as they ran", duration: "longest first" };

export interface StepActions {
  /** Shows a step in the timeline; times on the job's clock, ns. */
  open(step: number, begin: number, end: number): void;
  /** The view has changed: the link should say so. */
  changed(): void;
  says(text: string): void;
  fail(text: string): void;
}

interface Shown {
  grid: Grid;
  image: HTMLCanvasElement;
  first: number;
  rowPx: number;
  asked: string;
}

export class StepsView {
  readonly root = element("section", { class: "steps", hidden: true, "aria-label": "Steps" });
  readonly keys: Key[];
  private readonly canvas = element("canvas", {
    class: "steprows",
    tabindex: 0,
    role: "application",
    "aria-label":
      "Steps side by side. Up and down choose a step, Enter opens it in the timeline, W and S zoom, question mark shows all keys.",
  });
  private readonly spacer = element("div", {});
  private readonly scroller = element("div", { class: "scroll" }, this.canvas, this.spacer);
  private readonly tip = element("div", { class: "tip", hidden: true });
  private readonly stage = element("div", { class: "stage" }, this.scroller, this.tip);
  private readonly tools = element("div", { class: "tools" });
  private readonly note = element("p", { class: "note", role: "status" });
  private readonly aside = element("aside", { "aria-label": "Step figures" });
  private readonly chosen = element("section", { "aria-label": "Selected step" });
  private readonly bars = element("canvas", { class: "histogram", role: "img", tabindex: -1 });
  private readonly painter = new StepPainter(this.canvas, themeNow());
  private readonly colours: Colours;
  private figures: Figures | null = null;
  private order: Uint32Array = new Uint32Array();
  private odd = new Set<number>();
  private view = new View(0, 1);
  private device = 0;
  private align = "start";
  private sort: Sort = "index";
  private colour: Colouring = "kind";
  /** Pixels a step; 0 for as many as fit. */
  private stepPx = 0;
  private selected = -1;
  private hovered = -1;
  private shown: Shown | null = null;
  private frame = 0;
  private timer = 0;
  private running: AbortController | null = null;
  private asking = 0;
  private asked = "";
  private wanted: [number, number] | null = null;
  private bins: number[][] = [];
  private pointerX = 0.5;

  constructor(
    private readonly source: StepSource,
    classes: { key: string; says: string }[],
    private readonly actions: StepActions,
  ) {
    this.colours = new Colours(classes);
    this.keys = this.ownKeys();
    fill(this.root, element("div", { class: "stepsmain" }, this.tools, this.note, this.stage), this.aside);
    this.listen();
  }

  get visible(): boolean {
    return !this.root.hidden;
  }

  /** Whether nothing is being asked. */
  get idle(): boolean {
    return this.asking === 0 && (!this.visible || this.failed || this.shown?.asked === this.asked);
  }

  private failed = false;

  show(visible: boolean): void {
    this.root.hidden = !visible;
    if (!visible) return;
    if (!this.figures && !this.failed) void this.load();
    this.canvas.focus({ preventScroll: true });
    this.changed();
  }

  themed(): void {
    this.painter.theme = themeNow();
    this.changed();
    this.histogram();
  }

  // --- link --------------------------------------------------------------------------------------

  /** Words of the link, empty while the view has never been shown. */
  words(): Record<string, string> {
    if (!this.figures) return this.visible ? { view: "steps" } : {};
    return {
      ...(this.visible ? { view: "steps" } : {}),
      ...(this.device ? { sdev: String(this.device) } : {}),
      ...(this.align !== "start" ? { salign: this.align } : {}),
      ...(this.sort !== "index" ? { ssort: this.sort } : {}),
      ...(this.colour !== "kind" ? { scolour: this.colour } : {}),
      ...(this.selected >= 0 ? { step: String(this.selected) } : {}),
      ...(this.stepPx ? { spx: String(this.stepPx) } : {}),
      st: `${Math.round(this.view.begin)}_${Math.round(this.view.end)}`,
    };
  }

  /** Takes the state that a link tells; whether it asks for this view. */
  restore(hash: string): boolean {
    const told = new URLSearchParams(hash.replace(/^#/, ""));
    const whole = (name: string): number => {
      const value = Number(told.get(name) ?? NaN);
      return Number.isInteger(value) ? value : -1;
    };
    this.device = Math.max(0, whole("sdev"));
    const align = told.get("salign") ?? "start";
    this.align = /^(start|kernel|range:\d{1,4})$/.test(align) ? align : "start";
    this.sort = SORTS.find((s) => s === told.get("ssort")) ?? "index";
    this.colour = COLOURINGS.find((c) => c === told.get("scolour")) ?? "kind";
    this.selected = whole("step");
    const px = Number(told.get("spx") ?? 0);
    this.stepPx = px > 0 && px <= MOST_ROW_PX ? px : 0;
    const window = (told.get("st") ?? "").split("_").map(Number);
    this.wanted = window.length === 2 && window.every(Number.isFinite) && window[1] > window[0]
      ? [window[0], window[1]]
      : null; // prettier-ignore
    const asks = told.get("view") === "steps";
    this.figures = null;
    this.failed = false;
    return asks;
  }

  // --- asking ------------------------------------------------------------------------------------

  private async load(): Promise<void> {
    this.asking++;
    this.failed = false;
    document.documentElement.dataset.idle = "false";
    this.note.textContent = "Finding the steps and what they wait for …";
    try {
      const found = await this.source.figures(this.device, this.align);
      this.take(found);
    } catch (error) {
      this.failed = true;
      this.figures = null;
      this.shown = null;
      const says = error instanceof Error ? error.message : String(error);
      this.note.textContent = clean(says, 800);
      fill(this.tools);
      fill(this.aside, element("h2", {}, "No steps"), element("p", {}, clean(says, 800)));
    } finally {
      this.asking--;
      this.changed();
    }
  }

  private take(found: Figures): void {
    const before = this.figures;
    this.figures = found;
    this.odd = new Set(found.outliers.map((o) => o.step));
    this.order = order(found.begin, found.end, this.sort);
    if (this.selected >= found.count) this.selected = -1;
    let [first, last] = [0, 1];
    for (let s = 0; s < found.count; s++) {
      first = Math.min(first, found.begin[s] - found.zero[s]);
      last = Math.max(last, found.end[s] - found.zero[s]);
    }
    const shown = this.wanted ?? (before && before.number === found.number && before.zero.every((z, i) => z === found.zero[i]) ? [this.view.begin, this.view.end] : null);
    this.view = new View(first, last);
    if (shown) this.view.set(shown[0], shown[1]);
    else this.usual();
    this.wanted = null;
    this.shown = null;
    this.toolbar();
    this.panel();
  }

  /** Shows the steps whole, but no more than some medians. */
  private usual(): void {
    const f = this.figures!;
    const typical = f.end[f.median] - f.begin[f.median];
    const last = Math.min(this.view.last, SHOWN_MEDIANS * typical);
    const room = 0.02 * (last - this.view.first);
    this.view.set(this.view.first - room, last + room);
  }

  private get chart(): number {
    return Math.max(50, this.stage.clientWidth - this.scrollbar - LEFT_PX - RIGHT_PX);
  }

  private get scrollbar(): number {
    return this.scroller.offsetWidth - this.scroller.clientWidth;
  }

  /** Steps in a row, and pixels of a row. */
  private get layout(): { group: number; rowPx: number } {
    const n = Math.max(1, this.order.length);
    const fits = Math.max(1, this.stage.clientHeight - AXIS_PX - 2) / n;
    const px = Math.min(MOST_ROW_PX, this.stepPx ? Math.max(this.stepPx, Math.min(fits, MOST_ROW_PX)) : fits);
    return px < 1 ? { group: Math.ceil(1 / px), rowPx: 1 } : { group: 1, rowPx: Math.floor(px) };
  }

  private want(): void {
    if (!this.figures || !this.visible) return;
    const { group, rowPx } = this.layout;
    const visible = Math.ceil((this.stage.clientHeight - AXIS_PX) / rowPx) + 2;
    // rows to spare, so that scrolling a little asks nothing
    const spare = Math.ceil(visible / 2);
    const block = Math.max(1, spare);
    const top = Math.floor(this.scroller.scrollTop / rowPx);
    const firstRow = Math.max(0, Math.floor((top - spare) / block) * block);
    const rows = visible + 2 * spare + block;
    const columns = Math.min(MOST_COLUMNS, Math.round(this.chart));
    const bucket = Math.max(1, Math.ceil(this.view.span / columns));
    const ask = {
      device: this.device,
      align: this.align,
      sort: this.sort,
      colour: this.colour,
      first: firstRow * group,
      count: rows * group,
      group,
      begin: Math.floor(this.view.begin),
      bucket,
      columns,
      phases: rowPx >= 10 && this.colour !== "phase",
    };
    const asked = JSON.stringify(ask);
    this.asked = asked;
    if (this.shown?.asked === asked || this.running) return;
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.fetch(ask, asked, rowPx), this.shown ? PAUSE_MS : 0);
  }

  private async fetch(ask: Parameters<StepSource["grid"]>[0], asked: string, rowPx: number): Promise<void> {
    if (this.running) return;
    const control = new AbortController();
    this.running = control;
    this.asking++;
    try {
      const grid = await this.source.grid(ask, control.signal);
      this.shown = { grid, image: picture(grid, rowPx, this.colours), first: ask.first, rowPx, asked };
    } catch (error) {
      this.actions.fail(error instanceof Error ? error.message : String(error));
      this.shown = this.shown ? { ...this.shown, asked } : null;
      if (!this.shown) this.failed = true;
    } finally {
      this.running = null;
      this.asking--;
      this.changed();
    }
  }

  // --- drawing -----------------------------------------------------------------------------------

  changed(): void {
    if (this.frame || !this.visible) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private draw(): void {
    if (!this.visible) return;
    const f = this.figures;
    if (f) {
      const { group, rowPx } = this.layout;
      const height = this.stage.clientHeight;
      const rows = Math.ceil(this.order.length / group);
      this.spacer.style.height = `${Math.max(0, rows * rowPx + AXIS_PX - height)}px`;
      const width = this.stage.clientWidth - this.scrollbar;
      this.painter.resize(width, height);
      this.want();
      const longest = this.order.reduce((most, s) => Math.max(most, f.end[s] - f.begin[s]), 1);
      this.painter.paint(this.view, this.shown, {
        figures: f,
        order: this.order,
        odd: this.odd,
        group,
        rowPx,
        scroll: this.scroller.scrollTop,
        selected: this.selected,
        hovered: this.hovered,
        longest,
      });
    }
    document.documentElement.dataset.idle = String(this.idle);
    this.actions.changed();
  }

  // --- panels ------------------------------------------------------------------------------------

  private toolbar(): void {
    const f = this.figures!;
    const pick = (label: string, options: [string, string][], value: string, then: (value: string) => void): HTMLElement => {
      const made = element(
        "select",
        { "aria-label": label, change: (event) => then((event.target as HTMLSelectElement).value) },
        ...options.map(([key, says]) => element("option", { value: key, selected: key === value }, clean(says, 60))),
      );
      return element("label", {}, `${label} `, made);
    };
    const ranges = f.ranges.map((name, i): [string, string] => [`range:${i}`, `range ${name}`]);
    fill(
      this.tools,
      ...(f.titles.length > 1
        ? [pick("Device", f.titles.map((t, i) => [String(i), t]), String(this.device), (v) => this.setDevice(Number(v)))]
        : []),
      pick("Aligned at", [["start", "step start"], ["kernel", "first kernel"], ...ranges], this.align, (v) => this.setAlign(v)),
      pick("Sorted", SORTS.map((s) => [s, SORT_SAYS[s]]), this.sort, (v) => this.setSort(v as Sort)),
      pick("Coloured", COLOURINGS.map((c) => [c, COLOURING_SAYS[c]]), this.colour, (v) => this.setColour(v as Colouring)),
    );
    const missing = f.missing ? `${count(f.missing)} of ${count(f.count)} steps do not hold it and begin at their start.` : "";
    const none = f.found === "whole_capture" ? `${f.says}; annotate the steps to see them side by side.` : "";
    this.note.textContent = clean([none, missing].filter(Boolean).join(" "), 400);
  }

  private panel(): void {
    showFigures(this.aside, this.figures!, {
      title: this.figures!.titles[this.device],
      parts: [this.bars, this.chosen],
      legend: legend(this.figures!, this.colour, this.colours),
      select: (step) => this.select(step),
    });
    this.histogram();
    this.detail();
  }

  private histogram(): void {
    const f = this.figures;
    if (!f) return;
    this.bins = histogram(this.bars, f, this.painter.theme, this.odd, this.selected).bins;
    this.bars.setAttribute("aria-label", `histogram of ${f.last - f.first + 1} step times in ${this.bins.length} bins`);
  }

  private detail(): void {
    showStep(this.chosen, this.figures!, this.selected, this.colours, (step) => this.open(step));
  }

  // --- doing -------------------------------------------------------------------------------------

  private setDevice(device: number): void {
    const n = this.figures?.titles.length ?? 1;
    this.device = (device + n) % n;
    this.align = "start"; // another rank may have other ranges
    this.figures = null;
    void this.load();
  }

  private setAlign(align: string): void {
    this.align = align;
    void this.load();
  }

  private setSort(sort: Sort): void {
    this.sort = sort;
    this.order = order(this.figures!.begin, this.figures!.end, sort);
    this.toolbar();
    this.reveal();
    this.changed();
  }

  private setColour(colour: Colouring): void {
    this.colour = colour;
    this.toolbar();
    this.panel();
    this.changed();
  }

  private select(step: number, reveal = true): void {
    this.selected = step;
    this.detail();
    this.histogram();
    if (reveal) this.reveal();
    const f = this.figures!;
    this.actions.says(`step ${step}, ${time(f.end[step] - f.begin[step])}`);
    this.changed();
  }

  private reveal(): void {
    if (this.selected < 0) return;
    const { group, rowPx } = this.layout;
    const y = Math.floor(this.order.indexOf(this.selected) / group) * rowPx;
    const room = this.stage.clientHeight - AXIS_PX;
    if (y < this.scroller.scrollTop) this.scroller.scrollTop = y;
    else if (y + rowPx > this.scroller.scrollTop + room) this.scroller.scrollTop = y + rowPx - room;
  }

  private step(by: number): void {
    if (!this.figures || !this.order.length) return;
    const { group } = this.layout;
    const at = this.order.indexOf(this.selected);
    const last = this.order.length - 1;
    const far = Math.abs(by) >= MOST_STEPPED; // Home and End
    const next = far ? (by > 0 ? last : 0) : at < 0 ? (by > 0 ? 0 : last) : at + by * group;
    this.select(this.order[Math.min(Math.max(next, 0), this.order.length - 1)]);
  }

  private nextOdd(by: number): void {
    const odd = this.order.filter((s) => this.odd.has(s));
    if (!odd.length) {
      this.actions.says("no step takes far longer than the others");
      return;
    }
    const at = odd.indexOf(this.selected);
    this.select(odd[at < 0 ? (by > 0 ? 0 : odd.length - 1) : (at + by + odd.length) % odd.length]);
  }

  private open(step: number): void {
    if (step < 0 || !this.figures) return;
    this.actions.open(step, this.figures.begin[step], this.figures.end[step]);
  }

  private higher(factor: number): void {
    const { group, rowPx } = this.layout;
    const next = (rowPx / group) * factor;
    const fits = (this.stage.clientHeight - AXIS_PX - 2) / Math.max(1, this.order.length);
    this.stepPx = next <= fits ? 0 : Math.min(MOST_ROW_PX, next);
    this.shown = null;
    requestAnimationFrame(() => this.reveal());
    this.changed();
  }

  private ownKeys(): Key[] {
    const on =
      (...names: string[]) =>
      (event: KeyboardEvent): boolean =>
        !event.ctrlKey && !event.metaKey && !event.altKey && names.includes(names[0].length > 1 ? event.code : event.key);
    const move = (then: () => void) => (): void => {
      if (!this.figures) return;
      then();
      this.changed();
    };
    const cycle = <T>(all: readonly T[], now: T): T => all[(all.indexOf(now) + 1) % all.length];
    return [
      { match: on("ArrowDown"), shows: "↓ ↑, Shift", says: "next, previous step; ten with Shift", run: (e) => this.step(e.shiftKey ? 10 : 1) },
      { match: on("ArrowUp"), shows: "", says: "", run: (e) => this.step(e.shiftKey ? -10 : -1) },
      { match: on("Home"), shows: "Home, End", says: "first, last row", run: () => this.step(-MOST_STEPPED) },
      { match: on("End"), shows: "", says: "", run: () => this.step(MOST_STEPPED) },
      { match: on("Enter", "NumpadEnter"), shows: "Enter, click", says: "open the step in the timeline; Shift+click only chooses it", run: () => this.open(this.selected) },
      { match: on("KeyM"), shows: "M", says: "select the median step", run: move(() => this.select(this.figures!.median)) },
      { match: on("KeyG"), shows: "G, Shift+G", says: "next, previous odd step", run: (e) => this.nextOdd(e.shiftKey ? -1 : 1) },
      { match: on("KeyO"), shows: "O", says: "sort: as they ran, longest first", run: move(() => this.setSort(cycle(SORTS, this.sort))) },
      { match: on("KeyI"), shows: "I", says: "align at: step start, first kernel, ranges", run: move(() => this.setAlign(cycle(["start", "kernel", ...this.figures!.ranges.map((_, i) => `range:${i}`)], this.align))) },
      { match: on("KeyC"), shows: "C", says: "colour by kind, family, phase", run: move(() => this.setColour(cycle(COLOURINGS, this.colour))) },
      { match: on("KeyN"), shows: "N, Shift+N", says: "next, previous device", run: (e) => move(() => this.setDevice(this.device + (e.shiftKey ? -1 : 1)))() },
      { match: on("KeyW"), shows: "W S, Ctrl+wheel", says: "zoom in time", run: move(() => this.view.zoom(0.75, this.pointerX)) },
      { match: on("KeyS"), shows: "", says: "", run: move(() => this.view.zoom(1 / 0.75, this.pointerX)) },
      { match: on("KeyA", "ArrowLeft"), shows: "A D, ← →, drag", says: "move in time", run: move(() => this.view.pan(-0.12)) },
      { match: on("KeyD", "ArrowRight"), shows: "", says: "", run: move(() => this.view.pan(0.12)) },
      { match: on("+", "="), shows: "+ −", says: "higher, lower rows", run: move(() => this.higher(2)) },
      { match: on("-", "_"), shows: "", says: "", run: move(() => this.higher(0.5)) },
      { match: on("0"), shows: "0, Shift+0", says: "show the steps, all of the longest", run: move(() => { this.stepPx = 0; this.usual(); }) }, // prettier-ignore
      { match: (e) => e.code === "Digit0" && e.shiftKey, shows: "", says: "", run: move(() => { this.stepPx = 0; this.view.fit(); }) }, // prettier-ignore
    ];
  }

  // --- pointer -----------------------------------------------------------------------------------

  private listen(): void {
    new ResizeObserver(() => this.changed()).observe(this.stage);
    this.scroller.addEventListener("scroll", () => this.changed());
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
      this.hovered = -1;
      this.changed();
    });
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.point(event);
        this.view.zoom(Math.exp(event.deltaY * 0.0022), this.pointerX);
        this.changed();
      },
      { passive: false },
    );
    this.bars.addEventListener("click", (event) => {
      const box = this.bars.getBoundingClientRect();
      const bin = Math.floor(((event.clientX - box.left) / box.width) * this.bins.length);
      const steps = this.bins[bin] ?? [];
      if (steps.length) this.select(steps[(steps.indexOf(this.selected) + 1) % steps.length]);
    });
  }

  private point(event: MouseEvent): number {
    const x = event.clientX - this.stage.getBoundingClientRect().left - LEFT_PX;
    this.pointerX = Math.min(1, Math.max(0, x / this.chart));
    return x;
  }

  /** Row under the pointer; -1 for none. */
  private rowAt(event: MouseEvent): number {
    const { group, rowPx } = this.layout;
    const y = event.clientY - this.stage.getBoundingClientRect().top - AXIS_PX;
    const row = Math.floor((y + this.scroller.scrollTop) / rowPx);
    return y < 0 || row < 0 || row * group >= this.order.length ? -1 : row;
  }

  private at(event: MouseEvent): number {
    const row = this.rowAt(event);
    return row < 0 ? -1 : this.order[row * this.layout.group];
  }

  private press(event: PointerEvent): void {
    if (event.button !== 0 || !this.figures) return;
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
      const step = this.at(last);
      this.canvas.focus({ preventScroll: true });
      if (moved || last.type !== "pointerup" || step < 0) return;
      this.select(step, false);
      if (!last.shiftKey) this.open(step);
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", stop);
    this.canvas.addEventListener("pointercancel", stop);
  }

  private hover(event: PointerEvent): void {
    const x = this.point(event);
    const row = this.rowAt(event);
    this.hovered = row < 0 ? -1 : this.at(event);
    const text = row < 0 ? "" : this.hint(row, x);
    this.tip.hidden = !text || event.buttons !== 0;
    this.tip.textContent = text;
    const box = this.stage.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const right = left > box.width * 0.5;
    this.tip.style.left = right ? "auto" : `${left + 14}px`;
    this.tip.style.right = right ? `${box.width - left + 14}px` : "auto";
    this.tip.style.top = `${Math.min(top + 16, box.height - 30)}px`;
    this.changed();
  }

  private hint(row: number, x: number): string {
    const f = this.figures!;
    const { group } = this.layout;
    const steps = this.order.subarray(row * group, (row + 1) * group);
    const lengths = Array.from(steps, (s) => f.end[s] - f.begin[s]);
    const said =
      steps.length > 1
        ? `steps ${steps[0]}–${steps[steps.length - 1]}, ${time(Math.min(...lengths))} to ${time(Math.max(...lengths))}`
        : `step ${steps[0]}, ${time(lengths[0])}`;
    const marks = [
      steps.includes(f.median) ? "median" : "",
      Array.from(steps).some((s) => this.odd.has(s)) ? "odd" : "",
      steps.length === 1 && (steps[0] < f.first || steps[0] > f.last) ? "set aside" : "",
    ].filter(Boolean);
    const parts = [marks.length ? `${said} (${marks.join(", ")})` : said];
    if (x >= 0 && x < this.chart) {
      const at = this.view.time(x, this.chart);
      parts.push(`at ${time(at)}: ${this.cell(row, at) || "nothing"}`);
    }
    if (steps.length === 1) parts.push(...partsOf(f, steps[0]).map(([says, ns]) => `${says} ${time(ns)}`));
    return parts.join(" · ");
  }

  private cell(row: number, at: number): string {
    if (!this.shown) return "";
    const { grid, first } = this.shown;
    const here = row - first / grid.group;
    const column = Math.floor((at - grid.begin) / grid.bucket);
    if (here < 0 || here >= grid.rows || column < 0 || column >= grid.columns) return "";
    const i = here * grid.columns + column;
    const says = (share: number, code: number, before: string): string =>
      code === NOTHING ? "" : `${before}${this.colours.says[code]} ${percent(share / 255)}`;
    const phase = grid.phase && grid.phase[i] !== NOTHING ? this.colours.says[grid.phase[i]] : "";
    return [says(grid.busy[i], grid.busy_code[i], ""), phase, says(grid.idle[i], grid.idle_code[i], "idle by ")]
      .filter(Boolean)
      .join(", ");
  }
}

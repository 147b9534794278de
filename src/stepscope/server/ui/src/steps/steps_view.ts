/** The step view: all steps side by side. Holds its state, answers pointer and keys. */

import type { DrawnClass } from "../data/contracts";
import { COLOURINGS, order, SORTS, type Colouring, type Figures, type Sort, type StepSource } from "../data/steps";
import { AXIS_PX } from "../shared/canvas";
import { Colours } from "../shared/colours";
import { element, fill } from "../shared/dom";
import { clean, time } from "../shared/format";
import { wrong } from "../shared/frame";
import type { Key } from "../shared/keys";
import { ChartPointer, showTip } from "../shared/pointer";
import { waiting } from "../shared/progress";
import { themeNow } from "../shared/theme";
import { View } from "../shared/window";
import { MOST_ROW_PX, readSteps, writeSteps } from "./address";
import { StepAside } from "./aside";
import { remark, showChoices, stepKeys } from "./controls";
import { StepGrids } from "./grid_loader";
import { LEFT_PX, StepPainter } from "./painter";
import { StepRows, type Rows } from "./step_rows";
import { cellTip, rowTip } from "./tip";

const MOST_COLUMNS = 2048;
/** Longer than this many median steps is cut off at first: one long step would squash all others. */
const SHOWN_MEDIANS = 2;
export interface StepActions {
  /** Shows a step in the timeline; times on the job's clock, ns. */
  open(step: number, begin: number, end: number): void;
  /** The view has changed: the link should say so. */
  changed(): void;
  message(text: string): void;
  fail(text: string): void;
}

export class StepsView {
  readonly root = element("section", { class: "steps", hidden: true, "aria-label": "Steps" });
  readonly keys: Key[];
  private readonly stepRows = new StepRows(() => this.changed());
  private readonly tools = element("div", { class: "tools" });
  private readonly note = element("p", { class: "note", role: "status" });
  private readonly aside: StepAside;
  private readonly painter = new StepPainter(this.stepRows.canvas, themeNow());
  private readonly colours: Colours;
  private figures: Figures | null = null;
  private order: Uint32Array = new Uint32Array();
  private outlier = new Set<number>();
  private view = new View(0, 1);
  private now = readSteps("").state;
  private hovered = -1;
  private readonly grids: StepGrids;
  private frame = 0;
  private asking = 0;
  private failed = false;
  private wanted: [number, number] | null = null;
  private readonly pointer = new ChartPointer({
    canvas: this.stepRows.canvas,
    left: LEFT_PX,
    width: () => this.stepRows.chart,
    view: () => this.view,
    ready: () => this.figures !== null,
    changed: () => this.changed(),
    clicked: (event) => this.clicked(event),
  });

  constructor(
    private readonly source: StepSource,
    classes: DrawnClass[],
    private readonly actions: StepActions,
  ) {
    this.colours = new Colours(classes);
    this.grids = new StepGrids(source, this.colours, () => this.changed(), (text) => actions.fail(text));
    this.aside = new StepAside(this.colours, { select: (step) => this.select(step), open: (step) => this.open(step) });
    this.keys = this.ownKeys();
    fill(this.root, element("div", { class: "stepsmain" }, this.tools, this.note, this.stepRows.root), this.aside.root);
    this.listen();
  }

  get visible(): boolean {
    return !this.root.hidden;
  }

  /** Whether nothing is being asked. */
  get idle(): boolean {
    return this.asking === 0 && (!this.visible || this.failed || this.grids.settled);
  }

  show(visible: boolean): void {
    this.root.hidden = !visible;
    if (!visible) return;
    if (!this.figures && !this.failed) void this.load();
    this.stepRows.canvas.focus({ preventScroll: true });
    this.changed();
  }

  themed(): void {
    this.painter.theme = themeNow();
    this.changed();
    if (this.figures) this.aside.draw(this.figures, this.outlier);
  }

  // --- link --------------------------------------------------------------------------------------

  /** Words of the link, empty while the view has never been shown. */
  words(): Record<string, string> {
    if (!this.figures) return this.visible ? { view: "steps" } : {};
    return { ...(this.visible ? { view: "steps" } : {}), ...writeSteps(this.now, this.view) };
  }

  /** Takes the state that a link tells; whether it asks for this view. */
  restore(hash: string): boolean {
    const { asks, state, window } = readSteps(hash);
    this.now = state;
    this.wanted = window;
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
      const asked = this.source.figures(this.now.device, this.now.align);
      const found = await waiting(asked, () => this.source.progress(), (text) => (this.note.textContent = text));
      this.take(found);
    } catch (error) {
      this.failed = true;
      this.figures = null;
      this.grids.forget();
      const message = wrong(error);
      this.note.textContent = clean(message, 800);
      fill(this.tools);
      this.stepRows.canvas.hidden = true;
      this.aside.fail(message);
    } finally {
      this.asking--;
      this.changed();
    }
  }

  private take(found: Figures): void {
    const before = this.figures;
    this.figures = found;
    this.stepRows.canvas.hidden = false;
    this.outlier = new Set(found.outliers.map((o) => o.step));
    this.order = order(found.begin, found.end, this.now.sort);
    if (this.now.selected >= found.count) this.now.selected = -1;
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
    this.grids.forget();
    this.toolbar();
    this.aside.show(this.figures!, this.now, this.outlier);
  }

  /** Shows the steps whole, but no more than some medians. */
  private usual(): void {
    const f = this.figures!;
    const typical = f.end[f.median] - f.begin[f.median];
    const last = Math.min(this.view.last, SHOWN_MEDIANS * typical);
    const room = 0.02 * (last - this.view.first);
    this.view.set(this.view.first - room, last + room);
  }

  private get rows(): Rows {
    return this.stepRows.rows(this.order.length, this.now.stepPx);
  }

  private want(): void {
    if (!this.figures || !this.visible) return;
    const { group, rowPx } = this.rows;
    const visible = Math.ceil((this.stepRows.height - AXIS_PX) / rowPx) + 2;
    // rows to spare, so that scrolling a little asks nothing
    const spare = Math.ceil(visible / 2);
    const block = Math.max(1, spare);
    const top = Math.floor(this.stepRows.scroll / rowPx);
    const firstRow = Math.max(0, Math.floor((top - spare) / block) * block);
    const rows = visible + 2 * spare + block;
    const columns = Math.min(MOST_COLUMNS, Math.round(this.stepRows.chart));
    const bucket = Math.max(1, Math.ceil(this.view.span / columns));
    const ask = {
      device: this.now.device,
      align: this.now.align,
      sort: this.now.sort,
      colour: this.now.colour,
      first: firstRow * group,
      count: rows * group,
      group,
      begin: Math.floor(this.view.begin),
      bucket,
      columns,
      phases: rowPx >= 10 && this.now.colour !== "phase",
    };
    this.grids.want(ask, rowPx);
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
      const { group, rowPx } = this.rows;
      this.stepRows.stretch(this.order.length, { group, rowPx });
      this.painter.resize(this.stepRows.width, this.stepRows.height);
      this.want();
      const longest = this.order.reduce((most, s) => Math.max(most, f.end[s] - f.begin[s]), 1);
      this.painter.paint(this.view, this.grids.shown, {
        figures: f,
        order: this.order,
        outlier: this.outlier,
        group,
        rowPx,
        scroll: this.stepRows.scroll,
        selected: this.now.selected,
        hovered: this.hovered,
        longest,
      });
    }
    document.documentElement.dataset.idle = String(this.idle);
    this.actions.changed();
  }

  // --- panels ------------------------------------------------------------------------------------

  private toolbar(): void {
    showChoices(this.tools, this.figures!, this.now, {
      device: (device) => this.setDevice(device),
      align: (align) => this.setAlign(align),
      sort: (sort) => this.setSort(sort),
      colour: (colour) => this.setColour(colour),
    });
    this.note.textContent = remark(this.figures!);
  }

  // --- doing -------------------------------------------------------------------------------------

  private setDevice(device: number): void {
    const n = this.figures?.titles.length ?? 1;
    this.now.device = (device + n) % n;
    this.now.align = "start"; // another rank may have other ranges
    this.figures = null;
    void this.load();
  }

  private setAlign(align: string): void {
    this.now.align = align;
    void this.load();
  }

  private setSort(sort: Sort): void {
    this.now.sort = sort;
    this.order = order(this.figures!.begin, this.figures!.end, sort);
    this.toolbar();
    this.reveal();
    this.changed();
  }

  private setColour(colour: Colouring): void {
    this.now.colour = colour;
    this.toolbar();
    this.aside.show(this.figures!, this.now, this.outlier);
    this.changed();
  }

  private select(step: number, reveal = true): void {
    this.now.selected = step;
    this.aside.select(this.figures!, step, this.outlier);
    if (reveal) this.reveal();
    const f = this.figures!;
    this.actions.message(`step ${step}, ${time(f.end[step] - f.begin[step])}`);
    this.changed();
  }

  private reveal(): void {
    if (this.now.selected < 0) return;
    const { group, rowPx } = this.rows;
    this.stepRows.reveal(Math.floor(this.order.indexOf(this.now.selected) / group), rowPx);
  }

  private step(by: number): void {
    if (!this.figures || !this.order.length) return;
    const at = this.order.indexOf(this.now.selected);
    const last = this.order.length - 1;
    const next = at < 0 ? (by > 0 ? 0 : last) : at + by * this.rows.group;
    this.select(this.order[Math.min(Math.max(next, 0), last)]);
  }

  private end(last: boolean): void {
    if (this.figures && this.order.length) this.select(this.order[last ? this.order.length - 1 : 0]);
  }

  private nextOutlier(by: number): void {
    const outlier = this.order.filter((s) => this.outlier.has(s));
    if (!outlier.length) {
      this.actions.message("no step takes far longer than the others");
      return;
    }
    const at = outlier.indexOf(this.now.selected);
    this.select(outlier[at < 0 ? (by > 0 ? 0 : outlier.length - 1) : (at + by + outlier.length) % outlier.length]);
  }

  private open(step: number): void {
    if (step < 0 || !this.figures) return;
    this.actions.open(step, this.figures.begin[step], this.figures.end[step]);
  }

  private higher(factor: number): void {
    const { group, rowPx } = this.rows;
    const next = (rowPx / group) * factor;
    this.now.stepPx = next <= this.stepRows.fits(this.order.length) ? 0 : Math.min(MOST_ROW_PX, next);
    this.grids.forget();
    requestAnimationFrame(() => this.reveal());
    this.changed();
  }

  private ownKeys(): Key[] {
    const ready = (change: (figures: Figures) => void): void => {
      if (!this.figures) return;
      change(this.figures);
      this.changed();
    };
    const next = <T>(all: readonly T[], now: T): T => all[(all.indexOf(now) + 1) % all.length];
    return stepKeys({
      step: (by) => this.step(by),
      end: (last) => this.end(last),
      open: () => this.open(this.now.selected),
      median: () => ready((f) => this.select(f.median)),
      outlier: (by) => this.nextOutlier(by),
      sort: () => ready(() => this.setSort(next(SORTS, this.now.sort))),
      align: () => ready((f) => this.setAlign(next(["start", "kernel", ...f.ranges.map((_, i) => `range:${i}`)], this.now.align))),
      colour: () => ready(() => this.setColour(next(COLOURINGS, this.now.colour))),
      device: (by) => ready(() => this.setDevice(this.now.device + by)),
      zoom: (factor) => ready(() => this.view.zoom(factor, this.pointer.share)),
      pan: (share) => ready(() => this.view.pan(share)),
      higher: (factor) => ready(() => this.higher(factor)),
      usual: () =>
        ready(() => {
          this.now.stepPx = 0;
          this.usual();
        }),
      fit: () =>
        ready(() => {
          this.now.stepPx = 0;
          this.view.fit();
        }),
    });
  }

  // --- pointer -----------------------------------------------------------------------------------

  private listen(): void {
    const { canvas } = this.stepRows;
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => {
      this.stepRows.tip.hidden = true;
      this.hovered = -1;
      this.changed();
    });
  }

  /** Row under the pointer; -1 for none. */
  private rowAt(event: MouseEvent): number {
    const { group, rowPx } = this.rows;
    const row = this.stepRows.row(event, rowPx);
    return row * group >= this.order.length ? -1 : row;
  }

  private at(event: MouseEvent): number {
    const row = this.rowAt(event);
    return row < 0 ? -1 : this.order[row * this.rows.group];
  }

  private clicked(event: PointerEvent): void {
    const step = this.at(event);
    if (step < 0) return;
    this.select(step, false);
    if (!event.shiftKey) this.open(step);
  }

  private hover(event: PointerEvent): void {
    const x = this.pointer.at(event);
    const row = this.rowAt(event);
    this.hovered = row < 0 ? -1 : this.at(event);
    showTip(this.stepRows.tip, this.stepRows.root, event, row < 0 ? "" : this.hint(row, x));
    this.changed();
  }

  private hint(row: number, x: number): string {
    const { group } = this.rows;
    const steps = this.order.subarray(row * group, (row + 1) * group);
    if (x < 0 || x >= this.stepRows.chart) return rowTip(this.figures!, steps, this.outlier, null);
    const at = this.view.time(x, this.stepRows.chart);
    const { grid, first } = this.grids.shown ?? { grid: null, first: 0 };
    const cell = grid ? cellTip(grid, row - first / grid.group, at, this.colours) : "";
    return rowTip(this.figures!, steps, this.outlier, `at ${time(at)}: ${cell || "nothing"}`);
  }
}

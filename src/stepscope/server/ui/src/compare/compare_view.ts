/** Two runs side by side: one step of each on one scale, and what differs. */

import type { Compared, PairDevice, PairLayout } from "../data/contracts";
import { SIDES, type PairSource, type PairStep, type Side } from "../data/comparison";
import { AXIS_PX } from "../shared/canvas";
import { Colours } from "../shared/colours";
import { element } from "../shared/dom";
import { clean, time } from "../shared/format";
import { Frame, keyHelp, wrong } from "../shared/frame";
import type { Key } from "../shared/keys";
import { ChartPointer, showTip } from "../shared/pointer";
import { startTheme, themeNow, toggleTheme } from "../shared/theme";
import { View } from "../shared/window";
import { readPair, writePair } from "./address";
import { causeCode, hasRow, keyOfPart, PairAside } from "./aside";
import { alignments, pairKeys, showPairChoices } from "./controls";
import { LEFT_PX, lines, PairPainter, rowOf, times, TIMES_PX, type Chosen, type Line } from "./painter";
import { boxAt, boxTip, type UnderPair } from "./tip";

/** Rows grow where there is room, up to this many times their least height. */
const MOST_GROWN = 2.5;

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
  private readonly aside: PairAside;
  private readonly around = new Frame({ theme: () => this.theme(), help: () => this.help() });
  private readonly colours: Colours;
  private readonly painter: PairPainter;
  private readonly keys: Key[];
  private compared: Compared | null = null;
  private now = readPair("").state;
  private readonly steps: Record<Side, PairStep | null> = { before: null, after: null };
  private view = new View(0, 1);
  private wanted: [number, number] | null = null;
  private rows: Line[] = [];
  private frame = 0;
  private asking = 0;
  private turn = 0;
  private linkTimer = 0;
  private readonly pointer = new ChartPointer({
    canvas: this.canvas,
    left: LEFT_PX,
    width: () => this.chart,
    view: () => this.view,
    ready: () => true,
    changed: () => this.changed(),
    clicked: (event) => this.clicked(event),
  });

  constructor(
    root: HTMLElement,
    private readonly source: PairSource,
    private readonly layout: PairLayout,
  ) {
    startTheme();
    this.colours = new Colours(layout.classes);
    this.painter = new PairPainter(this.canvas, themeNow(), this.colours);
    this.aside = new PairAside(this.colours, (chosen) => this.choose(chosen));
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
    const files = `before: ${name("before")} · after: ${name("after")}`;
    const body = element(
      "div",
      { class: "steps compare" },
      element("div", { class: "stepsmain" }, this.tools, element("p", { class: "note" }), this.stage, this.times),
      this.aside.root,
    );
    this.around.build(root, `${name("before")} and ${name("after")}`, files, [], body);
  }

  // --- asking ------------------------------------------------------------------------------------

  private async load(): Promise<void> {
    this.asking++;
    document.documentElement.dataset.idle = "false";
    try {
      this.compared = await this.source.comparison();
      for (const side of SIDES) {
        const devices = this.compared.devices[side];
        if (this.now.device[side] >= devices.length) this.now.device[side] = 0;
        const device = devices[this.now.device[side]];
        if (this.now.number[side] < 0 || this.now.number[side] >= device.count) this.now.number[side] = device.median;
      }
      if (this.now.chosen && !hasRow(this.compared.comparison, this.now.chosen)) this.now.chosen = null;
      this.aside.show(this.compared, this.now.chosen, this.steps);
      await this.fetch();
    } catch (error) {
      this.aside.fail(wrong(error));
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
      const found = await Promise.all(SIDES.map((side) => this.source.step(side, this.now.device[side], this.now.number[side])));
      if (turn !== this.turn) return;
      const first = !this.steps.before;
      SIDES.forEach((side, i) => (this.steps[side] = found[i]));
      this.around.fail("");
      this.toolbar();
      this.scale(first);
      this.aside.count(this.steps);
    } catch (error) {
      this.around.fail(wrong(error));
    } finally {
      this.asking--;
      this.changed();
    }
  }

  private readonly zero = (step: PairStep): number => {
    if (this.now.align === "kernel") return step.first_kernel;
    const first = step.spans.row.indexOf(Number(this.now.align.slice(6)));
    return this.now.align === "start" || first < 0 ? 0 : step.spans.start[first];
  };

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
      const cause = causeCode(this.colours, this.compared.comparison, this.now.chosen);
      this.painter.paint(shown, this.rows, this.steps, this.zero, this.compared, this.now.chosen, cause);
      const devices = { before: this.shownDevice("before"), after: this.shownDevice("after") };
      times(this.times, width, devices, this.now.number, this.painter.theme);
      this.around.where.textContent = `${time(this.view.span)} shown`;
    }
    document.documentElement.dataset.idle = String(this.asking === 0);
    this.remember();
  }

  private shownDevice(side: Side): PairDevice {
    return this.compared!.devices[side][this.now.device[side]];
  }

  // --- panels ------------------------------------------------------------------------------------

  private toolbar(): void {
    showPairChoices(this.tools, this.compared!, this.steps, this.now, this.source.timelines, {
      device: (side, device) => {
        this.now.device[side] = device;
        this.now.number[side] = this.shownDevice(side).median;
        void this.fetch();
      },
      step: (side, step) => this.go(side, step),
      medians: () => this.medians(),
      align: (align) => this.setAlign(align),
    });
  }

  // --- doing -------------------------------------------------------------------------------------

  private choose(chosen: Chosen | null): void {
    const again = chosen && this.now.chosen?.kind === chosen.kind && this.now.chosen.row === chosen.row;
    this.now.chosen = again ? null : chosen;
    this.around.message(this.aside.highlight(this.now.chosen, this.steps));
    this.changed();
  }

  private go(side: Side, step: number): void {
    const count = this.compared!.devices[side][this.now.device[side]].count;
    this.now.number[side] = Math.min(Math.max(step, 0), count - 1);
    void this.fetch();
  }

  /** The next or previous step of both, or of one side. */
  private pair(by: number, only: Side | null): void {
    if (!this.compared) return;
    for (const side of only ? [only] : SIDES) {
      const count = this.compared.devices[side][this.now.device[side]].count;
      this.now.number[side] = Math.min(Math.max(this.now.number[side] + by, 0), count - 1);
    }
    void this.fetch();
  }

  private medians(): void {
    if (!this.compared) return;
    for (const side of SIDES) this.now.number[side] = this.compared.devices[side][this.now.device[side]].median;
    void this.fetch();
  }

  private nextAlign(): void {
    if (!this.compared) return;
    const keys = alignments(this.compared, this.steps).map(([key]) => key);
    this.setAlign(keys[(keys.indexOf(this.now.align) + 1) % keys.length]);
  }

  private setAlign(align: string): void {
    this.now.align = align;
    this.toolbar();
    if (this.steps.before) this.scale(false);
    this.changed();
  }

  private theme(): void {
    this.painter.theme = toggleTheme();
    this.changed();
  }

  private help(): void {
    this.around.help([...this.keys.map(keyHelp), ["click", "highlight a kernel or range in both runs"]]);
  }

  private ownKeys(): Key[] {
    const then = (change: () => void): void => {
      change();
      this.changed();
    };
    return pairKeys({
      row: (by) => {
        const next = this.aside.next(by);
        if (next) this.choose(next);
      },
      pair: (by, only) => this.pair(by, only),
      medians: () => this.medians(),
      align: () => this.nextAlign(),
      zoom: (factor) => then(() => this.view.zoom(factor, this.pointer.share)),
      pan: (share) => then(() => this.view.pan(share)),
      fit: () => then(() => this.view.fit()),
      theme: () => this.theme(),
      help: () => this.help(),
      clear: () => this.choose(null),
    });
  }

  // --- pointer and keys --------------------------------------------------------------------------

  private listen(): void {
    new ResizeObserver(() => this.changed()).observe(this.stage);
    window.addEventListener("keydown", (event) => {
      const target = event.target as HTMLElement;
      if (["INPUT", "SELECT"].includes(target.tagName) || this.around.helping) return;
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
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
  }

  private clicked(event: PointerEvent): void {
    const under = this.under(event);
    if (!under) return;
    const { line, step, i } = under;
    if (line.what === "pieces") {
      const key = this.colours.classes[step.pieces.code[i]].key;
      const row = this.compared!.comparison.parts.findIndex((p) => keyOfPart(p.part) === key);
      if (row >= 0) this.choose({ kind: "cause", row });
      return;
    }
    const chosen = rowOf(step, line.what, i);
    if (chosen) this.choose(chosen);
    else this.around.message("the comparison has no row for this");
  }

  private under(event: PointerEvent): UnderPair | null {
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const line = y < AXIS_PX ? undefined : this.rows.find((l) => y >= l.y && y < l.y + l.height);
    const step = line ? this.steps[line.side] : null;
    const x = event.clientX - box.left - LEFT_PX;
    if (!line || !step || x < 0) return null;
    const at = this.view.time(x, this.chart) + this.zero(step);
    return boxAt(line, step, at, (2 * this.view.span) / this.chart);
  }

  private hover(event: PointerEvent): void {
    this.pointer.at(event);
    const under = this.under(event);
    showTip(this.tip, this.stage, event, under ? boxTip(under, this.compared!.comparison, this.colours) : "");
  }

  // --- link --------------------------------------------------------------------------------------

  private remember(): void {
    clearTimeout(this.linkTimer);
    if (!this.steps.before) return;
    this.linkTimer = window.setTimeout(() => {
      const text = writePair(this.now, this.view);
      if (text !== location.hash) history.replaceState(null, "", text);
    }, 250);
  }

  private restore(): void {
    const { state, window } = readPair(location.hash);
    this.now = state;
    this.aside.all = state.chosen?.kind === "kernel";
    this.wanted = window;
  }
}

function bottom(rows: Line[]): number {
  const last = rows[rows.length - 1];
  return last.y + last.height + 10;
}

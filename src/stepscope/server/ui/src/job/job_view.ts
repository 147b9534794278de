/** A job of many ranks: the heat map leads to a rank, the rank to its timeline. */

import type { JobAnswer, JobFinding, JobLayout, RankDetail } from "../data/contracts";
import { ServerJob } from "../data/job";
import { AXIS_PX } from "../shared/canvas";
import { colourOf, coloursLegend, markColour } from "../shared/colours";
import { element } from "../shared/dom";
import { clean, count, time } from "../shared/format";
import { Frame, keyHelp, wrong } from "../shared/frame";
import type { Key } from "../shared/keys";
import { showTip } from "../shared/pointer";
import { waiting } from "../shared/progress";
import { startTheme, themeNow, toggleTheme } from "../shared/theme";
import { LATE, MOST_PX, ORDERS, readJob, writeJob } from "./address";
import { JobAside } from "./aside";
import { jobKeys, showJobChoices } from "./controls";
import { columnPx, HeatPainter, LEFT_PX, type Cell, type Heat } from "./painter";
import { RankPanel, timelineAddress } from "./rank_panel";
import { byNode, groups, heightOf, lineAt, linesOf, mediansOf, worstStep, type Line } from "./rows";
import { mixed, rangeOf, Scale } from "./scale";

export class JobApp {
  private readonly source = new ServerJob();
  private readonly canvas = element("canvas", {
    class: "heatmap",
    tabindex: 0,
    role: "application",
    "aria-label":
      "Heat map: a row a rank or node, a column a step. Arrows choose a cell, Enter opens its rank, T the rank's timeline, question mark shows all keys.",
  });
  private readonly spacer = element("div", {});
  private readonly scroller = element("div", { class: "scroll" }, this.canvas, this.spacer);
  private readonly tip = element("div", { class: "tip", hidden: true });
  private readonly stage = element("div", { class: "stage" }, this.scroller, this.tip);
  private readonly tools = element("div", { class: "tools" });
  private readonly note = element("p", { class: "note" });
  private readonly aside: JobAside;
  private readonly panel: RankPanel;
  private readonly around = new Frame({ theme: () => this.theme(), help: () => this.help() });
  private readonly painter: HeatPainter;
  private readonly keys: Key[];
  private now = readJob("");
  private answer: JobAnswer | null = null;
  private heat: Heat | null = null;
  private late: number[][] = [];
  private scale: Scale | null = null;
  private lines: Line[] = [];
  private readonly open = new Set<number>();
  private detail: RankDetail | null = null;
  private hovered: Cell | null = null;
  private frame = 0;
  private asking = 0;
  private turn = 0;
  private linkTimer = 0;

  constructor(root: HTMLElement, layout: JobLayout) {
    startTheme();
    this.painter = new HeatPainter(this.canvas, themeNow());
    this.aside = new JobAside({
      open: (rank, step) => this.openRank(rank, step),
      finding: (finding) => this.openFinding(finding),
    });
    this.panel = new RankPanel({ close: () => this.close(), message: (text) => this.around.message(text) });
    this.keys = this.ownKeys();
    const names = layout.job.paths.map((path) => clean(path.replace(/\/+$/, "").split("/").pop() ?? path, 120));
    const aside = element("aside", { "aria-label": "Explanation" }, this.panel.root, this.aside.root, coloursLegend());
    const body = element("div", { class: "steps job" }, element("div", { class: "stepsmain" }, this.tools, this.note, this.stage), aside);
    this.around.build(root, names[0] ?? "job", `${names.slice(0, 3).join(", ")}: ${count(layout.job.ranks)} ranks`, [], body);
    this.listen();
    this.now = readJob(location.hash);
    void this.load();
  }

  // --- asking ------------------------------------------------------------------------------------

  private async asked<T>(question: Promise<T>, failed: (message: string) => void): Promise<T | null> {
    this.asking++;
    document.documentElement.dataset.idle = "false";
    try {
      const answer = await question;
      this.around.fail("");
      return answer;
    } catch (error) {
      failed(wrong(error));
      return null;
    } finally {
      this.asking--;
      this.changed();
    }
  }

  private async load(): Promise<void> {
    const question = waiting(this.source.diagnosis(), () => this.source.progress(), (text) => this.aside.message(text));
    this.answer = await this.asked(question, (message) => this.aside.fail(message));
    if (!this.answer) return;
    this.aside.show(this.answer);
    const late = await this.asked(this.source.cells(LATE), (message) => this.around.fail(message));
    this.late = late?.cells ?? [];
    await this.show(this.now.value);
    if (this.row >= 0) void this.ask();
  }

  /** Shows another value. */
  private async show(value: string): Promise<void> {
    const { answer } = this;
    if (!answer) return;
    const known = answer.grid.values.some(({ key }) => key === value) ? value : LATE;
    const turn = ++this.turn;
    const found = known === LATE ? this.late : (await this.asked(this.source.cells(known), (message) => this.around.fail(message)))?.cells;
    if (!found || turn !== this.turn) return;
    this.now.value = known;
    const { ranks } = answer.diagnosis;
    const first = !this.heat;
    this.heat = { ranks, groups: groups(ranks), steps: answer.grid.steps, cells: found, medians: mediansOf(found), together: true };
    if (first && this.row >= 0) this.open.add(this.groupOf(this.row)); // a link names it
    this.arrange();
    if (first) this.reveal();
    this.changed();
  }

  /** Asks about the chosen rank. */
  private async ask(): Promise<void> {
    const { row } = this;
    if (row < 0 || !this.now.panel) return;
    const { rank } = this.answer!.diagnosis.ranks[row];
    this.showPanel();
    if (this.detail?.rank === rank && this.detail.device === this.answer!.diagnosis.ranks[row].device) {
      this.showRank();
      return;
    }
    this.detail = null;
    this.panel.waiting(rank);
    const found = await this.asked(this.source.rank(row), (message) => this.panel.fail(rank, message));
    if (!found || row !== this.row) return;
    this.detail = found;
    this.showRank();
  }

  // --- what is chosen ----------------------------------------------------------------------------

  /** Position of the chosen rank; -1 for none. */
  private get row(): number {
    const { rank, device } = this.now;
    if (rank < 0 || !this.answer) return -1;
    return this.answer.diagnosis.ranks.findIndex((r) => r.rank === rank && (device < 0 || r.device === device));
  }

  private get column(): number {
    return this.answer?.grid.steps.indexOf(this.now.step) ?? -1;
  }

  /** The chosen cell, in the rows as they stand. */
  private get chosen(): Cell | null {
    const { row } = this;
    if (row < 0) return null;
    const own = this.lines.findIndex((line) => !line.node && line.rows[0] === row);
    const line = own >= 0 ? own : this.lines.findIndex((l) => l.rows.includes(row));
    return line < 0 ? null : { line, column: this.column };
  }

  private choose(row: number, column: number): void {
    const { ranks } = this.answer!.diagnosis;
    const { rank, device } = ranks[row];
    this.now.rank = rank;
    this.now.device = ranks.filter((r) => r.rank === rank).length > 1 ? device : -1;
    this.now.step = column >= 0 ? this.answer!.grid.steps[column] : -1;
    this.around.message(this.cellTip(row, Math.max(column, 0), [row]));
  }

  private openRow(row: number, column: number): void {
    this.choose(row, column);
    this.now.panel = true;
    if (this.nodes) {
      this.open.add(this.groupOf(row));
      this.arrange();
    }
    this.reveal();
    void this.ask();
    this.changed();
  }

  /** @param step its number in the rank's own capture; without it the step in which it is most late */
  private openRank(rank: number, step?: number): void {
    const row = this.answer?.diagnosis.ranks.findIndex((r) => r.rank === rank) ?? -1;
    if (row < 0) {
      this.around.message(`rank ${rank} has no digest here`);
      return;
    }
    this.openRow(row, worstStep(this.late[row]));
    if (step === undefined) return;
    void this.asked(this.source.rank(row), (message) => this.around.fail(message)).then((found) => {
      const column = found?.steps.findIndex(({ number }) => number === step) ?? -1;
      if (column >= 0 && row === this.row) this.openRow(row, column);
    });
  }

  private openFinding(finding: JobFinding): void {
    const { ranks } = this.answer!.diagnosis;
    const medians = mediansOf(this.late);
    const own = new Set(finding.ranks);
    let best = -1;
    ranks.forEach(({ rank }, row) => {
      if (own.has(rank) && (best < 0 || medians[row] > medians[best])) best = row;
    });
    if (best >= 0) this.openRow(best, worstStep(this.late[best]));
  }

  private close(): void {
    this.now.panel = false;
    this.showPanel();
    this.changed();
  }

  private showPanel(): void {
    this.panel.root.hidden = !this.now.panel || this.row < 0;
    this.aside.root.hidden = !this.panel.root.hidden;
  }

  private showRank(): void {
    const { detail, answer } = this;
    if (!detail || !answer) return;
    const { findings, job } = answer.diagnosis;
    const own = findings.filter((f) => f.ranks.includes(detail.rank) && f.ranks.length < Math.max(2, job.ranks / 2));
    this.panel.show(detail, this.column, this.now.step, own);
  }

  // --- rows --------------------------------------------------------------------------------------

  private get room(): number {
    return this.stage.clientHeight - AXIS_PX - 2;
  }

  /** Whether rows are nodes. */
  private get nodes(): boolean {
    const { heat } = this;
    if (!heat || heat.groups.length < 2 || heat.groups.length === heat.ranks.length) return false;
    return this.now.mode ? this.now.mode === "nodes" : byNode(heat.ranks.length, heat.groups, this.room);
  }

  /** Whether the rank that stands out has least of the value: the late one waits for nobody. */
  private get least(): boolean {
    return this.now.value === "waiting";
  }

  private groupOf(row: number): number {
    return this.heat!.groups.findIndex(({ rows }) => rows.includes(row));
  }

  /** Puts the rows in place, and finds the colours. */
  private arrange(): void {
    const { heat, answer } = this;
    if (!heat || !answer) return;
    this.lines = linesOf(heat.groups, { nodes: this.nodes, order: this.now.order, open: this.open, weights: this.least ? heat.medians.map((v) => -v) : heat.medians, room: this.room, rowPx: this.now.rowPx });
    heat.together = this.nodes || this.now.order === "rank";
    this.hovered = null;
    this.spacer.style.height = `${Math.max(0, heightOf(this.lines) + AXIS_PX - this.stage.clientHeight)}px`;
    this.colours();
  }

  private colours(): void {
    const { heat, answer, now } = this;
    if (!heat || !answer) return;
    const { theme } = this.painter;
    const value = answer.grid.values.find(({ key }) => key === now.value)!;
    const range = rangeOf(heat.cells, value.signed, answer.diagnosis.step_ns.mean);
    const dark = document.documentElement.dataset.theme === "dark";
    const hue = hueOf(value.key) ?? theme.text;
    this.scale = new Scale(range, value.signed, theme.band, dark ? mixed(hue, "#ffffff", 0.25) : hue, markColour("compute"));
    const several = heat.groups.length > 1 && heat.groups.length < heat.ranks.length;
    showJobChoices(this.tools, answer.grid, now, { nodes: this.nodes, several, least: this.least }, this.scale, {
      value: (key) => void this.show(key),
      mode: (mode) => this.setMode(mode),
      order: (order) => this.setOrder(order),
    });
    const most = this.least ? "least" : "most";
    const nodes = this.nodes ? ` A row of a node shows its rank that has ${most} in most steps.` : "";
    this.note.textContent = `${value.message}.${nodes} A click opens the rank.`.replace(/^./, (c) => c.toUpperCase());
  }

  private reveal(): void {
    const cell = this.chosen;
    if (!cell) return;
    const line = this.lines[cell.line];
    const room = this.room;
    if (line.top < this.scroller.scrollTop) this.scroller.scrollTop = line.top;
    else if (line.top + line.px > this.scroller.scrollTop + room) this.scroller.scrollTop = line.top + line.px - room;
  }

  // --- drawing -----------------------------------------------------------------------------------

  private changed(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private draw(): void {
    if (this.heat && this.scale) {
      const width = this.stage.clientWidth - (this.scroller.offsetWidth - this.scroller.clientWidth);
      this.painter.resize(width, this.stage.clientHeight);
      this.painter.paint(this.heat, this.lines, this.scale, this.scroller.scrollTop, this.chosen, this.hovered);
      const { job, step_ns } = this.answer!.diagnosis;
      this.around.where.textContent = `${count(job.ranks)} ranks, ${count(job.steps)} steps of ${time(step_ns.mean)}`;
    }
    document.documentElement.dataset.idle = String(this.asking === 0);
    this.remember();
  }

  // --- doing -------------------------------------------------------------------------------------

  private setMode(mode: typeof this.now.mode): void {
    this.now.mode = mode;
    this.now.rowPx = 0;
    this.arranged();
  }

  private setOrder(order: typeof this.now.order): void {
    this.now.order = order;
    this.arranged();
  }

  private arranged(): void {
    this.arrange();
    this.reveal();
    this.changed();
  }

  private higher(factor: number): void {
    const px = this.now.rowPx || this.lines.find((line) => line.node === this.nodes)?.px || 1;
    this.now.rowPx = Math.min(MOST_PX, Math.max(2, Math.round(px * factor + (factor > 1 ? 0.5 : -0.5))));
    this.arranged();
  }

  /** Moves the chosen cell, in rows as they stand; the panel follows where it is open. */
  private move(rows: number, columns: number): void {
    const { heat } = this;
    if (!heat || !this.lines.length) return;
    const before = this.chosen;
    const last = heat.steps.length - 1;
    const at = before ? Math.min(Math.max(before.line + rows, 0), this.lines.length - 1) : 0;
    const column = before ? Math.min(Math.max(before.column + columns, 0), last) : 0;
    this.choose(this.lines[at].row, column);
    // of a node that is open its own row cannot be told from the rank's: go on from there
    if (before && this.chosen?.line === before.line && rows) {
      const on = Math.min(Math.max(before.line + Math.sign(rows) * (Math.abs(rows) + 1), 0), this.lines.length - 1);
      this.choose(this.lines[on].row, column);
    }
    this.reveal();
    if (this.now.panel) void this.ask();
    this.changed();
  }

  private nextLate(by: number): void {
    const late = this.lines.flatMap((line, at) => (!line.open && line.rows.some((row) => this.heat!.ranks[row].late) ? [at] : []));
    if (!late.length) {
      this.around.message("no rank is late");
      return;
    }
    const at = late.indexOf(this.chosen?.line ?? -1);
    const next = late[at < 0 ? (by > 0 ? 0 : late.length - 1) : (at + by + late.length) % late.length];
    const row = this.lines[next].rows.find((r) => this.heat!.ranks[r].late)!;
    this.openRow(row, this.column >= 0 ? this.column : worstStep(this.late[row]));
  }

  private timeline(): void {
    if (this.detail?.capture.timeline) location.href = timelineAddress(this.detail, this.column);
    else this.around.message(this.detail ? `the capture of rank ${this.detail.rank} is not here` : "choose a rank first");
  }

  private theme(): void {
    this.painter.theme = toggleTheme();
    this.colours();
    this.changed();
  }

  private help(): void {
    this.around.help([...this.keys.map(keyHelp), ["wheel", "scroll the rows"]]);
  }

  private ownKeys(): Key[] {
    const ready = (change: () => void) => (): void => {
      if (this.heat) change();
    };
    const next = <T>(all: readonly T[], value: T, by = 1): T => all[(all.indexOf(value) + by + all.length) % all.length];
    return jobKeys({
      row: (by) => this.move(by, 0),
      column: (by) => this.move(0, by),
      end: (last) => this.move(last ? this.lines.length : -this.lines.length, 0),
      open: ready(() => (this.row >= 0 ? this.openRow(this.row, this.column) : this.move(0, 0))),
      close: () => this.close(),
      timeline: () => this.timeline(),
      late: (by) => this.heat && this.nextLate(by),
      value: (by) => this.answer && void this.show(next(this.answer.grid.values.map(({ key }) => key), this.now.value, by)),
      mode: ready(() => this.setMode(this.nodes ? "ranks" : "nodes")),
      order: ready(() => this.setOrder(next(ORDERS, this.now.order))),
      higher: (factor) => this.heat && this.higher(factor),
      fit: ready(() => {
        this.now.rowPx = 0;
        this.arranged();
      }),
      theme: () => this.theme(),
      help: () => this.help(),
    });
  }

  // --- pointer and keys --------------------------------------------------------------------------

  private listen(): void {
    new ResizeObserver(() => {
      if (this.heat) this.arrange();
      this.changed();
    }).observe(this.stage);
    this.scroller.addEventListener("scroll", () => this.changed());
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
      this.now = readJob(location.hash);
      this.showPanel();
      void this.show(this.now.value).then(() => this.ask());
    });
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
      this.hovered = null;
      this.changed();
    });
    this.canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        if (this.heat) this.higher(event.deltaY < 0 ? 1.2 : 1 / 1.2);
      },
      { passive: false },
    );
  }

  /** What lies under the pointer; column -1 for the names of the rows. */
  private under(event: MouseEvent): Cell | null {
    const { heat } = this;
    if (!heat) return null;
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const line = y < AXIS_PX ? -1 : lineAt(this.lines, y - AXIS_PX + this.scroller.scrollTop);
    if (line < 0) return null;
    const column = Math.floor((event.clientX - box.left - LEFT_PX) / columnPx(box.width, heat.steps.length));
    return { line, column: column < heat.steps.length ? Math.max(column, -1) : -1 };
  }

  private clicked(event: MouseEvent): void {
    const cell = this.under(event);
    this.canvas.focus({ preventScroll: true });
    if (!cell) return;
    const line = this.lines[cell.line];
    if (line.node && cell.column < 0) {
      if (!this.open.delete(line.group)) this.open.add(line.group);
      this.arrange();
      this.changed();
      return;
    }
    const { heat } = this;
    this.openRow(line.row, cell.column >= 0 ? cell.column : worstStep(heat!.cells[line.row]));
  }

  private hover(event: PointerEvent): void {
    const cell = this.under(event);
    this.hovered = cell;
    let text = "";
    if (cell) {
      const { row, rows } = this.lines[cell.line];
      text = cell.column < 0 ? this.rowTip(cell.line) : this.cellTip(row, cell.column, rows);
    }
    showTip(this.tip, this.stage, event, text);
    this.changed();
  }

  private rowTip(at: number): string {
    const { heat } = this;
    const line = this.lines[at];
    const node = clean(heat!.groups[line.group].name, 80);
    if (line.node) return `${node}: ${count(line.rows.length)} ranks; a click ${line.open ? "closes" : "opens"} it`;
    return `rank ${heat!.ranks[line.rows[0]].rank}, ${node}`;
  }

  /** A cell in words: rank, node, step, value with its unit. */
  private cellTip(row: number, column: number, rows: number[]): string {
    const { heat, answer } = this;
    if (!heat || !answer) return "";
    const { title, signed } = answer.grid.values.find(({ key }) => key === this.now.value)!;
    const value = heat.cells[row][column];
    const { rank, hostname, late } = heat.ranks[row];
    const text = signed ? `${value < 0 ? "−" : "+"}${time(Math.abs(value))}` : time(value);
    const of = rows.length > 1 ? `; of ${rows.length} ranks it has ${this.least ? "least" : "most"} in most steps` : "";
    return `rank ${rank}${late ? " (late)" : ""}, ${clean(hostname, 80) || "unknown node"}, step ${heat.steps[column]}: ${title} ${text}${of}`;
  }

  // --- link --------------------------------------------------------------------------------------

  private remember(): void {
    clearTimeout(this.linkTimer);
    if (!this.heat) return;
    this.linkTimer = window.setTimeout(() => {
      const text = writeJob(this.now);
      if (text !== location.hash) history.replaceState(null, "", text);
    }, 250);
  }
}

/** Colour of the largest values; null for that of text. */
function hueOf(value: string): string | null {
  if (value === LATE) return markColour("mark");
  if (value === "compute" || value === "copy") return markColour(value);
  if (value === "waiting" || value === "transfer") return markColour("communication");
  return value.startsWith("idle:") ? colourOf(`idle_${value.slice(5)}`) : null;
}

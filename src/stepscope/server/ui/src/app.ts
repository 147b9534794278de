/** The page: holds the state, answers pointer and keys, asks the source, draws once a frame. */

import { Painter, hint, lowerBound, type Marks } from "./canvas";
import { Colours } from "./colours";
import { Drawer } from "./drawer";
import { element, fill } from "./dom";
import { clean, time } from "./format";
import { showGutter } from "./gutter";
import { MOUSE, keys, type Commands, type Key } from "./keys";
import { readLink, writeLink } from "./link";
import { Loader } from "./loader";
import { Overlay } from "./overlay";
import { StepsView } from "./steps";
import { stepSource } from "./stepsource";
import { showDetails, showDiagnosis, showHits, showStatistics } from "./panel";
import { startTheme, toggleTheme } from "./theme";
import { Tracks, depths, type Group, type Lane } from "./tracks";
import type { Details, Diagnosed, Hits, Layout, Place, Row, Source } from "./types";
import { View } from "./view";

const CLICK_PX = 4;
const MOST_FOUND_SHOWN = 500;
/** Keys that do the same in every view. */
const EVERYWHERE = new Set(["V", "L", "?"]);

interface Under {
  lane: Lane;
  depth: number;
  place: Place | null;
  count: number;
  share: number;
}

export class App {
  readonly view: View;
  readonly tracks: Tracks;
  private readonly painter: Painter;
  private readonly loader: Loader;
  private readonly keys: Key[];
  private readonly marks: Marks = {
    selected: null,
    arrows: [],
    forward: false,
    blamed: [],
    gap: null,
    range: null,
    found: [],
    cursor: null,
  };
  private readonly overlay = new Overlay();
  private readonly drawer: Drawer;
  private details: Details | null = null;
  private diagnosed: Diagnosed | null = null;
  private hits: Hits | null = null;
  private hitAt = -1;
  private place: [number, number] | null = null;
  private frame = 0;
  private statisticsTimer = 0;
  private linkTimer = 0;
  private pointerX = 0.5;
  private asked = 0;
  private diagnosing = false;
  private drawn = false;

  private readonly axis = element("canvas", { class: "axis", "aria-hidden": "true" });
  private readonly rows = element("canvas", {
    class: "rows",
    tabindex: 0,
    role: "application",
    "aria-label":
      "Timeline. Arrow keys move, W and S zoom, full stop and comma select along a row, question mark shows all keys.",
  });
  private readonly spacer = element("div", { class: "spacer" });
  private readonly scroller = element("div", { class: "scroll" }, this.rows, this.spacer);
  private readonly tip = element("div", { class: "tip", hidden: true });
  private readonly stage = element("div", { class: "stage" }, this.axis, this.scroller, this.overlay.canvas, this.tip);
  private readonly gutterRows = element("div", { class: "rows" });
  private readonly gutter = element(
    "nav",
    { class: "gutter", "aria-label": "Tracks" },
    element("div", { class: "inner" }, this.gutterRows),
  );
  private readonly searchBox = element("input", {
    type: "search",
    placeholder: "Search names (/)",
    "aria-label": "Search names",
  });
  private readonly filterBox = element("input", {
    type: "search",
    placeholder: "Filter tracks, regex (T)",
    "aria-label": "Filter tracks by regular expression",
  });
  private readonly hitsPanel = element("section", { "aria-label": "Search results" });
  private readonly detailsPanel = element("section", { "aria-label": "Selection" });
  private readonly rangePanel = element("section", { "aria-label": "Range" });
  private readonly diagnosisPanel = element("section", { "aria-label": "Diagnosis" });
  private readonly status = element("span", { role: "status", "aria-live": "polite" });
  private readonly failure = element("span", { class: "error", role: "alert" });
  private readonly where = element("span", {});
  private readonly helpBox = element("dialog", { "aria-label": "Keys" });
  private readonly main = element("main", {});
  private readonly viewButton = element("button", { click: () => this.toggleSteps() });
  private readonly steps: StepsView;

  constructor(
    root: HTMLElement,
    private readonly source: Source,
    private readonly layout: Layout,
  ) {
    this.view = new View(layout.begin, layout.end);
    this.view.fit();
    this.tracks = new Tracks(layout);
    startTheme();
    this.painter = new Painter(this.axis, this.rows, source, new Colours(layout.classes));
    this.loader = new Loader(
      source,
      () => this.painter.colours,
      () => this.changed(),
      (message) => this.fail(message),
    );
    this.drawer = this.makeDrawer();
    this.keys = keys(this.commands());
    this.steps = new StepsView(stepSource(source), layout.classes, {
      open: (step, begin, end) => this.openStep(step, begin, end),
      changed: () => this.remember(),
      says: (text) => (this.status.textContent = text),
      fail: (text) => this.fail(text),
    });
    this.build(root);
    this.listen();
    this.restore();
    void this.drawer.notes.load();
    this.changed();
  }

  private makeDrawer(): Drawer {
    return new Drawer({
      source: this.source,
      layout: this.layout,
      range: () => this.marks.range,
      setRange: (range) => this.setRange(range),
      view: () => this.view,
      cursor: () => this.marks.cursor,
      selected: () => this.marks.selected,
      explained: () => this.diagnosed !== null,
      fly: (place) => this.fly(place),
      frame: (span) => {
        this.view.set(span.begin, span.end);
        this.changed();
      },
      find: (text) => {
        this.searchBox.value = text;
        void this.search(1);
      },
      highlight: (found) => this.overlay.highlight(found),
      showNotes: (notes) => {
        this.overlay.notes = notes;
        this.changed();
      },
      asking: (question) => this.asking(question),
      say: (text) => {
        this.status.textContent = text;
      },
      changed: () => this.changed(),
      leave: () => this.rows.focus({ preventScroll: true }),
    });
  }

  /** Whether nothing is being asked; the page says so in `data-idle`, for which tests wait. */
  private get idle(): boolean {
    return !this.loader.pending && this.asked === 0;
  }

  private build(root: HTMLElement): void {
    const names = this.layout.paths.map((path) => clean(path.split("/").pop() ?? path, 120));
    const file = names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
    document.title = `${names[0] ?? ""} · Stepscope`;
    fill(
      root,
      element(
        "header",
        {},
        element("h1", {}, "Stepscope"),
        element("span", { class: "file", title: file }, file),
        this.viewButton,
        this.filterBox,
        this.searchBox,
        element("button", { click: () => this.toggleTheme(), "aria-label": "Dark or light" }, "◐"),
        element("button", { click: () => this.help(), "aria-label": "Keys and mouse" }, "?"),
      ),
      this.main,
      element("footer", {}, this.where, this.status, this.failure),
      this.helpBox,
    );
    fill(
      this.main,
      this.gutter,
      this.stage,
      element("aside", { "aria-label": "Explanation" }, this.hitsPanel, this.detailsPanel, this.rangePanel, this.diagnosisPanel, absent(this.layout)),
      this.drawer.root,
    );
    fill(this.diagnosisPanel, element("p", { class: "note", role: "status" }, "Diagnosing …"));
    for (const problem of this.layout.problems.filter((p) => p.severity !== "info").slice(0, 1))
      this.status.textContent = `${problem.severity}: ${problem.count} × ${clean(problem.says)}`;
  }

  // --- drawing -----------------------------------------------------------------------------------

  /** Something that is shown has changed: draw it in the next frame. */
  changed(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private draw(): void {
    if (this.steps.visible) {
      this.steps.changed(); // the timeline has no size meanwhile
      return;
    }
    const width = this.stage.clientWidth;
    const height = Math.max(1, this.scroller.clientHeight);
    this.painter.resize(width, height);
    const before = this.tracks.height;
    this.tracks.room = height;
    this.tracks.arrange();
    const signature = this.gutterSignature();
    if (before !== this.tracks.height || signature !== this.gutterRows.dataset.signature) {
      this.gutterRows.dataset.signature = signature;
      showGutter(this.gutterRows, this.tracks, {
        fold: (target) => this.fold(target),
        pin: (lane) => this.edit(() => this.tracks.pin(lane)),
        move: (group, by) => this.edit(() => this.tracks.move(group, by)),
        moveLane: (lane, by) =>
          this.edit(() => {
            if (!this.tracks.moveLane(lane, by)) this.status.textContent = "it stands at the edge of its group";
          }),
        drag: (lane, event) => this.dragLane(lane, event),
      });
      this.spacer.style.height = `${Math.max(0, this.tracks.height - height)}px`;
    }
    const scroll = this.scroller.scrollTop;
    this.gutterRows.style.top = `${-scroll}px`;
    const near = [...this.tracks.open()].filter(
      (lane) => lane.y < scroll + 2 * height && lane.y + lane.height > scroll - height,
    );
    const steps = [...this.tracks.lanes.values()].find((l) => l.info.table === "step");
    if (steps && this.tracks.explained && !near.includes(steps)) near.push(steps);
    this.loader.want(this.view, width, near);
    this.painter.paint(this.view, this.tracks, scroll, this.marks);
    this.overlay.details = this.details;
    this.overlay.paint(this.view, this.tracks, scroll, width, height);
    // only now: the diagnosis would compete with the first picture
    if (!this.diagnosing && this.idle && near.every((lane) => lane.tile)) {
      this.diagnosing = true;
      void this.diagnose();
    }
    const whole = this.idle && near.every((lane) => lane.tile);
    if (whole && !this.drawn) performance.mark("first-picture"); // benchmarks/ui.py reads it
    this.drawn ||= whole;
    document.documentElement.dataset.idle = String(whole);
    this.where.textContent = `${time(this.view.span)} shown, from ${time(this.view.begin)}`;
    this.remember();
  }

  private gutterSignature(): string {
    const parts: string[] = [];
    for (const [group, lanes] of this.tracks.visible()) {
      parts.push(`${group.title}${group.folded}${group.y}`);
      for (const l of lanes) parts.push(`${l.info.id}${l.folded}${l.tile?.depths}${l.y}`);
    }
    return parts.join();
  }

  private edit(change: () => void): void {
    change();
    this.tracks.arrange();
    this.changed();
  }

  /** A track follows the pointer through its group. */
  private dragLane(lane: Lane, event: PointerEvent): void {
    if (event.button !== 0) return;
    let moved = false;
    const move = (next: PointerEvent): void => {
      if (!moved && Math.abs(next.clientY - event.clientY) <= CLICK_PX) return;
      moved = true;
      const y = next.clientY - this.scroller.getBoundingClientRect().top + this.scroller.scrollTop;
      const over = this.tracks.at(y);
      if (!over || over === lane || !this.tracks.siblings(lane).includes(over)) return;
      // only past its middle, else tracks of different heights would change places again and again
      const down = over.y > lane.y;
      if (down ? y < over.y + over.height / 2 : y > over.y + over.height / 2) return;
      this.edit(() => this.tracks.moveLane(lane, down ? 1 : -1));
    };
    const stop = (): void => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", stop);
      window.removeEventListener("pointercancel", stop);
      if (!moved) return;
      // the click that ends a drag folds nothing
      const swallow = (click: Event): void => click.stopPropagation();
      window.addEventListener("click", swallow, { capture: true, once: true });
      window.setTimeout(() => window.removeEventListener("click", swallow, { capture: true }), 50);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", stop);
    window.addEventListener("pointercancel", stop);
  }

  private fold(target: Group | Lane): void {
    this.edit(() => (target.folded = !target.folded));
  }

  // --- asking ------------------------------------------------------------------------------------

  private async asking<T>(question: Promise<T>): Promise<T | null> {
    this.asked++;
    document.documentElement.dataset.idle = "false";
    try {
      const answer = await question;
      this.failure.textContent = "";
      return answer;
    } catch (error) {
      this.fail(error instanceof Error ? error.message : String(error));
      return null;
    } finally {
      this.asked--;
      this.changed();
    }
  }

  private fail(message: string): void {
    this.failure.textContent = clean(message, 400);
  }

  private async diagnose(): Promise<void> {
    try {
      this.diagnosed = await this.source.diagnosis();
    } catch (error) {
      const says = error instanceof Error ? error.message : String(error);
      fill(this.diagnosisPanel, element("h2", {}, "No diagnosis"), element("p", {}, clean(says, 800)));
      return;
    }
    this.tracks.explained = true;
    showDiagnosis(this.diagnosisPanel, this.diagnosed, {
      fly: (place) => void this.fly(place),
      instance: (finding, at) => this.showInstance(finding, at),
      near: () => undefined,
      clearRange: () => undefined,
      zoomRange: () => undefined,
    });
    if (this.marks.range) this.askStatistics();
    this.drawer.refresh();
    this.changed();
  }

  private async select(track: number, row: number, reveal = true): Promise<void> {
    const details = await this.asking(this.source.row(track, row));
    if (!details) return;
    this.details = details;
    this.marks.selected = details;
    this.marks.arrows = details.arrows.ends;
    this.marks.forward = details.arrows.forward;
    if (reveal) this.reveal(details);
    showDetails(this.detailsPanel, details, this.layout, {
      fly: (place) => void this.fly(place),
      instance: () => undefined,
      near: (step, same) => void this.near(step, same),
      clearRange: () => undefined,
      zoomRange: () => undefined,
    });
    this.status.textContent = `selected ${clean(details.name, 100)}, ${time(details.end - details.start)}`;
    this.changed();
  }

  /** Selects a row and brings it into view. */
  private async fly(place: { track: number; row: number }): Promise<void> {
    await this.select(place.track, place.row);
    const selected = this.marks.selected;
    if (!selected) return;
    const length = selected.end - selected.start;
    const inside = selected.start >= this.view.begin && selected.end <= this.view.end;
    // keep the scale where it shows the slice, so that hopping does not make one dizzy
    if (length > this.view.span * 0.9 || length < this.view.span / 400)
      this.view.frame(selected.start, selected.end, 8);
    else if (!inside) {
      const half = this.view.span / 2;
      const middle = (selected.start + selected.end) / 2;
      this.view.set(middle - half, middle + half);
    }
    this.changed();
  }

  private reveal(place: Place): void {
    const lane = this.tracks.lanes.get(place.track);
    if (!lane) return;
    this.tracks.reveal(lane);
    const y = lane.y + Math.min(place.depth, depths(lane)) * this.tracks.rowPx;
    const height = this.scroller.clientHeight;
    if (y < this.scroller.scrollTop || y > this.scroller.scrollTop + height - 24) {
      this.spacer.style.height = `${Math.max(0, this.tracks.height - height)}px`;
      this.scroller.scrollTop = Math.max(0, y - height / 2);
    }
  }

  private async near(step: number, same: boolean): Promise<void> {
    const selected = this.marks.selected;
    if (!selected) {
      await this.selectFirst();
      return;
    }
    const next = await this.asking(this.source.near(selected.track, selected.row, step, same));
    if (next) await this.fly(next);
    else this.status.textContent = `no ${step > 0 ? "later" : "earlier"} one on this track`;
  }

  /** With nothing selected, the keyboard begins with the longest slice of the first track in view. */
  private async selectFirst(): Promise<void> {
    for (const lane of this.tracks.open()) {
      if (lane.y + lane.height < this.scroller.scrollTop || !lane.tile) continue;
      for (const row of lane.tile.rows) {
        const low = lowerBound(row.start, this.view.begin);
        if (low < row.start.length && row.start[low] < this.view.end) {
          await this.select(lane.info.id, row.row[low]);
          return;
        }
      }
    }
  }

  private async showInstance(finding: number, at: number): Promise<void> {
    const instance = this.diagnosed?.instances[finding]?.[at];
    if (!instance) return;
    this.place = [finding, at];
    this.marks.gap = { begin: instance.begin, end: instance.end };
    this.marks.blamed = instance.responsible;
    this.marks.selected = null;
    this.marks.arrows = [];
    this.details = null;
    fill(this.detailsPanel);
    for (const place of instance.responsible) {
      const lane = this.tracks.lanes.get(place.track);
      if (lane) this.tracks.reveal(lane);
    }
    const first = instance.tracks.map((id) => this.tracks.lanes.get(id)).find((lane) => lane);
    if (first) this.reveal({ track: first.info.id, row: 0, depth: 0, start: 0, end: 0, name: "" });
    this.view.frame(instance.begin, instance.end, 0.7);
    const doing = instance.responsible.map((place) => clean(place.name, 60)).join(", ");
    const silent = "no range, operator or call was recorded; sample or annotate the host code";
    this.status.textContent =
      instance.thread >= 0 ? `meanwhile on thread ${instance.thread}: ${doing || silent}` : "";
    this.changed();
  }

  private askStatistics(): void {
    clearTimeout(this.statisticsTimer);
    const range = this.marks.range;
    if (!range) {
      fill(this.rangePanel);
      return;
    }
    this.statisticsTimer = window.setTimeout(async () => {
      const begin = Math.round(range.begin);
      const found = await this.asking(
        this.source.statistics(begin, Math.max(begin + 1, Math.round(range.end))),
      );
      if (!found || this.marks.range !== range) return;
      showStatistics(this.rangePanel, found, {
        fly: (place) => void this.fly(place),
        instance: () => undefined,
        near: () => undefined,
        clearRange: () => this.setRange(null),
        zoomRange: () => this.zoomRange(),
      });
    }, 60);
  }

  private setRange(range: { begin: number; end: number } | null): void {
    this.marks.range = range;
    this.askStatistics();
    this.drawer.refresh();
    this.changed();
  }

  private zoomRange(): void {
    const range = this.marks.range;
    if (range) this.view.frame(range.begin, range.end, 0.02);
    this.changed();
  }

  // --- search ------------------------------------------------------------------------------------

  private async search(step: number): Promise<void> {
    const text = this.searchBox.value.trim();
    if (!text) {
      this.hits = null;
      this.marks.found = [];
      fill(this.hitsPanel);
      this.changed();
      return;
    }
    if (this.searchBox.dataset.done !== text) {
      // /text/ is a regular expression, as in many tools
      const regex = /^\/(.+)\/$/.exec(text);
      const found = await this.asking(this.source.search(regex ? regex[1] : text, regex !== null));
      if (!found) return;
      this.searchBox.dataset.done = text;
      this.hits = found;
      this.hitAt = -1;
      this.marks.found = found.hits.slice(0, MOST_FOUND_SHOWN);
      showHits(this.hitsPanel, found, text, (place) => void this.fly(place));
    }
    const hits = this.hits?.hits ?? [];
    if (!hits.length) {
      this.changed();
      return;
    }
    this.hitAt = (this.hitAt + step + hits.length) % hits.length;
    await this.fly(hits[this.hitAt]);
  }

  // --- pointer and keys --------------------------------------------------------------------------

  private listen(): void {
    new ResizeObserver(() => this.changed()).observe(this.stage);
    this.scroller.addEventListener("scroll", () => this.changed());
    this.gutter.addEventListener(
      "wheel",
      (event) => {
        this.scroller.scrollTop += event.deltaY;
      },
      { passive: true },
    );
    this.rows.addEventListener("wheel", (e) => this.wheel(e, e.ctrlKey || e.metaKey), { passive: false });
    this.axis.addEventListener("wheel", (e) => this.wheel(e, true), { passive: false });
    this.rows.addEventListener("pointerdown", (event) => this.press(event, event.shiftKey));
    this.axis.addEventListener("pointerdown", (event) => this.press(event, true));
    this.rows.addEventListener("pointermove", (event) => this.hover(event));
    this.rows.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
      this.marks.cursor = null;
      this.changed();
    });
    this.rows.addEventListener("dblclick", () => {
      this.view.fit();
      this.changed();
    });
    this.searchBox.addEventListener("keydown", (event) => {
      if (event.key === "Enter") void this.search(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") this.leave(this.searchBox, () => void this.search(1));
    });
    this.searchBox.addEventListener("search", () => {
      if (!this.searchBox.value) void this.search(1);
    });
    this.filterBox.addEventListener("input", () => this.setFilter(this.filterBox.value));
    this.filterBox.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.leave(this.filterBox, () => this.setFilter(""));
      if (event.key === "Enter") this.rows.focus();
    });
    window.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("hashchange", () => this.restore());
  }

  private leave(box: HTMLInputElement, emptied: () => void): void {
    box.value = "";
    emptied();
    this.rows.focus();
  }

  private setFilter(text: string): void {
    try {
      this.tracks.filter = text ? new RegExp(text, "i") : null;
      this.filterBox.setCustomValidity("");
      this.failure.textContent = "";
    } catch {
      this.filterBox.setCustomValidity("no regular expression");
      this.fail(`${clean(text, 60)} is no regular expression`);
      return;
    }
    this.edit(() => undefined);
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || this.helpBox.open) return;
    const onButton = target.tagName === "BUTTON" || target.tagName === "SUMMARY";
    if (onButton && (event.key === "Enter" || event.key === " ")) return;
    const own = this.steps.visible ? [...this.steps.keys, ...this.keys.filter((k) => EVERYWHERE.has(k.shows))] : this.keys;
    const key = own.find((candidate) => candidate.match(event));
    if (!key) return;
    event.preventDefault();
    key.run(event);
  }

  private wheel(event: WheelEvent, zooming: boolean): void {
    this.point(event);
    if (zooming) {
      event.preventDefault();
      this.view.zoom(Math.exp(event.deltaY * 0.0022), this.pointerX);
      this.changed();
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      event.preventDefault();
      this.view.pan((event.deltaX || event.deltaY) / this.stage.clientWidth);
      this.changed();
    }
  }

  private point(event: MouseEvent): number {
    const box = this.stage.getBoundingClientRect();
    const x = event.clientX - box.left;
    this.pointerX = Math.min(1, Math.max(0, x / Math.max(1, box.width)));
    return x;
  }

  private press(event: PointerEvent, ranging: boolean): void {
    if (event.button !== 0) return;
    const canvas = event.currentTarget as HTMLCanvasElement;
    canvas.setPointerCapture(event.pointerId);
    const width = this.stage.clientWidth;
    const from = this.point(event);
    const anchor = this.view.time(from, width);
    const [begin, end] = [this.view.begin, this.view.end];
    const top = this.scroller.scrollTop + event.clientY;
    let moved = false;
    const move = (next: PointerEvent): void => {
      const x = this.point(next);
      moved ||= Math.abs(x - from) > CLICK_PX || Math.abs(next.clientY - event.clientY) > CLICK_PX;
      if (!moved) return;
      if (ranging) {
        const at = this.view.time(x, width);
        this.setRange({ begin: Math.min(anchor, at), end: Math.max(anchor, at) });
      } else {
        const by = ((x - from) / width) * (end - begin);
        this.view.set(begin - by, end - by);
        this.scroller.scrollTop = top - next.clientY;
        this.changed();
      }
    };
    const stop = (last: PointerEvent): void => {
      canvas.removeEventListener("pointermove", move);
      canvas.removeEventListener("pointerup", stop);
      canvas.removeEventListener("pointercancel", stop);
      if (!moved && last.type === "pointerup" && canvas === this.rows) void this.click(last);
      this.rows.focus({ preventScroll: true });
    };
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", stop);
    canvas.addEventListener("pointercancel", stop);
  }

  private hover(event: PointerEvent): void {
    const x = this.point(event);
    this.marks.cursor = this.view.time(x, this.stage.clientWidth);
    const under = this.under(event);
    const text = under ? hint(under.place, under.count, under.share) : "";
    this.tip.hidden = !text || event.buttons !== 0;
    this.tip.textContent = text;
    const y = event.clientY - this.stage.getBoundingClientRect().top;
    const right = x > this.stage.clientWidth * 0.55;
    this.tip.style.left = right ? "auto" : `${x + 14}px`;
    this.tip.style.right = right ? `${this.stage.clientWidth - x + 14}px` : "auto";
    this.tip.style.top = `${Math.min(y + 16, this.stage.clientHeight - 30)}px`;
    this.changed();
  }

  /** What lies under the pointer as far as the loaded tile tells. */
  private under(event: PointerEvent): Under | null {
    const box = this.scroller.getBoundingClientRect();
    const y = event.clientY - box.top + this.scroller.scrollTop;
    const lane = this.tracks.at(y);
    if (!lane?.tile || lane.tile.counter) return null;
    const depth = this.tracks.depthAt(lane, y);
    const at = this.view.time(event.clientX - box.left, this.stage.clientWidth);
    const row = lane.tile.rows.find((candidate) => candidate.depth === depth);
    const none = { lane, depth, place: null, count: 0, share: 0 };
    if (!row) return none;
    const slop = 2 * (this.view.span / this.stage.clientWidth);
    const place = this.nearest(lane, row, at, slop);
    if (place) return { ...none, place };
    const column = Math.floor((at - lane.tile.begin) / lane.tile.bucket);
    for (const index of [column, column - 1, column + 1]) {
      const found = row.column.indexOf(index);
      if (found >= 0)
        return { ...none, count: Math.max(1, row.count[found]), share: row.share[found] };
    }
    return none;
  }

  private nearest(lane: Lane, row: Row, at: number, slop: number): Place | null {
    const high = lowerBound(row.start, at + slop);
    let best = -1;
    let distance = slop;
    for (let i = Math.max(0, high - 8); i < high; i++) {
      const off = Math.max(row.start[i] - at, at - row.end[i], 0);
      if (off < distance || (off === 0 && distance === 0)) [best, distance] = [i, off];
    }
    if (best < 0) return null;
    return {
      track: lane.info.id,
      row: row.row[best],
      depth: row.depth,
      start: row.start[best],
      end: row.end[best],
      name: this.source.name(row.name[best]),
    };
  }

  private async click(event: PointerEvent): Promise<void> {
    const under = this.under(event);
    if (!under) return;
    if (under.place) {
      await this.select(under.place.track, under.place.row, false);
      return;
    }
    if (under.count) await this.clickShort(under, event);
  }

  /** Short events under the pointer: ask for them one by one, and take the nearest. */
  private async clickShort(under: Under, event: PointerEvent): Promise<void> {
    const width = this.stage.clientWidth;
    const x = event.clientX - this.scroller.getBoundingClientRect().left;
    const pixel = this.view.span / width;
    const at = this.view.time(x, width);
    const bucket = Math.max(1, Math.floor(pixel / 512));
    const columns = Math.min(8192, Math.ceil((6 * pixel) / bucket));
    const begin = Math.floor(at - 3 * pixel);
    const signal = new AbortController().signal;
    const asked = this.source.tiles([under.lane.info.id], begin, bucket, columns, signal);
    const tiles = await this.asking(asked);
    const row = tiles?.get(under.lane.info.id)?.rows.find((r) => r.depth === under.depth);
    const place = row ? this.nearest(under.lane, row, at, 3 * pixel) : null;
    if (place) await this.select(place.track, place.row, false);
    else this.status.textContent = "zoom in to select";
  }

  private commands(): Commands {
    const then = (change: () => void): void => {
      change();
      this.changed();
    };
    return {
      zoom: (factor) => then(() => this.view.zoom(factor, this.marks.cursor === null ? 0.5 : this.pointerX)),
      pan: (share) => then(() => this.view.pan(share)),
      scroll: (rows) => then(() => (this.scroller.scrollTop += rows * 16)),
      fit: () => then(() => this.view.fit()),
      frameSelection: () =>
        then(() => {
          const what = this.marks.selected
            ? { begin: this.marks.selected.start, end: this.marks.selected.end }
            : (this.marks.gap ?? this.marks.range);
          if (what) this.view.frame(what.begin, what.end, 0.5);
        }),
      near: (step, same) => void this.near(step, same),
      depth: (step) => void this.stepLane(step),
      follow: () => {
        const to = this.marks.arrows[0];
        if (to) void this.fly(to);
        else this.status.textContent = "no arrow from here";
      },
      search: () => this.searchBox.focus(),
      filter: () => this.filterBox.focus(),
      zoomRange: () => this.zoomRange(),
      rangeOfSelection: () => {
        const s = this.marks.selected;
        const what = s ? { begin: s.start, end: s.end } : this.marks.gap;
        if (what) this.setRange({ ...what });
      },
      finding: (step) => this.stepFinding(step),
      steps: () => this.toggleSteps(),
      panel: (name) => this.drawer.toggle(name),
      instance: (step) => void (this.drawer.shown === "operators" ? this.drawer.operators : this.drawer.kernels).step(step),
      link: () => {
        const to = this.details?.links?.find((link) => link.ends.length)?.ends[0];
        if (to) void this.fly(to);
        else this.status.textContent = "no other link from here";
      },
      mark: () => {
        if (this.drawer.shown !== "notes") this.drawer.choose("notes");
        void this.drawer.notes.mark();
      },
      note: () => {
        if (this.drawer.shown !== "notes") this.drawer.choose("notes");
        void this.drawer.notes.note();
      },
      nearNote: (step) => this.drawer.notes.step(step),
      help: () => this.help(),
      theme: () => this.toggleTheme(),
      clear: () => this.clear(),
    };
  }

  /** Selects what runs at the same time on the next row, or the next track. */
  private async stepLane(step: number): Promise<void> {
    const selected = this.marks.selected;
    if (!selected) return this.selectFirst();
    const rows: [Lane, Row][] = [];
    for (const lane of this.tracks.open())
      for (const row of lane.tile?.rows ?? []) if (row.depth < depths(lane)) rows.push([lane, row]);
    let at = rows.findIndex(([l, r]) => l.info.id === selected.track && r.depth === selected.depth);
    const middle = (selected.start + selected.end) / 2;
    for (at += step; at >= 0 && at < rows.length; at += step) {
      const [lane, row] = rows[at];
      const place = this.nearest(lane, row, middle, this.view.span);
      if (place) return this.select(place.track, place.row);
    }
    this.status.textContent = step > 0 ? "nothing further down" : "nothing further up";
  }

  private stepFinding(step: number): void {
    const all = (this.diagnosed?.instances ?? []).flatMap((places, finding) =>
      places.map((_, at): [number, number] => [finding, at]),
    );
    if (!all.length) return;
    const now = this.place
      ? all.findIndex(([f, i]) => f === this.place![0] && i === this.place![1])
      : step > 0 ? -1 : 0; // prettier-ignore
    void this.showInstance(...all[(now + step + all.length) % all.length]);
  }

  private clear(): void {
    if (this.marks.range) {
      this.setRange(null);
      return;
    }
    this.marks.selected = null;
    this.marks.arrows = [];
    this.marks.gap = null;
    this.marks.blamed = [];
    this.marks.found = [];
    this.details = null;
    this.place = null;
    fill(this.detailsPanel);
    this.changed();
  }

  private toggleTheme(): void {
    this.painter.theme = toggleTheme();
    this.steps.themed();
    this.changed();
  }

  private help(): void {
    const list = element("dl", {});
    const pair = (k: Key): [string, string] => [k.shows, k.says];
    const pairs = [...this.keys.map(pair), ...MOUSE, ["In the steps", ""] as [string, string], ...this.steps.keys.map(pair)];
    for (const [shows, says] of pairs) if (shows) list.append(element("dt", {}, shows), element("dd", {}, says));
    fill(
      this.helpBox,
      element("h2", {}, "Keys and mouse"),
      list,
      element("p", {}, element("button", { click: () => this.helpBox.close() }, "Close (Esc)")),
    );
    this.helpBox.showModal();
  }

  // --- steps -------------------------------------------------------------------------------------

  private toggleSteps(): void {
    this.showSteps(!this.steps.visible);
    this.remember();
  }

  private showSteps(visible: boolean): void {
    this.main.hidden = visible;
    if (visible) this.main.after(this.steps.root);
    else this.steps.root.remove();
    for (const box of [this.filterBox, this.searchBox]) box.hidden = visible;
    this.where.hidden = visible;
    this.steps.show(visible);
    this.viewButton.textContent = visible ? "Timeline (V)" : "Steps (V)";
    this.viewButton.title = visible ? "Show the timeline" : "Show all steps side by side";
    if (!visible) this.rows.focus({ preventScroll: true });
    this.changed();
  }

  /** Shows one step in the timeline, and makes it the range. */
  private openStep(step: number, begin: number, end: number): void {
    if (end <= this.layout.begin || begin >= this.layout.end) {
      this.fail(`this page holds the timeline of ${time(this.layout.begin)} to ${time(this.layout.end)} only, not of step ${step}`);
      return;
    }
    this.showSteps(false);
    this.view.frame(begin, end, 0.05);
    this.setRange({ begin, end });
    this.status.textContent = `step ${step}, ${time(end - begin)}`;
  }

  private stepWords(): string {
    const words = new URLSearchParams(this.steps.words()).toString();
    return words ? `&${words}` : "";
  }

  // --- link --------------------------------------------------------------------------------------

  private remember(): void {
    clearTimeout(this.linkTimer);
    this.linkTimer = window.setTimeout(() => {
      const folded = [
        ...this.tracks.groups.filter((g) => g.folded).map((g) => g.title),
      ];
      const text = writeLink({
        begin: this.view.begin,
        end: this.view.end,
        ...(this.details ? { selected: [this.details.track, this.details.row] } : {}),
        ...(this.marks.range ? { range: [this.marks.range.begin, this.marks.range.end] } : {}),
        ...(this.tracks.filter ? { filter: this.tracks.filter.source } : {}),
        pins: this.tracks.pins().map((lane) => lane.info.path),
        folded,
        order: this.tracks.moved(),
        panels: this.drawer.state(),
      }) + this.stepWords();
      // replaceState does not cause hashchange, and does not fill the history
      if (text !== location.hash) history.replaceState(null, "", text);
    }, 250);
  }

  private restore(): void {
    const link = readLink(location.hash);
    this.showSteps(this.steps.restore(location.hash));
    if (link.begin !== undefined && link.end !== undefined) this.view.set(link.begin, link.end);
    if (link.filter) {
      this.filterBox.value = link.filter;
      this.setFilter(link.filter);
    }
    if (link.order.length) this.tracks.reorder(link.order);
    for (const group of this.tracks.groups) group.folded = link.folded.includes(group.title);
    const lanes = new Map([...this.tracks.lanes.values()].map((lane) => [lane.info.path, lane]));
    for (const path of link.pins) {
      const lane = lanes.get(path);
      if (lane) this.tracks.pin(lane, true); // in the order of the link
    }
    this.setRange(link.range ? { begin: link.range[0], end: link.range[1] } : null);
    if (link.selected) void this.select(link.selected[0], link.selected[1]);
    this.drawer.restore(link.panels);
    this.changed();
  }
}

/** What the captures lack, and how to get it: an empty track list should not have to be guessed at. */
function absent(layout: Layout): HTMLElement {
  const told = new Map<string, string>();
  for (const member of layout.members)
    for (const { table, reason, flag } of member.absent)
      told.set(table, `${table}: ${reason}${flag ? ` (${flag})` : ""}`);
  if (!told.size) return element("div");
  return element(
    "details",
    {},
    element("summary", {}, `Not in this capture (${told.size})`),
    element("ul", { class: "plain" }, ...[...told.values()].map((t) => element("li", {}, clean(t, 400)))),
  );
}

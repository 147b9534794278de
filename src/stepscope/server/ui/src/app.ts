/** The page of one run: makes its parts, asks the source, draws once a frame, keeps the link. */

import type { Layout } from "./data/contracts";
import { StaticSource } from "./data/static";
import { ServerSteps, StaticSteps, type StepSource } from "./data/steps";
import type { Source } from "./data/types";
import { Drawer } from "./panels/drawer";
import { missing, showDiagnosis, type Actions } from "./panels/explanation";
import { Colours, coloursLegend } from "./shared/colours";
import { element, fill } from "./shared/dom";
import { clean, time } from "./shared/format";
import { Frame, keyHelp, wrong } from "./shared/frame";
import type { Key } from "./shared/keys";
import { waiting } from "./shared/progress";
import { startTheme, toggleTheme } from "./shared/theme";
import { View } from "./shared/window";
import { StepsView } from "./steps/steps_view";
import { readLink, writeLink } from "./timeline/address";
import type { Timeline } from "./timeline/context";
import { commands, keys, MOUSE } from "./timeline/keyboard";
import { Overlay } from "./timeline/overlay";
import { Painter, type Marks } from "./timeline/painter";
import { PointerControls } from "./timeline/pointer_controls";
import { RangePanel } from "./timeline/range";
import { Search } from "./timeline/search";
import { Selection } from "./timeline/selection";
import { TileLoader } from "./timeline/tile_loader";
import { TimelineView } from "./timeline/timeline_view";
import { Tracks, type TrackView } from "./timeline/tracks";

/** Keys that do the same in every view. */
const EVERYWHERE = new Set(["V", "L", "?"]);

export class App implements Timeline {
  readonly view: View;
  readonly tracks: Tracks;
  readonly timelineView: TimelineView;
  readonly marks: Marks = {
    selected: null,
    arrows: [],
    attributed: [],
    waiting: [],
    gap: null,
    range: null,
    found: [],
    cursor: null,
  };
  readonly actions: Actions = {
    navigateTo: (place) => void this.selection.navigateTo(place),
    instance: (finding, at) => this.selection.instance(finding, at),
    near: (step, same) => void this.selection.near(step, same),
    message: (text) => this.message(text),
    clearRange: () => this.setRange(null),
    zoomRange: () => this.range.zoom(),
  };
  private readonly around = new Frame({ theme: () => this.theme(), help: () => this.help() });
  private readonly painter: Painter;
  private readonly loader: TileLoader;
  private readonly overlay = new Overlay();
  private readonly selection: Selection;
  private readonly range: RangePanel;
  private readonly finder: Search;
  private readonly pointer: PointerControls;
  private readonly drawer: Drawer;
  private readonly steps: StepsView;
  private readonly keys: Key[];
  private frame = 0;
  private linkTimer = 0;
  private asked = 0;
  private diagnosing = false;
  private drawn = false;

  private readonly filterBox = element("input", {
    type: "search",
    placeholder: "Filter tracks, regex (T)",
    "aria-label": "Filter tracks by regular expression",
  });
  private readonly diagnosisPanel = element("section", { "aria-label": "Diagnosis" });
  private readonly main = element("main", {});
  private readonly viewButton = element("button", { click: () => this.toggleSteps() });

  constructor(
    root: HTMLElement,
    readonly source: Source,
    readonly layout: Layout,
  ) {
    this.view = new View(layout.begin, layout.end);
    this.view.fit();
    this.tracks = new Tracks(layout);
    startTheme();
    this.timelineView = new TimelineView(this.tracks, this.overlay.canvas, () => this.changed(), (text) => this.message(text), () => {
      this.filterBox.value = "";
      this.message("the filter of tracks is removed: it hid this one");
    });
    this.painter = new Painter(this.timelineView.axis, this.timelineView.rows, source, new Colours(layout.classes));
    this.loader = new TileLoader(
      source,
      () => this.painter.colours,
      () => this.changed(),
      (message) => this.around.fail(message),
    );
    this.selection = new Selection(this);
    this.range = new RangePanel(this);
    this.finder = new Search(this, (place) => this.selection.navigateTo(place));
    this.pointer = new PointerControls(this, {
      select: (place) => this.selection.select(place.track, place.row, false),
      range: (range) => this.setRange(range),
    });
    this.drawer = this.makeDrawer();
    this.steps = new StepsView(stepSource(source), layout.classes, {
      open: (step, begin, end) => this.openStep(step, begin, end),
      changed: () => this.remember(),
      message: (text) => this.message(text),
      fail: (text) => this.around.fail(text),
    });
    this.keys = keys(
      commands(this, {
        selection: this.selection,
        range: this.range,
        pointer: this.pointer,
        finder: this.finder,
        filter: this.filterBox,
        drawer: this.drawer,
        setRange: (range) => this.setRange(range),
        steps: () => this.toggleSteps(),
        help: () => this.help(),
        theme: () => this.theme(),
      }),
    );
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
      explained: () => this.selection.diagnosed !== null,
      navigateTo: (place) => this.selection.navigateTo(place),
      frame: (span) => {
        this.view.set(span.begin, span.end);
        this.changed();
      },
      find: (text) => this.finder.find(text),
      highlight: (found) => this.overlay.highlight(found),
      showNotes: (notes) => {
        this.overlay.notes = notes;
        this.changed();
      },
      asking: (question) => this.asking(question),
      say: (text) => this.message(text),
      failure: () => this.around.failed,
      changed: () => this.changed(),
      leave: () => this.timelineView.focus(),
    });
  }

  private build(root: HTMLElement): void {
    const names = this.layout.paths.map((path) => clean(path.split("/").pop() ?? path, 120));
    const files = names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
    const above = this.layout.above ? [element("a", { href: this.layout.above }, "‹ The job")] : [];
    this.around.build(root, names[0] ?? "", files, [...above, this.viewButton, this.filterBox, this.finder.box], this.main);
    const panels = [this.finder.panel, this.selection.panel, this.range.panel, this.diagnosisPanel, coloursLegend(), missing(this.layout)];
    fill(
      this.main,
      this.timelineView.gutter,
      this.timelineView.root,
      element("aside", { "aria-label": "Explanation" }, ...panels),
      this.drawer.root,
    );
    fill(this.diagnosisPanel, element("p", { class: "note", role: "status" }, "Diagnosing …"));
    for (const { stated } of this.layout.problems.slice(0, 1)) this.message(clean(stated));
  }

  // --- drawing -----------------------------------------------------------------------------------

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
    const { width, height } = this.timelineView;
    this.painter.resize(width, height);
    this.timelineView.arrange();
    const near = this.timelineView.near();
    const steps = this.tracks.ruler;
    if (steps && this.tracks.explained && !near.includes(steps)) near.push(steps);
    this.loader.want(this.view, width, near);
    const scroll = this.timelineView.scroller.scrollTop;
    this.painter.paint(this.view, this.tracks, scroll, this.marks);
    this.overlay.details = this.selection.details;
    this.overlay.paint(this.view, this.tracks, scroll, width, height);
    this.settle(near);
    this.around.where.textContent = `${time(this.view.span)} shown, from ${time(this.view.begin)}`;
    this.remember();
  }

  /** Says in `data-idle`, for which tests wait, whether the picture is whole; then asks what can wait. */
  private settle(near: TrackView[]): void {
    const loaded = near.every((trackView) => trackView.tile);
    // only now: the diagnosis would compete with the first picture
    if (!this.diagnosing && this.idle && loaded) {
      this.diagnosing = true;
      void this.diagnose();
    }
    const whole = this.idle && loaded;
    if (whole && !this.drawn) performance.mark("first-picture"); // benchmarks/ui.py reads it
    this.drawn ||= whole;
    document.documentElement.dataset.idle = String(whole);
  }

  // --- asking ------------------------------------------------------------------------------------

  /** Whether nothing is being asked. */
  private get idle(): boolean {
    return !this.loader.pending && this.asked === 0;
  }

  async asking<T>(question: Promise<T>): Promise<T | null> {
    this.asked++;
    document.documentElement.dataset.idle = "false";
    try {
      const answer = await question;
      this.around.fail("");
      return answer;
    } catch (error) {
      this.around.fail(wrong(error));
      return null;
    } finally {
      this.asked--;
      this.changed();
    }
  }

  message(text: string): void {
    this.around.message(text);
  }

  private async diagnose(): Promise<void> {
    try {
      const asked = waiting(this.source.diagnosis(), () => this.source.progress(), (text) =>
        fill(this.diagnosisPanel, element("h2", {}, "Diagnosis"), element("p", { class: "note" }, text)),
      );
      this.selection.diagnosed = await asked;
    } catch (error) {
      fill(this.diagnosisPanel, element("h2", {}, "No diagnosis"), element("p", {}, clean(wrong(error), 800)));
      return;
    }
    this.tracks.explained = true;
    showDiagnosis(this.diagnosisPanel, this.selection.diagnosed, this.layout, this.actions);
    if (this.marks.range) this.range.ask();
    this.drawer.refresh();
    this.changed();
  }

  private setRange(range: { begin: number; end: number } | null): void {
    this.marks.range = range;
    this.range.ask();
    this.drawer.refresh();
    this.changed();
  }

  // --- keys and boxes ----------------------------------------------------------------------------

  private listen(): void {
    this.filterBox.addEventListener("input", () => this.setFilter(this.filterBox.value));
    this.filterBox.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.filterBox.value = "";
        this.setFilter("");
      }
      if (event.key === "Escape" || event.key === "Enter") this.timelineView.rows.focus();
    });
    window.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("hashchange", () => this.restore());
  }

  private setFilter(text: string): void {
    try {
      this.tracks.filterBy(text ? new RegExp(text, "i") : null);
      this.filterBox.setCustomValidity("");
      this.around.fail("");
    } catch {
      this.filterBox.setCustomValidity("no regular expression");
      this.around.fail(`${clean(text, 60)} is no regular expression`);
      return;
    }
    this.timelineView.edit(() => undefined);
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || this.around.helping) return;
    const onButton = target.tagName === "BUTTON" || target.tagName === "SUMMARY";
    if (onButton && (event.key === "Enter" || event.key === " ")) return;
    const own = this.steps.visible ? [...this.steps.keys, ...this.keys.filter((k) => EVERYWHERE.has(k.shows))] : this.keys;
    const key = own.find((candidate) => candidate.match(event));
    if (!key) return;
    event.preventDefault();
    key.run(event);
  }

  private theme(): void {
    this.painter.theme = toggleTheme();
    this.steps.themed();
    this.changed();
  }

  private help(): void {
    this.around.help([...this.keys.map(keyHelp), ...MOUSE, ["In the steps", ""], ...this.steps.keys.map(keyHelp)]);
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
    for (const box of [this.filterBox, this.finder.box]) box.hidden = visible;
    this.around.where.hidden = visible;
    this.steps.show(visible);
    this.viewButton.textContent = visible ? "Timeline (V)" : "Steps (V)";
    this.viewButton.title = visible ? "Show the timeline" : "Show all steps side by side";
    if (!visible) this.timelineView.focus();
    this.changed();
  }

  /** Shows one step in the timeline, and makes it the range. */
  private openStep(step: number, begin: number, end: number): void {
    if (end <= this.layout.begin || begin >= this.layout.end) {
      this.around.fail(`this page holds the timeline of ${time(this.layout.begin)} to ${time(this.layout.end)} only, not of step ${step}`);
      return;
    }
    this.showSteps(false);
    this.view.frame(begin, end, 0.05);
    this.setRange({ begin, end });
    this.message(`step ${step}, ${time(end - begin)}`);
  }

  private stepWords(): string {
    const words = new URLSearchParams(this.steps.words()).toString();
    return words ? `&${words}` : "";
  }

  // --- link --------------------------------------------------------------------------------------

  private remember(): void {
    clearTimeout(this.linkTimer);
    this.linkTimer = window.setTimeout(() => {
      const { details } = this.selection;
      const [folded, opened] = this.tracks.folds();
      const text = writeLink({
        begin: this.view.begin,
        end: this.view.end,
        ...(details ? { selected: [details.track, details.row] } : {}),
        ...(this.marks.range ? { range: [this.marks.range.begin, this.marks.range.end] } : {}),
        ...(this.tracks.filter ? { filter: this.tracks.filter.source } : {}),
        pins: this.tracks.pins().map((trackView) => trackView.info.path),
        folded,
        opened,
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
    if (link.order.length) this.tracks.reorder(link.order);
    this.tracks.restoreFolds(link.folded, link.opened);
    if (link.filter) {
      this.filterBox.value = link.filter;
      this.setFilter(link.filter);
    }
    const trackViews = new Map([...this.tracks.trackViews.values()].map((trackView) => [trackView.info.path, trackView]));
    for (const path of link.pins) {
      const trackView = trackViews.get(path);
      if (trackView) this.tracks.pin(trackView, true); // in the order of the link
    }
    this.setRange(link.range ? { begin: link.range[0], end: link.range[1] } : null);
    if (link.selected) void this.selection.select(link.selected[0], link.selected[1]);
    this.drawer.restore(link.panels);
    this.changed();
  }
}

function stepSource(source: Source): StepSource {
  return source instanceof StaticSource
    ? new StaticSteps(source.packed.steps, source.packed.steps_refused, source.packed.layout.classes)
    : new ServerSteps(source);
}

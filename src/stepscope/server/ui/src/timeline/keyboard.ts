/** Keys, in one list: what they do and what the help message of them. */

import { code, typed, type Key } from "../shared/keys";
import type { Drawer } from "../panels/drawer";
import type { Timeline } from "./context";
import type { PointerControls } from "./pointer_controls";
import type { RangePanel } from "./range";
import type { Search } from "./search";
import type { Selection } from "./selection";

export interface Commands {
  zoom(factor: number): void;
  pan(share: number): void;
  scroll(rows: number): void;
  fit(): void;
  frameSelection(): void;
  near(step: number, same: boolean): void;
  depth(step: number): void;
  follow(): void;
  search(): void;
  filter(): void;
  zoomRange(): void;
  rangeOfSelection(): void;
  finding(step: number): void;
  steps(): void;
  step(by: number): void;
  help(): void;
  theme(): void;
  clear(): void;
  panel(name: string): void;
  instance(step: number): void;
  link(): void;
  mark(): void;
  note(): void;
  nearNote(step: number): void;
}

export function keys(c: Commands): Key[] {
  return [
    { match: code("KeyW"), shows: "W", message: "zoom in at the pointer", run: (e) => c.zoom(e.shiftKey ? 0.4 : 0.75) },
    { match: code("KeyS"), shows: "S", message: "zoom out", run: (e) => c.zoom(e.shiftKey ? 2.5 : 1 / 0.75) },
    { match: code("KeyA", "ArrowLeft"), shows: "A ←", message: "move left", run: (e) => c.pan(e.shiftKey ? -0.5 : -0.12) },
    { match: code("KeyD", "ArrowRight"), shows: "D →", message: "move right", run: (e) => c.pan(e.shiftKey ? 0.5 : 0.12) },
    { match: code("ArrowUp"), shows: "↑", message: "scroll up", run: () => c.scroll(-3) },
    { match: code("ArrowDown"), shows: "↓", message: "scroll down", run: () => c.scroll(3) },
    { match: typed("0"), shows: "0, double click", message: "show everything", run: () => c.fit() },
    { match: code("KeyF"), shows: "F", message: "show the selection", run: () => c.frameSelection() },
    { match: typed("."), shows: ".", message: "select the next on its row (or the first in view)", run: () => c.near(1, false) },
    { match: typed(","), shows: ",", message: "select the one before", run: () => c.near(-1, false) },
    { match: code("KeyN"), shows: "N, Shift+N", message: "next, previous of the same name", run: (e) => c.near(e.shiftKey ? -1 : 1, true) },
    { match: code("KeyJ"), shows: "J, Shift+J", message: "select a row further down, up", run: (e) => c.depth(e.shiftKey ? -1 : 1) },
    { match: code("KeyE"), shows: "E", message: "follow the arrow: launch to kernel and back", run: () => c.follow() },
    { match: code("KeyR"), shows: "R", message: "make the selection the range", run: () => c.rangeOfSelection() },
    { match: code("KeyZ"), shows: "Z", message: "zoom to the range", run: () => c.zoomRange() },
    { match: code("KeyG"), shows: "G, Shift+G", message: "next, previous place of a finding", run: (e) => c.finding(e.shiftKey ? -1 : 1) },
    { match: code("KeyH"), shows: "H, Shift+H", message: "show the step in the middle, then the next; the previous", run: (e) => c.step(e.shiftKey ? -1 : 1) },
    { match: typed("/"), shows: "/", message: "search names; Enter goes on, Shift+Enter back", run: () => c.search() },
    { match: code("KeyT"), shows: "T", message: "filter tracks", run: () => c.filter() },
    { match: code("KeyV"), shows: "V", message: "steps side by side, and back", run: () => c.steps() },
    { match: code("KeyB"), shows: "B", message: "follow the other link: forward to backward operator and back", run: () => c.link() },
    { match: code("KeyK"), shows: "K", message: "table of kernels; arrow keys move in it, Enter goes to an instance", run: () => c.panel("kernels") },
    { match: code("KeyO"), shows: "O", message: "table of operators, ranges, modules, source lines", run: () => c.panel("operators") },
    { match: code("KeyX"), shows: "X, Shift+X", message: "next, previous instance of the table's row", run: (e) => c.instance(e.shiftKey ? -1 : 1) },
    { match: code("KeyP"), shows: "P", message: "flame graph; arrow keys, Enter and Backspace in it", run: () => c.panel("flame") },
    { match: code("KeyY"), shows: "Y", message: "memory over time by category, and who held it at the peak", run: () => c.panel("memory") },
    { match: code("KeyQ"), shows: "Q", message: "guide: which tool and command answers which question", run: () => c.panel("guide") },
    { match: code("KeyM"), shows: "M", message: "set a mark at the pointer; Shift+M: a note on the range", run: (e) => (e.shiftKey ? c.note() : c.mark()) },
    { match: code("KeyU"), shows: "U, Shift+U", message: "next, previous mark or note", run: (e) => c.nearNote(e.shiftKey ? -1 : 1) },
    { match: code("KeyL"), shows: "L", message: "dark or light", run: () => c.theme() },
    { match: typed("?"), shows: "?", message: "this help", run: () => c.help() },
    { match: typed("Escape"), shows: "Esc", message: "clear range, then selection", run: () => c.clear() },
  ];
}

export const MOUSE: [string, string][] = [
  ["drag", "move"],
  ["Shift+drag, drag on the axis", "choose a range: its statistics appear beside"],
  ["wheel", "scroll the tracks"],
  ["Ctrl+wheel, wheel on the axis", "zoom at the pointer"],
  ["click", "select"],
  ["drag a track's name, Alt+↑ Alt+↓ on it", "move the track in its group"],
];

export interface Parts {
  selection: Selection;
  range: RangePanel;
  pointer: PointerControls;
  finder: Search;
  filter: HTMLElement;
  drawer: Drawer;
  setRange(range: { begin: number; end: number } | null): void;
  steps(): void;
  help(): void;
  theme(): void;
}

export function commands(timeline: Timeline, parts: Parts): Commands {
  const { view, marks, timelineView } = timeline;
  const { selection, drawer, setRange } = parts;
  const then = (change: () => void): void => {
    change();
    timeline.changed();
  };
  /** The selection, else the gap of a finding. */
  const chosen = (): { begin: number; end: number } | null =>
    marks.selected ? { begin: marks.selected.start, end: marks.selected.end } : marks.gap;
  const notes = (): Drawer["notes"] => {
    if (drawer.shown !== "notes") drawer.choose("notes");
    return drawer.notes;
  };
  return {
    zoom: (factor) => then(() => view.zoom(factor, marks.cursor === null ? 0.5 : parts.pointer.share)),
    pan: (share) => then(() => view.pan(share)),
    scroll: (rows) => then(() => (timelineView.scroller.scrollTop += rows * 16)),
    fit: () => then(() => view.fit()),
    frameSelection: () =>
      then(() => {
        const what = chosen() ?? marks.range;
        if (what) view.frame(what.begin, what.end, 0.5);
      }),
    near: (step, same) => void selection.near(step, same),
    depth: (step) => void selection.depth(step),
    follow: () => {
      const [arrow] = marks.arrows;
      const end = arrow?.find((place) => place !== marks.selected);
      selection.follow(end, "no arrow from here");
    },
    search: () => parts.finder.box.focus(),
    filter: () => parts.filter.focus(),
    zoomRange: () => parts.range.zoom(),
    rangeOfSelection: () => {
      const what = chosen();
      if (what) setRange({ ...what });
    },
    finding: (step) => selection.finding(step),
    steps: parts.steps,
    step: (by) => void selection.step(by),
    panel: (name) => drawer.toggle(name),
    instance: (step) => void (drawer.shown === "operators" ? drawer.operators : drawer.kernels).step(step),
    link: () => {
      const link = selection.details?.links.find(({ ends }) => ends.length);
      selection.follow(link?.ends[0], "no other link from here");
    },
    mark: () => void notes().mark(),
    note: () => void notes().note(),
    nearNote: (step) => drawer.notes.step(step),
    help: parts.help,
    theme: parts.theme,
    clear: () => (marks.range ? setRange(null) : selection.clear()),
  };
}

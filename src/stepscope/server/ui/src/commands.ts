/** What the keys of the timeline do. */

import type { Drawer } from "./drawer";
import type { Finder } from "./finder";
import type { Hand } from "./hand";
import type { Commands } from "./keys";
import type { RangePanel } from "./range";
import type { Selection } from "./selection";
import type { Timeline } from "./timeline";

export interface Parts {
  selection: Selection;
  range: RangePanel;
  hand: Hand;
  finder: Finder;
  filter: HTMLElement;
  drawer: Drawer;
  setRange(range: { begin: number; end: number } | null): void;
  steps(): void;
  help(): void;
  theme(): void;
}

export function commands(timeline: Timeline, parts: Parts): Commands {
  const { view, marks, stage } = timeline;
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
    zoom: (factor) => then(() => view.zoom(factor, marks.cursor === null ? 0.5 : parts.hand.share)),
    pan: (share) => then(() => view.pan(share)),
    scroll: (rows) => then(() => (stage.scroller.scrollTop += rows * 16)),
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
      const link = selection.details?.links?.find(({ ends }) => ends.length);
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

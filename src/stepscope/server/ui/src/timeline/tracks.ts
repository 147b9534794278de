/** Which tracks are shown, in which order, how high. Pure state; drawing is in `canvas.ts`. */

import type { Layout, TrackInfo } from "../data/contracts";
import type { TrackTile } from "../data/types";
import { ROW_PX, type Bitmap } from "./track_bitmap";

export const GROUP_PX = 24;
export const COUNTER_PX = 40;
/** A counter that never changes takes one line. */
export const CONSTANT_PX = 19;
const PADDING_PX = 3;
const MOST_ROW_PX = 26;
const FOLDED_AT_FIRST = new Set(["Python", "OS runtime", "Python lock"]);

/** More threads than these that tell something, and only those that call CUDA stand by themselves. */
const MOST_TELLING = 4;
/** More of the others than these stand together. */
const MOST_QUIET = 2;
/** Tracks that tell what a thread does for the GPU. */
const TELLING = new Set(["range", "operator", "python_function"]);

export interface TrackView {
  info: TrackInfo;
  /** Its name inside its group. */
  title: string;
  y: number;
  height: number;
  folded: boolean;
  tile: TrackTile | null;
  picture: Bitmap | null;
}

export interface Group {
  title: string;
  y: number;
  folded: boolean;
  /** Shows nothing but when the device works and why it waits. */
  brief: boolean;
  /** How it opens. */
  usual: "open" | "folded";
  trackViews: TrackView[];
  /** Groups inside; a group has either these or tracks. */
  children: Group[];
}

export class Tracks {
  groups: Group[] = [];
  height = 0;
  /** Height of one row: rows grow while all tracks fit on the screen. */
  rowPx = ROW_PX;
  room = 0;
  filter: RegExp | null = null;
  explained = false;
  readonly trackViews = new Map<number, TrackView>();
  /** The steps that stand above all tracks: those of the first rank that has any. */
  readonly ruler: TrackView | undefined;
  /** Whose steps those are, where there are several ranks. */
  readonly rulerTitle: string;
  private first = "";
  /** Groups that began brief. */
  private readonly shortened = new Set<Group>();
  private readonly pinned = new Group_("Pinned");
  /** What a finding is about, where it is not in view otherwise. */
  private readonly spot = new Group_("This finding");
  private measured = false;
  /** How groups were folded before there was a filter. */
  private unfiltered = new Map<Group, boolean>();
  /** Groups that a link tells to be opened. */
  private opened = new Set<string>();

  constructor(layout: Layout) {
    const several = layout.members.length > 1;
    const byTitle = new Map<string, Group>();
    for (const info of layout.tracks) {
      const trackView: TrackView = {
        info,
        title: info.title,
        y: 0,
        height: 0,
        folded: FOLDED_AT_FIRST.has(info.title),
        tile: null,
        picture: null,
      };
      this.trackViews.set(info.id, trackView);
      const counts = info.kind === "counter" && (several || info.table === "metric_sample");
      const title = counts ? `${several ? `Rank ${info.rank} · ` : ""}Counters` : info.group;
      let group = byTitle.get(title);
      if (!group) {
        group = new Group_(title, counts);
        byTitle.set(title, group);
        this.groups.push(group);
      }
      group.trackViews.push(trackView);
    }
    for (const group of this.groups) if (group.usual === "folded") nameByDevice(group);
    this.gatherThreads(several);
    // devices first, rank by rank; then counters; then the threads in the order of the capture
    this.groups.sort((a, b) => order(a) - order(b));
    this.first = JSON.stringify(this.order());
    this.arrange();
    this.ruler = [...this.trackViews.values()].find(({ info }) => info.table === "step");
    this.rulerTitle = several && this.ruler ? `Steps of rank ${this.ruler.info.rank}` : "";
  }

  /** Puts the threads of each rank of a job, or those that tell little, behind one line. */
  private gatherThreads(several: boolean): void {
    const byRank = new Map<string, Group[]>();
    const telling = this.groups.filter((group) => group.trackViews[0].info.thread >= 0 && group.trackViews.some(tells));
    const kept = telling.length > MOST_TELLING ? telling.filter((group) => group.trackViews.some(calls)) : telling;
    for (const group of this.groups) {
      const { info } = group.trackViews[0];
      if (info.thread < 0 || (!several && kept.includes(group))) continue;
      const rank = several ? `Rank ${info.rank} · ` : "";
      byRank.set(rank, [...(byRank.get(rank) ?? []), group]);
    }
    for (const [rank, groups] of byRank) {
      if (!several && groups.length <= MOST_QUIET) continue;
      const threads = `${groups.length} ${several ? "" : "other "}thread${groups.length > 1 ? "s" : ""}`;
      const section = new Group_(rank + threads, true);
      section.children = groups;
      this.groups = this.groups.filter((group) => !groups.includes(group));
      this.groups.push(section);
    }
  }

  /** All groups, those inside others after them. */
  get every(): Group[] {
    return this.groups.flatMap((group) => [group, ...group.children]);
  }

  /** Folds and opens groups as a link tells; what it does not name stands as at first. */
  restoreFolds(folded: string[], opened: string[]): void {
    this.opened = new Set(opened);
    for (const group of this.every) {
      group.folded = (group.usual === "folded" || folded.includes(group.title)) && !this.opened.has(group.title);
      if (this.opened.has(group.title)) group.brief = false;
    }
  }

  /** Shows the tracks that match, folded or not; null shows all again, folded as they were. */
  filterBy(filter: RegExp | null): void {
    if (!this.filter && filter) this.unfiltered = new Map(this.every.map((group) => [group, group.folded]));
    if (this.filter && !filter) for (const [group, folded] of this.unfiltered) group.folded = folded;
    if (!filter) this.unfiltered.clear();
    this.filter = filter;
    if (filter) for (const group of this.every) if (all(group).some((trackView) => this.shows(trackView))) group.folded = false;
    this.arrange();
  }

  /** What a link has to tell of folded groups, and of those that were opened. */
  folds(): [string[], string[]] {
    const isFolded = (g: Group): boolean => this.unfiltered.get(g) ?? g.folded;
    const folded = this.every.filter((g) => isFolded(g) && g.usual === "open");
    const opened = this.every.filter((g) => !isFolded(g) && (g.usual === "folded" || this.shortened.has(g)) && !g.brief);
    return [folded.map((g) => g.title), opened.map((g) => g.title)];
  }

  /** Moves a track among those that are shown in its group; message whether it could. */
  moveTrack(trackView: TrackView, by: number): boolean {
    const trackViews = this.siblings(trackView);
    const shown = trackViews.filter((other) => other === trackView || this.isPinned(trackView) || this.shows(other));
    const beside = shown[shown.indexOf(trackView) + Math.sign(by)];
    if (!beside) return false;
    const [from, to] = [trackViews.indexOf(trackView), trackViews.indexOf(beside)];
    trackViews.splice(from, 1);
    trackViews.splice(to, 0, trackView);
    this.arrange();
    return true;
  }

  /** Tracks that a track may change places with. */
  siblings(trackView: TrackView): TrackView[] {
    if (this.isPinned(trackView)) return this.pinned.trackViews;
    return this.groupOf(trackView)!.trackViews;
  }

  private groupOf(trackView: TrackView): Group | undefined {
    return this.every.find((group) => group.trackViews.includes(trackView));
  }

  /** Paths of all tracks as they stand; empty while nobody has moved any. */
  moved(): string[] {
    const now = this.order();
    return JSON.stringify(now) === this.first ? [] : now;
  }

  /** Puts groups and tracks into an order that `moved` told; what it does not name comes last. */
  reorder(paths: string[]): void {
    const place = new Map(paths.map((path, i): [string, number] => [path, i]));
    const of = (trackView: TrackView): number => place.get(trackView.info.path) ?? Infinity;
    const compare = (a: number, b: number): number => (a === b ? 0 : a - b);
    const least = (group: Group): number => Math.min(...all(group).map(of));
    for (const group of this.every) {
      group.trackViews.sort((a, b) => compare(of(a), of(b)));
      group.children.sort((a, b) => compare(least(a), least(b)));
    }
    this.groups.sort((a, b) => compare(least(a), least(b)));
    this.arrange();
  }

  private order(): string[] {
    return this.groups.flatMap((group) => all(group).map((trackView) => trackView.info.path));
  }

  /** Groups with what is shown of them: what a finding is about, pinned tracks, then the others. */
  *visible(): Generator<[Group, TrackView[]]> {
    for (const group of [this.spot, this.pinned]) if (group.trackViews.length) yield [group, group.trackViews];
    for (const group of this.groups) {
      if (group.children.length) {
        const inside = group.children
          .map((child): [Group, TrackView[]] => [child, this.shown(child)])
          .filter(([, trackViews]) => trackViews.length);
        if (!inside.length) continue;
        yield [group, []];
        if (!group.folded) yield* inside;
        continue;
      }
      const trackViews = this.shown(group);
      if (trackViews.length) yield [group, trackViews];
    }
  }

  private shown(group: Group): TrackView[] {
    return group.trackViews.filter((trackView) => this.shows(trackView) && (!group.brief || this.filter || telltale(trackView)));
  }

  /** Where all rows of a job's devices do not fit, each begins with when it works and why it waits. */
  private measure(): void {
    if (this.measured || this.room <= 1) return;
    this.measured = true;
    const devices = this.groups.filter((group) => group.trackViews[0]?.info.device >= 0 && group.usual === "open");
    if (devices.length < 2) return;
    const needed = devices.reduce((sum, group) => sum + GROUP_PX + group.trackViews.length * (ROW_PX + PADDING_PX), 0);
    if (needed <= this.room) return;
    for (const group of devices) {
      if (!group.trackViews.some((trackView) => !telltale(trackView))) continue;
      group.brief = !this.opened.has(group.title);
      this.shortened.add(group);
    }
  }

  arrange(): void {
    this.measure();
    let rows = 0;
    let rest = 0;
    for (const [group, trackViews] of this.visible()) {
      rest += GROUP_PX;
      if (group.folded) continue;
      for (const trackView of trackViews) {
        if (trackView.info.kind === "counter") rest += this.heightOf(trackView);
        else [rows, rest] = [rows + depths(trackView), rest + PADDING_PX];
      }
    }
    const fits = Math.floor((this.room - rest - 24) / Math.max(1, rows));
    this.rowPx = Math.max(ROW_PX, Math.min(MOST_ROW_PX, fits));
    let y = 0;
    for (const [group, trackViews] of this.visible()) {
      group.y = y;
      y += GROUP_PX;
      if (group.folded) continue;
      for (const trackView of trackViews) {
        trackView.y = y;
        trackView.height = this.heightOf(trackView);
        y += trackView.height;
      }
    }
    this.height = y + 24;
  }

  *open(): Generator<TrackView> {
    for (const [group, trackViews] of this.visible()) if (!group.folded) yield* trackViews;
  }

  at(y: number): TrackView | null {
    for (const trackView of this.open()) if (y >= trackView.y && y < trackView.y + trackView.height) return trackView;
    return null;
  }

  depthAt(trackView: TrackView, y: number): number {
    return Math.min(depths(trackView) - 1, Math.max(0, Math.floor((y - trackView.y) / this.rowPx)));
  }

  isPinned(trackView: TrackView): boolean {
    return this.pinned.trackViews.includes(trackView);
  }

  pin(trackView: TrackView, on = !this.isPinned(trackView)): void {
    const others = this.pinned.trackViews.filter((other) => other !== trackView);
    this.pinned.trackViews = on ? [...others, trackView] : others;
    this.arrange();
  }

  pins(): TrackView[] {
    return this.pinned.trackViews;
  }

  move(group: Group, by: number): void {
    const among = [this.groups, ...this.groups.map((g) => g.children)].find((list) => list.includes(group));
    if (!among) return;
    const at = among.indexOf(group);
    const to = Math.min(Math.max(at + by, 0), among.length - 1);
    if (at === to) return;
    among.splice(at, 1);
    among.splice(to, 0, group);
    this.arrange();
  }

  /** Opens what is folded or brief, else folds. */
  fold(group: Group): void {
    if (group.brief && !group.folded) group.brief = false;
    else group.folded = !group.folded;
    this.arrange();
  }

  /** Puts tracks on top for as long as a finding is shown; with none, back where they belong. */
  spotlight(trackViews: TrackView[]): void {
    this.spot.trackViews = trackViews.filter((trackView) => !this.pinned.trackViews.includes(trackView));
    this.arrange();
  }

  /** Whether a track stands outside its group, so that its name must say of whom it is. */
  stray(trackView: TrackView): boolean {
    return this.isPinned(trackView) || this.spot.trackViews.includes(trackView);
  }

  /** Unfolds what hides a track; message whether the filter hid it, which is then gone. */
  reveal(trackView: TrackView): boolean {
    trackView.folded = false;
    if (this.stray(trackView)) return false;
    const hidden = this.filter !== null && !this.shows(trackView);
    if (hidden) this.filterBy(null);
    for (const group of this.every) {
      if (!all(group).includes(trackView)) continue;
      group.folded = false;
      if (!telltale(trackView)) group.brief = false;
    }
    this.arrange();
    return hidden;
  }

  private shows(trackView: TrackView): boolean {
    if (this.stray(trackView)) return false;
    if (trackView.info.explained && !this.explained) return false;
    return !this.filter || this.filter.test(`${trackView.info.group} / ${trackView.info.title}`);
  }

  private heightOf(trackView: TrackView): number {
    if (trackView.info.kind === "counter") return constant(trackView) ? CONSTANT_PX : COUNTER_PX;
    return depths(trackView) * this.rowPx + PADDING_PX;
  }
}

class Group_ implements Group {
  y = 0;
  folded: boolean;
  brief = false;
  readonly usual: "open" | "folded";
  trackViews: TrackView[] = [];
  children: Group[] = [];

  constructor(
    readonly title: string,
    folded = false,
  ) {
    this.folded = folded;
    this.usual = folded ? "folded" : "open";
  }
}

/** Depths that are drawn of a track. */
export function depths(trackView: TrackView): number {
  return trackView.folded ? 1 : Math.max(1, trackView.tile?.depths ?? 1);
}

/** Whether a counter has one value in all of the capture. */
export function constant({ tile }: TrackView): boolean {
  const limits = tile?.counter?.limits;
  return limits !== undefined && limits[0] === limits[1];
}

/** Tracks of a group and of those inside it. */
function all(group: Group): TrackView[] {
  return [...group.trackViews, ...group.children.flatMap((child) => child.trackViews)];
}

/** Whether a device's track message when it works, or why it waits. */
function telltale({ info }: TrackView): boolean {
  return info.table === "idle_gap" || info.path.endsWith("/busy");
}

function tells({ info }: TrackView): boolean {
  return TELLING.has(info.table) || info.title === "CUDA API" || info.title === "Libraries";
}

function calls({ info }: TrackView): boolean {
  return info.title === "CUDA API" || / · main$/.test(info.group);
}

/** Counters of several devices say of which they are; those of a device stand together. */
function nameByDevice(group: Group): void {
  const devices = new Set(group.trackViews.map(({ info }) => info.device));
  if (devices.size < 2) return;
  for (const trackView of group.trackViews)
    if (trackView.info.device >= 0) trackView.title = `GPU ${trackView.info.device} · ${trackView.info.title}`;
  group.trackViews.sort((a, b) => a.info.device - b.info.device);
}

function order(group: Group): number {
  const { rank, device, thread } = all(group)[0].info;
  const kind = thread >= 0 ? 2e9 : group.usual === "folded" ? 1e9 : 0;
  return kind + rank * 1e3 + (kind ? 0 : device);
}

export function lowerBound(values: Float64Array, wanted: number): number {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

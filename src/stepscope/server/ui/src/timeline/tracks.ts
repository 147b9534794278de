/** Which tracks are shown, in which order, how high. Pure state; drawing is in `canvas.ts`. */

import type { Layout, TrackInfo, TrackTile } from "../data/types";
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

export interface Lane {
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
  lanes: Lane[];
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
  readonly lanes = new Map<number, Lane>();
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
      const lane: Lane = {
        info,
        title: info.title,
        y: 0,
        height: 0,
        folded: FOLDED_AT_FIRST.has(info.title),
        tile: null,
        picture: null,
      };
      this.lanes.set(info.id, lane);
      const counts = info.kind === "counter" && (several || info.table === "metric_sample");
      const title = counts ? `${several ? `Rank ${info.rank} · ` : ""}Counters` : info.group;
      let group = byTitle.get(title);
      if (!group) {
        group = new Group_(title, counts);
        byTitle.set(title, group);
        this.groups.push(group);
      }
      group.lanes.push(lane);
    }
    for (const group of this.groups) if (group.usual === "folded") nameByDevice(group);
    this.gatherThreads(several);
    // devices first, rank by rank; then counters; then the threads in the order of the capture
    this.groups.sort((a, b) => order(a) - order(b));
    this.first = JSON.stringify(this.order());
    this.arrange();
  }

  /** Puts the threads of each rank of a job, or those that tell little, behind one line. */
  private gatherThreads(several: boolean): void {
    const byRank = new Map<string, Group[]>();
    const telling = this.groups.filter((group) => group.lanes[0].info.thread >= 0 && group.lanes.some(tells));
    const kept = telling.length > MOST_TELLING ? telling.filter((group) => group.lanes.some(calls)) : telling;
    for (const group of this.groups) {
      const { info } = group.lanes[0];
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
    if (filter) for (const group of this.every) if (all(group).some((lane) => this.shows(lane))) group.folded = false;
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
  moveLane(lane: Lane, by: number): boolean {
    const lanes = this.siblings(lane);
    const shown = lanes.filter((other) => other === lane || this.isPinned(lane) || this.shows(other));
    const beside = shown[shown.indexOf(lane) + Math.sign(by)];
    if (!beside) return false;
    const [from, to] = [lanes.indexOf(lane), lanes.indexOf(beside)];
    lanes.splice(from, 1);
    lanes.splice(to, 0, lane);
    this.arrange();
    return true;
  }

  /** Tracks that a track may change places with. */
  siblings(lane: Lane): Lane[] {
    if (this.isPinned(lane)) return this.pinned.lanes;
    return this.groupOf(lane)!.lanes;
  }

  private groupOf(lane: Lane): Group | undefined {
    return this.every.find((group) => group.lanes.includes(lane));
  }

  /** Paths of all tracks as they stand; empty while nobody has moved any. */
  moved(): string[] {
    const now = this.order();
    return JSON.stringify(now) === this.first ? [] : now;
  }

  /** Puts groups and tracks into an order that `moved` told; what it does not name comes last. */
  reorder(paths: string[]): void {
    const place = new Map(paths.map((path, i): [string, number] => [path, i]));
    const of = (lane: Lane): number => place.get(lane.info.path) ?? Infinity;
    const compare = (a: number, b: number): number => (a === b ? 0 : a - b);
    const least = (group: Group): number => Math.min(...all(group).map(of));
    for (const group of this.every) {
      group.lanes.sort((a, b) => compare(of(a), of(b)));
      group.children.sort((a, b) => compare(least(a), least(b)));
    }
    this.groups.sort((a, b) => compare(least(a), least(b)));
    this.arrange();
  }

  private order(): string[] {
    return this.groups.flatMap((group) => all(group).map((lane) => lane.info.path));
  }

  /** Groups with what is shown of them: what a finding is about, pinned tracks, then the others. */
  *visible(): Generator<[Group, Lane[]]> {
    for (const group of [this.spot, this.pinned]) if (group.lanes.length) yield [group, group.lanes];
    for (const group of this.groups) {
      if (group.children.length) {
        const inside = group.children
          .map((child): [Group, Lane[]] => [child, this.shown(child)])
          .filter(([, lanes]) => lanes.length);
        if (!inside.length) continue;
        yield [group, []];
        if (!group.folded) yield* inside;
        continue;
      }
      const lanes = this.shown(group);
      if (lanes.length) yield [group, lanes];
    }
  }

  private shown(group: Group): Lane[] {
    return group.lanes.filter((lane) => this.shows(lane) && (!group.brief || this.filter || telltale(lane)));
  }

  /** Where all rows of a job's devices do not fit, each begins with when it works and why it waits. */
  private measure(): void {
    if (this.measured || this.room <= 1) return;
    this.measured = true;
    const devices = this.groups.filter((group) => group.lanes[0]?.info.device >= 0 && group.usual === "open");
    if (devices.length < 2) return;
    const needed = devices.reduce((sum, group) => sum + GROUP_PX + group.lanes.length * (ROW_PX + PADDING_PX), 0);
    if (needed <= this.room) return;
    for (const group of devices) {
      if (!group.lanes.some((lane) => !telltale(lane))) continue;
      group.brief = !this.opened.has(group.title);
      this.shortened.add(group);
    }
  }

  arrange(): void {
    this.measure();
    let rows = 0;
    let rest = 0;
    for (const [group, lanes] of this.visible()) {
      rest += GROUP_PX;
      if (group.folded) continue;
      for (const lane of lanes) {
        if (lane.info.kind === "counter") rest += this.heightOf(lane);
        else [rows, rest] = [rows + depths(lane), rest + PADDING_PX];
      }
    }
    const fits = Math.floor((this.room - rest - 24) / Math.max(1, rows));
    this.rowPx = Math.max(ROW_PX, Math.min(MOST_ROW_PX, fits));
    let y = 0;
    for (const [group, lanes] of this.visible()) {
      group.y = y;
      y += GROUP_PX;
      if (group.folded) continue;
      for (const lane of lanes) {
        lane.y = y;
        lane.height = this.heightOf(lane);
        y += lane.height;
      }
    }
    this.height = y + 24;
  }

  *open(): Generator<Lane> {
    for (const [group, lanes] of this.visible()) if (!group.folded) yield* lanes;
  }

  at(y: number): Lane | null {
    for (const lane of this.open()) if (y >= lane.y && y < lane.y + lane.height) return lane;
    return null;
  }

  depthAt(lane: Lane, y: number): number {
    return Math.min(depths(lane) - 1, Math.max(0, Math.floor((y - lane.y) / this.rowPx)));
  }

  isPinned(lane: Lane): boolean {
    return this.pinned.lanes.includes(lane);
  }

  pin(lane: Lane, on = !this.isPinned(lane)): void {
    const others = this.pinned.lanes.filter((other) => other !== lane);
    this.pinned.lanes = on ? [...others, lane] : others;
    this.arrange();
  }

  pins(): Lane[] {
    return this.pinned.lanes;
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
  spotlight(lanes: Lane[]): void {
    this.spot.lanes = lanes.filter((lane) => !this.pinned.lanes.includes(lane));
    this.arrange();
  }

  /** Whether a track stands outside its group, so that its name must say of whom it is. */
  stray(lane: Lane): boolean {
    return this.isPinned(lane) || this.spot.lanes.includes(lane);
  }

  /** Unfolds what hides a track; message whether the filter hid it, which is then gone. */
  reveal(lane: Lane): boolean {
    lane.folded = false;
    if (this.stray(lane)) return false;
    const hidden = this.filter !== null && !this.shows(lane);
    if (hidden) this.filterBy(null);
    for (const group of this.every) {
      if (!all(group).includes(lane)) continue;
      group.folded = false;
      if (!telltale(lane)) group.brief = false;
    }
    this.arrange();
    return hidden;
  }

  private shows(lane: Lane): boolean {
    if (this.stray(lane)) return false;
    if (lane.info.explained && !this.explained) return false;
    return !this.filter || this.filter.test(`${lane.info.group} / ${lane.info.title}`);
  }

  private heightOf(lane: Lane): number {
    if (lane.info.kind === "counter") return constant(lane) ? CONSTANT_PX : COUNTER_PX;
    return depths(lane) * this.rowPx + PADDING_PX;
  }
}

class Group_ implements Group {
  y = 0;
  folded: boolean;
  brief = false;
  readonly usual: "open" | "folded";
  lanes: Lane[] = [];
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
export function depths(lane: Lane): number {
  return lane.folded ? 1 : Math.max(1, lane.tile?.depths ?? 1);
}

/** Whether a counter has one value in all of the capture. */
export function constant({ tile }: Lane): boolean {
  const limits = tile?.counter?.limits;
  return limits !== undefined && limits[0] === limits[1];
}

/** Tracks of a group and of those inside it. */
function all(group: Group): Lane[] {
  return [...group.lanes, ...group.children.flatMap((child) => child.lanes)];
}

/** Whether a device's track message when it works, or why it waits. */
function telltale({ info }: Lane): boolean {
  return info.table === "idle_gap" || info.path.endsWith("/busy");
}

function tells({ info }: Lane): boolean {
  return TELLING.has(info.table) || info.title === "CUDA API" || info.title === "Libraries";
}

function calls({ info }: Lane): boolean {
  return info.title === "CUDA API" || / · main$/.test(info.group);
}

/** Counters of several devices say of which they are; those of a device stand together. */
function nameByDevice(group: Group): void {
  const devices = new Set(group.lanes.map(({ info }) => info.device));
  if (devices.size < 2) return;
  for (const lane of group.lanes)
    if (lane.info.device >= 0) lane.title = `GPU ${lane.info.device} · ${lane.info.title}`;
  group.lanes.sort((a, b) => a.info.device - b.info.device);
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

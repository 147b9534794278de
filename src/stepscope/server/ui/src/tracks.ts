/** Which tracks are shown, in which order, how high. Pure state; drawing is in `canvas.ts`. */

import { ROW_PX, type Picture } from "./strip";
import type { Layout, TrackInfo, TrackTile } from "./types";

export const GROUP_PX = 24;
export const COUNTER_PX = 40;
const PADDING_PX = 3;
const MOST_ROW_PX = 26;
const FOLDED_AT_FIRST = new Set(["Python", "OS runtime", "Python lock"]);

export interface Lane {
  info: TrackInfo;
  y: number;
  height: number;
  folded: boolean;
  tile: TrackTile | null;
  picture: Picture | null;
}

export interface Group {
  title: string;
  y: number;
  folded: boolean;
  pinned: boolean;
  lanes: Lane[];
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
  private readonly pinned = new Group_("Pinned");

  constructor(layout: Layout) {
    const byTitle = new Map<string, Group>();
    for (const info of layout.tracks) {
      const lane: Lane = {
        info,
        y: 0,
        height: 0,
        folded: FOLDED_AT_FIRST.has(info.title),
        tile: null,
        picture: null,
      };
      this.lanes.set(info.id, lane);
      let group = byTitle.get(info.group);
      if (!group) {
        group = new Group_(info.group);
        byTitle.set(info.group, group);
        this.groups.push(group);
      }
      group.lanes.push(lane);
    }
    // devices first, rank by rank; then the threads in the order of the capture
    this.groups.sort((a, b) => order(a) - order(b));
    this.first = JSON.stringify(this.order());
    this.arrange();
  }

  /** Moves a track among those that are shown in its group; says whether it could. */
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
    return this.groups.find((group) => group.lanes.includes(lane))!.lanes;
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
    for (const group of this.groups) group.lanes.sort((a, b) => compare(of(a), of(b)));
    const least = (group: Group): number => Math.min(...group.lanes.map(of));
    this.groups.sort((a, b) => compare(least(a), least(b)));
    this.arrange();
  }

  private order(): string[] {
    return this.groups.flatMap((group) => group.lanes.map((lane) => lane.info.path));
  }

  /** Groups with what is shown of them, pinned tracks first. */
  *visible(): Generator<[Group, Lane[]]> {
    if (this.pinned.lanes.length) yield [this.pinned, this.pinned.lanes];
    for (const group of this.groups) {
      const lanes = group.lanes.filter((lane) => this.shows(lane));
      if (lanes.length) yield [group, lanes];
    }
  }

  arrange(): void {
    let rows = 0;
    let rest = 0;
    for (const [group, lanes] of this.visible()) {
      rest += GROUP_PX;
      if (group.folded) continue;
      for (const lane of lanes) {
        if (lane.info.kind === "counter") rest += COUNTER_PX;
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
    const at = this.groups.indexOf(group);
    const to = Math.min(Math.max(at + by, 0), this.groups.length - 1);
    if (at < 0 || at === to) return;
    this.groups.splice(at, 1);
    this.groups.splice(to, 0, group);
    this.arrange();
  }

  /** Unfolds what hides a track. */
  reveal(lane: Lane): void {
    if (this.filter && !this.shows(lane)) this.filter = null;
    lane.folded = false;
    const group = this.groups.find((g) => g.lanes.includes(lane));
    if (group && !this.isPinned(lane)) group.folded = false;
    this.arrange();
  }

  private shows(lane: Lane): boolean {
    if (this.isPinned(lane)) return false;
    if (lane.info.explained && !this.explained) return false;
    return !this.filter || this.filter.test(`${lane.info.group} / ${lane.info.title}`);
  }

  private heightOf(lane: Lane): number {
    if (lane.info.kind === "counter") return COUNTER_PX;
    return depths(lane) * this.rowPx + PADDING_PX;
  }
}

class Group_ implements Group {
  y = 0;
  folded = false;
  pinned = false;
  lanes: Lane[] = [];

  constructor(readonly title: string) {}
}

/** Depths that are drawn of a track. */
export function depths(lane: Lane): number {
  return lane.folded ? 1 : Math.max(1, lane.tile?.depths ?? 1);
}

function order(group: Group): number {
  const { rank, device, thread } = group.lanes[0].info;
  return (thread >= 0 ? 1e6 : 0) + rank * 1e3 + (thread >= 0 ? 0 : device);
}

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
    this.arrange();
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

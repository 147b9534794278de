/** The rows of the heat map: ranks, or nodes that open into their ranks. Pure arithmetic. */

import type { RankRow } from "../data/contracts";
import type { Order } from "./address";

/** Ranks that nothing tells the node of, or that share a single one, stand in groups of so many. */
const CHUNK = 16;
const MOST_OF_ONE_NODE = 64;
/** Ranks are rows of their own as long as each is as high as this. */
const READABLE_PX = 8;
const LEAST_RANK_PX = 3;
const LEAST_NODE_PX = 5;
const MOST_PX = 44;
/** Ranks of a node that is open can be aimed at. */
const OPEN_PX = 15;

export interface Group {
  name: string;
  /** Positions of its ranks. */
  rows: number[];
}

export interface Line {
  /** Number of its group. */
  group: number;
  /** Positions of the ranks that it stands for. */
  rows: number[];
  /** The one of them that is drawn: it stands out most. */
  row: number;
  /** Whether it stands for a whole group, and whether that is open. */
  node: boolean;
  open: boolean;
  top: number;
  px: number;
}

/** Ranks by node, in the order of their first ranks. */
export function groups(ranks: readonly Pick<RankRow, "rank" | "hostname">[]): Group[] {
  const byName = new Map<string, number[]>();
  ranks.forEach(({ hostname }, row) => {
    const known = byName.get(hostname);
    if (known) known.push(row);
    else byName.set(hostname, [row]);
  });
  if (byName.size > 1 || ranks.length <= MOST_OF_ONE_NODE)
    return [...byName].map(([name, rows]) => ({ name: name || "unknown node", rows }));
  const found: Group[] = [];
  for (let at = 0; at < ranks.length; at += CHUNK) {
    const rows = ranks.slice(at, at + CHUNK).map((_, i) => at + i);
    found.push({ name: `ranks ${ranks[at].rank}–${ranks[rows[rows.length - 1]].rank}`, rows });
  }
  return found;
}

/** Whether nodes read better than ranks in so many pixels. */
export function byNode(ranks: number, all: readonly Group[], room: number): boolean {
  return ranks * READABLE_PX > room && all.length > 1 && all.length < ranks;
}

export interface Wanted {
  nodes: boolean;
  order: Order;
  /** Groups that are open. */
  open: ReadonlySet<number>;
  /** How much each rank stands out: the row of a node is the rank that does most. */
  weights: ArrayLike<number>;
  /** Pixels for all rows. */
  room: number;
  /** Pixels a row; 0 for as many as fit. */
  rowPx: number;
}

export function linesOf(all: readonly Group[], wanted: Wanted): Line[] {
  const { weights, open, nodes } = wanted;
  const most = (rows: readonly number[]): number => rows.reduce((m, row) => Math.max(m, weights[row]), -Infinity);
  const sorted = (rows: readonly number[]): number[] =>
    wanted.order === "rank" ? [...rows] : [...rows].sort((a, b) => weights[b] - weights[a] || a - b);
  const worst = (rows: readonly number[]): number => rows.reduce((best, row) => (weights[row] > weights[best] ? row : best), rows[0]);
  const made: Omit<Line, "top" | "px">[] = [];
  const rank = (group: number, row: number): void => void made.push({ group, rows: [row], row, node: false, open: false });
  if (nodes) {
    const order = all.map((_, i) => i);
    if (wanted.order === "most") order.sort((a, b) => most(all[b].rows) - most(all[a].rows) || a - b);
    for (const group of order) {
      made.push({ group, rows: all[group].rows, row: worst(all[group].rows), node: true, open: open.has(group) });
      if (open.has(group)) for (const row of sorted(all[group].rows)) rank(group, row);
    }
  } else {
    const groupOf = new Map(all.flatMap(({ rows }, group) => rows.map((row): [number, number] => [row, group])));
    for (const row of sorted(all.flatMap(({ rows }) => rows))) rank(groupOf.get(row)!, row);
  }
  const least = nodes ? LEAST_NODE_PX : LEAST_RANK_PX;
  const shared = nodes ? all.length : made.length;
  const px = wanted.rowPx || Math.min(MOST_PX, Math.max(least, wanted.room / Math.max(1, shared)));
  let [exact, top] = [0, 0];
  return made.map((line) => {
    exact += nodes && !line.node ? Math.max(OPEN_PX, px) : px;
    const placed = { ...line, top, px: Math.round(exact) - top };
    top += placed.px; // rows end at whole pixels, and together fill the room
    return placed;
  });
}

export function heightOf(lines: readonly Line[]): number {
  const last = lines[lines.length - 1];
  return last ? last.top + last.px : 0;
}

/** Number of the line at a height; -1 for none. */
export function lineAt(lines: readonly Line[], y: number): number {
  if (y < 0 || y >= heightOf(lines)) return -1;
  let [low, high] = [0, lines.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (lines[middle].top <= y) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Median over the steps of each rank: what it has in most of them. */
export function mediansOf(cells: readonly (readonly number[])[]): Float64Array {
  return Float64Array.from(cells, (own) => {
    const sorted = [...own].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    if (!sorted.length) return 0;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  });
}

/** Column with the most of a row. */
export function worstStep(own: readonly number[]): number {
  return own.reduce((best, value, column) => (value > own[best] ? column : best), 0);
}

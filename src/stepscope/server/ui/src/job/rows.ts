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
const MOST_PX = 28;
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
  /** Mean of the value of each rank. */
  means: ArrayLike<number>;
  /** Pixels for all rows. */
  room: number;
  /** Pixels a row; 0 for as many as fit. */
  rowPx: number;
}

export function linesOf(all: readonly Group[], wanted: Wanted): Line[] {
  const { means, open, nodes } = wanted;
  const most = (rows: readonly number[]): number => rows.reduce((m, row) => Math.max(m, means[row]), -Infinity);
  const sorted = (rows: readonly number[]): number[] =>
    wanted.order === "rank" ? [...rows] : [...rows].sort((a, b) => means[b] - means[a] || a - b);
  const made: Omit<Line, "top" | "px">[] = [];
  const rank = (group: number, row: number): void => void made.push({ group, rows: [row], node: false, open: false });
  if (nodes) {
    const order = all.map((_, i) => i);
    if (wanted.order === "most") order.sort((a, b) => most(all[b].rows) - most(all[a].rows) || a - b);
    for (const group of order) {
      made.push({ group, rows: all[group].rows, node: true, open: open.has(group) });
      if (open.has(group)) for (const row of sorted(all[group].rows)) rank(group, row);
    }
  } else {
    const groupOf = new Map(all.flatMap(({ rows }, group) => rows.map((row): [number, number] => [row, group])));
    for (const row of sorted(all.flatMap(({ rows }) => rows))) rank(groupOf.get(row)!, row);
  }
  const least = nodes ? LEAST_NODE_PX : LEAST_RANK_PX;
  const shared = nodes ? all.length : made.length;
  const fits = Math.floor(wanted.room / Math.max(1, shared));
  const px = wanted.rowPx || Math.min(MOST_PX, Math.max(least, fits));
  let top = 0;
  return made.map((line) => {
    const high = nodes && !line.node ? Math.max(OPEN_PX, px) : px;
    const placed = { ...line, top, px: high };
    top += high;
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

/** The largest of a line's ranks in a step, and which rank it is. */
export function cellOf(cells: readonly (readonly number[])[], rows: readonly number[], column: number): { value: number; row: number } {
  let row = rows[0];
  for (const other of rows) if (cells[other][column] > cells[row][column]) row = other;
  return { value: cells[row][column], row };
}

export function meansOf(cells: readonly (readonly number[])[]): Float64Array {
  return Float64Array.from(cells, (own) => own.reduce((a, b) => a + b, 0) / Math.max(1, own.length));
}

/** Column with the most of a row. */
export function worstStep(own: readonly number[]): number {
  return own.reduce((best, value, column) => (value > own[best] ? column : best), 0);
}

/** Values of counters: with their unit, and at a time. */

import type { TrackInfo } from "../data/contracts";
import type { TrackTile } from "../data/types";
import { bytes, count } from "../shared/format";

/** How names of metrics end, and the unit that message. */
const UNITS: [RegExp, string][] = [
  [/_mhz$/, "MHz"],
  [/_watts?$/, "W"],
  [/_celsius$/, "°C"],
  [/_percent$/, "%"],
];

/** A value of a counter as people read it. */
export function amount(info: TrackInfo, value: number): string {
  const name = info.title.replace(/ \(CPU\)$/, "");
  if (info.unit === "bytes" || /_bytes$/.test(name)) return bytes(value);
  if (/_bytes_per_s(econd)?$/.test(name)) return `${bytes(value)}/s`;
  const unit = UNITS.find(([ending]) => ending.test(name))?.[1] ?? "";
  const digits = Math.abs(value) < 1000 && !Number.isInteger(value) ? value.toFixed(2) : count(value);
  return unit ? `${digits} ${unit}` : digits;
}

/** Least and most of a counter in the column that holds a time; null before its first sample. */
export function levelAt(tile: TrackTile, at: number): [number, number] | null {
  const { column, low, high, last, before } = tile.counter!;
  const wanted = Math.floor((at - tile.begin) / tile.bucket);
  let [from, to] = [0, column.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (column[middle] <= wanted) from = middle + 1;
    else to = middle;
  }
  const found = from - 1;
  if (found >= 0 && column[found] === wanted) return [low[found], high[found]];
  const level = found >= 0 ? last[found] : before[0];
  return Number.isNaN(level) ? null : [level, level];
}

/** What a counter shows at a time, in words. */
export function levelTip(info: TrackInfo, tile: TrackTile, at: number): string {
  const level = levelAt(tile, at);
  if (!level) return `${info.title}: no sample yet`;
  const [low, high] = level.map((value) => amount(info, value));
  return `${info.title}: ${low === high ? low : `${low} to ${high}`}`;
}

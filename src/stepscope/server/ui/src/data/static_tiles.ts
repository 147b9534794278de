/** Tiles of a timeline that is inside the page. */

import type { Counter } from "./contracts";
import type { Row } from "./types";

export interface Content {
  start: Float64Array;
  end: Float64Array;
  depth: Uint8Array;
  name: Uint32Array;
  code: Uint8Array;
  facts: Map<string, (row: number) => string | number | null>;
  rows: Uint32Array[];
}

export interface Samples {
  time: Float64Array;
  value: Float64Array;
}

/** The same as `intervals/lod.py` gives: long slices one by one, short ones by columns. */
export function rowTile(
  content: Pick<Content, "start" | "end" | "name" | "code">,
  rows: Uint32Array,
  depth: number,
  begin: number,
  bucket: number,
  columns: number,
): Row {
  const end = begin + bucket * columns;
  const long: number[] = [];
  const cover = new Map<number, Map<number, number>>();
  const begun = new Map<number, number>();
  let reach = -Infinity;
  for (const row of rows) {
    const [from, to] = [content.start[row], content.end[row]];
    if (to < begin || from >= end) continue;
    if (to - from >= bucket) {
      long.push(row);
      reach = Math.max(reach, to);
      continue;
    }
    if (from >= begin) {
      const column = Math.floor((from - begin) / bucket);
      begun.set(column, (begun.get(column) ?? 0) + 1);
    }
    let at = Math.max(from, begin, reach);
    reach = Math.max(reach, to);
    while (at < Math.min(to, end)) {
      const column = Math.floor((at - begin) / bucket);
      const stop = Math.min(to, begin + (column + 1) * bucket, end);
      const kinds = cover.get(column) ?? new Map<number, number>();
      kinds.set(content.code[row], (kinds.get(content.code[row]) ?? 0) + stop - at);
      cover.set(column, kinds);
      at = stop;
    }
  }
  const index = [...new Set([...cover.keys(), ...begun.keys()])].sort((a, b) => a - b);
  const kinds = index.map((c) => [...(cover.get(c) ?? [])].sort((a, b) => b[1] - a[1]));
  const pick = <T extends number>(values: ArrayLike<T>): T[] => long.map((row) => values[row]);
  return {
    depth,
    start: Float64Array.from(pick(content.start)),
    end: Float64Array.from(pick(content.end)),
    row: Uint32Array.from(long),
    name: Uint32Array.from(pick(content.name)),
    code: Uint8Array.from(pick(content.code)),
    column: Uint32Array.from(index),
    share: Float32Array.from(kinds.map((k) => k.reduce((sum, [, ns]) => sum + ns, 0) / bucket)),
    dominant: Uint8Array.from(kinds.map((k) => k[0]?.[0] ?? 0)),
    count: Uint32Array.from(index.map((c) => begun.get(c) ?? 0)),
  };
}

export function counterTile(samples: Samples, begin: number, bucket: number, columns: number): Counter {
  const end = begin + bucket * columns;
  const found: [number, number, number, number][] = [];
  let before = NaN;
  let [least, most] = [Infinity, -Infinity];
  samples.time.forEach((at, i) => {
    const value = samples.value[i];
    [least, most] = [Math.min(least, value), Math.max(most, value)];
    if (at < begin) before = value;
    if (at < begin || at >= end) return;
    const column = Math.floor((at - begin) / bucket);
    const last = found[found.length - 1];
    if (last?.[0] === column) {
      last[1] = Math.min(last[1], value);
      last[2] = Math.max(last[2], value);
      last[3] = value;
    } else found.push([column, value, value, value]);
  });
  return {
    column: Uint32Array.from(found.map((f) => f[0])),
    low: Float32Array.from(found.map((f) => f[1])),
    high: Float32Array.from(found.map((f) => f[2])),
    last: Float32Array.from(found.map((f) => f[3])),
    before: Float32Array.of(before),
    limits: Float32Array.of(least, most),
  };
}

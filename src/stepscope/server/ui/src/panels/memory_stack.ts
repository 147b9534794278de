/** Categories of memory as areas, one on another. */

import type { Timeline } from "../data/contracts";

export interface Area {
  name: string;
  base: number[];
  top: number[];
}

export function stacked(timeline: Timeline): Area[] {
  let base = timeline.time_ns.map(() => 0);
  return Object.entries(timeline.by_category_bytes).map(([name, sizes]) => {
    const top = sizes.map((size, at) => base[at] + size);
    const area = { name, base, top };
    base = top;
    return area;
  });
}

/** The highest that anything reaches. */
export function highest(timeline: Timeline): number {
  return [...timeline.allocated_bytes, ...timeline.reserved_bytes].reduce((a, b) => Math.max(a, b), 0);
}

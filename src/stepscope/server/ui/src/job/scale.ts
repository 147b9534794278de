/** From values to colours: sequential for what begins at nothing, diverging for what has two sides. */

/** Of the mean step: what is later by so much has the full colour, so that one spike hides nothing. */
const FULL_SHARE = 0.25;
/** Even where all ranks are alike: noise must stay pale. */
const LEAST_SHARE = 0.05;
const LEVELS = 64;

export interface Range {
  low: number;
  high: number;
  /** Whether values lie beyond the ends. */
  below: boolean;
  above: boolean;
}

/**
 * What the colours reach from and to.
 *
 * @param step mean step, ns
 */
export function rangeOf(cells: readonly (readonly number[])[], signed: boolean, step: number): Range {
  let [low, high] = [Infinity, -Infinity];
  for (const own of cells)
    for (const value of own) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  if (!Number.isFinite(low)) return { low: 0, high: 1, below: false, above: false };
  if (!signed) return { low, high: Math.max(high, low + 1), below: false, above: false };
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const end = Math.max(1, Math.min(Math.max(largest, LEAST_SHARE * step), FULL_SHARE * step));
  return { low: -end, high: end, below: low < -end, above: high > end };
}

/** Share of the colour, -1 to 1 of what has two sides, else 0 to 1. */
export function shareOf(value: number, range: Range, signed: boolean): number {
  if (signed) return Math.max(-1, Math.min(1, value / range.high));
  return Math.max(0, Math.min(1, (value - range.low) / (range.high - range.low)));
}

export class Scale {
  private readonly over: string[];
  private readonly under: string[];

  /**
   * @param nothing colour of no value; `most` of the largest, `least` of the smallest of two sides
   */
  constructor(
    readonly range: Range,
    readonly signed: boolean,
    nothing: string,
    most: string,
    least: string,
  ) {
    this.over = ramp(nothing, most);
    this.under = ramp(nothing, least);
  }

  colour(value: number): string {
    return this.at(shareOf(value, this.range, this.signed));
  }

  /** @param share as `shareOf` gives it */
  at(share: number): string {
    return (share < 0 ? this.under : this.over)[Math.round(Math.abs(share) * LEVELS)];
  }
}

function ramp(from: string, to: string): string[] {
  const [a, b] = [channels(from), channels(to)];
  return Array.from({ length: LEVELS + 1 }, (_, i) => {
    const t = (i / LEVELS) ** 0.8; // small values are told from nothing
    return `rgb(${a.map((v, c) => Math.round(v + (b[c] - v) * t)).join(" ")})`;
  });
}

/** A colour between two, as `#rrggbb`. */
export function mixed(one: string, other: string, share: number): string {
  const [a, b] = [channels(one), channels(other)];
  return `#${a.map((v, c) => Math.round(v + (b[c] - v) * share).toString(16).padStart(2, "0")).join("")}`;
}

function channels(css: string): [number, number, number] {
  const value = parseInt(css.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** Figures as people read them. */

export function time(ns: number): string {
  const size = Math.abs(ns);
  if (size >= 1e9) return `${(ns / 1e9).toFixed(3)} s`;
  if (size >= 1e6) return `${(ns / 1e6).toFixed(size >= 1e8 ? 1 : 3)} ms`;
  if (size >= 1e3) return `${(ns / 1e3).toFixed(size >= 1e5 ? 1 : 2)} µs`;
  return `${Math.round(ns)} ns`;
}

/** A time on the axis, with as many digits as the distance of the ticks needs. */
export function tick(ns: number, step: number): string {
  const [unit, size] =
    step >= 1e9 ? ["s", 1e9] : step >= 1e5 ? ["ms", 1e6] : step >= 1e2 ? ["µs", 1e3] : ["ns", 1];
  const digits = Math.max(0, -Math.floor(Math.log10(step / Number(size)) + 1e-9));
  const value = Math.round(ns / step) * step; // no negative zero, no rounding error of the loop
  return `${(value === 0 ? 0 : value / Number(size)).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
}

export function percent(share: number): string {
  const value = 100 * share;
  return `${value.toFixed(value !== 0 && Math.abs(value) < 9.95 ? 1 : 0)} %`;
}

export function count(value: number): string {
  return Math.round(value).toLocaleString("en");
}

/** `1 step`, `2 steps`. */
export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function bytes(value: number): string {
  for (const [unit, size] of [
    ["TB", 1e12],
    ["GB", 1e9],
    ["MB", 1e6],
    ["kB", 1e3],
  ] as const) {
    if (Math.abs(value) >= size) return `${(value / size).toFixed(2)} ${unit}`;
  }
  return `${value} B`;
}

export function words(key: string): string {
  return key.replace(/_ns$/, "").replaceAll("_", " ");
}

/**
 * Text of a trace on one line: control and direction characters could hide or reorder what stands
 * beside it.
 */
export function clean(text: string, longest = 300): string {
  const kept = text
    .slice(0, longest + 1)
    .replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu, "\ufffd");
  return kept.length <= longest ? kept : `${kept.slice(0, longest - 1)}…`;
}

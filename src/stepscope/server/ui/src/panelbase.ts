/** What the panels below the timeline share: their window of time, their boxes. */

import type { Host, Span } from "./drawer";
import { element } from "./dom";

/** A span that the server takes: whole nanoseconds, and at least one. */
export function whole(span: Span): Span {
  const begin = Math.round(span.begin);
  return { begin, end: Math.max(begin + 1, Math.round(span.end)) };
}

/**
 * What a panel is about: the chosen range where it follows it (`auto`), else the capture, else
 * nothing, which stands for the steady steps.
 */
export function windowOf(host: Host, scope: string, capture: boolean): Span | null {
  const range = scope === "auto" ? host.range() : null;
  if (range) return whole(range);
  return capture ? { begin: host.layout.begin, end: host.layout.end } : null;
}

export function choice(says: string, options: [string, string][], change: () => void): HTMLSelectElement {
  return element(
    "select",
    { "aria-label": says, change },
    ...options.map(([value, text]) => element("option", { value }, text)),
  );
}

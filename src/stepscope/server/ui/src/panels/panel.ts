/** What a panel below the timeline is, what it may ask of the page, and what all of them share. */

import type { Instances, Layout, Note, Place } from "../data/contracts";
import { whole, type Source, type Span } from "../data/types";
import { element } from "../shared/dom";

/** What the panels may ask of the page. */
export interface Host {
  readonly source: Source;
  readonly layout: Layout;
  range(): Span | null;
  setRange(range: Span | null): void;
  view(): Span;
  cursor(): number | null;
  selected(): Place | null;
  /** Steps are known, so "steady steps" means something. */
  explained(): boolean;
  navigateTo(place: { track: number; row: number }): Promise<void>;
  frame(span: Span): void;
  find(text: string): void;
  highlight(found: Instances | null): void;
  showNotes(notes: Note[]): void;
  asking<T>(question: Promise<T>): Promise<T | null>;
  say(text: string): void;
  /** Why the last question has no answer; empty if it has one. */
  failure(): string;
  changed(): void;
  leave(): void;
}

/** One panel. */
export interface Panel {
  readonly title: string;
  readonly key: string;
  readonly body: HTMLElement;
  /** The panel is shown, or what it is about has changed. */
  refresh(): void;
  /** What the link has to say to show the same. */
  state(): Record<string, string>;
  restore(state: Record<string, string>): void;
  focus(): void;
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

export function choice(message: string, options: [string, string][], change: () => void): HTMLSelectElement {
  return element(
    "select",
    { "aria-label": message, change },
    ...options.map(([value, text]) => element("option", { value }, text)),
  );
}

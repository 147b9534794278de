/**
 * Colours as `timeline/colours.py` declares them: each has one meaning in all views. Here
 * they are only looked up, and listed in the legend.
 */

import type { Classes, DrawnClass, LegendEntry } from "../data/contracts";
import { element, swatch } from "./dom";

/** What is not coloured by any class. */
const UNKNOWN = "#85898f";
/** Of classes, and of causes as if they were classes of idle time. */
const known = new Map<string, string>();
const meanings = new Map<string, string>();
let entries: LegendEntry[] = [];

/** Takes the colours that a layout tells. Before anything is drawn. */
export function learnColours(layout: Classes): void {
  for (const [cause, colour] of Object.entries(layout.causes)) known.set(`idle_${cause}`, colour);
  for (const { key, colour } of layout.classes) known.set(key, colour);
  for (const { key, colour } of layout.legend) meanings.set(key, colour);
  entries = layout.legend;
}

export class Colours {
  readonly css: string[];
  /** For pixels: 0xAABBGGRR. */
  readonly pixel: Uint32Array;
  readonly text: string[];
  readonly message: string[];

  constructor(readonly classes: DrawnClass[]) {
    this.css = classes.map(({ colour }) => colour);
    this.message = classes.map(({ key, message }) =>
      key.startsWith("kernel_") ? `${key.slice(7)}: ${message}` : message.replaceAll("_", " "),
    );
    this.pixel = new Uint32Array(
      this.css.map((c) => {
        const [r, g, b] = channels(c);
        return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
      }),
    );
    this.text = this.css.map((c) => {
      const [r, g, b] = channels(c);
      return 0.299 * r + 0.587 * g + 0.114 * b > 125 ? "#10141a" : "#ffffff";
    });
  }
}

/** Of a class, or of a cause as `idle_CAUSE`. */
export function colourOf(key: string): string {
  return known.get(key) ?? UNKNOWN;
}

/** Of what is drawn over the rows: a key of the legend. */
export function markColour(key: string): string {
  return meanings.get(key) ?? UNKNOWN;
}

/** The legend of all views: what each colour means. Folded, because it is long. */
export function coloursLegend(): HTMLElement {
  const made = element(
    "details",
    { class: "colours" },
    element("summary", {}, "Colours"),
    element("p", { class: "note" }, "Each has one meaning in all views: cool colours work, warm ones wait or hold up. Pale colours only tell names apart."),
  );
  for (const section of new Set(entries.map((entry) => entry.section))) {
    const own = entries.filter((entry) => entry.section === section);
    made.append(
      element("h3", {}, section),
      element("ul", { class: "legend" }, ...own.map(({ colour, message }) => element("li", {}, swatch(colour), message))),
    );
  }
  return made;
}

function channels(css: string): [number, number, number] {
  const value = parseInt(css.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

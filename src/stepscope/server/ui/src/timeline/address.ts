/** The part of the address behind #: it reproduces the view. */

export interface Link {
  begin?: number;
  end?: number;
  selected?: [number, number];
  range?: [number, number];
  filter?: string;
  pins: string[];
  folded: string[];
  /** Groups that begin folded, or short, and were opened. */
  opened: string[];
  /** Paths of the tracks in their order, where somebody has moved some. */
  order: string[];
  /** What the panels below show. */
  panels: Record<string, string>;
}

const PANEL = "p.";

export function readLink(hash: string): Link {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const pair = (name: string): [number, number] | undefined => {
    const parts = (words.get(name) ?? "").split("-").map(Number);
    return parts.length === 2 && parts.every(Number.isFinite) ? [parts[0], parts[1]] : undefined;
  };
  const window = pair("t");
  return {
    ...(window && window[1] > window[0] ? { begin: window[0], end: window[1] } : {}),
    ...(pair("sel") ? { selected: pair("sel")! } : {}),
    ...(pair("range") ? { range: pair("range")! } : {}),
    ...(words.get("filter") ? { filter: words.get("filter")! } : {}),
    pins: words.getAll("pin"),
    folded: words.getAll("fold"),
    opened: words.getAll("open"),
    order: (words.get("order") ?? "").split("\n").filter(Boolean),
    panels: Object.fromEntries(
      [...words].filter(([key]) => key.startsWith(PANEL)).map(([key, text]) => [key.slice(PANEL.length), text]),
    ),
  };
}

export function writeLink(link: Link): string {
  const words = new URLSearchParams();
  if (link.begin !== undefined && link.end !== undefined)
    words.set("t", `${Math.round(link.begin)}-${Math.round(link.end)}`);
  if (link.selected) words.set("sel", link.selected.join("-"));
  if (link.range) words.set("range", link.range.map(Math.round).join("-"));
  if (link.filter) words.set("filter", link.filter);
  for (const pin of link.pins) words.append("pin", pin);
  for (const fold of link.folded) words.append("fold", fold);
  for (const open of link.opened) words.append("open", open);
  if (link.order.length) words.set("order", link.order.join("\n"));
  for (const [key, text] of Object.entries(link.panels)) words.set(PANEL + key, text);
  return `#${words}`;
}

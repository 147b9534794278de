/** What the captures lack, and how to get it: an empty track list should not have to be guessed at. */

import { element } from "./dom";
import { clean } from "./format";
import type { Layout } from "./types";

export function absent(layout: Layout): HTMLElement {
  const told = new Map<string, string>();
  for (const member of layout.members)
    for (const { table, reason, flag } of member.absent)
      told.set(table, `${table}: ${reason}${flag ? ` (${flag})` : ""}`);
  if (!told.size) return element("div");
  return element(
    "details",
    {},
    element("summary", {}, `Not in this capture (${told.size})`),
    element("ul", { class: "plain" }, ...[...told.values()].map((t) => element("li", {}, clean(t, 400)))),
  );
}

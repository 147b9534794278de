/** Links of a selection beside its launch arrow: forward and backward operators, and the like. */

import type { Details, Place } from "../data/contracts";

/** Arrows of launches, each from what came first: a call to its work, a gap to what ended it. */
export function arrowPairs(details: Details): [Place, Place][] {
  return details.arrows.ends.map((end) => (details.arrows.forward ? [details, end] : [end, details]));
}

/** Pairs of places that an arrow joins, the earlier cause first. */
export function linkPairs(details: Details | null): [Place, Place][] {
  if (!details) return [];
  const ended = details.table === "idle_gap" ? details.arrows.ends[0] : undefined;
  return details.links.flatMap((link) =>
    // a gap is launched by nothing: the call beside it launched what ended it
    link.ends.map((end): [Place, Place] => (link.forward ? [details, end] : [end, ended ?? details])),
  );
}

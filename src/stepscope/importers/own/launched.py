"""Which numbers of launches were recorded: what a graph did outside recording does not belong here.

The collector lets CUPTI trace graphs all the time, since switching that on later crashes programs
that have made a graph by then. A graph's work belongs to the capture where its launch does.
"""

from __future__ import annotations

import numpy as np

from stepscope.importers.own import layout
from stepscope.importers.own.raw import Raw
from stepscope.trace.frame import AnyArray, BoolArray

MOST_IDS = 1 << 30  # correlation ids count from 1: a byte each of what is held


def called(raw: Raw) -> BoolArray | None:
    """Whether a call bears a number, by number; empty without calls.

    None for damaged numbers, too large for a table.
    """
    if not raw.count(layout.API):
        return np.zeros(0, dtype=bool)
    most = max(
        (int(part["correlation"].max()) for part in raw.parts(layout.API) if len(part)), default=0
    )
    if most > MOST_IDS:
        return None
    found = np.zeros(most + 1, dtype=bool)
    for part in raw.parts(layout.API):
        found[part["correlation"]] = True
    return found


def unrecorded(raw: Raw, graphs: AnyArray, known: BoolArray | None) -> BoolArray:
    """Which rows of graphs were launched while recording was off.

    Their call is missing although a later one is there, or recording had ended in order. Where
    CUPTI lost records a missing call says nothing.
    """
    none = np.zeros(len(graphs), dtype=bool)
    if known is None or not len(known) or raw.one("end").get("cupti_dropped"):
        return none
    number = graphs["correlation"]
    later = number < len(known)
    lacking = ~(later & known[np.minimum(number, len(known) - 1)])
    states = raw.of(layout.STATE)
    over = bool(len(states)) and not states["recording"][-1]
    found: BoolArray = lacking & (later | over)
    return found

"""What the framework said about communication: the ``collective`` table."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from stepscope.importers.kineto.columns import external_ids, integers, value_of
from stepscope.importers.kineto.events import MISSING, Args
from stepscope.trace.store import TraceWriter

_COLLECTIVE_TEXTS = {
    "name": "collective",
    "dtype": "dtype",
    "group_name": "group_name",
    "group_description": "group_description",
    "group_ranks": "group_ranks",
}
_COLLECTIVE_NUMBERS = {
    "in_elements": "in_elements",
    "out_elements": "out_elements",
    "group_size": "group_size",
    "sequence": "sequence",
    "rank": "rank",
}


Said = tuple[int, dict[str, Any]]
"""The external id of an event that describes a collective, and what it says."""


def said(args: Args, counted: Counter[str]) -> Said:
    """What an event says of a collective, as columns of the ``collective`` table.

    Args:
        args: of the event.
        counted: receives the number of values that cannot be read, by kind of problem.
    """
    found: dict[str, Any] = {}
    for column, name in _COLLECTIVE_TEXTS.items():
        value = value_of(getattr(args, name), counted)
        if value is not None:
            found[column] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    for column, name in _COLLECTIVE_NUMBERS.items():
        value = value_of(getattr(args, name), counted)
        number = int(integers([value])[0])
        if number != MISSING:
            found[column] = number
        elif value is not None:
            counted["number_too_large" if isinstance(value, int) else "bad_value"] += 1
    return int(external_ids([args])[0]), found


def write_collectives(
    writer: TraceWriter, process_id: int, kernels: list[Said], operators: list[Said]
) -> None:
    """Write what the framework said about communication.

    A kernel repeats most of what the operator that launched it (``record_param_comms``) says; both
    carry the same external id. An operator without such a kernel (other backends, older versions)
    gets a row of its own, without correlation.
    """
    by_operator = {external: row for external, row in operators if external != MISSING}
    launched = {external for external, _ in kernels}
    rows = [{**by_operator.get(external, {}), **row} for external, row in kernels]
    rows += [row for external, row in operators if external not in launched]
    if rows:
        names = ["correlation_id", "device", *_COLLECTIVE_TEXTS, *_COLLECTIVE_NUMBERS]
        columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
        columns["name"] = [name or "unknown" for name in columns["name"]]
        columns["process_id"] = [process_id] * len(rows)
        writer.append("collective", columns)

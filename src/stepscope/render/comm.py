"""The communication of a job as columns, CSV, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.render import tables
from stepscope.render.fitted import ALWAYS, SHOWN_ROWS, Column, fitted, wrapped
from stepscope.render.text import clean, milliseconds, plural

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.collectives.summary import Communication, RankArrival

_LONGEST_LINE = 400
_NAMES = {"operation", "kind", "ranks", "group", "from"}
"""Columns of texts, which stand to the left."""
_WEIGHTS = {
    **{"exposed transfer": 10, "unmatched": 20, "algorithm GB/s": 21, "out MB": 22, "in MB": 23},
    **{"skew ms": 24, "begin ms": 25, "device": 26, "operations": 27, "late ms": 28},
    **{"waiting for absent ranks": 29, "exposed waiting": 30, "MB": 31, "bus GB/s": 32},
    **{"transfer": 33, "transfer ms": 34, "count": 35},
}
"""What is left out first of a table that finds no room: the smallest."""
_LEAST_NAME = 12
_RECEIVERS = 50
"""Weight of the columns of a matrix: the last are left out first."""


def as_json(found: Communication) -> str:
    """The contract ``stepscope.comm/2``."""
    return msgspec.json.encode(found).decode() + "\n"


def as_csv(found: Communication, by: str) -> str:
    """All fields of the operations, or of the ranks, as they are in JSON."""
    from stepscope.collectives.summary import Operations, RankArrival

    rows, kind = (
        (found.operations, Operations) if by == "operation" else (found.arrivals, RankArrival)
    )
    names = [field.name for field in msgspec.structs.fields(kind)]
    return tables.as_csv(_table({name: [getattr(row, name) for row in rows] for name in names}))


def rows_as(table: pa.Table, by: str, format_: str, width: int | None = None) -> str:
    """Single collectives, or what all-to-alls carry, in one of the formats.

    People are shown milliseconds and megabytes: of collectives those that waited longest, of
    all-to-alls a matrix a group; in a terminal as wide as that.
    """
    if format_ == "csv":
        return tables.as_csv(table)
    if format_ == "json":
        return tables.as_json(table, f"stepscope.comm-{by}s/1")

    def columns(rows: pa.Table) -> str:
        return _columns(rows, width)

    write = tables.as_markdown if format_ == "markdown" else columns
    found = _instances(table, write) if by == "instance" else _matrices(table, write)
    return found if format_ == "markdown" or table.num_rows else _prose([found.rstrip()], width)


def _instances(table: pa.Table, write: Callable[[pa.Table], str]) -> str:
    rows = sorted(table.to_pylist(), key=lambda row: -row["waiting_ns"])
    if not rows:
        return "The captures hold no collectives.\n"
    shown = rows[:SHOWN_ROWS]
    columns: dict[str, list[object]] = {
        "collective": [row["instance"] for row in shown],
        "step": [row["step"] for row in shown],
        "kind": [row["kind"] for row in shown],
        "group": [row["group"] for row in shown],
        "rank": [row["rank"] for row in shown],
        "begin ms": [f"{row['start_ns'] / 1e6:z.3f}" for row in shown],
    }
    for title, name in (
        *(("length", "duration_ns"), ("late", "lateness_ns"), ("skew", "skew_ns")),
        *(("waiting", "waiting_ns"), ("transfer", "transfer_ns")),
    ):
        columns[f"{title} ms"] = [f"{row[name] / 1e6:z.3f}" for row in shown]
    for title, name, unit in (
        *(("in MB", "in_bytes", 1e6), ("out MB", "out_bytes", 1e6)),
        *(("algorithm GB/s", "algorithm_bandwidth", 1e9), ("bus GB/s", "bus_bandwidth", 1e9)),
    ):
        if any(row[name] is not None for row in rows):
            columns[title] = [_scaled(row[name], unit) for row in shown]
    columns["last rank"] = [row["last_rank"] for row in shown]
    more = len(rows) - len(shown)
    note = f"{more:,} more waited less; --format csv shows all\n" if more else ""
    return f"Collectives by rank, longest waiting first\n\n{write(_table(columns))}\n{note}"


def _matrices(table: pa.Table, write: Callable[[pa.Table], str]) -> str:
    rows = table.to_pylist()
    if not rows:
        return (
            "The captures hold no all-to-all, or do not tell what it carries between ranks; "
            "torch.profiler with record_shapes=True records that.\n"
        )
    blocks = []
    for group in dict.fromkeys(row["group"] for row in rows):
        cells = {(r["from_rank"], r["to_rank"]): r for r in rows if r["group"] == group}
        senders = sorted({source for source, _ in cells})
        receivers = sorted({to for _, to in cells})
        count = max(row["operations"] for row in cells.values())

        def sent(source: int, to: int, cells: Any = cells, count: int = count) -> float | None:
            row = cells.get((source, to))
            return None if row is None else row["bytes"] / count

        columns: dict[str, list[object]] = {"from": [*map(str, senders), "received"]}
        for to in receivers:
            parts = [sent(source, to) for source in senders]
            columns[f"to {to}"] = [_scaled(part, 1e6) for part in [*parts, _sum(parts)]]
        given = [_sum([sent(source, to) for to in receivers]) for source in senders]
        columns["sent"] = [_scaled(part, 1e6) for part in [*given, _sum(given)]]
        title = f"Ranks {group}: MB an all-to-all, mean of {plural(count, 'operation')}"
        blocks.append(f"{title}\n\n{write(_table(columns))}")
    return "\n".join(blocks)


def _sum(parts: Sequence[float | None]) -> float:
    return sum(part for part in parts if part is not None)


def as_columns(found: Communication, width: int | None = None) -> str:
    """Two tables for the terminal: by operation, by rank; times are ms per step."""
    blocks = [_prose([_title(found)], width)]
    if found.operations:
        blocks.append(_columns(_operations(found), width))
        blocks.append(_columns(_ranks(found), width))
    notes = _notes(found)
    if notes:
        blocks.append(_prose(notes, width))
    return "\n".join(blocks)


def _prose(texts: Sequence[str], width: int | None) -> str:
    found = (wrapped(clean(text, _LONGEST_LINE), width) for text in texts)
    return "".join(f"{line}\n" for lines in found for line in lines)


def _columns(table: pa.Table, width: int | None) -> str:
    """A table as wide as the terminal; names are to the left, figures to the right."""
    texts = [column.to_pylist() for column in table.columns]
    columns = [
        Column(
            title,
            ["" if cell is None else clean(str(cell)) for cell in cells],
            _RECEIVERS if title.startswith("to ") else _WEIGHTS.get(title, ALWAYS),
            _LEAST_NAME if title in _NAMES else None,
        )
        for title, cells in zip(table.column_names, texts, strict=True)
    ]
    return "\n".join(fitted(columns, width)) + "\n"


def as_markdown(found: Communication) -> str:
    """The same tables as Markdown."""
    from stepscope.render.markdown import escape

    blocks = [_title(found) + "\n"]
    if found.operations:
        blocks.append(tables.as_markdown(_operations(found)))
        blocks.append(tables.as_markdown(_ranks(found)))
    notes = [f"- {escape(clean(line, _LONGEST_LINE))}" for line in _notes(found)]
    if notes:
        blocks.append("\n".join(notes) + "\n")
    return "\n".join(blocks)


def _title(found: Communication) -> str:
    if not found.operations:
        return plural(found.ranks, "rank")
    several = found.ranks > 1
    steps = plural(found.steps, "shared steady step" if several else "steady step")
    steps += f" of {milliseconds(found.step_ns)}"
    steps += ", cut at the same moments on all ranks" if several else ""
    return f"{plural(found.ranks, 'rank')}, {steps}; times in ms per step, counts of all steps"


def _notes(found: Communication) -> list[str]:
    likely = [f"{_ranks_of(use.group)}: likely {use.label} ({use.message})" for use in found.groups]
    return [*likely, *found.warnings]


def _ranks_of(group: str) -> str:
    return f"rank {group}" if group.isdecimal() else f"ranks {group}"


def _operations(found: Communication) -> pa.Table:
    rows = found.operations
    return _table(
        {
            "operation": [row.kind for row in rows],
            "ranks": [row.group for row in rows],
            "count": [row.count for row in rows],
            "MB": [_scaled(row.message_bytes, row.count * 1e6) for row in rows],
            "time": _ms([row.time_ns for row in rows], found.steps),
            **_parts(found, rows),
            "algorithm GB/s": [_scaled(row.algorithm_bandwidth, 1e9) for row in rows],
            "bus GB/s": [_scaled(row.bus_bandwidth, 1e9) for row in rows],
        }
    )


def _ranks(found: Communication) -> pa.Table:
    rows = found.arrivals
    return _table(
        {
            "rank": [row.rank for row in rows],
            "device": [row.device for row in rows],
            "operations": [row.operations for row in rows],
            "joined last": [row.last for row in rows],
            "typically late": _ms([row.lateness_ns for row in rows], 1),
            **_parts(found, rows),
            "exposed in all": _ms([_exposed_ns(row) for row in rows], found.steps),
            "unmatched": [row.unmatched for row in rows],
        }
    )


def _parts(found: Communication, rows: Sequence[Any]) -> dict[str, list[str]]:
    """What the time of operations or of ranks is made of, ms per step.

    The waiting for ranks that are not there is shown where any are missing.
    """
    names = ["waiting_ns", "exposed_waiting_ns", "transfer_ns", "exposed_transfer_ns"]
    parts = {
        name.removesuffix("_ns").replace("_", " "): [getattr(row, name) for row in rows]
        for name in names
    }
    if any(row.missing_ns for row in found.arrivals):
        parts["waiting for absent ranks"] = [row.missing_ns for row in rows]
        parts["of it exposed"] = [row.exposed_missing_ns for row in rows]
    return {title: _ms(values, found.steps) for title, values in parts.items()}


def _exposed_ns(row: RankArrival) -> int:
    """All exposed communication of a rank, as in the accounting."""
    return (
        row.exposed_waiting_ns
        + row.exposed_transfer_ns
        + row.exposed_missing_ns
        + row.exposed_unmatched_ns
    )


def _ms(values: Sequence[int], steps: int) -> list[str]:
    return [f"{value / max(steps, 1) / 1e6:z.3f}" for value in values]


def _scaled(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:z.1f}"


def _table(columns: Mapping[str, Sequence[object]]) -> pa.Table:
    import pyarrow as pa

    return pa.table({name: pa.array(values) for name, values in columns.items()})

"""``steps`` and ``kernels`` for people: milliseconds and percent, fitted.

Programs read the same tables in nanoseconds, as CSV or JSON (:mod:`~stepscope.render.tables`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.render.fitted import ALWAYS, Column, fitted, more_rows, name_column, wrapped
from stepscope.render.markdown import escape

if TYPE_CHECKING:
    import pyarrow as pa

Columns = Callable[["pa.Table"], list[Column]]

_PARTS = (
    ("compute", "compute_ns", 90),
    ("comm", "exposed_communication_ns", 80),
    ("copy", "exposed_copy_ns", 70),
    ("memset", "memset_ns", 10),
    ("idle", "idle_ns", ALWAYS),
)
_STEPS_SAID = "times in ms, shares in % of the step; comm, copy and memset: what no compute covers"


def steps_brief(table: pa.Table, rows: int | None) -> str:
    """One line of JSON: every step in ms, on each rank and device.

    Args:
        table: the ``step`` table, in the order to be shown.
        rows: how many to show; all by default.
    """
    parts = ("wall", "compute", "exposed_communication", "exposed_copy", "memset", "idle")
    shown = [
        [row["rank"], row["device"], row["step"], row["steady"]]
        + [round(row[f"{part}_ns"] / 1e6, 3) for part in parts]
        for row in table.slice(0, rows or table.num_rows).to_pylist()
    ]
    columns = ["rank", "device", "step", "steady", *(f"{part}_ms" for part in parts)]
    document = {"schema": "stepscope.steps-brief/1", "columns": columns, "rows": shown}
    if len(shown) < table.num_rows:
        document["rows_in_all"] = table.num_rows
    return json.dumps(document, separators=(",", ":")) + "\n"


def steps_text(table: pa.Table, limit: int, width: int | None) -> str:
    """Every step: its length, and where its time goes.

    Args:
        table: the ``step`` table.
        limit: rows to show; 0 for all.
        width: characters in a line; None for as many as it takes.
    """
    return _text(table, _steps, limit, width, "step", _steps_said(table))


def steps_markdown(table: pa.Table, limit: int) -> str:
    """The same as a Markdown table."""
    return _markdown(table, _steps, limit, "step", _steps_said(table))


def _steps_said(table: pa.Table) -> str:
    own = "; start: since each rank's own recording began"
    return _STEPS_SAID + (own if len(set(table.column("rank").to_pylist())) > 1 else "")


def kernels_text(table: pa.Table, limit: int, width: int | None) -> str:
    """Kernels, the longest time first; arguments as for :func:`steps_text`."""
    return _text(table, _kernels, limit, width, "kernel")


def kernels_markdown(table: pa.Table, limit: int) -> str:
    """The same as a Markdown table."""
    return _markdown(table, _kernels, limit, "kernel")


def _text(
    table: pa.Table, columns: Columns, limit: int, width: int | None, noun: str, stated: str = ""
) -> str:
    shown = table.slice(0, limit or None)
    lines = [*(wrapped(stated, width) if stated else []), *([""] if stated else [])]
    lines += fitted(columns(shown), width)
    more = more_rows(table.num_rows, limit, noun=noun)
    lines += ["", *wrapped(more, width)] if more else []
    return "\n".join(lines) + "\n"


def _markdown(table: pa.Table, columns: Columns, limit: int, noun: str, stated: str = "") -> str:
    found = columns(table.slice(0, limit or None))
    sides = "".join("---:|" if column.least is None else "---|" for column in found)
    lines = [stated, ""] if stated else []
    lines += ["| " + " | ".join(escape(column.title) for column in found) + " |", "|" + sides]
    rows = zip(*(column.cells for column in found), strict=True)
    lines += ["| " + " | ".join(map(escape, row)) + " |" for row in rows]
    more = more_rows(table.num_rows, limit, noun=noun)
    return "\n".join([*lines, *(["", more] if more else [])]) + "\n"


def in_step_order(table: pa.Table, ahead: Mapping[int, int] | None = None) -> pa.Table:
    """The steps of several devices so that the same step of all of them stands together.

    Args:
        table: the ``step`` table.
        ahead: what to add to the step numbers of a rank for those of the first one; 0 by default.
    """
    keys = [table.column(name).to_pylist() for name in ("step", "rank", "device")]
    more = ahead or {}
    same = [(step + more.get(rank, 0), rank, gpu) for step, rank, gpu in zip(*keys, strict=True)]
    return table.take(sorted(range(len(same)), key=same.__getitem__))


def _steps(table: pa.Table) -> list[Column]:
    values: dict[str, list[Any]] = {
        name: table.column(name).to_pylist() for name in table.column_names
    }
    devices = set(zip(values["rank"], values["device"], strict=True))
    ranks = {rank for rank, _ in devices}
    found = [Column("step", [str(step) for step in values["step"]])]
    if len(ranks) > 1:
        found.append(Column("rank", [str(rank) for rank in values["rank"]]))
    if len(devices) > len(ranks):
        found.append(Column("GPU", [str(device) for device in values["device"]]))
    lengths = values["wall_ns"]
    found += [
        Column("start", _milliseconds(values["start_ns"]), 20),
        Column("length", _milliseconds(lengths)),
    ]
    for title, name, weight in _PARTS:
        if not any(values[name]):
            continue
        cells = [
            f"{time} {100 * part / max(length, 1):5.1f} %"
            for time, part, length in zip(
                _milliseconds(values[name]), values[name], lengths, strict=True
            )
        ]
        found.append(Column(title, cells, weight))
    if not all(values["steady"]):
        found.append(Column("steady", ["yes" if one else "no" for one in values["steady"]], 75))
    return found


def _kernels(table: pa.Table) -> list[Column]:
    def of(name: str) -> list[Any]:
        return list(table.column(name).to_pylist())

    rates = of("bytes_per_s")
    found = [
        Column("% of step", [f"{100 * share:.1f}" for share in of("share_of_step")]),
        Column("ms/step", _milliseconds(of("time_ns_per_step"))),
        Column("total ms", _milliseconds(of("time_ns")), 35),
        Column("calls", _counts(of("calls")), 30),
        Column("calls/step", _counts(of("calls_per_step")), 84),
        Column("avg us", _microseconds(of("mean_ns")), 85),
        Column("med us", _microseconds(of("median_ns")), 70),
        Column("min us", _microseconds(of("min_ns")), 25),
        Column("max us", _microseconds(of("max_ns")), 26),
    ]
    if any(rate is not None for rate in rates):
        cells = ["" if rate is None else f"{rate / 1e9:,.0f}" for rate in rates]
        found.append(Column("GB/s", cells, 50))
    return [
        *found,
        name_column("math", of("math"), least=6, weight=40),
        name_column("category", of("category"), least=8, weight=45),
        name_column("kernel", of("kernel"), least=28, weight=ALWAYS),
    ]


def _milliseconds(values: Sequence[int]) -> list[str]:
    return [f"{value / 1e6:,.3f}" for value in values]


def _microseconds(values: Sequence[float]) -> list[str]:
    return [f"{value / 1e3:,.1f}" for value in values]


def _counts(values: Sequence[float]) -> list[str]:
    """Counts, all with as many decimals as one of them needs."""
    whole = all(float(value).is_integer() for value in values)
    return [f"{value:,.0f}" if whole else f"{value:,.2f}" for value in values]

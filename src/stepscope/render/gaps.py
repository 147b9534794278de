"""Idle gaps for people: by cause, and one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepscope.render.fitted import ALWAYS, Column, fitted, more_rows, name_column, wrapped
from stepscope.render.markdown import escape
from stepscope.render.text import milliseconds, percent

if TYPE_CHECKING:
    import pyarrow as pa

_NONE = "the GPUs are never idle in these steps"
_SHOWN_NS = 500
"""The least idle time a step that is no zero in a table, ns."""
_LONGEST = "The longest gaps (--by gap lists all)"


def sums_text(
    single: pa.Table | None, devices: int = 1
) -> Callable[[pa.Table, int, int | None], str]:
    """Sums by cause, what ended the gap and range, and below them the longest gaps.

    Args:
        single: the gaps to show one by one.
        devices: how many the sums are the mean of.
    """

    def text(table: pa.Table, limit: int, width: int | None) -> str:
        if not table.num_rows:
            return _NONE + "\n"
        lines = [*wrapped(_summary(table, devices), width), ""]
        lines += _lines(table, _sums, _worth(table, limit), width, "row")
        if single is not None and single.num_rows:
            lines += ["", _LONGEST, "", *fitted(_gaps(single), width)]
        return "\n".join(lines) + "\n"

    return text


def sums_markdown(single: pa.Table | None, devices: int = 1) -> Callable[[pa.Table, int], str]:
    """The same as Markdown."""

    def text(table: pa.Table, limit: int) -> str:
        if not table.num_rows:
            return _NONE + "\n"
        lines = [
            _summary(table, devices),
            "",
            *_markdown(table, _sums, _worth(table, limit), "row"),
        ]
        if single is not None and single.num_rows:
            lines += ["", _LONGEST, "", *_markdown(single, _gaps, 0, "gap")]
        return "\n".join(lines) + "\n"

    return text


def gaps_text(table: pa.Table, limit: int, width: int | None) -> str:
    """Single gaps.

    Args:
        table: from :meth:`stepscope.api.job.Job.idle_gaps`.
        limit: rows to show; 0 for all.
        width: characters in a line; None for as many as it takes.
    """
    if not table.num_rows:
        return _NONE + "\n"
    return "\n".join(_lines(table, _gaps, limit, width, "gap")) + "\n"


def gaps_markdown(table: pa.Table, limit: int) -> str:
    """The same as Markdown."""
    if not table.num_rows:
        return _NONE + "\n"
    return "\n".join(_markdown(table, _gaps, limit, "gap")) + "\n"


def _worth(table: pa.Table, limit: int) -> int:
    """The rows to show: fewer where the last of them would only be zeros; 0 for all."""
    if not limit:
        return 0
    spent = table.slice(0, limit).column("idle_ns_per_step").to_pylist()
    while len(spent) > 1 and spent[-1] < _SHOWN_NS:
        spent.pop()
    return len(spent)


def _summary(table: pa.Table, devices: int) -> str:
    first = table.slice(0, 1).to_pylist()[0]
    idle = sum(table.column("idle_ns").to_pylist())
    scale = first["idle_ns"] or 1
    a_step = idle * first["idle_ns_per_step"] / scale
    share = idle * first["share_of_step"] / scale
    mean = f" (mean of {devices:,} GPUs)" if devices > 1 else ""
    return f"GPU idle for {milliseconds(a_step)} of a step, {percent(share)}{mean}; times in ms"


def _lines(
    table: pa.Table,
    columns: Callable[[pa.Table], list[Column]],
    limit: int,
    width: int | None,
    noun: str,
) -> list[str]:
    lines = fitted(columns(table.slice(0, limit or None)), width)
    more = more_rows(table.num_rows, limit, noun=noun)
    return [*lines, *(["", *wrapped(more, width)] if more else [])]


def _markdown(
    table: pa.Table, columns: Callable[[pa.Table], list[Column]], limit: int, noun: str
) -> list[str]:
    found = columns(table.slice(0, limit or None))
    sides = "".join("---:|" if column.least is None else "---|" for column in found)
    lines = ["| " + " | ".join(escape(column.title) for column in found) + " |", "|" + sides]
    rows = zip(*(column.cells for column in found), strict=True)
    lines += ["| " + " | ".join(map(escape, row)) + " |" for row in rows]
    more = more_rows(table.num_rows, limit, noun=noun)
    return [*lines, *(["", more] if more else [])]


def _sums(table: pa.Table) -> list[Column]:
    of = _columns(table)
    return [
        Column("ms/step", _milliseconds(of("idle_ns_per_step"))),
        Column("% of step", [f"{100 * share:.1f}" for share in of("share_of_step")], 90),
        Column("% of idle", [f"{100 * share:.1f}" for share in of("share_of_idle")], 60),
        Column("gaps/step", [f"{count:,.2f}" for count in of("gaps_per_step")], 80),
        Column("longest", _milliseconds(of("longest_ns")), 70),
        name_column("cause", of("cause"), least=16, weight=ALWAYS),
        name_column("ended by", of("ended_by"), least=20, weight=95),
        *_where(of, "range", 85, 10),
        *_where(of, "operator", 40, 12),
        *_where(of, "host_call", 75, 12),
        *_where(of, "function", 65, 16),
    ]


def _gaps(table: pa.Table) -> list[Column]:
    of = _columns(table)
    found = [
        Column("length", _milliseconds(of("idle_ns"))),
        Column("start", _milliseconds(of("start_ns")), 80),
        Column("step", [str(step) for step in of("step")], 70),
    ]
    for title, name in (("rank", "rank"), ("GPU", "device")):
        if any(of(name)):
            found.append(Column(title, [str(value) for value in of(name)], 90))
    return [
        *found,
        name_column("cause", [_causes(text) for text in of("causes")], least=16, weight=ALWAYS),
        name_column("ended by", of("ended_by"), least=20, weight=95),
        *_where(of, "launch_call", 50, 14, "launched by"),
        *_where(of, "range", 85, 10),
        *_where(of, "operator", 40, 12),
        *_where(of, "host_call", 75, 12),
        *_where(of, "function", 65, 16),
        *(
            [
                Column(
                    "stack",
                    name_column("", of("stack"), least=20, weight=30).cells,
                    30,
                    20,
                    tail=True,
                )
            ]
            if any(of("stack"))
            else []
        ),
    ]


def _where(
    of: Callable[[str], list[Any]], name: str, weight: int, least: int, title: str = ""
) -> list[Column]:
    """A column of where the host was, if anything tells that."""
    if not any(of(name)):
        return []
    title = title or name.replace("_", " ")
    return [name_column(title, of(name), least=least, weight=weight)]


def _causes(text: str) -> str:
    """``host_sync 3000000, launch_bound 20000`` with shares: ``host_sync 99 %, ...``.

    What is less than half a percent is left out.
    """
    parts = [part.rsplit(" ", 1) for part in text.split(", ")]
    if len(parts) == 1:
        return parts[0][0]
    whole = sum(int(ns) for _, ns in parts)
    shares = [(cause, percent(int(ns) / whole)) for cause, ns in parts]
    return ", ".join(f"{cause} {share}" for cause, share in shares if share != "0 %")


def _columns(table: pa.Table) -> Callable[[str], list[Any]]:
    def of(name: str) -> list[Any]:
        return list(table.column(name).to_pylist())

    return of


def _milliseconds(values: list[int]) -> list[str]:
    return [f"{value / 1e6:,.3f}" for value in values]

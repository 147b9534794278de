"""``stepscope phases`` as text: milliseconds a step and percent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.operators.phases import PHASES, Phases, PhaseTime, rank_table
from stepscope.operators.python_time import PythonReport, PythonTime
from stepscope.render.fitted import ALWAYS, Column, fitted, more_rows, name_column, wrapped
from stepscope.render.markdown import escape
from stepscope.render.text import clean, percent, plural

if TYPE_CHECKING:
    import msgspec
    import pyarrow as pa

_WORDS = (
    "ms per step, mean of the steady steps. GPU: busy with the phase; idle: nothing ran while the "
    "host was in it; both add up to the step, host adds up to the step on the host"
)


def phases_table(found: Phases) -> pa.Table:
    """One row a device, step and phase; without a step all steady ones together."""
    return _table([*found.phases, *found.steps], PhaseTime)


def python_table(found: PythonReport) -> pa.Table:
    """One row a function or line, thread and phase."""
    return _table(found.places, PythonTime)


def _table(rows: list[PhaseTime] | list[PythonTime], kind: type[msgspec.Struct]) -> pa.Table:
    import msgspec
    import pyarrow as pa

    types = {int: pa.int64(), int | None: pa.int64(), float: pa.float64(), str: pa.string()}
    fields = [(f.name, types[f.type]) for f in msgspec.structs.fields(kind)]
    return pa.Table.from_pylist(
        [msgspec.to_builtins(row) for row in rows], schema=pa.schema(fields)
    )


def phases_text(found: Phases, limit: int, width: int | None, *, each: bool) -> str:
    """The phases for a terminal.

    Args:
        found: what there is to say.
        limit: steps to show; 0 for all.
        width: characters in a line; None for as many as it takes.
        each: whether to show every step.
    """
    lines = [*wrapped(_heading(found), width), ""]
    lines += fitted(_mean(found), width)
    if len(found.devices) > 1:
        lines += ["", *fitted(_ranks(found), width)]
    if each:
        columns, steps = _steps(found, limit)
        lines += ["", *fitted(columns, width)]
        more = more_rows(steps, limit, noun="step")
        lines += ["", *wrapped(more, width)] if more else []
    for warning in found.warnings:
        lines += ["", *wrapped(clean(warning, 400), width)]
    return "\n".join(lines) + "\n"


def phases_markdown(found: Phases, limit: int, *, each: bool) -> str:
    """The same as Markdown tables."""
    parts = [_markdown(_mean(found))]
    if len(found.devices) > 1:
        parts.append(_markdown(_ranks(found)))
    if each:
        columns, steps = _steps(found, limit)
        parts.append(_markdown(columns))
        more = more_rows(steps, limit, noun="step")
        parts += [more] if more else []
    parts += [escape(clean(warning, 400)) for warning in found.warnings]
    return "\n\n".join([escape(_heading(found)), *parts]) + "\n"


def python_text(found: PythonReport, limit: int, width: int | None) -> str:
    """Where Python spends the steps, for a terminal; arguments as for :func:`phases_text`."""
    lines = [line for text in _processes(found) for line in wrapped(text, width)]
    if found.places:
        lines += ["", *fitted(_places(found, limit), width)]
        more = more_rows(len(found.places), limit)
        lines += ["", *wrapped(more, width)] if more else []
    for warning in found.warnings:
        lines += ["", *wrapped(clean(warning, 400), width)]
    return "\n".join(lines) + "\n"


def python_markdown(found: PythonReport, limit: int) -> str:
    """The same as Markdown."""
    parts = [*map(escape, _processes(found))]
    if found.places:
        parts.append(_markdown(_places(found, limit)))
        more = more_rows(len(found.places), limit)
        parts += [more] if more else []
    parts += [escape(clean(warning, 400)) for warning in found.warnings]
    return "\n\n".join(parts) + "\n"


def _markdown(columns: list[Column]) -> str:
    sides = "".join("---:|" if column.least is None else "---|" for column in columns)
    lines = ["| " + " | ".join(escape(column.title) for column in columns) + " |", "|" + sides]
    cells = zip(*(column.cells for column in columns), strict=True)
    return "\n".join([*lines, *("| " + " | ".join(map(escape, row)) + " |" for row in cells)])


def _heading(found: Phases) -> str:
    steps = sum(device.steps for device in found.devices)
    wall = sum(device.wall_ns for device in found.devices) / max(steps, 1)
    stated = f"step {_ms(wall)} ms on the GPU"
    known = [d.host_wall_ns for d in found.devices if d.host_wall_ns is not None]
    if known and len(known) == len(found.devices):
        stated += f", {_ms(sum(known) / max(steps, 1))} ms on the host"
    stated += f"; {_WORDS}"
    several = len(found.devices) > 1
    return stated + (f"; mean of {plural(len(found.devices), 'device')}" if several else "")


def _mean(found: Phases) -> list[Column]:
    """Phases, all devices together."""
    steps = max(sum(device.steps for device in found.devices), 1)
    wall = max(sum(device.wall_ns for device in found.devices), 1)
    shown = []
    for phase in PHASES:
        mine = [time for time in found.phases if time.phase == phase]
        host = [time.host_ns for time in mine if time.host_ns is not None]
        gpu, idle = sum(t.gpu_ns for t in mine), sum(t.idle_ns for t in mine)
        facts = dict.fromkeys(
            text for t in mine for text in (t.gpu_evidence, t.host_evidence) if text
        )
        if gpu or idle or any(host):
            all_known = len(host) == len(mine)
            shown.append((phase, sum(host) if all_known else None, gpu, idle, "; ".join(facts)))
    return [
        name_column("phase", [row[0] for row in shown], least=9, weight=ALWAYS),
        Column("host", ["" if row[1] is None else _ms(row[1] / steps) for row in shown]),
        Column("GPU", [_ms(row[2] / steps) for row in shown]),
        Column("idle", [_ms(row[3] / steps) for row in shown]),
        Column("% of step", [f"{100 * (row[2] + row[3]) / wall:.1f}" for row in shown]),
        name_column("evidence", [row[4] for row in shown], least=12, weight=50),
    ]


def _ranks(found: Phases) -> list[Column]:
    """GPU and idle time of each phase by device."""
    rows = rank_table(found)
    columns = [Column("rank", [str(device.rank) for device, _ in rows])]
    if len({device.rank for device, _ in rows}) < len(rows):
        columns.append(Column("GPU", [str(device.device) for device, _ in rows]))
    columns.append(Column("step", [_ms(d.wall_ns / max(d.steps, 1)) for d, _ in rows]))
    for phase in PHASES:
        cells = [_ms(of.get(phase, 0) / max(device.steps, 1)) for device, of in rows]
        columns.append(Column(phase, cells))
    return columns


def _steps(found: Phases, limit: int) -> tuple[list[Column], int]:
    """GPU and idle time of each phase by step; and how many steps there are."""
    rows: dict[tuple[int, int, int], dict[str, int]] = {}
    for time in found.steps:
        key = time.step or 0, time.rank, time.device
        rows.setdefault(key, {})[time.phase] = time.gpu_ns + time.idle_ns
    keys = sorted(rows)[: limit or None]
    columns = [Column("step", [str(key[0]) for key in keys])]
    if len(found.devices) > 1:
        columns.append(Column("rank", [str(key[1]) for key in keys]))
    columns.append(Column("length", [_ms(sum(rows[key].values())) for key in keys]))
    columns += [Column(phase, [_ms(rows[key][phase]) for key in keys]) for phase in PHASES]
    return columns, len(rows)


def _processes(found: PythonReport) -> list[str]:
    lines = []
    for process in found.processes:
        wall = max(process.host_wall_ns, 1)
        stated = f"rank {process.rank}:"
        if process.gil_held_ns is not None:
            held = (process.gil_held_ns, process.gil_waited_ns, process.gil_held_by_others_ns)
            own, waited, others = (percent((ns or 0) / wall, 1) for ns in held)
            stated += f" the main thread holds the GIL for {own} of the steps and waits for it for"
            stated += f" {waited}; other threads hold it for {others}."
        if process.collections is not None:
            stated += f" {plural(process.collections, 'long run')} of the garbage collector,"
            stated += f" {_ms(process.collecting_ns or 0)} ms."
        if not stated.endswith(":"):
            lines.append(stated)
    return lines


def _places(found: PythonReport, limit: int) -> list[Column]:
    rows = found.places[: limit or None]
    columns = [
        Column("% of steps", [f"{100 * row.share:.1f}" for row in rows]),
        Column("total ms", [_ms(row.time_ns) for row in rows]),
        name_column("phase", [row.phase for row in rows], least=9, weight=90),
        name_column("thread", [row.thread or str(row.thread_id) for row in rows], least=8,
                    weight=60),
        name_column("function or line", [row.place for row in rows], least=24, weight=ALWAYS),
    ]  # fmt: skip
    if len(found.processes) > 1:
        columns.insert(0, Column("rank", [str(row.rank) for row in rows]))
    return columns


def _ms(value: float) -> str:
    return f"{value / 1e6:,.3f}"

"""``stepscope operators`` as text: milliseconds and percent, the words of torch's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stepscope.operators.averages_result import OperatorAverages, OperatorKernel, OperatorRow
from stepscope.operators.sheets import SHEETS, Sheet, SheetRow
from stepscope.render.fitted import ALWAYS, Column, fitted, more_rows, name_column, wrapped
from stepscope.render.markdown import escape
from stepscope.render.text import clean, plural

if TYPE_CHECKING:
    import pyarrow as pa

_TITLES = {"name": "operator", "shape": "operator", "stack": "called by", "module": "module",
           "source": "function", "range": "range", "category": "kernels of"}  # fmt: skip
_INCLUSIVE = (
    "Times in ms. Self: without what an event calls inside, so self times add up to all that was "
    "recorded; total: with it, so totals count what is inside again. Device time is that of the "
    "kernels, copies and memsets launched within"
)
_KERNELS_EACH = 3
"""Kernels that people are shown under an operator."""


def averages_table(found: OperatorAverages) -> pa.Table:
    """One row a group, in base units."""
    import msgspec
    import pyarrow as pa

    texts = {"kind", "name", "shapes"}
    real = {"self_cpu_share", "self_device_share", "cpu_mean_ns", "device_mean_ns", "flop",
            "flop_per_s", "tensor_core_share"}  # fmt: skip
    fields = [
        (name, pa.string() if name in texts else pa.float64() if name in real else pa.int64())
        for name in OperatorRow.__struct_fields__
    ]
    rows = [msgspec.to_builtins(row) for row in found.operators]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def sheet_table(found: Sheet) -> pa.Table:
    """One row an operator and inputs, in base units."""
    import msgspec
    import pyarrow as pa

    types = {int: pa.int64(), float: pa.float64(), float | None: pa.float64(), str: pa.string()}
    fields = [(f.name, types[f.type]) for f in msgspec.structs.fields(SheetRow)]
    rows = [msgspec.to_builtins(row) for row in found.rows]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def sheet_text(found: Sheet, limit: int, width: int | None) -> str:
    """A sheet for a terminal; arguments as for :func:`averages_text`."""
    lines = [*wrapped(clean(_sheet_heading(found), 300), width), ""]
    if found.rows:
        lines += fitted(_sheet_columns(found, limit), width)
        more = more_rows(len(found.rows), limit)
        lines += ["", *wrapped(more, width)] if more else []
    else:
        lines.append("nothing of this kind was found")
    for warning in found.warnings:
        lines += ["", *wrapped(clean(warning, 400), width)]
    return "\n".join(lines) + "\n"


def sheet_markdown(found: Sheet, limit: int) -> str:
    """The same as a Markdown table."""
    lines = [escape(clean(_sheet_heading(found), 300)), ""]
    if found.rows:
        columns = _sheet_columns(found, limit)
        sides = "".join("---:|" if column.least is None else "---|" for column in columns)
        lines += ["| " + " | ".join(escape(column.title) for column in columns) + " |"]
        lines += ["|" + sides]
        cells = zip(*(column.cells for column in columns), strict=True)
        lines += ["| " + " | ".join(map(escape, row)) + " |" for row in cells]
        more = more_rows(len(found.rows), limit)
        lines += ["", more] if more else []
    lines += [f"- {escape(clean(warning, 400))}" for warning in found.warnings]
    return "\n".join(lines) + "\n"


def _sheet_heading(found: Sheet) -> str:
    steps = plural(found.steps, "steady step")
    stated = f"{SHEETS[found.sheet]}, by unique inputs; {steps} (of all devices)"
    stated += f"; {found.device or 'unknown device'}"
    return stated + (f", ceilings: {found.source}" if found.source else "")


def _sheet_columns(found: Sheet, limit: int) -> list[Column]:
    rows = found.rows[: limit or None]

    def number(title: str, of: str, scale: float, digits: int, weight: int) -> Column:
        values = [getattr(row, of) for row in rows]
        cells = ["" if value is None else f"{value / scale:,.{digits}f}" for value in values]
        return Column(title, cells, weight)

    collective = found.sheet == "communication"
    columns = [
        number("% of GPU", "share_of_device", 0.01, 1, 97),
        number("total ms", "time_ns", 1e6, 3, 80),
        Column("calls", [f"{row.calls:,}" for row in rows], 85),
        number("avg us", "mean_ns", 1e3, 1, 90),
        name_column("collective" if collective else "operator", [row.operator for row in rows],
                    least=18, weight=ALWAYS),
        name_column("ranks" if collective else "input shapes", [row.shapes for row in rows],
                    least=18, weight=96),
    ]  # fmt: skip
    if collective:
        return [
            *columns,
            number("MB", "moved_bytes", 1e6, 3, 95),
            number("algorithm GB/s", "bytes_per_s", 1e9, 1, 93),
            number("bus GB/s", "bus_bytes_per_s", 1e9, 1, 94),
        ]
    if any(row.math for row in rows):
        columns.append(name_column("math", [row.math for row in rows], least=5, weight=60))
        columns.append(number("TFLOP/s", "flop_per_s", 1e12, 1, 95))
    columns += [
        number("TB/s", "bytes_per_s", 1e12, 3, 94),
        number("FLOP/byte", "intensity", 1, 1, 50),
    ]
    if any(row.achieved is not None for row in rows):
        columns.append(number("% of ceiling", "achieved", 0.01, 1, 92))
        columns.append(name_column("bound", [row.bound for row in rows], least=6, weight=40))
    columns.append(name_column("longest kernel", [r.kernel for r in rows], least=12, weight=30))
    return columns


def limited(found: OperatorAverages, limit: int) -> OperatorAverages:
    """The first rows, and the kernels under them.

    Args:
        found: all rows.
        limit: rows to keep; 0 for all.
    """
    import msgspec

    if not limit:
        return found
    rows = found.operators[:limit]
    kept = {(row.kind, row.name, row.shapes) for row in rows}
    kernels = [k for k in found.kernels if (k.kind, k.name, k.shapes) in kept]
    return msgspec.structs.replace(found, operators=rows, kernels=kernels)


def averages_text(found: OperatorAverages, limit: int, width: int | None) -> str:
    """The operators for a terminal.

    Args:
        found: what there is to say.
        limit: rows to show; 0 for all.
        width: characters in a line; None for as many as it takes.
    """
    rows = found.operators[: limit or None]
    lines = [*wrapped(_heading(found), width), *wrapped(_INCLUSIVE, width), ""]
    lines += _with_kernels(found, rows, fitted(_columns(found, rows), width), width)
    more = more_rows(len(found.operators), limit)
    lines += ["", *wrapped(more, width)] if more else []
    if found.readings:
        lines.append("")
        for reading in found.readings:
            lines += wrapped(clean(f"- {reading}", 400), width, hang=2)
    for warning in found.warnings:
        lines += ["", *wrapped(clean(warning, 400), width)]
    return "\n".join(lines) + "\n"


def averages_markdown(found: OperatorAverages, limit: int) -> str:
    """The same as a Markdown table."""
    columns = _columns(found, found.operators[: limit or None])
    sides = "".join("---:|" if column.least is None else "---|" for column in columns)
    lines = [f"{escape(_heading(found))}. {_INCLUSIVE}.", ""]
    lines += ["| " + " | ".join(escape(column.title) for column in columns) + " |", "|" + sides]
    cells = zip(*(column.cells for column in columns), strict=True)
    lines += ["| " + " | ".join(map(escape, row)) + " |" for row in cells]
    more = more_rows(len(found.operators), limit)
    lines += ["", more] if more else []
    if found.readings or found.warnings:
        lines += ["", *(f"- {escape(clean(t, 400))}" for t in (*found.readings, *found.warnings))]
    return "\n".join(lines) + "\n"


def _heading(found: OperatorAverages) -> str:
    if found.scope == "steady":
        scope = f"the {plural(found.steps or 0, 'steady step')} (of all ranks)"
    else:
        scope = "the whole capture"
    stated = f"{scope}: {found.self_cpu_ns / 1e6:,.1f} ms on the host"
    stated += f", {found.device_ns / 1e6:,.1f} ms on the device" if found.has_device else (
        "; nothing ran on a GPU"
    )  # fmt: skip
    return stated


def _columns(found: OperatorAverages, rows: Sequence[OperatorRow]) -> list[Column]:
    def ms(title: str, value: Callable[[OperatorRow], int | None], weight: int) -> Column:
        cells = [_milliseconds(value(row)) for row in rows]
        return Column(title, cells, weight)

    def percent(title: str, value: Callable[[OperatorRow], float | None], weight: int) -> Column:
        cells = [
            "" if (share := value(row)) is None else f"{100 * share:.1f}"
            for row in rows
        ]  # fmt: skip
        return Column(title, cells, weight)

    by_name = found.by in ("name", "shape")
    columns = [name_column(_TITLES[found.by], [row.name for row in rows], least=24, weight=ALWAYS)]
    if found.by == "shape":
        columns.append(name_column("input shapes", [r.shapes for r in rows], least=16, weight=95))
    if found.has_device:
        columns += [
            percent("self GPU %", lambda row: row.self_device_share, 97),
            ms("self GPU", lambda row: row.self_device_ns, 96),
            ms("GPU total", lambda row: row.device_ns, 90),
        ]
        if any(row.backward_device_ns for row in rows):
            columns.append(ms("GPU backward", lambda row: row.backward_device_ns, 89))
    columns += [
        percent("self CPU %", lambda row: row.self_cpu_share, 94),
        ms("self CPU", lambda row: row.self_cpu_ns, 93),
        ms("CPU total", lambda row: row.cpu_ns, 80),
    ]
    if any(row.backward_cpu_ns for row in rows):
        columns.append(ms("CPU backward", lambda row: row.backward_cpu_ns, 79))
    columns.append(Column("calls", [f"{row.calls:,}" for row in rows], 92))
    if by_name:
        columns.append(
            Column("CPU avg us", [_micro(row.cpu_mean_ns, row.calls) for row in rows], 60)
        )
    if found.has_device:
        if by_name:
            columns.append(
                Column("GPU avg us", [_micro(row.device_mean_ns, row.calls) for row in rows], 61)
            )
        columns.append(Column("kernels", [f"{row.kernels:,}" for row in rows], 50))
        if any(row.tensor_core_share is not None for row in rows):
            columns.append(percent("tensor cores %", lambda row: row.tensor_core_share, 55))
    if any(row.flop for row in rows):
        columns.append(
            Column("GFLOP", ["" if not r.flop else f"{r.flop / 1e9:,.3f}" for r in rows], 40)
        )
        cells = ["" if not row.flop_per_s else f"{row.flop_per_s / 1e12:,.2f}" for row in rows]
        columns.append(Column("TFLOP/s", cells, 45))
    for title, of, weight in (
        ("self CPU mem", "self_cpu_memory_bytes", 31),
        ("CPU mem", "cpu_memory_bytes", 30),
        ("self GPU mem", "self_device_memory_bytes", 33),
        ("GPU mem", "device_memory_bytes", 32),
    ):
        if any(getattr(row, of) for row in rows):
            columns.append(Column(title, [_bytes(getattr(row, of)) for row in rows], weight))
    return columns


def _with_kernels(
    found: OperatorAverages, rows: Sequence[OperatorRow], lines: list[str], width: int | None
) -> list[str]:
    """The table with the kernels of each row below it."""
    if not found.kernels:
        return lines
    of: dict[tuple[str, str, str], list[OperatorKernel]] = {}
    for kernel in found.kernels:
        of.setdefault((kernel.kind, kernel.name, kernel.shapes), []).append(kernel)
    done = lines[:2]
    for at, row in enumerate(rows):
        done.append(lines[2 + at])
        kernels = of.get((row.kind, row.name, row.shapes), [])
        for kernel in kernels[:_KERNELS_EACH]:
            start = f"    {kernel.time_ns / 1e6:,.3f} ms  {kernel.calls:,} x  "
            room = 160 if width is None else max(width - len(start), 24)
            done.append(start + clean(kernel.kernel, room))
        if len(kernels) > _KERNELS_EACH:
            rest = sum(kernel.time_ns for kernel in kernels[_KERNELS_EACH:])
            done.append(f"    {rest / 1e6:,.3f} ms  in {len(kernels) - _KERNELS_EACH} more kernels")
    return [*done, *lines[2 + len(rows) :]]


def _milliseconds(value: int | None) -> str:
    return "" if value is None else f"{value / 1e6:,.3f}"


def _micro(value: float, calls: int) -> str:
    return f"{value / 1e3:,.1f}" if calls else ""


def _bytes(value: int | None) -> str:
    if value is None:
        return ""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return ""

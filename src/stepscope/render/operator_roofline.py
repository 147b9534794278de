"""Operators against the device's ceilings, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.operators.roofline import OperatorRoofline, OperatorRooflines
from stepscope.render.fitted import ALWAYS, Column, fitted, name_column, wrapped
from stepscope.render.text import MAX_SENTENCE, clean, figure, percent

if TYPE_CHECKING:
    import pyarrow as pa

_MOST = 30


def rooflines_table(found: OperatorRooflines) -> pa.Table:
    """One row an operator and shapes, in base units."""
    import msgspec
    import pyarrow as pa

    texts = {"operator", "shapes", "math", "bound", "kernel", "examine"}
    whole = {"time_ns_per_step"}
    fields = [
        (name, pa.string() if name in texts else pa.int64() if name in whole else pa.float64())
        for name in OperatorRoofline.__struct_fields__
    ]
    rows = [msgspec.to_builtins(entry) for entry in found.operators]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def rooflines_markdown(found: OperatorRooflines) -> str:
    """Every figure, the step's MFU, and the commands that examine the slow ones."""
    from stepscope.render.markdown import escape
    from stepscope.render.ncu_markdown import bullets
    from stepscope.render.tables import as_markdown

    stated = "".join(f"{escape(line)}  \n" for line in _facts(found))
    return f"{stated}\n{as_markdown(rooflines_table(found))}" + bullets(found.warnings)


def _facts(found: OperatorRooflines) -> list[str]:
    """The device, the step and its MFU."""
    lines = [f"{clean(found.device) or 'unknown device'}, step {figure(found.step_ns, 'ns')}"]
    if not found.operators:
        return lines
    stated = f"{found.flop_per_step / 1e12:.3g} TFLOP per step, "
    stated += figure(found.flop_per_s, "flop_per_s")
    if found.mfu is not None:
        stated += f", MFU {percent(found.mfu, 1)} of the dense 16-bit peak"
    return [*lines, stated, f"work known for {percent(found.known_share)} of the time of products"]


def rooflines_text(found: OperatorRooflines, width: int | None = None) -> str:
    """The operators for a terminal, and the commands that examine the slow ones."""
    lines = [line for fact in _facts(found) for line in wrapped(fact, width)]
    if found.operators:
        rows = found.operators[:_MOST]
        lines += ["", *fitted(_columns(rows), width)]
        if len(found.operators) > _MOST:
            lines.append(f"and {len(found.operators) - _MOST:,} more: --format csv shows all")
    slow = [entry for entry in found.operators if entry.examine]
    if slow:
        lines += ["", "Far below their roof; examine them with"]
        # a command stays on its line: it is copied
        lines += [f"  {clean(e.operator, 60)}: {clean(e.examine or '', 300)}" for e in slow]
    for warning in found.warnings:
        lines += ["", *wrapped(clean(warning, MAX_SENTENCE), width)]
    return "\n".join(lines) + "\n"


def _columns(rows: Sequence[OperatorRoofline]) -> list[Column]:
    achieved = ["" if row.achieved is None else percent(row.achieved, 1) for row in rows]
    return [
        name_column("operator", [clean(r.operator, 44) for r in rows], least=16, weight=ALWAYS),
        name_column("shapes", [clean(r.shapes, 44) for r in rows], least=12, weight=20),
        Column("calls", [f"{row.calls_per_step:,.3g}" for row in rows], 30),
        Column("time", [figure(row.time_ns_per_step, "ns") for row in rows]),
        Column("step", [figure(row.share_of_step, "share") for row in rows], 50),
        name_column("math", [row.math for row in rows], least=4, weight=25),
        Column("FLOP/byte", [f"{row.intensity:,.3g}" for row in rows], 15),
        Column("achieved", [figure(row.flop_per_s, "flop_per_s") for row in rows], 40),
        Column("memory", [figure(row.bytes_per_s, "bytes_per_s") for row in rows], 35),
        Column("of roof", achieved, 60),
        name_column("bound", [row.bound for row in rows], least=6, weight=45),
    ]

"""Operators against the device's ceilings, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.operators.roofline import OperatorRoofline, OperatorRooflines
from stepscope.render.text import clean, figure

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
        stated += f", MFU {found.mfu:.1%} of the dense 16-bit peak"
    return [*lines, stated, f"work known for {found.known_share:.0%} of the time of products"]


def rooflines_text(found: OperatorRooflines) -> str:
    """The operators for a terminal, and the commands that examine the slow ones."""
    lines = _facts(found)
    if found.operators:
        lines.append("")
        head = ["operator", "shapes", "calls", "time", "step", "math", "FLOP/byte", "achieved",
                "memory", "of roof", "bound"]  # fmt: skip
        body = [
            [
                clean(entry.operator, 44),
                clean(entry.shapes, 44),
                f"{entry.calls_per_step:,.3g}",
                figure(entry.time_ns_per_step, "ns"),
                figure(entry.share_of_step, "share"),
                entry.math,
                f"{entry.intensity:,.3g}",
                figure(entry.flop_per_s, "flop_per_s"),
                figure(entry.bytes_per_s, "bytes_per_s"),
                "" if entry.achieved is None else f"{entry.achieved:.1%}",
                entry.bound,
            ]
            for entry in found.operators[:_MOST]
        ]
        widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
        for row in [head, ["-" * w for w in widths], *body]:
            cells = zip(row, widths, strict=True)
            lines.append("  ".join(c.ljust(w) if i in (0, 1, 5, 10) else c.rjust(w)
                                   for i, (c, w) in enumerate(cells)).rstrip())  # fmt: skip
        if len(found.operators) > _MOST:
            lines.append(f"and {len(found.operators) - _MOST:,} more: --format csv shows all")
    slow = [entry for entry in found.operators if entry.examine]
    if slow:
        lines += ["", "Far below their roof; examine them with"]
        lines += [f"  {clean(e.operator, 60)}: {clean(e.examine or '', 300)}" for e in slow]
    for warning in found.warnings:
        lines += ["", clean(warning, 300)]
    return "\n".join(lines) + "\n"

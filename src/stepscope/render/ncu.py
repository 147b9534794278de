"""Results about Nsight Compute reports as text: tables, one explanation, a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.ncu.limiters import LIMITERS
from stepscope.ncu.result import (
    Change,
    Explanation,
    HotLine,
    KernelRow,
    KernelTable,
    Pair,
    ReportDiff,
    StallShare,
)
from stepscope.ncu.roofline import LEVELS, PRECISIONS, Roofline
from stepscope.ncu.units import shown
from stepscope.render.fitted import (
    ALWAYS,
    PROSE_WIDTH,
    Column,
    fitted,
    name_column,
    wrapped,
)
from stepscope.render.roofline import roofline_text
from stepscope.render.text import clean, percent

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_NAME = 48
_LONGEST_TEXT = 76
_LONGEST_POINT = 300
_DRAWING = 60
_SHORTEST_DRAWING = 20
_BESIDE_DRAWING = 14
"""Characters to the left and the right of the drawing of a roofline."""
_STALLS = 8
_OPCODES = 8
_RULES = 12
_CHANGES = 60
_NOTABLE = 0.05  # relative change of a metric below which a comparison leaves it out


def kernels_table(table: KernelTable) -> pa.Table:
    """Every figure of the table in base units."""
    import msgspec
    import pyarrow as pa

    rows = [msgspec.to_builtins(row) for row in table.kernels]
    for row in rows:
        for key in ("grid", "block"):
            row[key] = "x".join(map(str, row[key]))
    kinds = {"id": pa.int64(), "name": pa.string(), "function": pa.string(), "grid": pa.string(),
             "block": pa.string(), "limiter": pa.string(), "bound": pa.string()}  # fmt: skip
    fields = [(name, kinds.get(name, pa.float64())) for name in KernelRow.__struct_fields__]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def kernels_text(table: KernelTable, width: int | None = None) -> str:
    """The table for a terminal, with what is missing below."""
    rows = table.kernels
    names = [clean(row.function or row.name, _LONGEST_NAME) for row in rows]
    limiters = [LIMITERS[row.limiter].title for row in rows]
    gaps = ["" if row.roof_gap is None else f"{row.roof_gap:,.1f}x" for row in rows]
    columns = [
        Column("id", [str(row.id) for row in rows]),
        name_column("kernel", names, least=16, weight=ALWAYS),
        Column("time", [_maybe(row.duration_ns, "ns") for row in rows]),
        name_column("limiter", limiters, least=14, weight=60),
        Column("SM", [_percent(row.sm_throughput) for row in rows], 30),
        Column("memory", [_percent(row.memory_throughput) for row in rows], 31),
        Column("occupancy", [_percent(row.achieved_occupancy) for row in rows], 20),
        Column("of", [_percent(row.theoretical_occupancy) for row in rows], 10),
        Column("FLOP/s", [_maybe(row.flop_per_s, "FLOP/s") for row in rows], 15),
        Column("bytes/s", [_maybe(row.dram_bytes_per_s, "byte/s") for row in rows], 16),
        Column("to roof", gaps, 40),
    ]
    lines = [clean(table.device), ""] if table.device else []
    lines += fitted(columns, width)
    lines += _notes("Not in this report", table.missing, width)
    lines += _notes("Notes", table.warnings, width)
    lines += ["", *wrapped("stepscope kernels REPORT --kernel ID explains one of them.", width)]
    return "\n".join(lines) + "\n"


def explanation_text(found: Explanation, width: int | None = None) -> str:
    """One launch, explained, for a terminal."""
    row = found.kernel
    launched = f"launch {row.id}, grid {_size(row.grid)}, block {_size(row.block)}"
    launched += f", {clean(found.device)}" if found.device else ""
    limited = f"Limited by {found.title} ({row.bound}-bound)"
    if row.bound == "unknown":
        limited = "What limits it is not known"
    lines = [*wrapped(clean(row.name, 200), width), *wrapped(launched, width)]
    lines += ["", *wrapped(limited, width), *wrapped(found.meaning, width, indent=2, hang=2)]
    lines += _points(found.reasons, width)
    lines += ["", "What helps", *_points(found.recommendations, width)]
    lines += _notes("Also", found.also, width)
    for section in found.sections:
        lines += ["", section.title]
        lines += _pairs([(figure.label, figure.text) for figure in section.figures])
    lines += _stall_lines(found.stalls, width)
    if found.occupancy_limits:
        lines += ["", "Blocks that fit on a SM, by resource"]
        lines += _pairs([(name, str(n)) for name, n in found.occupancy_limits.items()])
    lines += _opcode_lines(found.opcodes, width)
    if found.roofline is not None:
        drawing = min(_DRAWING, (width or PROSE_WIDTH) - _BESIDE_DRAWING)
        lines += ["", *_roofline_lines(found.roofline, width), ""]
        lines.append(roofline_text([found.roofline], max(drawing, _SHORTEST_DRAWING)))
    lines += _hot_lines("Hottest source lines", found.source, width)
    lines += _hot_lines("Hottest instructions", found.sass, width)
    if found.rules:
        lines += ["", "What NVIDIA's rules say"]
        for rule in found.rules[:_RULES]:
            gain = ""
            if rule.speedup:
                whose = "of the unit" if rule.local else "estimated"
                gain = f" (gain {whose} {percent(rule.speedup)})"
            lines += _points([f"{rule.rule}{gain}: {rule.message}"], width)
    lines += _notes("Not in this report", found.missing, width)
    return "\n".join(lines) + "\n"


def explanation_rows(found: Explanation) -> pa.Table:
    """The figures of an explanation, one a row; for CSV and Markdown."""
    import pyarrow as pa

    rows = [
        {"section": s.id, "label": f.label, "metric": f.metric, "value": f.value, "unit": f.unit}
        for s in found.sections
        for f in s.figures
    ]
    texts = [(name, pa.string()) for name in ("section", "label", "metric")]
    schema = pa.schema([*texts, ("value", pa.float64()), ("unit", pa.string())])
    return pa.Table.from_pylist(rows, schema=schema)


def report_diff_text(found: ReportDiff, width: int | None = None) -> str:
    """A comparison for a terminal: what changed by more than a twentieth."""
    lines: list[str] = []
    for pair in found.pairs:
        lines += wrapped(clean(pair.name, 110), width)
        for text in renaming(pair):
            lines += wrapped(text, width, hang=4)
        lines.append(f"  launches: {pair.before:,} before, {pair.after:,} after")
        was, now = LIMITERS[pair.limiter_before].title, LIMITERS[pair.limiter_after].title
        lines.append(f"  limited by {was}" + (f", now by {now}" if was != now else ", as before"))
        changed = [c for c in pair.changes if notable(c)]
        body = [
            [c.label, shown(c.before, c.unit), shown(c.after, c.unit), ratio_text(c)]
            for c in changed[:_CHANGES]
        ]
        if body:
            head = ["metric", "before", "after", "change"]
            lines += ["  " + line for line in _aligned(head, body, width)]
        else:
            lines.append("  no metric changed by more than 5 %")
        lines.append("")
    lines += _notes("Only before", [clean(name) for name in found.only_before], width)
    lines += _notes("Only after", [clean(name) for name in found.only_after], width)
    lines += _notes("Notes", found.warnings, width)
    return "\n".join(lines).rstrip("\n") + "\n"


def renaming(pair: Pair) -> list[str]:
    """What a kernel is called in the other report, and how sure that is; nothing where as here."""
    if pair.name_after in ("", pair.name):
        return []
    return [
        f"  after: {clean(pair.name_after, 110)}",
        f"  taken for the same kernel, {percent(pair.confidence)} sure: {', '.join(pair.evidence)}",
    ]


def report_diff_rows(found: ReportDiff) -> pa.Table:
    """A comparison with one metric a row; for CSV and Markdown."""
    import pyarrow as pa

    rows = [
        {"kernel": pair.name, "label": c.label, "metric": c.metric, "unit": c.unit,
         "before": c.before, "after": c.after, "ratio": c.ratio}
        for pair in found.pairs
        for c in pair.changes
    ]  # fmt: skip
    texts = [(name, pa.string()) for name in ("kernel", "label", "metric", "unit")]
    numbers = [(name, pa.float64()) for name in ("before", "after", "ratio")]
    return pa.Table.from_pylist(rows, schema=pa.schema([*texts, *numbers]))


def notable(change: Change) -> bool:
    """Whether a metric changed by so much that it is shown."""
    if change.ratio is None:
        return change.after != 0
    return abs(change.ratio - 1) >= _NOTABLE


def ratio_text(change: Change) -> str:
    """How many times as much it is now."""
    if change.ratio is None:
        return "new"
    return f"{change.ratio:.2f}x" if change.ratio < 100 else f"{change.ratio:,.0f}x"


def _stall_lines(stalls: Sequence[StallShare], width: int | None) -> list[str]:
    if not stalls:
        return []
    lines = ["", "Why warps do not issue (cycles of a warp for each instruction)"]
    for stall in stalls[:_STALLS]:
        figures = f"{stall.title:<20}{stall.cycles:>9.2f}  {percent(stall.share, 1):>7}  "
        text = f"{figures}waits for {stall.waits_for}"
        lines += wrapped(text, width, indent=2, hang=len(figures) + 2)
    top = next(
        (s for s in stalls if s.remedy != "none needed" and s.reason != "not_selected"), None
    )
    if top:
        lines += wrapped(f"{top.title}: {top.remedy}", width, indent=2, hang=4)
    return lines


def _opcode_lines(opcodes: dict[str, int], width: int | None) -> list[str]:
    total = sum(opcodes.values())
    if not total:
        return []
    most = sorted(opcodes.items(), key=lambda item: -item[1])[:_OPCODES]
    mix = ", ".join(f"{clean(name, 20)} {percent(count / total, 1)}" for name, count in most)
    return ["", *wrapped(f"Instruction mix: {mix}", width, hang=2)]


def _roofline_lines(found: Roofline, width: int | None) -> list[str]:
    kind = PRECISIONS.get(found.precision, "")
    lines = ["Roofline"]
    if kind:
        text = (
            f"{_maybe(found.flop_per_s, 'FLOP/s')}, mostly {kind}; ceiling "
            f"{_maybe(found.peak_flop_per_s, 'FLOP/s')}"
        )
        lines += wrapped(text, width, indent=2, hang=4)
    for roof in found.roofs:
        text = f"{LEVELS[roof.level]:<5}{shown(roof.bytes_per_s, 'byte/s')} of "
        text += shown(roof.peak_bytes_per_s, "byte/s")
        if roof.intensity:
            text += f", {roof.intensity:,.3g} FLOP/byte, {percent(roof.achieved, 1)} of its roof"
        else:
            text += f", {percent(roof.achieved, 1)}"
        lines += wrapped(text, width, indent=2, hang=7)
    if found.gap:
        name = LEVELS.get(found.nearest, "arithmetic")
        lines.append(f"  gap to the nearest roof ({name}): {found.gap:,.2f}x")
    return lines


def _hot_lines(title: str, lines: Sequence[HotLine], width: int | None) -> list[str]:
    if not lines:
        return []
    found = ["", title]
    for line in lines:
        weight = f"{percent(line.share, 1):>7}" if line.samples else f"{line.executed:>12,}"
        extra = f"  [{line.stall}]" if line.stall else ""
        if line.excess_sectors:
            extra += f"  {line.excess_sectors:,} unused sectors"
        text = f"{weight}  {clean(line.where, 48)}  {clean(line.text, _LONGEST_TEXT)}{extra}"
        found += wrapped(text, width, indent=2, hang=len(weight) + 4)
    return found


def _notes(title: str, texts: Sequence[str], width: int | None) -> list[str]:
    return ["", title, *_points(texts, width)] if texts else []


def _points(texts: Sequence[str], width: int | None) -> list[str]:
    points = (
        wrapped(f"- {clean(text, _LONGEST_POINT)}", width, indent=2, hang=4) for text in texts
    )
    return [line for lines in points for line in lines]


def _pairs(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return [f"  {label:<46}{text:>22}" for label, text in pairs]


def _aligned(head: list[str], body: list[list[str]], width: int | None) -> list[str]:
    """Names, and figures to their right, behind two spaces."""
    names, *figures = (list(cells) for cells in zip(*body, strict=True))
    columns = [name_column(head[0], names, least=20, weight=ALWAYS)]
    columns += [Column(title, cells) for title, cells in zip(head[1:], figures, strict=True)]
    return fitted(columns, None if width is None else width - 2)


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share, 1)


def _maybe(value: float | None, unit: str) -> str:
    return "" if value is None else shown(value, unit)


def _size(size: tuple[int, int, int]) -> str:
    return "x".join(f"{n:,}" for n in size)

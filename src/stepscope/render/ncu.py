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
from stepscope.render.roofline import roofline_text
from stepscope.render.text import clean

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_NAME = 48
_LONGEST_TEXT = 76
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


def kernels_text(table: KernelTable) -> str:
    """The table for a terminal, with what is missing below."""
    head = ["id", "kernel", "time", "limiter", "SM", "memory", "occupancy", "of", "FLOP/s",
            "bytes/s", "to roof"]  # fmt: skip
    body = [
        [
            str(row.id),
            clean(row.function or row.name, _LONGEST_NAME),
            _maybe(row.duration_ns, "ns"),
            LIMITERS[row.limiter].title,
            _percent(row.sm_throughput),
            _percent(row.memory_throughput),
            _percent(row.achieved_occupancy),
            _percent(row.theoretical_occupancy),
            _rate(row.flop_per_s, "FLOP/s"),
            _maybe(row.dram_bytes_per_s, "byte/s"),
            "" if row.roof_gap is None else f"{row.roof_gap:,.1f}x",
        ]
        for row in table.kernels
    ]
    lines = []
    if table.device:
        lines += [clean(table.device), ""]
    lines += _aligned(head, body, left=(1, 3))
    lines += _notes("Not in this report", table.missing) + _notes("Notes", table.warnings)
    lines += ["", "stepscope kernels REPORT --kernel ID explains one of them."]
    return "\n".join(lines) + "\n"


def explanation_text(found: Explanation, width: int = 60) -> str:
    """One launch, explained, for a terminal."""
    row = found.kernel
    lines = [
        clean(row.name, 200),
        f"launch {row.id}, grid {_size(row.grid)}, block {_size(row.block)}"
        + (f", {clean(found.device)}" if found.device else ""),
        "",
        f"Limited by {found.title} ({row.bound}-bound)"
        if row.bound not in ("unknown",)
        else "What limits it is not known",
        f"  {found.meaning}",
        *(f"  - {text}" for text in found.reasons),
        "",
        "What helps",
        *(f"  - {text}" for text in found.recommendations),
    ]
    lines += _notes("Also", found.also)
    for section in found.sections:
        lines += ["", section.title]
        lines += _pairs([(figure.label, figure.text) for figure in section.figures])
    lines += _stall_lines(found.stalls)
    if found.occupancy_limits:
        lines += ["", "Blocks that fit on a SM, by resource"]
        lines += _pairs([(name, str(n)) for name, n in found.occupancy_limits.items()])
    lines += _opcode_lines(found.opcodes)
    if found.roofline is not None:
        lines += ["", *_roofline_lines(found.roofline), "", roofline_text([found.roofline], width)]
    lines += _hot_lines("Hottest source lines", found.source)
    lines += _hot_lines("Hottest instructions", found.sass)
    if found.rules:
        lines += ["", "What NVIDIA's rules say"]
        for rule in found.rules[:_RULES]:
            gain = ""
            if rule.speedup:
                gain = f" (gain {'of the unit' if rule.local else 'estimated'} {rule.speedup:.0%})"
            lines.append(f"  - {rule.rule}{gain}: {clean(rule.message, 220)}")
    lines += _notes("Not in this report", found.missing)
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


def report_diff_text(found: ReportDiff) -> str:
    """A comparison for a terminal: what changed by more than a twentieth."""
    lines: list[str] = []
    for pair in found.pairs:
        lines += [
            clean(pair.name, 110),
            *renaming(pair),
            f"  launches: {pair.before:,} before, {pair.after:,} after",
        ]
        was, now = LIMITERS[pair.limiter_before].title, LIMITERS[pair.limiter_after].title
        lines.append(f"  limited by {was}" + (f", now by {now}" if was != now else ", as before"))
        changed = [c for c in pair.changes if notable(c)]
        body = [
            [c.label, shown(c.before, c.unit), shown(c.after, c.unit), ratio_text(c)]
            for c in changed[:_CHANGES]
        ]
        if body:
            head = ["metric", "before", "after", "change"]
            lines += ["  " + line for line in _aligned(head, body, left=(0,))]
        else:
            lines.append("  no metric changed by more than 5 %")
        lines.append("")
    lines += _notes("Only before", [clean(name) for name in found.only_before])
    lines += _notes("Only after", [clean(name) for name in found.only_after])
    lines += _notes("Notes", found.warnings)
    return "\n".join(lines).rstrip("\n") + "\n"


def renaming(pair: Pair) -> list[str]:
    """What a kernel is called in the other report, and how sure that is; nothing where as here."""
    if pair.name_after in ("", pair.name):
        return []
    return [
        f"  after: {clean(pair.name_after, 110)}",
        f"  taken for the same kernel, {pair.confidence:.0%} sure: {', '.join(pair.evidence)}",
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


def _stall_lines(stalls: Sequence[StallShare]) -> list[str]:
    if not stalls:
        return []
    lines = ["", "Why warps do not issue (cycles of a warp for each instruction)"]
    lines += [
        f"  {stall.title:<20}{stall.cycles:>9.2f}  {stall.share:>6.1%}  waits for {stall.waits_for}"
        for stall in stalls[:_STALLS]
    ]
    top = next(
        (s for s in stalls if s.remedy != "none needed" and s.reason != "not_selected"), None
    )
    return [*lines, f"  {top.title}: {top.remedy}"] if top else lines


def _opcode_lines(opcodes: dict[str, int]) -> list[str]:
    total = sum(opcodes.values())
    if not total:
        return []
    most = sorted(opcodes.items(), key=lambda item: -item[1])[:_OPCODES]
    mix = ", ".join(f"{clean(name, 20)} {count / total:.1%}" for name, count in most)
    return ["", f"Instruction mix: {mix}"]


def _roofline_lines(found: Roofline) -> list[str]:
    kind = PRECISIONS.get(found.precision, "")
    lines = ["Roofline"]
    if kind:
        lines.append(
            f"  {_rate(found.flop_per_s, 'FLOP/s')}, mostly {kind}; ceiling "
            f"{_rate(found.peak_flop_per_s, 'FLOP/s')}"
        )
    for roof in found.roofs:
        text = f"  {LEVELS[roof.level]:<5}{shown(roof.bytes_per_s, 'byte/s')} of "
        text += shown(roof.peak_bytes_per_s, "byte/s")
        if roof.intensity:
            text += f", {roof.intensity:,.3g} FLOP/byte, {roof.achieved:.1%} of its roof"
        else:
            text += f", {roof.achieved:.1%}"
        lines.append(text)
    if found.gap:
        name = LEVELS.get(found.nearest, "arithmetic")
        lines.append(f"  gap to the nearest roof ({name}): {found.gap:,.2f}x")
    return lines


def _hot_lines(title: str, lines: Sequence[HotLine]) -> list[str]:
    if not lines:
        return []
    found = ["", title]
    for line in lines:
        weight = f"{line.share:>6.1%}" if line.samples else f"{line.executed:>12,}"
        extra = f"  [{line.stall}]" if line.stall else ""
        if line.excess_sectors:
            extra += f"  {line.excess_sectors:,} unused sectors"
        found.append(
            f"  {weight}  {clean(line.where, 48)}  {clean(line.text, _LONGEST_TEXT)}{extra}"
        )
    return found


def _notes(title: str, texts: Sequence[str]) -> list[str]:
    return ["", title, *(f"  - {clean(text, 200)}" for text in texts)] if texts else []


def _pairs(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return [f"  {label:<46}{text:>22}" for label, text in pairs]


def _aligned(head: list[str], body: list[list[str]], left: tuple[int, ...]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(w) if i in left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, ["-" * w for w in widths], *body]
    ]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _maybe(value: float | None, unit: str) -> str:
    return "" if value is None else shown(value, unit)


def _rate(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return shown(value, unit)


def _size(size: tuple[int, int, int]) -> str:
    return "x".join(f"{n:,}" for n in size)

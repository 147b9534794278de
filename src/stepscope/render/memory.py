"""The memory of a job for people, and as CSV, JSON and Markdown. Sizes are MiB for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.render import tables
from stepscope.render.fitted import (
    PROSE_WIDTH,
    SHOWN_ROWS,
    TIED,
    Column,
    fitted,
    more_rows,
    name_column,
    wrapped,
)
from stepscope.render.text import clean, figure, percent, plural

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.memory.result import DeviceMemory, Holder, Memory, Moment, Prediction

_MIB = 1 << 20
_BARS = 72
_HIGH = 8
_AXIS = 11
"""Characters before the bars."""
_MARKS = {
    "parameter": "P", "optimizer_state": "O", "input": "I", "temporary": "t", "activation": "A",
    "gradient": "G", "autograd_detail": "d", "unknown": "?",
}  # fmt: skip
_LONGEST = 300


def as_json(found: Memory) -> str:
    """The contract ``stepscope.memory/1``."""
    return msgspec.json.encode(found).decode() + "\n"


def as_csv(found: Memory, by: str, limit: int) -> str:
    """Holders, steps or the timeline of all devices; sizes are bytes, times ns."""
    return tables.as_csv(_table(found, by, limit))


def as_markdown(found: Memory, limit: int) -> str:
    """The facts and the holders of every device."""
    from stepscope.render.markdown import escape

    blocks = []
    for device in found.devices:
        facts = [f"- {escape(line)}" for line in _facts(device)]
        blocks.append("\n".join([f"## {_title(device)}", "", *facts]) + "\n")
        shown = device.holders[:limit] if limit else device.holders
        columns = _holder_columns(shown, device.moment)
        head = "| " + " | ".join(c.title for c in columns) + " |"
        rows = [
            "| " + " | ".join(escape(cell) for cell in row) + " |"
            for row in zip(*(c.cells for c in columns), strict=True)
        ]
        blocks.append("\n".join([head, "|" + "---|" * len(columns), *rows]) + "\n")
        notes = [*_growth(device), *_fragments(device), *_refused(device), *device.warnings]
        if notes:
            blocks.append("\n".join(f"- {escape(clean(n, _LONGEST))}" for n in notes) + "\n")
    blocks += [f"- {escape(line)}\n" for p in found.prediction for line in _predicted(p)]
    return "\n".join(blocks)


def as_text(found: Memory, limit: int, width: int | None) -> str:
    """For a terminal."""
    lines: list[str] = []
    for device in found.devices:
        lines += wrapped(_title(device), width, hang=2)
        for fact in _facts(device):
            lines += wrapped(fact, width, indent=2, hang=4)
        lines.append("")
        if chart := _chart(device, width):
            lines += [*chart, ""]
        shown = device.holders[:limit] if limit else device.holders
        if shown:
            lines += wrapped(f"Allocated at the {_moment(device.moment)}", width, hang=2)
            lines += fitted(_holder_columns(shown, device.moment), width)
            if more := more_rows(len(device.holders), limit):
                lines += wrapped(more, width)
            lines.append("")
        notes = [*_growth(device), *_fragments(device), *_refused(device), *device.warnings]
        for note in notes:
            lines += wrapped(f"· {clean(note, _LONGEST)}", width, hang=2)
        if notes:
            lines.append("")
    for prediction in found.prediction:
        answer, *assumed = _predicted(prediction)
        lines += wrapped(answer, width, hang=2)
        for line in assumed:
            lines += wrapped(f"· {line}", width, indent=2, hang=4)
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _predicted(found: Prediction) -> list[str]:
    verdict = ""
    if found.limit_bytes is not None:
        word = {True: "fits", False: "does not fit", None: "may not fit"}[found.fits]
        verdict = f": {word} in {figure(found.limit_bytes, 'bytes')}"
    return [
        f"With {clean(found.change, _LONGEST)}: peak {_mib(found.peak_bytes)} "
        f"({_mib(found.low_bytes)} to {_mib(found.high_bytes)}){verdict}",
        *(clean(line, _LONGEST) for line in found.assumptions),
    ]


def _mib(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"


def _title(device: DeviceMemory) -> str:
    what = "host memory" if device.device < 0 else f"GPU {device.device}"
    kind = "allocations of the driver" if device.of_driver else "allocations of the framework"
    return f"Rank {device.rank}, {what}: {plural(device.events, 'event')}, {kind}"


def _moment(moment: Moment) -> str:
    at = "before the first event" if moment.time_ns is None else f"{moment.time_ns / 1e6:,.3f} ms"
    step = "" if moment.step is None else f", step {moment.step}"
    what = {"oom": "request that was refused"}.get(moment.what, moment.what)
    return f"{what} ({at}{step}): {_mib(moment.allocated_bytes)}"


def _facts(device: DeviceMemory) -> list[str]:
    peak = device.peak
    reserved = "" if peak.reserved_bytes is None else f", {_mib(peak.reserved_bytes)} reserved"
    lines = [f"{_moment(peak)} allocated{reserved}"]
    parts = sorted(peak.by_category_bytes.items(), key=lambda item: -item[1])
    if len(parts) > 1:
        whole = max(peak.allocated_bytes, 1)
        lines.append(
            ", ".join(f"{n.replace('_', ' ')} {_mib(v)} ({percent(v / whole)})" for n, v in parts)
        )
    return lines


def _holder_columns(rows: Sequence[Holder], moment: Moment) -> list[Column]:
    whole = max(moment.allocated_bytes, 1)
    return [
        Column("MiB", [f"{row.bytes / _MIB:,.2f}" for row in rows]),
        Column("share", [percent(row.bytes / whole) for row in rows], 6),
        Column("blocks", [f"{row.blocks:,}" for row in rows], 5),
        name_column("category", [row.category for row in rows], least=8, weight=9),
        name_column("operator", [row.operator for row in rows], least=12, weight=8),
        name_column("module", [row.module for row in rows], least=8, weight=4),
        Column("line", [clean(row.line) for row in rows], 7, 16, tail=True),
    ]


def _chart(device: DeviceMemory, width: int | None) -> list[str]:
    """Stacked categories over time, by letters."""
    time = device.timeline.time_ns
    if len(time) < 2 or not device.peak.allocated_bytes:
        return []
    span = max(time[-1] - time[0], 1)
    until = f" {span / 1e6:,.1f} ms"
    wide = min(_BARS, (width or PROSE_WIDTH) - _AXIS - len(until))
    if wide < 20:
        return []
    columns: list[int | None] = [None] * wide
    for row, at in enumerate(time):
        place = (at - time[0]) * (wide - 1) // span
        held = columns[place]
        total = device.timeline.allocated_bytes
        if held is None or total[row] > total[held]:
            columns[place] = row
    last = 0
    grid = [[" "] * wide for _ in range(_HIGH)]
    for place, held in enumerate(columns):
        last = last if held is None else held
        base = 0.0
        for name, values in device.timeline.by_category_bytes.items():
            top = base + values[last]
            for level in range(_HIGH):
                middle = (level + 0.5) * device.peak.allocated_bytes / _HIGH
                if base <= middle < top:
                    grid[_HIGH - 1 - level][place] = _MARKS[name]
            base = top
    scale = [device.peak.allocated_bytes * (level + 1) // _HIGH for level in range(_HIGH)][::-1]
    lines = [f"{s / _MIB:>9,.0f} |{''.join(r)}" for s, r in zip(scale, grid, strict=True)]
    legend = ", ".join(
        f"{_MARKS[n]}{TIED}{n.replace('_', TIED)}" for n in device.timeline.by_category_bytes
    )
    axis = f"{'MiB':>9} +{'-' * wide}{until}"
    return [*lines, axis, *wrapped(legend, width, indent=_AXIS, hang=_AXIS)]


def _growth(device: DeviceMemory) -> list[str]:
    if device.growth is None:
        return []
    lines = [device.growth.message]
    if device.growth.grows:
        lines += [
            f"kept: {_mib(h.bytes)} in {plural(h.blocks, 'block')}, {h.category} "
            f"{h.operator} {h.line}".rstrip()
            for h in device.growth.holders[:3]
        ]
    return lines


def _fragments(device: DeviceMemory) -> list[str]:
    f = device.fragmentation
    if f is None or f.reserved_bytes is None:
        return []
    unused = f.reserved_bytes - f.allocated_bytes
    share = percent(unused / max(f.reserved_bytes, 1))
    line = f"at the end {_mib(unused)} of {_mib(f.reserved_bytes)} reserved are unused ({share})"
    if f.largest_free_bytes is not None and f.inactive_split_bytes is not None:
        line += (
            f": largest free block {_mib(f.largest_free_bytes)}, "
            f"{_mib(f.inactive_split_bytes)} in segments that are in use (inactive split), "
            f"{_mib(f.free_segment_bytes or 0)} in free segments, "
            f"{_mib(f.rounding_bytes or 0)} lost to rounding"
        )
    return [line]


def _refused(device: DeviceMemory) -> list[str]:
    return [
        f"out of memory at {o.time_ns / 1e6:,.3f} ms{' in ' + o.line if o.line else ''}: "
        f"{o.message}"
        for o in device.out_of_memory
    ]


def _table(found: Memory, by: str, limit: int) -> pa.Table:
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    for device in found.devices:
        where = {"rank": device.rank, "device": device.device}
        if by == "step":
            rows += [{**where, **msgspec.to_builtins(step)} for step in device.steps]
        elif by == "time":
            line = device.timeline
            for at, time in enumerate(line.time_ns):
                reserved = line.reserved_bytes[at] if line.reserved_bytes else None
                parts = {f"{n}_bytes": v[at] for n, v in line.by_category_bytes.items()}
                rows.append({**where, "time_ns": time, "allocated_bytes": line.allocated_bytes[at],
                             "reserved_bytes": reserved, **parts})  # fmt: skip
        else:
            shown = device.holders[:limit] if limit else device.holders
            rows += [
                {**where, "moment": device.moment.what, **msgspec.to_builtins(h)} for h in shown
            ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def shown_rows(limit: int | None) -> int:
    """Rows for people: 20 unless told."""
    return SHOWN_ROWS if limit is None else limit

"""Operators by unique shape against the ceilings: GEMMs, convolutions, attention, and the others.

One row for each operator, input shapes, types and scalar inputs. The time of a call is that of all
kernels launched within it. FLOP and bytes are the least that the shapes allow
(:mod:`~stepscope.operators.flops`), so rates are useful work over time, whatever the kernels do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from stepscope.collectives.kinds import CODE, bus_factor
from stepscope.intervals.distinct import among, distinct_rows
from stepscope.jobs.view import JobView
from stepscope.kernels.categories import classify
from stepscope.kernels.kernels import Kernels
from stepscope.kernels.vendors import no_ceilings
from stepscope.operators.calltree import CATEGORIES, OPERATOR, CallTree, call_tree
from stepscope.operators.flops import MATH_OF_ITEM, OPERATORS, Work, streamed, works_of
from stepscope.operators.scope import in_scope, steady_sources
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import IntArray

SCHEMA: Final = "stepscope.operator_sheet/1"

SHEETS: Final = {
    "gemm": "GEMMs",
    "convolution": "convolutions",
    "attention": "scaled dot-product attention, fused",
    "normalisation": "layer, batch, group and RMS normalisation",
    "elementwise": "operators that go through their operands once: pointwise, copies, casts",
    "communication": "collectives by message size",
}
"""Every sheet and what it holds; each but the last with forward and backward operators."""

_NORMALISATION: Final = re.compile(r"(layer|batch|group|instance|rms)_?norm", re.IGNORECASE)
_BACKWARD: Final = re.compile(r"backward|bwd", re.IGNORECASE)
_CATEGORIES: Final = {"gemm": ("matmul",), "convolution": ("convolution",),
                      "attention": ("attention",), "normalisation": ("normalisation",)}  # fmt: skip
_MOSTLY: Final = 0.9
_STREAMING: Final = ("elementwise", "copy", "dropout", "compiled")


class SheetRow(msgspec.Struct, frozen=True):
    """One operator with one set of inputs.

    Attributes:
        operator: its name; of a collective its kind.
        shapes: input shapes as JSON text; of a collective the ranks of its group.
        types: types of the inputs as JSON text.
        scalars: scalar inputs as JSON text.
        phase: ``forward`` or ``backward``, by the name; empty for a collective.
        calls: calls in the steady steps.
        calls_per_step: the same a step and device.
        time_ns: device time of all calls.
        mean_ns: device time a call.
        share_of_device: part of all device time of the steady steps.
        math: arithmetic of its longest kernel; empty where not known.
        flop: operations of one call; null for a collective.
        moved_bytes: least bytes of one call; of a collective the message size.
        intensity: operations for each of these bytes; null for a collective.
        flop_per_s: achieved operations a second; null for a collective.
        bytes_per_s: least bytes over the time, a second; of a collective the algorithm bandwidth.
        bus_bytes_per_s: bus bandwidth of a collective as nccl-tests counts it; null for others.
        roof_flop_per_s: what the ceilings allow at this intensity; null for an unknown device.
        achieved: share of that ceiling; null where it is not known.
        bound: ``compute`` or ``memory``: the ceiling that is nearer; empty where not known.
        kernel: its longest kernel.
    """

    operator: str
    shapes: str
    types: str
    scalars: str
    phase: str
    calls: int
    calls_per_step: float
    time_ns: int
    mean_ns: float
    share_of_device: float
    math: str
    flop: float | None
    moved_bytes: float | None
    intensity: float | None
    flop_per_s: float | None
    bytes_per_s: float | None
    bus_bytes_per_s: float | None
    roof_flop_per_s: float | None
    achieved: float | None
    bound: str
    kernel: str


class Sheet(msgspec.Struct, frozen=True):
    """Operators of one kind by unique shape, in the steady steps.

    Attributes:
        schema: name and version of this contract.
        paths: the inputs as the user named them.
        sheet: key of ``SHEETS``.
        device: product name.
        source: where the ceilings are from; empty for an unknown device.
        bandwidth_bytes_per_s: ceiling of device memory; null where unknown.
        steps: steady steps, of all devices.
        rows: the longest time first.
        warnings: what is missing, and what would tell it.
    """

    schema: str
    paths: list[str]
    sheet: str
    device: str
    source: str
    bandwidth_bytes_per_s: float | None
    steps: int
    rows: list[SheetRow]
    warnings: list[str]


@dataclass
class _Group:
    """Calls with the same inputs."""

    work: Work
    calls: int = 0
    time_ns: int = 0
    kernels: dict[str, int] = field(default_factory=dict)


_Key = tuple[str, str, str, str]


def sheet_of(name: str) -> str:
    """The sheet that an operator of known work stands on; empty for none."""
    if name not in OPERATORS:
        return ""
    plain = name.lower()
    if "attention" in plain or "attn" in plain:
        return "attention"
    return "convolution" if "conv" in plain else "gemm"


def operator_sheet(job: JobView, paths: list[str], sheet: str) -> Sheet:
    """One sheet of a job; that of communication is made by :func:`communication_sheet`.

    Raises:
        UsageError: there is no such sheet.
    """
    if sheet not in SHEETS:
        raise UsageError(f"there is no sheet {sheet[:40]!r}; choose {', '.join(SHEETS)}")
    groups: dict[_Key, _Group] = {}
    device_ns, of_kind, shapes = 0, 0, False
    for source in steady_sources(job):
        tree = call_tree(source.read, python=False)
        wanted, on_device = in_scope(tree, source)
        device_ns += int(tree.gpu_ns[on_device].sum())
        mine = among(tree.gpu_category, [CATEGORIES.index(c) for c in _CATEGORIES.get(sheet, ())])
        of_kind += int(tree.gpu_ns[on_device & mine].sum()) if len(tree.gpu) else 0
        if len(tree.operators) and (tree.operators["input_shapes"] >= 0).any():
            shapes = True
            _add(tree, np.flatnonzero(wanted & (tree.kind == OPERATOR)), sheet, groups)
    first = job.devices[0].explanation.kernels
    steps = sum(device.explanation.n_steady for device in job.devices)
    rows = [
        _row(key, group, first, steps, max(device_ns, 1))
        for key, group in groups.items()
        if group.time_ns
    ]
    rows.sort(key=lambda row: (-row.time_ns, row.operator, row.shapes, row.scalars))
    warnings = []
    if not shapes:
        warnings.append(
            "no operator with shapes: capture with torch.profiler.profile(record_shapes=True), or "
            "nsys with torch.autograd.profiler.emit_nvtx(record_shapes=True)"
        )
    known = sum(row.time_ns for row in rows)
    if shapes and known < _MOSTLY * of_kind:
        warnings.append(
            f"kernels of this kind take {of_kind / 1e6:,.3f} ms, the operators here "
            f"{known / 1e6:,.3f} ms: the work of the others is not known from their records "
            "(old versions of PyTorch record no strides and paddings, and kernels that no operator "
            "with shapes launched have none)"
        )
    if first.peaks is None:
        warnings.append(no_ceilings(first.device[0], first.vendor))
    return Sheet(
        schema=SCHEMA,
        paths=paths,
        sheet=sheet,
        device=first.device[0],
        source=first.peaks.source if first.peaks else "",
        bandwidth_bytes_per_s=first.bandwidth or None,
        steps=steps,
        rows=rows,
        warnings=warnings,
    )


def _add(tree: CallTree, rows: IntArray, sheet: str, groups: dict[_Key, _Group]) -> None:
    """Add the calls of one trace."""
    table = tree.operators
    texts = table.texts["name"]
    works, code = works_of(table)
    if sheet in ("gemm", "convolution", "attention"):
        mine = np.array([sheet_of(text) == sheet for text in texts] + [False])
        known = np.zeros(len(tree), np.int64)
        known[tree.kind == OPERATOR] = code[tree.row[tree.kind == OPERATOR]] >= 0
        inner = (tree.with_children(known) - known) > 0
        rows = rows[mine[table["name"][tree.row[rows]]] & (known[rows] > 0) & ~inner[rows]]
        time, launched = tree.device_ns, tree.nearest((known > 0) & ~inner)
    else:
        named = np.array([bool(_NORMALISATION.search(text)) for text in texts] + [False])
        gemm = np.array([bool(sheet_of(text)) for text in texts] + [False])
        name = table["name"][tree.row[rows]]
        if sheet == "normalisation":
            rows = rows[named[name]]
        else:
            streaming = [CATEGORIES.index(category) for category in _STREAMING]
            fits = np.append(np.bincount(streaming, minlength=len(CATEGORIES)) > 0, False)
            rows = rows[~named[name] & ~gemm[name] & fits[tree.category[rows]]]
        time, launched = tree.self_device_ns, np.arange(len(tree))
    if not len(rows):
        return
    of = tree.row[rows]
    columns = ("name", "input_shapes", "input_types", "concrete_inputs")
    first, number = distinct_rows([table[column][of] for column in columns])
    names = _kernel_names(tree, launched, rows, number)
    calls = np.bincount(number)
    held = np.bincount(number, weights=time[rows])
    for at, row in enumerate(first.tolist()):
        here = int(of[row])
        key = tuple(table.text(column, here) for column in columns)
        if sheet in ("gemm", "convolution", "attention"):
            work: Work | None = works[int(code[here])]
        else:
            work = streamed(key[0], key[1], key[2])
        if work is None:
            continue
        group = groups.setdefault(key, _Group(work))  # type: ignore[arg-type]
        group.calls += int(calls[at])
        group.time_ns += round(held[at])
        for kernel, spent in names.get(at, {}).items():
            group.kernels[kernel] = group.kernels.get(kernel, 0) + spent


def _kernel_names(
    tree: CallTree, launched: IntArray, rows: IntArray, number: IntArray
) -> dict[int, dict[str, int]]:
    """Device time by kernel of each group of calls."""
    of = np.full(len(tree) + 1, -1, np.int64)
    of[rows] = number
    around = np.where(tree.launcher >= 0, launched[np.maximum(tree.launcher, 0)], -1)
    group = of[around]
    mine = np.flatnonzero(group >= 0)
    found: dict[int, dict[str, int]] = {}
    if not len(mine):
        return found
    first, pair = distinct_rows([group[mine], tree.gpu["name"][mine]])
    held = np.bincount(pair, weights=tree.gpu_ns[mine])
    for at, row in enumerate(first.tolist()):
        kernel = tree.gpu.text("name", int(mine[row]))
        found.setdefault(int(group[mine[row]]), {})[kernel] = round(held[at])
    return found


def _row(key: _Key, group: _Group, kernels: Kernels, steps: int, device_ns: int) -> SheetRow:
    work = group.work
    longest = max(group.kernels, key=lambda name: (group.kernels[name], name), default="")
    known = classify(longest)
    gemm = bool(sheet_of(key[0]))
    math = (known.math if known.math != "tensor" else "") or MATH_OF_ITEM.get(work.item, "")
    math = math if gemm else ""
    rate = work.flop * group.calls / group.time_ns * 1e9
    speed = work.moved_bytes * group.calls / group.time_ns * 1e9
    intensity = work.flop / work.moved_bytes if work.moved_bytes else 0.0
    bandwidth = kernels.bandwidth
    peak = kernels.peaks.of(math) if kernels.peaks and gemm else 0.0
    if gemm:
        roof = min(peak, intensity * bandwidth) if peak and bandwidth and intensity else 0.0
    else:
        roof = intensity * bandwidth
    bound = "" if not roof else "compute" if gemm and roof == peak else "memory"
    return SheetRow(
        operator=key[0],
        shapes=key[1],
        types=key[2],
        scalars=key[3],
        phase="backward" if _BACKWARD.search(key[0]) else "forward",
        calls=group.calls,
        calls_per_step=group.calls / max(steps, 1),
        time_ns=group.time_ns,
        mean_ns=group.time_ns / max(group.calls, 1),
        share_of_device=group.time_ns / device_ns,
        math=math,
        flop=work.flop,
        moved_bytes=work.moved_bytes,
        intensity=intensity,
        flop_per_s=rate,
        bytes_per_s=speed,
        bus_bytes_per_s=None,
        roof_flop_per_s=roof or None,
        achieved=rate / roof if roof else None,
        bound=bound,
        kernel=known.label,
    )


COMMUNICATION_SQL: Final = """
SELECT name, "group", group_size, bytes, count(*) AS calls,
       sum(end_ns - start_ns)::BIGINT AS time_ns, sum(transfer_ns)::BIGINT AS transfer_ns
FROM collective_wait WHERE step IS NOT NULL
GROUP BY ALL ORDER BY time_ns DESC, name, "group", bytes
"""
"""Collectives of the shared steady steps by kind, group and message size."""


def communication_sheet(job: JobView, paths: list[str], rows: Sequence[Mapping[str, Any]]) -> Sheet:
    """The sheet of communication.

    Args:
        job: the explained job.
        paths: the inputs as the user named them.
        rows: what ``COMMUNICATION_SQL`` answers.
    """
    steps = sum(device.explanation.n_steady for device in job.devices)
    first = job.devices[0].explanation.kernels
    kernels = [device.explanation.kernels for device in job.devices]
    whole = sum(int(one.duration_ns[one.steady].sum()) for one in kernels)
    found = []
    for row in rows:
        size, transfer, calls = row["bytes"], row["transfer_ns"], row["calls"]
        speed = size * calls / transfer * 1e9 if size and transfer else None
        members = np.array([row["group_size"] or 1])
        factor = float(bus_factor(np.array([CODE[row["name"]]]), members)[0])
        found.append(
            SheetRow(
                operator=row["name"],
                shapes=row["group"],
                types="",
                scalars="",
                phase="",
                calls=calls,
                calls_per_step=calls / max(steps, 1),
                time_ns=row["time_ns"],
                mean_ns=row["time_ns"] / max(calls, 1),
                share_of_device=row["time_ns"] / max(whole, 1),
                math="",
                flop=None,
                moved_bytes=size,
                intensity=None,
                flop_per_s=None,
                bytes_per_s=speed,
                bus_bytes_per_s=speed * factor if speed and row["group_size"] else None,
                roof_flop_per_s=None,
                achieved=None,
                bound="",
                kernel="",
            )
        )
    warnings = [] if found else ["the steady steps hold no collective"]
    return Sheet(
        schema=SCHEMA,
        paths=paths,
        sheet="communication",
        device=first.device[0],
        source="",
        bandwidth_bytes_per_s=None,
        steps=steps,
        rows=found,
        warnings=warnings,
    )

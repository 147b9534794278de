"""Operators against the device's ceilings: FLOP, bytes, what was achieved, what ncu should see.

Only operators whose shapes tell their work count (``flops.OPERATORS``). The time of a call is that
of all kernels that it launched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from stepscope.activity.device import Reader
from stepscope.breakdown.explain import Explanation
from stepscope.intervals.distinct import among, distinct_values
from stepscope.jobs.view import JobView
from stepscope.kernels.categories import PRODUCTS
from stepscope.kernels.ceilings import peaks_of
from stepscope.kernels.efficiency import FAR_BELOW, LONG_ENOUGH_NS
from stepscope.kernels.kernels import MATH_NAMES, Kernels
from stepscope.kernels.vendors import no_ceilings
from stepscope.operators.flops import MATH_OF_ITEM, Work, work_of_call, works_of
from stepscope.trace.frame import AnyArray, BoolArray, Frame, IntArray

SCHEMA: Final = "stepscope.operator_rooflines/2"

WORTH_EXAMINING = 0.01
"""Share of the step from which a slow operator is worth a run of ncu."""

LAUNCHES = 3
"""Launches that the ncu command captures: one may be odd, three show it."""

_TYPES: Final = {"fp64": "double", "fp32": "float", "tf32": "float", "16bit": "c10::BFloat16",
                 "8bit": "c10::Float8_e4m3fn"}  # fmt: skip
"""Type of the operands that an arithmetic has, where the types are not recorded."""


class OperatorRoofline(msgspec.Struct, frozen=True):
    """One operator with one set of shapes, on all devices.

    Attributes:
        operator: its name.
        shapes: input shapes as recorded, JSON text.
        calls_per_step: calls a step and device.
        time_ns_per_step: time of its kernels a step and device.
        share_of_step: part of the step.
        math: arithmetic of its products, a key of the reference page on kernels.
        flop: operations of one call.
        moved_bytes: least bytes of one call.
        intensity: operations for each of these bytes.
        flop_per_s: achieved operations a second.
        bytes_per_s: least bytes over the time, a second.
        peak_flop_per_s: ceiling of that arithmetic; null for an unknown device.
        roof_flop_per_s: what the ceilings allow at this intensity; null for an unknown device.
        achieved: share of that roof; null for an unknown device.
        bound: ``compute`` or ``memory``: the ceiling that is nearer; empty for an unknown device.
        kernel: its longest kernel.
        examine: the ncu command that examines it; null where it is near the roof or short.
    """

    operator: str
    shapes: str
    calls_per_step: float
    time_ns_per_step: int
    share_of_step: float
    math: str
    flop: float
    moved_bytes: float
    intensity: float
    flop_per_s: float
    bytes_per_s: float
    peak_flop_per_s: float | None
    roof_flop_per_s: float | None
    achieved: float | None
    bound: str
    kernel: str
    examine: str | None


class OperatorRooflines(msgspec.Struct, frozen=True):
    """The operators of a job against the ceilings of its devices.

    Attributes:
        schema: name and version of this contract.
        paths: the inputs as the user named them.
        device: product name.
        source: where the ceilings are from: a datasheet, or when they were measured; empty for
            an unknown device.
        bandwidth_bytes_per_s: ceiling of device memory; null where unknown.
        step_ns: mean steady step.
        flop_per_step: known operations a step and device.
        flop_per_s: the same over the whole step.
        mfu: model FLOP utilisation: these over the dense 16-bit tensor peak; null where unknown.
        known_share: share of the time of GEMMs, convolutions and attention whose work
            is known.
        operators: one entry an operator and shapes, the longest time first.
        warnings: what was assumed, and what is missing.
    """

    schema: str
    paths: list[str]
    device: str
    source: str
    bandwidth_bytes_per_s: float | None
    step_ns: int
    flop_per_step: float
    flop_per_s: float
    mfu: float | None
    known_share: float
    operators: list[OperatorRoofline]
    warnings: list[str]


@dataclass
class OperatorGroup:
    """Calls of one operator with one set of shapes and one arithmetic."""

    work: Work
    calls: int
    time_ns: int
    math: str
    kernel: int
    rows: IntArray


def operator_rooflines(view: JobView, paths: list[str]) -> OperatorRooflines:
    """The operators of a job against its devices' ceilings."""
    entries, known_share = _entries(view)
    operators = [entry for entry, _ in entries]
    first = view.devices[0].explanation
    step_ns = _step_ns(view)
    flop = sum(entry.flop * entry.calls_per_step for entry in operators)
    peaks = first.kernels.peaks
    rate = flop / step_ns * 1e9
    # by definition over the datasheet's peak; a measured one would flatter every program
    sheet = peaks_of(first.kernels.device[0]) or peaks
    return OperatorRooflines(
        schema=SCHEMA,
        paths=paths,
        device=first.kernels.device[0],
        source=peaks.source if peaks else "",
        bandwidth_bytes_per_s=first.kernels.bandwidth or None,
        step_ns=round(step_ns),
        flop_per_step=flop,
        flop_per_s=rate,
        mfu=rate / sheet.half if sheet and sheet.half and not sheet.only_ratios else None,
        known_share=known_share,
        operators=operators,
        warnings=_warnings(first, bool(operators), any(o.examine for o in operators)),
    )


def far_below(view: JobView) -> list[str]:
    """Full names of the kernels of operators far below their roof, the heaviest first."""
    return [name for entry, name in _entries(view)[0] if entry.examine]


def _step_ns(view: JobView) -> float:
    """Mean steady step of all devices."""
    steps = sum(device.explanation.n_steady for device in view.devices)
    return sum(d.explanation.step_ns * d.explanation.n_steady for d in view.devices) / steps


def _entries(view: JobView) -> tuple[list[tuple[OperatorRoofline, str]], float]:
    """(operators with the full name of their longest kernel, share of products that is known)."""
    merged: dict[tuple[str, str, str], tuple[list[OperatorGroup], Kernels]] = {}
    gemm_ns = known_ns = 0
    for device in view.devices:
        kernels = device.explanation.kernels
        gemms = kernels.in_category(*PRODUCTS) & kernels.steady
        gemm_ns += int(kernels.duration_ns[gemms].sum())
        groups, covered = operator_groups(kernels, device.read)
        known_ns += int(kernels.duration_ns[gemms & covered].sum())
        for key, group in groups.items():
            merged.setdefault(key, ([], kernels))[0].append(group)
    steps = sum(device.explanation.n_steady for device in view.devices)
    step_ns = _step_ns(view)
    found = [
        (
            _entry(key, groups, kernels, steps, step_ns),
            kernels.gpu.ops.texts["name"][groups[0].kernel],
        )
        for key, (groups, kernels) in merged.items()
    ]
    return (
        sorted(found, key=lambda item: -item[0].time_ns_per_step),
        known_ns / gemm_ns if gemm_ns else 0.0,
    )


def operator_groups(
    kernels: Kernels, read: Reader
) -> tuple[dict[tuple[str, str, str], OperatorGroup], AnyArray]:
    """Groups of one device by (operator, shapes, arithmetic), and which operations they cover."""
    who, ops = kernels.attribution, kernels.gpu.ops
    table = who.operators
    covered = np.zeros(len(ops), bool)
    if not len(table) or "input_shapes" not in table:
        return {}, covered
    works, kind = _works(kernels, read)
    kind = np.where(_wrapping(kind, who.parents), -1, kind)
    # the nearest enclosing operator whose work is known
    at = who.operator.copy()
    while True:
        climb = (at >= 0) & (kind[np.maximum(at, 0)] < 0)
        if not climb.any():
            break
        at[climb] = who.parents[at[climb]]
    covered = (at >= 0) & kernels.gpu.is_compute
    rows = np.flatnonzero(covered & kernels.steady)
    groups: dict[tuple[str, str, str], OperatorGroup] = {}
    if not len(rows):
        return groups, covered
    kinds = kind[at[rows]]
    order = np.argsort(kinds, kind="stable")
    rows, kinds = rows[order], kinds[order]
    duration, name = kernels.duration_ns, ops["name"]
    gemm = kernels.in_category(*PRODUCTS)
    for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(kinds)) + 1):
        mine = rows[part]
        call = int(at[mine[0]])
        work = works[int(kinds[part[0]])]
        math = _math(kernels, mine[gemm[mine]], work)
        if not work.item:  # names of NVTX ranges hold shapes, but no types
            shapes = table.text("input_shapes", call)
            types = f'["{_TYPES.get(math, "")}"]'
            work = work_of_call(table.text("name", call), shapes, types, "") or work
        time = np.bincount(name[mine], weights=duration[mine])
        key = table.text("name", call), table.text("input_shapes", call), math
        found = OperatorGroup(work, len(distinct_values(at[mine])), int(duration[mine].sum()), math,
                       int(np.argmax(time)), mine)  # fmt: skip
        if key in groups:  # the same shapes with other scalars: their mean work
            before = groups[key]
            total = before.calls + found.calls
            mean = Work(
                (before.work.flop * before.calls + work.flop * found.calls) / total,
                (before.work.moved_bytes * before.calls + work.moved_bytes * found.calls) / total,
                work.item,
            )
            rows_ = np.concatenate((before.rows, mine))
            found = OperatorGroup(
                mean, total, before.time_ns + found.time_ns, math, before.kernel, rows_
            )
        groups[key] = found
    return groups, covered


def _wrapping(kind: IntArray, parents: IntArray) -> BoolArray:
    """Operators that hand their work to a known one inside: counted as well, it would be doubled.

    ``aten::linear`` calls ``aten::addmm``, and casts its operands beside it.
    """
    wrapping = np.zeros(len(kind), bool)
    at = distinct_values(parents[kind >= 0])
    at = at[at >= 0]
    while len(at):
        wrapping[at] = True
        at = distinct_values(parents[at])
        at = at[at >= 0]
    return wrapping


def _works(kernels: Kernels, read: Reader) -> tuple[list[Work], IntArray]:
    """Distinct known works, and which of them each operator row is; -1 for none."""
    table = kernels.attribution.operators
    scalars = read("operator", "id", "concrete_inputs")
    order = np.argsort(scalars["id"], kind="stable")
    place = order[np.searchsorted(scalars["id"][order], table["id"])]
    whole = {**table.columns, "concrete_inputs": scalars["concrete_inputs"][place]}
    texts = {**table.texts, "concrete_inputs": scalars.texts["concrete_inputs"]}
    return works_of(Frame(whole, texts))


def _math(kernels: Kernels, rows: IntArray, work: Work) -> str:
    """Arithmetic of most of the time, by the kernels' names, else by the operands' type."""
    codes = kernels.math[rows]
    named = codes >= 0
    if named.any():
        time = np.bincount(codes[named], weights=kernels.duration_ns[rows[named]])
        name = MATH_NAMES[int(np.argmax(time))]
        if name != "tensor":
            return name
    return MATH_OF_ITEM.get(work.item, "")


def _entry(
    key: tuple[str, str, str],
    groups: list[OperatorGroup],
    kernels: Kernels,
    steps: int,
    step_ns: float,
) -> OperatorRoofline:
    name, shapes, math = key
    calls = sum(group.calls for group in groups)
    time = sum(group.time_ns for group in groups)
    flop = sum(group.work.flop * group.calls for group in groups) / calls
    moved = sum(group.work.moved_bytes * group.calls for group in groups) / calls
    peak = kernels.peaks.of(math) if kernels.peaks else 0.0
    bandwidth = kernels.bandwidth
    intensity = flop / moved if moved else 0.0
    roof = min(peak, intensity * bandwidth) if peak and bandwidth and intensity else 0.0
    rate = flop * calls / max(time, 1) * 1e9
    achieved = rate / roof if roof else None
    share = time / steps / step_ns
    slow = achieved is not None and achieved < FAR_BELOW and share >= WORTH_EXAMINING
    long_ = time >= LONG_ENOUGH_NS * calls
    label = kernels.classes[groups[0].kernel].label
    return OperatorRoofline(
        operator=name,
        shapes=shapes,
        calls_per_step=calls / steps,
        time_ns_per_step=round(time / steps),
        share_of_step=share,
        math=math,
        flop=flop,
        moved_bytes=moved,
        intensity=intensity,
        flop_per_s=rate,
        bytes_per_s=moved * calls / max(time, 1) * 1e9,
        peak_flop_per_s=peak or None,
        roof_flop_per_s=roof or None,
        achieved=achieved,
        bound="" if not roof else "compute" if roof == peak else "memory",
        kernel=label,
        examine=ncu_command(kernels, groups[0].rows, groups[0].kernel) if slow and long_ else None,
    )


def ncu_command(kernels: Kernels, rows: IntArray, name: int) -> str:
    """The command that captures the first of some launches again.

    ``--launch-skip`` counts only launches that the kernel filter lets through, so it is the number
    of launches of that function before, in the order in which the program launched them.

    Args:
        kernels: the device's kernels.
        rows: the launches.
        name: code of the kernel's name.
    """
    ops = kernels.gpu.ops
    plain = function_name(ops.texts["name"][name])
    same = [code for code, text in enumerate(ops.texts["name"]) if function_name(text) == plain]
    order = kernels.order
    alike = order[among(ops["name"][order], same) & kernels.gpu.is_kernel[order]]
    mine = among(alike, rows[ops["name"][rows] == name])
    skip = int(np.argmax(mine)) if mine.any() else 0
    return (
        f"ncu --set full -k 'regex:^{plain}$' --launch-skip {skip} --launch-count {LAUNCHES} "
        "-o kernel python train.py"
    )


def function_name(kernel: str) -> str:
    """A kernel's function name, as ``ncu -k`` compares it; only characters that a shell takes.

    Args:
        kernel: demangled name; it comes from the trace and is not trusted.
    """
    plain = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    short = re.split(r"[<(]", plain, maxsplit=1)[0].rsplit("::", 1)[-1].strip()
    return re.sub(r"[^A-Za-z0-9_]", ".", short) or ".*"


def _warnings(first: Explanation, known: bool, examined: bool) -> list[str]:
    stated = []
    if not known:
        stated.append(
            "no operator with shapes: capture with torch.profiler.profile(activities=[CPU, CUDA], "
            "record_shapes=True), or nsys with torch.autograd.profiler.emit_nvtx("
            "record_shapes=True)"
        )
    if first.kernels.peaks is None:
        stated.append(no_ceilings(first.kernels.device[0], first.kernels.vendor))
    if examined:
        stated.append(
            "--launch-skip counts from the first launch of the capture: add the launches before "
            "it, or start ncu at the same place (--profile-from-start off). All of them at once: "
            "stepscope run --backend ncu --examine CAPTURE --steps 1 -- python train.py"
        )
    return stated


MOST_LAUNCHES: Final = 40
"""Launches of one capture: with the full set ncu runs each some 40 times, about a second."""


@dataclass(frozen=True)
class Launches:
    """Launches for ncu's filters.

    Attributes:
        functions: function names, without parameters, the heaviest first; shell-safe.
        skip: launches of these functions before the first steady step of the trace.
        count: launches of these functions in that step, at most ``MOST_LAUNCHES``.
        left_out: functions that would have been too many launches.
    """

    functions: tuple[str, ...]
    skip: int
    count: int
    left_out: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """What ``ncu --kernel-name`` takes."""
        return f"regex:^({'|'.join(self.functions)})$"


def launches_of(kernels: Kernels, names: Sequence[str]) -> Launches | None:
    """The launches of some kernels in the first steady step; None where they have none there.

    Args:
        kernels: the device.
        names: full kernel names, the heaviest first.
    """
    wanted = list(dict.fromkeys(function_name(name) for name in names))
    ops = kernels.gpu.ops
    place = {function: at for at, function in enumerate(wanted)}
    missing = len(wanted)
    texts = ops.texts["name"]
    codes = np.array([place.get(function_name(text), missing) for text in texts] + [missing])
    order = kernels.order[kernels.gpu.is_kernel[kernels.order]]
    functions = codes[ops["name"][order]]
    steady = kernels.step[order][kernels.steady[order]]
    if not len(steady):
        return None
    inside = kernels.step[order] == steady.min()
    a_step = np.bincount(functions[inside], minlength=missing + 1)[:missing]
    kept: list[int] = []
    for at in range(missing):
        # the heaviest is kept whatever it costs
        if a_step[at] and (not kept or a_step[[*kept, at]].sum() <= MOST_LAUNCHES):
            kept.append(at)
    if not kept:
        return None
    mine = among(functions, kept)
    first = int(np.argmax(mine & inside))
    return Launches(
        functions=tuple(wanted[at] for at in kept),
        skip=int(mine[:first].sum()),
        count=min(int(a_step[kept].sum()), MOST_LAUNCHES),
        left_out=tuple(wanted[at] for at in range(missing) if a_step[at] and at not in kept),
    )

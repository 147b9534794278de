"""The GPU's time by kernel category against its ceilings, and the least step that these allow."""

from __future__ import annotations

from math import floor
from typing import Final

import numpy as np

from stepscope.diagnosis import frameworks, vendors
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS, Compute, all_evaluated, places
from stepscope.diagnosis.result import Evidence, KernelCategory, KernelSplit, StepBound
from stepscope.intervals.distinct import distinct_values
from stepscope.kernels.fusion import WAITING
from stepscope.kernels.kernels import CATEGORY_NAMES
from stepscope.operators.bounds import KernelBounds, kernel_bounds
from stepscope.operators.roofline import function_name
from stepscope.trace.units import Unit, percent

EXAMINED: Final = 3
"""Kernels that are worth a run of Nsight Compute at most."""
WORTH: Final = 0.02
"""Share of the step from which on one is."""
_ALL = 0.995
_LONGEST = 64  # characters of a function name in a command
_UNKNOWN_LOSS = 0.5
"""What a kernel of unknown work is taken to lose when kernels are ranked for that."""
_STEADY: Final = "FROM kernel_bound WHERE steady AND {gpu}"
_LEAST: Final = (
    "own_ns * coalesce(least_ns, end_ns - start_ns)::DOUBLE / greatest(end_ns - start_ns, 1)"
)
_PARTS: Final = (
    f"FROM (SELECT sum(CASE WHEN compute {{which}} THEN {_LEAST} ELSE 0 END) AS kernels "
    f"{_STEADY}), "
    "(SELECT count(*) AS steps, sum(wall_ns) AS wall, "
    "sum(exposed_communication_ns + exposed_copy_ns + memset_ns) AS rest "
    "FROM step WHERE steady AND {gpu})"
)
_BOUND_OF: Final = "round(kernels / steps + rest / steps)::BIGINT"
_SPEEDUP_OF: Final = f"round(round(wall / steps)::BIGINT / {_BOUND_OF}::DOUBLE, 4)"
_OF_ALL: Final = _PARTS.replace("{which} ", "")
_FUSED: Final = _PARTS.replace("{which}", f"AND category NOT IN {WAITING}")
"""The same where kernels that wait for memory are merged into their neighbours without a rest."""

_OF_BOUND: Final = (
    Figure("kernels.bound_ns", "ns", f"SELECT {_BOUND_OF} {_OF_ALL}"),
    Figure("kernels.fused_bound_ns", "ns", f"SELECT {_BOUND_OF} {_FUSED}"),
    Figure(
        "kernels.known_share",
        "share",
        "SELECT round(coalesce(sum(own_ns) FILTER (least_ns IS NOT NULL), 0)::DOUBLE / "
        f"sum(own_ns), 4) {_STEADY} AND compute",
    ),
    Figure("kernels.speedup", "ratio", f"SELECT {_SPEEDUP_OF} {_OF_ALL}"),
    Figure("kernels.fused_speedup", "ratio", f"SELECT {_SPEEDUP_OF} {_FUSED}"),
)


def kernel_split(case: Case, compute: Compute) -> KernelSplit | None:
    """The split of one device; None where it has no kernels.

    Args:
        case: the device.
        compute: evaluates evidence statements.
    """
    kernels = case.explanation.kernels
    if not (kernels.gpu.is_compute & kernels.steady).any():
        return None
    bounds = kernel_bounds(kernels, case.device.read)
    rows = kernels.steady & kernels.gpu.is_compute
    evidence: list[Evidence] = []

    def computed(name: str, unit: Unit, value: float, sql: str, count: int) -> None:
        """A figure that is known without its statement: there are two for every category."""
        sql = sql.format(**places(case))
        evidence.append(Evidence(f"kernels.{name}", value, unit, sql, count))

    categories = []
    step = case.step_ns
    for code in distinct_values(kernels.category[rows]).tolist():
        mine = rows & (kernels.category == code)
        name = CATEGORY_NAMES[code]
        of = f"{_STEADY} AND compute AND category = '{name}'"
        # rounded as SQL rounds, half away from zero
        time = int(int(bounds.own_ns[mine].sum()) / case.explanation.n_steady + 0.5)
        computed(
            f"{name}.time_ns_per_step",
            "ns",
            time,
            f"SELECT round(sum(own_ns) / {STEADY_STEPS})::BIGINT {of}",
            int(mine.sum()),
        )
        sure = mine & bounds.known
        known = int(bounds.own_ns[sure].sum())
        achieved = None
        if known:
            least = int(bounds.least_ns[sure].sum())
            achieved = floor(least / int(kernels.duration_ns[sure].sum()) * 1e4 + 0.5) / 1e4
            computed(
                f"{name}.achieved",
                "share",
                achieved,
                f"SELECT round(sum(least_ns)::DOUBLE / sum(end_ns - start_ns), 4) {of} AND "
                "least_ns IS NOT NULL",
                int(sure.sum()),
            )
        by_arithmetic = int(bounds.own_ns[mine & bounds.by_arithmetic].sum())
        total = max(int(bounds.own_ns[mine].sum()), 1)
        categories.append(
            KernelCategory(
                category=name,
                time_ns_per_step=time,
                share_of_step=round(time / step, 4),
                achieved=achieved,
                known_share=round(known / total, 4),
                bound=("compute" if 2 * by_arithmetic > known else "memory") if known else "",
            )
        )
    categories.sort(key=lambda one: (-one.time_ns_per_step, one.category))
    bound = None
    if kernels.bandwidth:
        of_bound = all_evaluated(_OF_BOUND, case, compute)
        evidence += of_bound
        bound = _bound(case, of_bound)
    return KernelSplit(
        device=kernels.device[0],
        ceilings=kernels.peaks.source if kernels.peaks else "",
        measured=bool(kernels.peaks and kernels.peaks.measured),
        rank=case.rank,
        categories=categories,
        bound=bound,
        examine=_examine(case, bounds),
        vendor=kernels.vendor.value,
        evidence=evidence,
    )


def _bound(case: Case, evidence: list[Evidence]) -> StepBound:
    """The least step that the ceilings allow, and how much of the kernel time it is known of."""
    kernels = case.explanation.kernels
    bound, fused, known, speedup, least = (one.value for one in evidence)
    assumed = [
        "kernels of the same work, type and algorithm, each at its ceiling; no idle time; "
        "exposed communication and exposed copies stay as they are",
    ]
    if known < _ALL:
        missing = "" if len(kernels.attribution.operators) else " (no operator shapes are recorded)"
        assumed.append(
            f"the work of {percent(1 - known)} of the kernel time is not known{missing}: it is "
            "counted as it is, so that the bound holds only as long as those kernels do not change"
        )
    return StepBound(
        bound_ns=int(bound),
        speedup=speedup,
        fused_bound_ns=int(fused),
        fused_speedup=least,
        known_share=known,
        assumed=assumed,
    )


def _examine(case: Case, bounds: KernelBounds) -> str | None:
    """The command that examines the kernels which lose most time against their ceilings."""
    kernels = case.explanation.kernels
    gpu = kernels.gpu
    rows = np.flatnonzero(kernels.steady & gpu.is_compute & gpu.ops.equals("kind", "kernel"))
    if not len(rows):
        return None
    duration = np.maximum(kernels.duration_ns[rows], 1)
    lost = np.where(
        bounds.known[rows], 1 - bounds.least_ns[rows] / duration, _UNKNOWN_LOSS
    ) * bounds.own_ns[rows]  # fmt: skip
    names = gpu.ops["name"][rows]
    by_name = np.bincount(names, weights=lost)
    spent = np.bincount(names, weights=bounds.own_ns[rows])
    worth = spent >= WORTH * case.step_ns * case.explanation.n_steady
    order = [code for code in np.argsort(-by_name, kind="stable").tolist() if worth[code]]
    functions = dict.fromkeys(
        name if len(name) <= _LONGEST else name[:_LONGEST] + ".*"
        for name in (function_name(gpu.ops.texts["name"][code]) for code in order)
    )
    chosen = list(functions)[:EXAMINED]
    if not chosen:
        return None
    command = (
        f"stepscope run --backend ncu --kernel '^({'|'.join(chosen)})$' --steps 1 -- "
        "python train.py"
    )
    return vendors.next_capture(frameworks.for_program(command, case), case)

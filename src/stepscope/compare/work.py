"""Whether two runs do the same work: by the names of their kernels and the products of a step.

No single figure tells another program from a repaired one. Another precision or layout gives nearly
all products (GEMMs, attention, convolutions, recurrent cells) other names, but a step has about as
many of them; a compiler or a fused optimizer replaces most of the other kernels, but no products;
another batch changes shapes. What differs in names *and* in the number of products is another
program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from stepscope.compare.profile import KernelUse, Profile
from stepscope.compare.result import SetupDifference
from stepscope.trace.errors import UsageError

WORK: Final = "work"
"""Name of the difference in the set-up."""

OTHER_WORK: Final = 0.5
"""Shares under which two runs do different work, all three of them: of the kernel time (of the run
that has less of it) in kernels whose names occur in both; of the calls that both have, by name; and
of the products of a step that both have. With the same program in another precision, layout, batch,
compiled or with its optimizer or attention fused, the last one was 0.74 and more in the test data;
of pairs of programs of different families in the exam, 73 of 100 are told apart."""

SURELY_SAME: Final = 0.8
"""Share of the products of a step that both have from which on the work counts as the same."""

_PRODUCTS: Final = {
    "matmul": "GEMMs and attention kernels",
    "attention": "GEMMs and attention kernels",  # written out it is GEMMs
    "convolution": "convolutions",
    "recurrent": "kernels of recurrent cells",
}
_OPAQUE: Final = ("graph", "compiled", "other")  # whose products are not known by their names
_OTHER: Final = "different work"
_SAME_COPIES: Final = 0.02
_LEAST_COPIED: Final = (
    4096  # bytes: less than that, such as a learning rate, may be equal by chance
)


@dataclass(frozen=True)
class Work:
    """How far the work of two runs agrees; values before and after.

    Attributes:
        named: share of the kernel time in kernels whose names occur in both runs.
        calls: share of a step's kernels that both have, by name; of either step as a whole.
        products: products of a step by kind.
    """

    named: tuple[float, float]
    calls: float
    products: dict[str, tuple[float, float]]

    @property
    def shared_products(self) -> float:
        """Share of the products of a step that both have; 1 where neither has any."""
        most = sum(map(max, self.products.values()))
        return sum(map(min, self.products.values())) / most if most else 1.0

    @property
    def judged(self) -> Literal["same", "doubtful", "other"]:
        """What it says of the programs."""
        if max(min(self.named), self.calls) >= OTHER_WORK or self.shared_products >= SURELY_SAME:
            return "same"
        return "other" if self.shared_products < OTHER_WORK else "doubtful"

    @property
    def figures(self) -> str:
        """The figures in words."""
        named = [f"{100 * share:.0f} %" for share in self.named]
        counts = [
            f"{before:,.0f} {kind} before and {after:,.0f} after"
            for kind, (before, after) in self.products.items()
        ]
        return (
            f"kernels whose names occur in both take {named[0]} of the kernel time before and "
            f"{named[1]} after, and a step has {', '.join(counts)}"
        )


def work_of(before: Profile, after: Profile) -> Work | None:
    """How far the work of two runs agrees; None where that is not known."""
    sides = before, after
    kernels = [[k for k in side.kernels if k.category != "communication"] for side in sides]
    for mine in kernels:
        hidden = sum(k.ns_per_step for k in mine if k.category in _OPAQUE)
        if 2 * hidden >= sum(k.ns_per_step for k in mine):
            return None
    copied = sorted(side.figures.get("copied_bytes_per_step", 0.0) for side in sides)
    if copied[1] >= _LEAST_COPIED and copied[1] - copied[0] <= _SAME_COPIES * copied[1]:
        return None  # fed with the same data: whatever became of the kernels, a fix may be it
    times = [_sums(mine, lambda k: k.label, lambda k: k.ns_per_step) for mine in kernels]
    both = times[0].keys() & times[1].keys()
    named = [sum(time[name] for name in both) / sum(time.values()) for time in times]
    calls = [_sums(mine, lambda k: k.label, lambda k: k.calls_per_step) for mine in kernels]
    whole = [sum(counts.values()) for counts in calls]
    shared = sum(min(calls[0][name] / whole[0], calls[1][name] / whole[1]) for name in both)
    products = [
        _sums(
            [k for k in mine if k.category in _PRODUCTS],
            lambda k: _PRODUCTS[k.category],
            lambda k: k.calls_per_step,
        )
        for mine in kernels
    ]
    kinds = dict.fromkeys((*products[0], *products[1]))
    counted = {kind: (products[0].get(kind, 0.0), products[1].get(kind, 0.0)) for kind in kinds}
    return Work((named[0], named[1]), shared, counted)


def other_work(before: Profile, after: Profile) -> SetupDifference | None:
    """The difference in the set-up where the runs do different work, or may do so."""
    work = work_of(before, after)
    if work is None or work.judged == "same":
        return None
    counts = [
        f"{side.figures.get('kernels_per_step', 0.0):,.0f} kernels a step"
        for side in (before, after)
    ]
    sure = work.judged == "other"
    message = f"{'' if sure else 'perhaps '}{_OTHER}: {work.figures}"
    return SetupDifference(WORK, counts[0], counts[1], "confounds", message, sure)


def refuse_other_programs(runs: Sequence[Profile]) -> None:
    """Refuse captures that are given as runs of the same code and are of different programs.

    Raises:
        UsageError: one of them does other work than the first.
    """
    for run in runs[1:]:
        work = work_of(runs[0], run)
        if work is not None and work.judged == "other":
            raise UsageError(
                f"{', '.join(runs[0].paths)} and {', '.join(run.paths)} are given as runs of the "
                f"same code, and do {_OTHER}: {work.figures}; give them apart, or begin another "
                "baseline"
            )


def does_other_work(setup: Sequence[SetupDifference]) -> bool:
    """Whether the runs do different work for sure, by what differs between them."""
    return any(item.name == WORK and item.sure for item in setup)


def _sums(
    kernels: list[KernelUse], name: Callable[[KernelUse], str], value: Callable[[KernelUse], float]
) -> dict[str, float]:
    sums: dict[str, float] = {}
    for kernel in kernels:
        sums[name(kernel)] = sums.get(name(kernel), 0.0) + value(kernel)
    return sums

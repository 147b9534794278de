"""A setting whose kernels were captured with it: their times are measured, not modelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.kernels.kernels import CATEGORY_NAMES
from stepscope.simulation.changes import Bound
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.base import Edit, Facts, rescaled, setting_of
from stepscope.simulation.settings.batch import Batch
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import FloatArray, IntArray

_KINDS: Final = len(CATEGORY_NAMES) + 1
Times = tuple[tuple[int, float], ...]
"""Kernel time a step, ns, by group: number of phase and category."""


def groups(e: Explanation) -> IntArray:
    """The group of each operation: a number for its phase and its category."""
    kernels = e.kernels
    return (kernels.phase.astype(np.int64) + 1) * _KINDS + kernels.category.astype(np.int64) + 1


def times_of(explanations: Sequence[Explanation]) -> Times:
    """What the kernels of each group take in a mean steady step, in the mean of the devices, ns."""
    sums: dict[int, float] = {}
    for e in explanations:
        mine = e.kernels.steady & e.gpu.is_compute
        group, spent = groups(e)[mine], e.kernels.duration_ns[mine]
        for number, ns in enumerate(np.bincount(group, weights=spent).tolist()):
            if ns:
                sums[number] = sums.get(number, 0.0) + ns / e.n_steady / len(explanations)
    return tuple(sorted(sums.items()))


@dataclass(frozen=True)
class AsMeasured(Edit):
    """A setting, of which another capture holds the kernels.

    Kernels are compared by phase and category: a setting may give them other names. What is no
    kernel (the host, copies, messages) changes as the setting's model has it.

    Attributes:
        setting: the setting that is asked for.
        seen: the setting of the other capture: the same, or another batch.
        times: what its kernels take.
        source: its name, for people.
    """

    setting: Edit
    seen: Edit
    times: Times
    source: str

    @property
    def order(self) -> int:  # type: ignore[override]
        """That of the setting."""
        return self.setting.order

    @property
    def paces_input(self) -> bool:  # type: ignore[override]
        """That of the setting."""
        return self.setting.paces_input

    @property
    def batches(self) -> float:
        """That of the setting."""
        return self.setting.batches

    @property
    def text(self) -> str:  # type: ignore[override]
        """In words."""
        return f"{self.setting.text} (kernels as in {self.source}, captured with {self.seen.text})"

    def samples(self, devices: int) -> float:
        """Samples of a step over those before."""
        return self.setting.samples(devices)

    def limited(self, facts: Sequence[Facts], subjects: list[Subject]) -> list[Subject]:
        """The captured programs with the limit that the setting lifts."""
        return self.setting.limited(facts, subjects)

    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The programs with the setting, their kernels as measured."""
        now = dict(times_of([one.explanation for one in facts]))
        ratio = _ratios(now, dict(self.times), self._part())
        made = self.setting.apply(facts, subjects, bound)
        found = []
        for before, after, one in zip(subjects, made, facts, strict=True):
            group = groups(one.explanation)
            known = one.gpu.is_compute & (ratio[np.minimum(group, len(ratio) - 1)] > 0)
            factor = np.where(known, ratio[np.minimum(group, len(ratio) - 1)], 1.0)
            new = np.rint(one.kernels.duration_ns * factor).astype(np.int64)
            taken = rescaled(before, one, new).program.duration_ns
            if len(after.program) != len(before.program):
                raise UsageError(
                    f"{self.setting.text} changes what is launched, so that the kernels of another "
                    "capture cannot be put in; leave --with out"
                )
            mine = after.of_ops(known)
            found.append(
                after.becomes(duration_ns=np.where(mine, taken, after.program.duration_ns))
            )
        return found

    def _part(self) -> float:
        """How far the asked setting is from the captured one, where the other capture is 1."""
        if isinstance(self.setting, Batch) and isinstance(self.seen, Batch):
            return (self.setting.factor - 1) / (self.seen.factor - 1)
        return 1.0

    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed."""
        found = [
            "the other capture is of the same program on the same kind of GPU, with that setting "
            "alone changed"
        ]
        if self._part() != 1:
            found.append("the time of kernels grows evenly with the batch")
        return found

    def validity(self, facts: Sequence[Facts]) -> Validity:
        """Measured between the two captures; extrapolated beyond them."""
        return "measured" if 0 <= self._part() <= 1 else "extrapolated"


def _ratios(now: dict[int, float], other: dict[int, float], part: float) -> FloatArray:
    """Of each group, its time then over its time now; 0 for groups that are not captured now.

    What the other capture has in groups that this one lacks (casts) goes to those of its phase.
    """
    found = np.zeros(max([*now, *other], default=0) + 1)
    for phase in {number // _KINDS for number in (*now, *other)}:
        mine = [n for n in now if n // _KINDS == phase]
        theirs = sum(ns for n, ns in other.items() if n // _KINDS == phase and n not in now)
        both = sum(other.get(n, 0.0) for n in mine)
        more = 1 + theirs / both if both else 1.0
        for n in mine:
            found[n] = max(1 + part * (other.get(n, 0.0) * more / now[n] - 1), 1e-6)
    return found


def as_measured(change: Edit, other: str, source: str, times: Times) -> AsMeasured:
    """A setting, with the kernels of a capture that was made with one like it.

    Args:
        change: the setting that is asked for.
        other: the setting of the other capture as it is written: ``batch=2x``.
        source: the other capture's name.
        times: what its kernels take.

    Raises:
        UsageError: the other setting says nothing of the one that is asked for.
    """
    seen = setting_of(other)
    batches = isinstance(change, Batch) and isinstance(seen, Batch) and seen.factor != 1
    if not batches and change != seen:
        raise UsageError(
            f"--with {source}@{other} says nothing of {change.text}: it must be captured with the "
            "same value, or with another batch where the batch is set"
        )
    return AsMeasured(change, seen, times, source)

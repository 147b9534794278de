"""What a setting is: its documentation, how its value is written, and what it does to programs."""

from __future__ import annotations

import importlib
import pkgutil
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

import numpy as np

from stepscope.activity.device import GpuTimeline, Reader
from stepscope.breakdown.explain import Explanation
from stepscope.kernels.kernels import Kernels
from stepscope.simulation.changes import Bound
from stepscope.simulation.program import LAUNCH, MARK, C
from stepscope.simulation.setting import SettingChange, Validity
from stepscope.simulation.settings.shapes import Parameters, parameters
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray, IntArray

START_NS: Final = 2_000
"""What a kernel takes that has hardly anything to do: filling and draining the device. Shorter ones
in the capture say less."""

L2_BYTES: Final = 50_000_000
"""Tensors beyond this come from memory and not from the L2 cache (40 MB on A100, 50 on H100)."""


@dataclass(frozen=True)
class Facts:
    """What is known of one device, beside its program.

    Attributes:
        rank: the rank.
        explanation: the explained device.
        read: gives its tables.
    """

    rank: int
    explanation: Explanation
    read: Reader

    @property
    def gpu(self) -> GpuTimeline:
        """The device."""
        return self.explanation.gpu

    @property
    def kernels(self) -> Kernels:
        """Its operations as kernels."""
        return self.explanation.kernels

    @cached_property
    def start_ns(self) -> int:
        """What a kernel takes for hardly any work, ns."""
        kernels = self.kernels
        lengths = kernels.duration_ns[kernels.gpu.is_compute & kernels.steady]
        shortest = int(np.percentile(lengths, 5)) if len(lengths) else START_NS
        return min(START_NS, shortest)

    @cached_property
    def parameters(self) -> Parameters:
        """The model's parameters, as far as the capture tells."""
        e = self.explanation
        return parameters(e.kernels, e.steps.begin_ns, e.first, e.last)

    @property
    def bandwidth(self) -> float:
        """What a streaming kernel achieves, bytes a ns; 0 if unknown."""
        return self.kernels.attainable_bandwidth / 1e9


def of_bound(values: tuple[float, float, float], bound: Bound) -> float:
    """Of what is given for the highest, the usual and the lowest step, what a bound assumes."""
    return values[("high", "expected", "low").index(bound)]


class Edit(SettingChange):
    """A setting with its new value, and what it does to the programs of all ranks."""

    order: int = 5
    """Edits of a lower number are made first."""

    paces_input: bool = False
    """Whether it says how long input takes."""

    @property
    def batches(self) -> float:
        """What workers make for a step over that before; 0 where it says how fast they do."""
        return 1.0

    @abstractmethod
    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The programs with the setting.

        Args:
            facts: one a device, in the order of the subjects.
            subjects: the programs.
            bound: which of the uncertainties to assume.

        Raises:
            UsageError: the captures do not tell what it needs.
        """

    def limited(self, facts: Sequence[Facts], subjects: list[Subject]) -> list[Subject]:
        """The captured programs with the limit that the setting lifts, where they lack it.

        Args:
            facts: one a device, in the order of the subjects.
            subjects: the programs; they are returned as they are where nothing is added.
        """
        return subjects

    @abstractmethod
    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed for these captures, in sentences."""

    @abstractmethod
    def validity(self, facts: Sequence[Facts]) -> Validity:
        """How the prediction is known for these captures."""


@dataclass(frozen=True)
class Setting:
    """One setting that can be tried.

    Attributes:
        name: as it is written before the ``=``.
        title: short name for people.
        values: what is written after the ``=``.
        example: a value.
        help: what is changed, one sentence.
        model: how the step is predicted.
        assumes: what it assumes.
        checked: with what it was compared.
        refuses: when it is refused.
        reads: makes the change from the text of a value; ValueError for a bad one.
    """

    name: str
    title: str
    values: str
    example: str
    help: str
    model: str
    assumes: str
    checked: str
    refuses: str
    reads: Callable[[str], Edit]


@cache
def settings() -> dict[str, Setting]:
    """Every setting by name.

    Raises:
        TypeError: two modules register the same name.
    """
    import stepscope.simulation.settings as package

    found: dict[str, Setting] = {}
    for module in pkgutil.iter_modules(package.__path__):
        one = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "SETTING", None)
        if not isinstance(one, Setting):
            continue
        if one.name in found:
            raise TypeError(f"the setting {one.name!r} is registered twice")
        found[one.name] = one
    return dict(sorted(found.items()))


def setting_of(text: str) -> Edit:
    """A setting as it is written on a command line: ``batch=2x``.

    Raises:
        UsageError: there is no such setting, or it cannot have this value.
    """
    name, equals, value = text.partition("=")
    known = settings().get(name.strip())
    if known is None:
        raise UsageError(
            f"{name.strip()!r} is no setting that can be tried; those are {', '.join(settings())} "
            "(stepscope whatif --list explains them)"
        )
    try:
        if not equals or not value.strip():
            raise ValueError("no value")
        return known.reads(value.strip())
    except OutsideError as error:
        raise UsageError(f"{text!r}: {error}") from None
    except ValueError:
        raise UsageError(
            f"{text!r} is not {known.name}={known.values}, as in {known.name}={known.example}"
        ) from None


class OutsideError(ValueError):
    """A number that is none of those which can be tried."""

    def __init__(self, value: float, least: float, most: float) -> None:
        super().__init__(f"from {least:g} to {most:g} can be tried, not {value:g}")


def number(text: str, least: float, most: float) -> float:
    """A number in a range.

    Raises:
        ValueError: it is none, or outside.
    """
    value = float(text)
    if not least <= value <= most:
        raise OutsideError(value, least, most)
    return value


def whole(text: str, least: int, most: int) -> int:
    """A whole number in a range.

    Raises:
        ValueError: it is none, or outside.
    """
    value = int(text)
    if not least <= value <= most:
        raise OutsideError(value, least, most)
    return value


def of_items(subject: Subject, values: IntArray, otherwise: int = 0) -> IntArray:
    """Values of rows of ``GPU.ops`` as values of items."""
    program = subject.program
    taken = values[np.maximum(program.op, 0)] if len(values) else np.zeros(len(program), np.int64)
    return np.where(program.op >= 0, taken, otherwise).astype(np.int64)


def rescaled(subject: Subject, facts: Facts, new_ns: IntArray) -> Subject:
    """Operations take other times.

    An earlier change may have changed them as well: what counts is the ratio of new to captured.

    Args:
        subject: the program.
        facts: its device.
        new_ns: new length of each row of ``GPU.ops``.
    """
    old = facts.kernels.duration_ns
    ratio = new_ns / np.maximum(old, 1)
    of_item = ratio[np.maximum(subject.program.op, 0)]
    mine = subject.is_op & (subject.program.op >= 0)
    duration = np.where(mine, subject.program.duration_ns * of_item, subject.program.duration_ns)
    return subject.becomes(duration_ns=np.rint(duration).astype(np.int64))


def launch_cost_ns(subject: Subject, percentile: int = 50) -> int:
    """What an operator that launches one kernel costs the host, ns: typical of the program.

    Without the cost of recording it.

    Args:
        subject: the program.
        percentile: of the costs of its launches.
    """
    program = subject.program
    cost = program.work_ns[:, C["launch_bound"]] + program.call_ns - program.recording_ns
    cost = np.maximum(cost, 0)
    launched = subject.is_op & program.hosted & ~program.communication
    return int(np.percentile(cost[launched], percentile)) if launched.any() else 0


def steps_of(subject: Subject) -> IntArray:
    """Number of the step of each item, from 0; -1 before the first."""
    return np.cumsum(subject.program.kind == MARK).astype(np.int64) - 1


def launches(subject: Subject, rows: BoolArray) -> BoolArray:
    """Items that enqueue one of the rows of ``GPU.ops``."""
    program = subject.program
    mine: BoolArray = (program.kind == LAUNCH) & (program.op >= 0)
    return mine & rows[np.maximum(program.op, 0)]

"""What is known of all ranks: their matched collectives, and changes that look at them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from stepscope.intervals.distinct import among, common_values
from stepscope.simulation.changes import Subject
from stepscope.simulation.program import MARK, Program
from stepscope.trace.frame import BoolArray, IntArray


class RankCollectives(Protocol):
    """The matched collectives of one device: what ``collectives.RankOps`` offers."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def process_id(self) -> int:
        """The process."""

    @property
    def device(self) -> int:
        """CUDA device ordinal inside the process."""

    @property
    def op(self) -> IntArray:
        """Rows of ``GPU.ops``."""

    @property
    def instance(self) -> IntArray:
        """Collective that each of them belongs to: equal on all its members."""


class Matched(Protocol):
    """Collectives matched across ranks."""

    @property
    def ranks(self) -> Sequence[RankCollectives]:
        """One for each device."""


@dataclass(frozen=True)
class MatchedOps:
    """The plainest :class:`RankCollectives`."""

    rank: int
    process_id: int
    device: int
    op: IntArray
    instance: IntArray


@dataclass(frozen=True)
class MatchedJob:
    """The plainest :class:`Matched`."""

    ranks: list[MatchedOps]


FloatArray = npt.NDArray[np.float64]

_MOST: Final = 0.8
"""Kernels that make up this part of a device's time stand for all of it."""

_ALIKE: Final = 0.6
"""A lower clock slows what computes and hardly what moves memory; a device that is shared slows all
alike. Kernels that are slowed at least this part of what is typical are slowed like the others."""


def device_like(subjects: list[Subject], rank: int) -> list[Subject]:
    """The kernels of one rank take what the same kernels take on the others in the mean.

    Where all of them take longer alike, whatever they do, the device was not there for them part of
    the time (another process computes on it, or it is shared otherwise). Then what it does inside
    collectives took longer as well, and with it their transfers.
    """
    times = [_kernel_times(s) for s in subjects]
    mine = [t for s, t in zip(subjects, times, strict=True) if s.rank == rank]
    peers = [t for s, t in zip(subjects, times, strict=True) if s.rank != rank]
    common = sorted(set().union(*mine) & set().union(*peers)) if mine and peers else []
    if not common:
        return subjects
    own = np.array([np.mean([t[name][0] for t in mine if name in t]) for name in common])
    other = np.array([np.median([t[name][0] for t in peers if name in t]) for name in common])
    weight = np.array([sum(t[name][1] for t in mine if name in t) for name in common], float)
    slower = own / np.maximum(other, 1)
    typical = _quantile(slower, weight, 0.5)
    alike = typical > 1 and _quantile(slower, weight, _MOST) >= 1 + _ALIKE * (typical - 1)
    factor = dict(zip(common, (1 / np.maximum(slower, 1.0)).tolist(), strict=True))
    changed = []
    for subject in subjects:
        program, names = subject.program, subject.gpu.ops.texts["name"]
        shared = program.communication & (program.instance >= 0)
        scale = np.where(shared & alike, 1 / max(typical, 1.0), 1.0)
        if subject.rank == rank:
            of_name = np.array([factor.get(name, 1 / max(typical, 1.0)) for name in names] + [1.0])
            kernel = subject.of_ops(subject.gpu.is_compute)
            code = subject.gpu.ops["name"][np.maximum(program.op, 0)]
            scale = np.where(kernel, of_name[code], scale)
        duration = np.round(program.duration_ns * scale).astype(np.int64)
        changed.append(subject.becomes(duration_ns=duration))
    return changed


def _kernel_times(subject: Subject) -> dict[str, tuple[float, float]]:
    """Mean and sum of the durations of each compute kernel by name, ns.

    Means, because a device that two processes share in turns leaves most kernels alone and makes
    some far longer.
    """
    program, ops = subject.program, subject.gpu.ops
    rows = np.flatnonzero(subject.of_ops(subject.gpu.is_compute))
    code, duration = ops["name"][program.op[rows]], program.duration_ns[rows]
    known = len(ops.texts["name"])
    total = np.bincount(code, weights=duration, minlength=known)
    count = np.bincount(code, minlength=known)
    return {
        ops.texts["name"][c]: (float(total[c] / count[c]), float(total[c]))
        for c in np.flatnonzero(count).tolist()
    }


def _quantile(values: FloatArray, weight: FloatArray, share: float) -> float:
    """The value that so much of the weight is above or at."""
    order = np.argsort(-values)
    at = np.searchsorted(np.cumsum(weight[order]), share * weight.sum())
    return float(values[order][min(int(at), len(values) - 1)])


def rank_like(subjects: list[Subject], rank: int, other: str | int) -> list[Subject]:
    """One rank takes the time of the median of the others, or of one, between two collectives.

    Host time is compared by cause, device time over all operations but matched collectives, each
    part of a step between collectives that all ranks share by itself.
    """
    shared = subjects[0].program.instance
    for subject in subjects:
        shared = common_values(shared, subject.program.instance)
    parts = [_parts(s.program, shared) for s in subjects]
    count = min(int(part.max(initial=-1)) + 1 for part in parts)
    sums = [_sums(s.program, part, count) for s, part in zip(subjects, parts, strict=True)]
    chosen = [
        value
        for s, value in zip(subjects, sums, strict=True)
        if s.rank == other or (other == "median" and s.rank != rank)
    ]
    if not chosen:
        return subjects
    wanted = np.median(np.stack(chosen), axis=0)
    changed = []
    for subject, part, own in zip(subjects, parts, sums, strict=True):
        if subject.rank != rank:
            changed.append(subject)
            continue
        ratio = np.where(own > 0, wanted / np.maximum(own, 1), 1.0)
        ratio = np.vstack((ratio, np.ones((1, ratio.shape[1]))))[np.minimum(part, count)]
        program = subject.program
        alone = _alone(program)
        changed.append(
            subject.becomes(
                work_ns=np.round(program.work_ns * ratio[:, :-2]).astype(np.int64),
                call_ns=np.round(program.call_ns * ratio[:, -2]).astype(np.int64),
                duration_ns=np.where(
                    alone, np.round(program.duration_ns * ratio[:, -1]), program.duration_ns
                ).astype(np.int64),
            )
        )
    return changed


def _alone(program: Program) -> BoolArray:
    """Items whose operation no other rank takes part in."""
    return ~program.communication & (program.instance < 0)


def _parts(program: Program, shared: IntArray) -> IntArray:
    """Number of the part of the run that each item lies in: cut at steps and at collectives."""
    cuts = (program.kind == MARK) | among(program.instance, shared[shared >= 0])
    return np.cumsum(cuts).astype(np.int64)


def _sums(program: Program, part: IntArray, count: int) -> IntArray:
    """Host time by cause, time in calls and device time of each part, ns."""
    alone = np.where(_alone(program), program.duration_ns, 0)
    columns = np.column_stack((program.work_ns, program.call_ns, alone))
    sums = np.zeros((count, columns.shape[1]), np.int64)
    inside = part < count
    np.add.at(sums, part[inside], columns[inside])
    return sums

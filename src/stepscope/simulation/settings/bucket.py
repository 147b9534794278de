"""The size of DDP's buckets: all-reduces of gradients grouped otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.simulation.changes import Bound
from stepscope.simulation.overlap import SLOWED
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.base import Edit, Facts, Setting, number, steps_of
from stepscope.simulation.settings.links import link_of, messages
from stepscope.simulation.settings.reduction import (
    MIB,
    Ready,
    buckets,
    by_messages,
    by_operators,
    regrouped,
    slowed,
)
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import IntArray


@dataclass(frozen=True)
class BucketSize(Edit):
    """Buckets of another size.

    Attributes:
        mib: limit of a bucket, MiB.
    """

    mib: float
    order = 4

    @property
    def text(self) -> str:  # type: ignore[override]
        """In words."""
        return f"gradients in buckets of {self.mib:g} MiB (bucket_cap_mb)"

    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The programs with the other buckets."""
        link = link_of(facts, subjects)
        changed = []
        for subject, one in zip(subjects, facts, strict=True):
            found = messages(subject, one, len(subjects))
            if not len(found.item):
                raise UsageError(
                    f"bucket={self.mib:g}: the backward pass of rank {one.rank} reduces no "
                    "gradients; give captures of a job under DDP, or set ranks as well"
                )
            if (found.bytes < 0).any():
                raise UsageError(
                    f"bucket={self.mib:g}: the capture does not tell the sizes of all-reduces; "
                    "record the ranks with torch.profiler (stepscope run --backend torch)"
                )
            ready = _ready(subject, one, found.item, by_messages(subject, found))
            limit = round(self.mib * MIB)
            chosen = buckets(ready, steps_of(subject), limit, limit)
            after, earlier = regrouped(subject, found.item, chosen, link, found.ranks)
            changed.append(slowed(after, earlier, SLOWED[bound]))
        return changed

    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed."""
        return [
            "an all-reduce takes a latency and its bytes over the bus bandwidth, as those of the "
            "capture do; of those that begin earlier than before, nearly half of the time is added "
            "to the kernels beside them, which share the device with them"
        ]

    def validity(self, facts: Sequence[Facts]) -> Validity:
        """Modelled."""
        return "modelled"


def _ready(subject: Subject, facts: Facts, captured: IntArray, coarse: Ready) -> Ready:
    """Gradients by shape with the captured bucket of each, where shapes are recorded."""
    exact = by_operators(subject, facts)
    if exact is None or not len(exact.item):
        return coarse
    step = steps_of(subject)
    kept = np.flatnonzero(step[exact.item] >= 0)
    if not len(kept):
        return coarse
    # a gradient is in the first all-reduce of its step that holds its bytes, by running sums
    old = np.full(len(exact.item), -1, np.int64)
    for number_ in sorted(set(step[captured].tolist())):
        mine = kept[step[exact.item[kept]] == number_]
        here = coarse.item[step[coarse.item] == number_]
        ends = np.flatnonzero(step[coarse.old] == number_)
        if not len(mine) or not len(here):
            return coarse
        reached = np.cumsum(coarse.bytes[ends])
        place = np.searchsorted(reached, np.cumsum(exact.bytes[mine]) - 1)
        old[mine] = coarse.old[ends[np.minimum(place, len(ends) - 1)]]
    mine = np.flatnonzero(old >= 0)
    return Ready(exact.item[mine], exact.bytes[mine], old[mine])


def read(text: str) -> BucketSize:
    """MiB."""
    return BucketSize(number(text.removesuffix("MB").removesuffix("MiB"), 0.1, 100_000))


SETTING = Setting(
    name="bucket",
    title="Bucket size of DDP",
    values="MIB",
    example="100",
    help="gradients are reduced in buckets of another size (DDP's bucket_cap_mb)",
    model=(
        "gradients are ready where the capture accumulates them (with recorded shapes), else "
        "evenly before the all-reduce that they are in. They are grouped as DDP does, a bucket "
        "being closed by the gradient that reaches the limit, and each all-reduce takes the "
        "latency and bandwidth that fit those of the capture. Where they begin earlier than now, "
        "they slow the kernels beside them"
    ),
    assumes="DistributedDataParallel",
    checked="two GPUs, one bucket cut into many; with small buckets the host counts, which is less "
    "sure",
    refuses="where no gradients are reduced in the backward pass, or the capture does not tell the "
    "sizes of messages",
    reads=read,
)

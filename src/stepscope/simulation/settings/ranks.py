"""Another number of ranks: data parallelism added, or its all-reduces over more of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepscope.simulation.changes import Bound
from stepscope.simulation.overlap import SLOWED
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.base import Edit, Facts, Setting, steps_of, whole
from stepscope.simulation.settings.links import Link, by_datasheet, link_of, messages
from stepscope.simulation.settings.reduction import (
    BUCKET_BYTES,
    FIRST_BYTES,
    MIB,
    buckets,
    by_operators,
    by_products,
    reduced,
    slowed,
)
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError

KNOWN_RANKS: Final = 4
"""Ranks up to which predictions were compared with measured runs; beyond one machine's eight,
other links count that no capture of fewer shows."""

SPREAD: Final = {"low": 1.15, "expected": 1.0, "high": 0.6}
"""Bandwidth that is not measured may be so much more or less."""


@dataclass(frozen=True)
class Ranks(Edit):
    """The job runs on another number of ranks, each with the captured batch.

    Attributes:
        count: how many.
        mib: limit of a bucket where all-reduces are put in, MiB; None for DDP's default.
    """

    count: int
    mib: float | None = None
    order = 5

    @property
    def text(self) -> str:  # type: ignore[override]
        """In words."""
        stated = f"{self.count} ranks with the captured batch each"
        return stated + ("" if self.mib is None else f", buckets of {self.mib:g} MiB")

    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The programs on so many ranks; those of the captured ranks stand for all."""
        link = link_of(facts, subjects)
        if not link.measured:
            link = replace(link, bus_bytes_a_ns=link.bus_bytes_a_ns * SPREAD[bound])
        if len(subjects) > 1:
            return [
                self._over_more(s, f, len(subjects), link)
                for s, f in zip(subjects, facts, strict=True)
            ]
        if messages(subjects[0], facts[0], 1).ranks > 1:
            raise UsageError(
                f"ranks={self.count}: the capture is one rank of a job of several; give the "
                "captures of all its ranks"
            )
        return [self._put_in(subjects[0], facts[0], link, bound)]

    def samples(self, devices: int) -> float:
        """Samples of a step over those before."""
        return self.count / devices

    def _put_in(self, subject: Subject, facts: Facts, link: Link, bound: Bound) -> Subject:
        ready = by_operators(subject, facts) or by_products(subject, facts)
        if ready is None:
            raise UsageError(
                f"ranks={self.count}: nothing tells how large the gradients are; record with "
                "shapes (torch.profiler, record_shapes=True)"
            )
        limit = BUCKET_BYTES if self.mib is None else round(self.mib * MIB)
        first = FIRST_BYTES if self.mib is None else limit
        chosen = buckets(ready, steps_of(subject), limit, first)
        after = reduced(subject, facts, ready, chosen, link, self.count)
        put_in = np.flatnonzero(after.program.communication & (after.program.op < 0))
        return slowed(after, put_in, SLOWED[bound])

    def _over_more(self, subject: Subject, facts: Facts, now: int, link: Link) -> Subject:
        found = messages(subject, facts, now)
        if not len(found.item):
            raise UsageError(
                f"ranks={self.count}: the ranks reduce no gradients in their backward pass, so "
                "that more ranks by data parallelism cannot be predicted"
            )
        duration = subject.program.duration_ns.astype(np.float64)
        known = found.bytes > 0
        item, size = found.item[known], found.bytes[known]
        before = np.array([link.all_reduce_ns(b, now) for b in size.tolist()])
        then = np.array([link.all_reduce_ns(b, self.count) for b in size.tolist()])
        duration[item] += then - before
        traffic = (self.count - 1) / self.count * now / max(now - 1, 1)
        duration[found.item[~known]] *= traffic
        lengths = np.maximum(np.rint(duration), 1).astype(np.int64)
        duration_ns = np.where(subject.program.duration_ns > 0, lengths, 0)
        return replace(subject, program=replace(subject.program, duration_ns=duration_ns))

    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed."""
        link = by_datasheet(facts[0].kernels.device[0]) if len(facts) == 1 else None
        source = link.source if link is not None else "the capture's own all-reduces"
        return [
            f"bandwidth between GPUs: {source}",
            "all ranks are as fast as the captured ones and join together; what one has to wait "
            "for another because of input or noise comes on top",
        ]

    def validity(self, facts: Sequence[Facts]) -> Validity:
        """A step is at least so long: late ranks are left out. More ranks are extrapolated."""
        return "at least" if self.count <= KNOWN_RANKS else "extrapolated"


def read(text: str) -> Ranks:
    """How many."""
    return Ranks(whole(text, 2, 4096))


SETTING = Setting(
    name="ranks",
    title="Number of ranks",
    values="COUNT",
    example="4",
    help="data parallelism over so many GPUs, each with the captured batch",
    model=(
        "of one rank: DDP is put in. Gradients are ready where they are accumulated (with shapes), "
        "else spread over the backward pass's GEMMs; buckets of 25 MiB are scaled in, reduced on a "
        "stream of their own (latency, and 2(n-1)/n of the bytes over the bus bandwidth) and "
        "copied back before the optimizer. Of several ranks: their all-reduces take what they take "
        "over so many, by the latency and bandwidth that fit the captured ones"
    ),
    assumes="one machine, ranks that are equally fast; the samples of a step grow with the ranks",
    checked="two and four ranks of one machine; eight and more are extrapolated, and other links "
    "between machines are not in it",
    refuses="one rank of several by itself, ranks without gradients to reduce, and where nothing "
    "tells how large gradients are",
    reads=read,
)

"""Everything about the communication of a job; each part is made when first asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Final, Protocol

import numpy as np

from stepscope.activity.communication import also_computes, qualified_name
from stepscope.breakdown.explain import Explanation
from stepscope.collectives.calls import Participant
from stepscope.collectives.exposure import (
    Pace,
    Parts,
    Windows,
    Work,
    pace,
    parts,
    step_windows,
    transfer_limits,
    windows,
    work,
)
from stepscope.collectives.kinds import KINDS
from stepscope.collectives.late import Lateness, lateness, own_time, recording_idle
from stepscope.collectives.match import Matched, match
from stepscope.collectives.parallel import Guess, guesses
from stepscope.intervals import overlap_per_window
from stepscope.intervals.distinct import among, distinct_values, with_counts
from stepscope.kernels.accumulation import gathered_again, repeated_sums, summed_again
from stepscope.kernels.categories import PRODUCTS
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

_MATCHED: Final = 0.5
"""Ranks of which less of the communication has a counterpart are compared step by step."""


_MOSTLY: Final = 0.5
"""Part of what is exposed that one sort of transfer must take to be what is to be repaired."""
_PLACES: Final = 2
"""In how many places of a step such transfers stand, between products."""
_SORTS: Final = {
    "broadcast": re.compile("Broadcast", re.IGNORECASE),
    "all-gather": re.compile("AllGather", re.IGNORECASE),
}
"""What a data-parallel step sends that is no sum of gradients, by the names of its kernels."""
_AGAIN: Final = "all-reduce"
"""What it sums once more (:func:`stepscope.kernels.accumulation.summed_again`)."""

_SEVERAL: Final = 2
"""Gathers a step, and their gradients, from which on they are not of the whole model's weights."""
_ALL_OF: Final = 0.95
_MUCH: Final = 0.3
"""What of gathers and their gradients is exposed where compute waits for each, and their part of
all that is exposed."""

_ALIKE: Final = 0.03
"""Products that are longer by less take as long: runs of one program differ by as much."""
_SHOWN: Final = 0.2
"""Part of the products' time that must be alike where the others tell of more work."""
_MOST: Final = 0.5
"""Part of what late devices compute longer that products must explain."""


@dataclass(frozen=True)
class Collectives:
    """The communication of a job.

    Attributes:
        participants: the devices, by rank.
        explained: their explanations, in the same order.
        matched: which operations belong together, waiting apart from transferring.
    """

    participants: list[Participant]
    explained: list[Explanation]
    matched: Matched

    @cached_property
    def windows_ns(self) -> tuple[IntArray, IntArray]:
        """Begin and end of the steady steps that all devices share, on the job's clock.

        Where ranks are compared step by step, those of the first device.
        """
        if self.by_step:
            first = self.matched.ranks[0].clock
            begin, end = self.own_windows[0]
            return first.to(begin), first.to(end)
        return windows(self.explained, self.matched)

    @cached_property
    def by_step(self) -> bool:
        """Whether the ranks can only be compared step by step, each by its own steps.

        That is where most communication of a device has no counterpart on the others, although they
        belong to one job: some of it does, or one capture holds them all.
        """
        if self.alone:
            return False
        several = bool((self.matched.instances.members > 1).any())
        if not several and len({p.clock for p in self.participants}) > 1:
            return False
        begin, end = windows(self.explained, self.matched)
        shares = []
        for e, rank in zip(self.explained, self.matched.ranks, strict=True):
            start = e.gpu.ops["start_ns"]
            inside = np.ones(len(start), bool)
            if len(begin):
                low, high = rank.clock.back(np.array([begin[0], end[-1]]))
                inside = (start >= low) & (start < high)
            count = int((inside & e.gpu.is_communication).sum())
            if count:
                shares.append(int(inside[rank.op].sum()) / count)
        return not several or min(shares, default=1.0) < _MATCHED

    @cached_property
    def own_windows(self) -> list[Windows]:
        """The same windows on each device's own clock, ns."""
        if self.by_step:
            return step_windows(self.explained)
        begin, end = self.windows_ns
        return [(rank.clock.back(begin), rank.clock.back(end)) for rank in self.matched.ranks]

    @property
    def warnings(self) -> list[str]:
        """What could not be matched or had to be assumed, in sentences."""
        stated = []
        if self.by_step:
            stated.append(
                "most communication kernels of a rank could not be matched one to one with those "
                "of the others, so that ranks are compared step by step: communication that one "
                "has beyond the rank with least is taken for waiting"
            )
        if self.fused:
            stated.append(
                f"kernels that communicate and compute in one ({', '.join(self.fused[:3])}"
                + (", ..." if len(self.fused) > 3 else "")
                + ") count as communication; what they compute cannot be told apart"
            )
        return [*stated, *self.matched.warnings]

    @cached_property
    def fused(self) -> list[str]:
        """Names of the kernels that communicate and compute in one."""
        found = set()
        for p in self.participants:
            ops = p.gpu.ops
            texts = ops.texts["name"]
            for code in distinct_values(ops["name"][p.gpu.is_communication]).tolist():
                if also_computes(texts[code]):
                    found.add(qualified_name(texts[code]).rsplit("::", 1)[-1])
        return sorted(found)

    @cached_property
    def parts(self) -> Parts:
        """Where each device's time goes in these windows."""
        return parts(
            self.explained, self.matched, self.own_windows, *self.windows_ns, by_step=self.by_step
        )

    @cached_property
    def work(self) -> Work:
        """What each device was given to do in these windows."""
        return work(self.participants, self.own_windows)

    @cached_property
    def paces(self) -> list[Pace]:
        """What each device's host needs for a step."""
        return [pace(p, e) for p, e in zip(self.participants, self.explained, strict=True)]

    @cached_property
    def lateness(self) -> Lateness | None:
        """Which rank the others wait for; None where nobody waits."""
        found = lateness(self.parts, self.work, self.paces)
        if found is None or found.mechanism != "rate":
            return found
        longer = self._longer_products(found)
        return replace(found, mechanism="work", longer=longer) if longer else found

    def _longer_products(self, late: Lateness) -> str:
        """The category of products that take longer on late devices; empty where all do, or none.

        A device that is slow multiplies slowly whatever it is given. Where some products take as
        long on all devices, the others have more to do: attention over longer sequences is launched
        with as many threads.
        """
        times = [self._product_times(device) for device in range(len(self.participants))]
        names = sorted(set.intersection(*(set(each) for each in times)))
        if not names:
            return ""
        spent = np.array([[each[name] for name in names] for each in times])
        mine = np.zeros(len(times), bool)
        mine[late.devices] = True
        if mine.all():
            return ""
        before, after = np.median(spent[~mine], axis=0), spent[mine].mean(axis=0)
        alike = after <= (1 + _ALIKE) * before  # what waits inside collectives slows the others
        more = np.maximum(after - before, 0.0)
        if before[alike].sum() < _SHOWN * before.sum() or more.sum() < _MOST * max(
            late.surplus_ns.get("compute", 0.0) * len(self.parts.wall), 1.0
        ):
            return ""
        return names[int(more.argmax())][0]

    def _product_times(self, device: int) -> dict[tuple[str, str], float]:
        """Time of a device's products in the shared steps, ns, by category and name."""
        kernels, gpu = self.explained[device].kernels, self.participants[device].gpu
        rows = np.flatnonzero(kernels.in_category(*PRODUCTS) & self._in_windows(device))
        took = np.bincount(gpu.ops["name"][rows], weights=kernels.duration_ns[rows])
        return {
            (kernels.classes[at].category, gpu.ops.texts["name"][at]): float(took[at])
            for at in np.flatnonzero(took).tolist()
        }

    @cached_property
    def facts(self) -> Facts:
        """Every matched operation of every device."""
        return facts(self.explained, self.matched)

    @cached_property
    def groups(self) -> list[Guess]:
        """What the communicators are likely for."""
        return guesses(self.explained, self.matched, *self.windows_ns)

    @cached_property
    def repeated_sums(self) -> list[IntArray]:
        """Rows of the sums of gradients that each device makes too often; none where any does not.

        See :func:`stepscope.kernels.accumulation.repeated_sums`.
        """
        found = [repeated_sums(e.kernels) for e in self.explained]
        return found if all(map(len, found)) else []

    @cached_property
    def spare_transfers(self) -> tuple[str, list[IntArray]]:
        """Transfers that a data-parallel step can do without, where they are most exposed.

        Returns:
            Which sort of them takes most (a key of ``_SORTS``, or ``_AGAIN``; empty for none), and
            the rows of all of that sort on each device.
        """
        exposed = dict.fromkeys((*_SORTS, _AGAIN), 0.0)
        every = 0.0
        rows: list[dict[str, IntArray]] = []
        for device, e in enumerate(self.explained):
            kernels, gpu = e.kernels, e.gpu
            moved = gpu.is_communication & kernels.steady
            heavy = gpu.is_kernel & kernels.in_category(*PRODUCTS)
            worked = np.zeros(len(moved), np.int64)  # products before each operation
            worked[kernels.order] = np.cumsum(heavy[kernels.order])
            begin, end = gpu.ops["start_ns"], gpu.ops["end_ns"]
            covered = overlap_per_window(gpu.union_of(gpu.is_compute), begin, end)
            alone = np.where(moved, end - begin - covered, 0)
            every += float(alone.sum())
            found = {
                sort: np.flatnonzero(moved & gpu.ops.matches("name", names))
                for sort, names in _SORTS.items()
            }
            found[_AGAIN] = summed_again(kernels, self._sent_bytes(device))
            for sort, mine in found.items():
                # layer by layer they are of weights, which the next layer needs
                if len(distinct_values(worked[mine])) <= _PLACES * kernels.n_steady:
                    exposed[sort] += float(alone[mine].sum())
            rows.append(found)
        most = max(exposed, key=lambda sort: exposed[sort])
        if exposed[most] < _MOSTLY * every or not all(len(found[most]) for found in rows):
            return "", []
        return most, [found[most] for found in rows]

    @cached_property
    def repeated_gathers(self) -> list[IntArray]:
        """Rows of the gathers that each device makes again; none where any does not.

        See :func:`stepscope.kernels.accumulation.gathered_again`.
        """
        found = [gathered_again(e.kernels) for e in self.explained]
        return found if all(map(len, found)) else []

    def _sent_bytes(self, device: int) -> IntArray:
        """Message size of each operation of a device; -1 where it is none or not known."""
        rank = self.matched.ranks[device]
        found = np.full(len(self.participants[device].gpu.ops), -1, np.int64)
        found[rank.op] = self.matched.instances.bytes[rank.instance]
        return found

    @cached_property
    def gathers_activations(self) -> bool:
        """Whether what is exposed is mostly gathers, and the scattered sums of their gradients.

        Several a step, for all of which compute waits: shards of weights are gathered ahead of it.
        """
        facts = self.facts
        kind = self.matched.instances.kind[facts.instance]
        gathers, scatters = (kind == KINDS.index(k) for k in ("all_gather", "reduce_scatter"))
        both = gathers | scatters
        moved, exposed = (
            float(facts.transfer[both].sum()),
            float(facts.exposed_transfer[both].sum()),
        )
        a_step = len(self.parts.wall) * len(self.participants)
        return (
            min(int(gathers.sum()), int(scatters.sum())) >= _SEVERAL * a_step
            and exposed >= _ALL_OF * moved
            and exposed >= _MUCH * float(facts.exposed_transfer.sum())
        )

    def _in_windows(self, device: int) -> BoolArray:
        """Operations of a device that begin in the shared steps."""
        begin, end = self.own_windows[device]
        start = self.participants[device].gpu.ops["start_ns"]
        found: BoolArray = (start >= begin[0]) & (start < end[-1])
        return found

    def kernel_means(self, device: int) -> dict[str, float]:
        """Mean duration of each compute kernel of a device in the shared steps, ns, by name."""
        gpu = self.participants[device].gpu
        rows = np.flatnonzero(gpu.is_compute & self._in_windows(device))
        code, length = gpu.ops["name"][rows], (gpu.ops["end_ns"] - gpu.ops["start_ns"])[rows]
        known = len(gpu.ops.texts["name"])
        count = np.bincount(code, minlength=known)
        took = np.bincount(code, weights=length, minlength=known)
        return {
            gpu.ops.texts["name"][at]: float(took[at] / count[at])
            for at in np.flatnonzero(count).tolist()
        }

    def step_of(self, time_ns: IntArray) -> IntArray:
        """Which shared step each time (of the job's clock) lies in; -1 outside."""
        begin, end = self.windows_ns
        if not len(begin):
            return np.full(len(time_ns), -1, np.int64)
        at = np.searchsorted(begin, time_ns, side="right") - 1
        return np.where((at >= 0) & (time_ns < end[np.maximum(at, 0)]), at, -1)

    @cached_property
    def steps_ahead(self) -> list[int]:
        """What to add to the step numbers of each device for those of the first one.

        Each capture counts its own steps from 0: where recording began in another step, the same
        number is another step, as the operations tell in which both take part.
        """
        numbers = [np.full(len(self.matched.instances), -1, np.int64) for _ in self.participants]
        for mine, e, rank in zip(numbers, self.explained, self.matched.ranks, strict=True):
            step = np.searchsorted(e.bounds_ns, e.gpu.ops["start_ns"][rank.op], side="right") - 1
            mine[rank.instance] = np.where(step < len(e.bounds_ns) - 1, step, -1)
        found = []
        for mine in numbers:
            both = (mine >= 0) & (numbers[0] >= 0)
            apart, count = with_counts((numbers[0] - mine)[both])
            most = int(np.argmax(count)) if len(count) else 0
            found.append(int(apart[most]) if len(count) and 2 * count[most] > count.sum() else 0)
        return found

    @property
    def alone(self) -> bool:
        """Whether only one device is there, so that waiting cannot be told from transferring."""
        return len(self.participants) == 1

    @property
    def step_ns(self) -> float:
        """Mean length of the shared windows, ns; 0 where there are none."""
        begin, end = self.windows_ns
        return float(np.mean(end - begin)) if len(begin) else 0.0


def collectives(
    participants: list[Participant], explained: list[Explanation]
) -> Collectives | None:
    """The communication of some devices; None where they do not communicate."""
    matched = match(participants)
    return None if matched is None else Collectives(participants, explained, matched)


_SHOWN_RANKS = 16


@dataclass(frozen=True)
class Facts:
    """One value for each matched operation of each device, device by device.

    Attributes:
        device: position of the device.
        op: row of its ``GPU.ops``.
        instance: the operation of the job.
        start: begin on the trace's own clock, ns.
        end: end on the trace's own clock, ns.
        waiting: until the last rank has joined, ns.
        transfer: afterwards, ns.
        missing: between the two, what is likely to be waiting for ranks that are not there, ns.
        exposed_waiting: of the waiting, what no compute kernel covers, ns.
        exposed_transfer: of the transfer, what no compute kernel covers, ns.
        lateness: from the first rank's start to its own, ns.
    """

    device: IntArray
    op: IntArray
    instance: IntArray
    start: IntArray
    end: IntArray
    waiting: IntArray
    transfer: IntArray
    missing: IntArray
    exposed_waiting: IntArray
    exposed_transfer: IntArray
    lateness: IntArray


def facts(explained: Sequence[Explanation], matched: Matched) -> Facts:
    """Look at every matched operation of the explained devices."""
    found: list[list[IntArray]] = []
    limits = transfer_limits(matched)
    for number, (e, rank) in enumerate(zip(explained, matched.ranks, strict=True)):
        start, stop = e.gpu.ops["start_ns"][rank.op], e.gpu.ops["end_ns"][rank.op]
        joined, moving = start + rank.waiting_ns, limits[number]
        compute = e.gpu.union_of(e.gpu.is_compute)
        found.append(
            [
                np.full(len(rank.op), number, np.int64),
                rank.op,
                rank.instance,
                start,
                stop,
                rank.waiting_ns,
                moving,
                rank.transfer_ns - moving,
                rank.waiting_ns - overlap_per_window(compute, start, joined),
                moving - overlap_per_window(compute, stop - moving, stop),
                rank.start_ns - matched.instances.first_start_ns[rank.instance],
            ]
        )
    names = [field.name for field in fields(Facts)]
    columns = (np.concatenate(column) for column in zip(*found, strict=True))
    return Facts(**dict(zip(names, columns, strict=True)))


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Ranks as text; runs are shortened."""
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    shown = ",".join(map(str, ranks[:_SHOWN_RANKS]))
    return shown + (",..." if len(ranks) > _SHOWN_RANKS else "")


class Staged(Protocol):
    """What the stages of a pipeline are found from: :class:`Collectives`, or digests."""

    @property
    def matched(self) -> Matched:
        """Which operations belong together."""

    @property
    def groups(self) -> list[Guess]:
        """What the communicators are likely for."""

    @property
    def parts(self) -> Parts:
        """Where the time of each device goes."""

    @property
    def work(self) -> Work:
        """What each device was given to do."""

    def kernel_means(self, device: int) -> dict[str, float]:
        """Mean duration of each compute kernel of a device in the shared steps, ns, by name."""


def stages_of(c: Staged) -> list[list[int]]:
    """Positions of the devices of each stage, from one end of the pipeline to the other.

    Devices are neighbours where sends and receives connect them. Replicas of a pipeline have
    stages of the same place in it.
    """
    pipeline = {guess.channel for guess in c.groups if guess.id == "pipeline_parallel"}
    near: dict[int, set[int]] = {}
    for number in pipeline:
        members = {device for device, _ in c.matched.channels[number].members}
        for device in members:
            near.setdefault(device, set()).update(members - {device})
    found: dict[int, int] = {}
    for start in sorted(near, key=lambda device: (len(near[device]), device)):
        if start in found:
            continue
        around = _component(near, start)
        if len(around) > 2 and all(len(near[device]) == 2 for device in around):
            # interleaved stages send from the last rank to the first one as well: a ring
            found.update({device: place for place, device in enumerate(around)})
            continue
        place, front = 0, [start]
        while front:
            for device in front:
                found[device] = place
            front = sorted({d for device in front for d in near[device]} - found.keys())
            place += 1
    stages: list[list[int]] = [[] for _ in range(max(found.values(), default=-1) + 1)]
    for device, place in sorted(found.items()):
        stages[place].append(device)
    return stages


def _component(near: dict[int, set[int]], start: int) -> list[int]:
    """All devices that are connected with one, ascending."""
    seen, front = {start}, {start}
    while front:
        front = {other for device in front for other in near[device]} - seen
        seen |= front
    return sorted(seen)


PACE_COLUMNS: Final = {
    "rank": "rank",
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
    "steps": "steady steps that all devices share",
    "step_ns": "their mean length, ns",
    "need_ns": "what a step would take if this device waited for no other and nothing recorded it: "
    "the longer of what its device and what its host does but wait, ns per step",
    "host_need_ns": "what its host does but wait for the device, with the cost of recording, ns a "
    "step; 0 where the steps are not known",
    "waiting_ns": "collectives wait for the last rank and nothing covers it, ns per step",
    "transfer_ns": "communication moves data and nothing covers it, ns per step",
    "blocking_ns": "part of transfer_ns that other work was ready to follow, ns per step",
    "bubble_ns": "part of waiting_ns in sends and receives, ns per step",
    "recording_ns": "idle time that is charged to recording, ns per step",
    "missing_ns": "likely waiting for ranks that are not there, ns per step",
    "compute_ns": "compute kernels run, ns per step",
    "alone_ns": "part of compute_ns in which no communication runs, ns per step",
    "stage": "place in the pipeline, 0 at one end of it; -1 where it is in none",
    "kernels": "compute kernels per step",
    "threads": "threads they are launched with, a step",
    "operations": "matched communication operations in these steps",
    "joined_last": "of them, those that this device began last",
    "late": "whether the others wait for this device",
    "imposed_ns": "how much sooner the job would go on if the late devices were in time, ns a "
    "step; 0 where the device is not late",
}


def pace_columns(c: Collectives) -> dict[str, AnyArray]:
    """One value a device for each of ``PACE_COLUMNS``."""
    parts, matched = c.parts, c.matched
    n = len(matched.ranks)
    late = c.lateness
    instances = matched.instances
    inside = c.step_of(instances.last_start_ns) >= 0
    several = inside & (instances.members > 1)
    devices = late.devices if late is not None and not late.common else []
    stage = np.full(n, -1, np.int64)
    for place, members in enumerate(stages_of(c)):
        stage[members] = place
    is_late = among(np.arange(n), devices)

    def mean(values: AnyArray) -> AnyArray:
        if not len(parts):
            return np.zeros(n, np.int64)
        means: AnyArray = np.rint(values.mean(axis=0)).astype(np.int64)
        return means

    imposed = round(late.imposed_ns) if late is not None else 0
    return {
        "rank": np.array([rank.rank for rank in matched.ranks], np.int64),
        "process_id": np.array([rank.process_id for rank in matched.ranks], np.int64),
        "device": np.array([rank.device for rank in matched.ranks], np.int64),
        "steps": np.full(n, len(parts)),
        "step_ns": np.full(n, round(c.step_ns)),
        "need_ns": mean(own_time(parts, c.paces)),
        "host_need_ns": np.array([round(pace.need_ns) for pace in c.paces], np.int64),
        **{
            f"{name}_ns": mean(getattr(parts, name))
            for name in ("waiting", "transfer", "blocking", "bubble", "missing", "compute", "alone")
        },
        "recording_ns": mean(recording_idle(parts)),
        "stage": stage,
        "kernels": mean(c.work.kernels),
        "threads": mean(c.work.threads),
        "operations": np.array([int(inside[rank.instance].sum()) for rank in matched.ranks]),
        "joined_last": np.bincount(instances.last[several], minlength=n),
        "late": is_late,
        "imposed_ns": np.where(is_late, imposed, 0),
    }

"""The communication of a job as people ask for it: by kind and group, and by rank."""

from __future__ import annotations

import msgspec
import numpy as np

from stepscope.collectives import kinds
from stepscope.collectives.in_steps import InSteps, in_steps
from stepscope.collectives.job import Collectives, ranks_text
from stepscope.collectives.parallel import LABELS
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import BoolArray, IntArray

SCHEMA = "stepscope.comm/2"


class Operations(msgspec.Struct, frozen=True):
    """Communication of one kind in one group, in the steady steps that all ranks share.

    Times are means over the ranks of the time in all these steps, ns: of an operation that begins
    or ends outside of them, the part inside. Where several operations are exposed at once, the time
    counts for the first. A bandwidth is that of the median operation and counts its whole transfer
    time.

    Attributes:
        kind: all_reduce, all_gather, ..., send_recv.
        group: the ranks that take part.
        group_size: number of ranks that should.
        likely: what the group is likely for.
        count: number of operations whose last rank joins in these steps.
        message_bytes: sum of their message sizes; null where the capture does not tell.
        time_ns: kernels run.
        waiting_ns: of it, until the last rank has joined.
        transfer_ns: of it, afterwards.
        missing_ns: of it, likely waiting for ranks that are not there: what it takes beyond equal
            operations.
        exposed_waiting_ns: of the waiting, what no compute covers.
        exposed_transfer_ns: of the transfer, what no compute covers.
        exposed_missing_ns: of ``missing_ns``, what no compute covers.
        algorithm_bandwidth: the sizes of all messages over the sum of their transfer times, bytes a
            second; null where unknown.
        bus_bandwidth: the same as the hardware sees it (nccl-tests), bytes a second; null where
            unknown.
    """

    kind: str
    group: str
    group_size: int
    likely: str
    count: int
    message_bytes: int | None
    time_ns: int
    waiting_ns: int
    transfer_ns: int
    missing_ns: int
    exposed_waiting_ns: int
    exposed_transfer_ns: int
    exposed_missing_ns: int
    algorithm_bandwidth: int | None
    bus_bandwidth: int | None


class RankArrival(msgspec.Struct, frozen=True):
    """How one device arrives at collectives, in the steady steps that all ranks share.

    Times are those inside of these steps. The four exposed ones are together the exposed
    communication of the accounting.

    Attributes:
        rank: the rank.
        device: CUDA device ordinal inside the process.
        operations: matched operations.
        unmatched: communication kernels of the whole capture without a counterpart.
        last: operations that it joined last.
        lateness_ns: median time from the first rank's start to its own.
        waiting_ns: time in operations before the last rank has joined.
        transfer_ns: time in operations afterwards.
        missing_ns: time in operations that is likely waiting for ranks that are not there.
        exposed_waiting_ns: the waiting that no compute covers.
        exposed_transfer_ns: the transfer that no compute covers.
        exposed_missing_ns: of ``missing_ns``, what no compute covers.
        exposed_unmatched_ns: what communication without a counterpart takes and no compute covers.
        clock_offset_ns: what is added to its times to compare them with other ranks'.
        clock_drift: what is added a ns of capture, ns a ns.
        clock_residual_ns: how far ends of one operation still lie apart.
    """

    rank: int
    device: int
    operations: int
    unmatched: int
    last: int
    lateness_ns: int
    waiting_ns: int
    transfer_ns: int
    missing_ns: int
    exposed_waiting_ns: int
    exposed_transfer_ns: int
    exposed_missing_ns: int
    exposed_unmatched_ns: int
    clock_offset_ns: int
    clock_drift: float
    clock_residual_ns: int


class GroupUse(msgspec.Struct, frozen=True):
    """What a group of ranks is likely for.

    Attributes:
        group: its ranks.
        likely: data_parallel, sharded_data_parallel, tensor_parallel, pipeline_parallel,
            expert_parallel, sequence_parallel, embedding_parallel, context_parallel, scalars or
            unknown.
        label: the same in words.
        message: the evidence.
    """

    group: str
    likely: str
    label: str
    message: str


class Communication(msgspec.Struct, frozen=True):
    """The result of ``stepscope comm``: the contract ``stepscope.comm/2``.

    Attributes:
        schema: name and version of this contract.
        paths: the inputs as the user named them.
        ranks: number of ranks.
        steps: steady steps that all ranks share.
        step_ns: their mean length.
        operations: by kind and group, most time first.
        arrivals: by rank.
        groups: what the groups are likely for.
        warnings: what could not be matched or had to be assumed.
    """

    schema: str
    paths: list[str]
    ranks: int
    steps: int
    step_ns: int
    operations: list[Operations]
    arrivals: list[RankArrival]
    groups: list[GroupUse]
    warnings: list[str]


def summary(c: Collectives, paths: list[str]) -> Communication:
    """Sum up the communication in the steady steps that all ranks share."""
    instances = c.matched.instances
    inside = c.step_of(instances.last_start_ns) >= 0
    inner = in_steps(c)
    # one rank whose communicator nothing names tells too little of what others it is for
    likely = [guess for guess in c.groups if len(c.matched.channels[guess.channel].ranks) > 1]
    names = [ranks_text(channel.ranks) for channel in c.matched.channels]
    warnings = list(c.warnings)
    if c.alone:
        warnings.append(
            "only one rank is there, so waiting for other ranks cannot be told from transferring"
        )
    if inside.any() and (instances.bytes[inside] < 0).all():
        warnings.append(
            "the capture does not tell message sizes, so there is no bandwidth; stepscope run and "
            "torch.profiler record them"
        )
    return Communication(
        schema=SCHEMA,
        paths=paths,
        ranks=len({p.rank for p in c.participants}),
        steps=len(c.windows_ns[0]),
        step_ns=round(c.step_ns),
        operations=_operations(c, inside, inner, names, {g.channel: g.id for g in likely}),
        arrivals=_arrivals(c, inside, inner),
        groups=[
            GroupUse(names[guess.channel], guess.id, LABELS[guess.id], guess.message)
            for guess in likely
        ],
        warnings=warnings,
    )


def _operations(
    c: Collectives,
    inside: BoolArray,
    inner: InSteps,
    names: list[str],
    likely: dict[int, str],
) -> list[Operations]:
    instances, facts = c.matched.instances, c.facts
    code = instances.channel * len(kinds.KINDS) + instances.kind
    transfer = _median_by(facts.instance, facts.transfer, len(instances))
    factor = kinds.bus_factor(instances.kind, instances.size)
    found = []
    reaching = inside.copy()
    reaching[facts.instance[inner.time > 0]] = True
    for key in distinct_values(code[reaching]).tolist():
        of = inside & (code == key)
        channel, kind = divmod(key, len(kinds.KINDS))
        rows = (reaching & (code == key))[facts.instance]
        devices = max(len(distinct_values(facts.device[rows])), 1)
        sized = of & (instances.bytes >= 0) & (transfer > 0)
        algorithm = bus = None
        if sized.any() and not c.alone:
            size, spent = instances.bytes[sized], transfer[sized].sum() / 1e9
            algorithm = round(float(size.sum() / spent))
            bus = round(float((size * factor[sized]).sum() / spent))

        def mean(values: IntArray, rows: IntArray = rows, devices: int = devices) -> int:
            return round(float(values[rows].sum()) / devices)

        found.append(
            Operations(
                kind=kinds.KINDS[kind],
                group=names[channel],
                group_size=int(instances.size[code == key].max()),
                likely=likely.get(channel, "unknown"),
                count=int(of.sum()),
                message_bytes=int(instances.bytes[sized].sum()) if sized.any() else None,
                time_ns=mean(inner.time),
                waiting_ns=mean(inner.waiting),
                transfer_ns=mean(inner.transfer),
                missing_ns=mean(inner.missing),
                exposed_waiting_ns=mean(inner.exposed_waiting),
                exposed_transfer_ns=mean(inner.exposed_transfer),
                exposed_missing_ns=mean(inner.exposed_missing),
                algorithm_bandwidth=algorithm,
                bus_bandwidth=bus,
            )
        )
    return sorted(found, key=lambda row: -row.time_ns)


def _arrivals(c: Collectives, inside: BoolArray, inner: InSteps) -> list[RankArrival]:
    instances, facts = c.matched.instances, c.facts
    counted = inside[facts.instance]
    found = []
    for number, (p, rank) in enumerate(zip(c.participants, c.matched.ranks, strict=True)):
        mine = facts.device == number
        rows = counted & mine
        late = facts.lateness[rows]
        several = inside & (instances.members > 1)
        found.append(
            RankArrival(
                rank=p.rank,
                device=p.gpu.device,
                operations=int(rows.sum()),
                unmatched=rank.unmatched,
                last=int((several & (instances.last == number)).sum()),
                lateness_ns=round(float(np.median(late))) if len(late) else 0,
                waiting_ns=int(inner.waiting[mine].sum()),
                transfer_ns=int(inner.transfer[mine].sum()),
                missing_ns=int(inner.missing[mine].sum()),
                exposed_waiting_ns=int(c.parts.waiting[:, number].sum()),
                exposed_transfer_ns=int(c.parts.transfer[:, number].sum()),
                exposed_missing_ns=int(c.parts.missing[:, number].sum()),
                exposed_unmatched_ns=int(c.parts.unmatched[:, number].sum()),
                clock_offset_ns=rank.offset_ns,
                clock_drift=rank.clock.drift,
                clock_residual_ns=round(rank.clock.residual_ns),
            )
        )
    return found


def _median_by(group: IntArray, values: IntArray, n: int) -> IntArray:
    """Lower median of the values of each group; 0 where a group has none."""
    order = np.lexsort((values, group))
    first = np.searchsorted(group[order], np.arange(n), side="left")
    count = np.searchsorted(group[order], np.arange(n), side="right") - first
    if not len(order):
        return np.zeros(n, np.int64)
    at = np.minimum(first + np.maximum(count - 1, 0) // 2, len(order) - 1)
    return np.where(count > 0, values[order][at], 0)


def nothing(paths: list[str], ranks: int) -> Communication:
    """The summary of a job that does not communicate."""
    warning = "the captures hold no communication kernels (NCCL, RCCL, NVSHMEM and their like)"
    return Communication(SCHEMA, paths, ranks, 0, 0, [], [], [], [warning])

"""What ``stepscope job`` finds: the contract ``stepscope.job/1``. Times are integer nanoseconds."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SCHEMA: Final = "stepscope.job/1"

Reason = Literal[
    "slow_gpu", "slow_host", "late_input", "extra_work", "slow_copies", "slow_link", "mixed", ""
]
"""Why ranks are late; empty for causes that are no lateness. Other causes of idle time stand in
``root_cause``."""


class Skipped(msgspec.Struct, frozen=True):
    """An input that was left out.

    Attributes:
        path: the file.
        reason: why, in one sentence.
    """

    path: str
    reason: str


class JobSummary(msgspec.Struct, frozen=True):
    """What was looked at.

    Attributes:
        digests: digests that count.
        ranks: ranks they are of.
        world_size: ranks of the job; null where no digest tells.
        missing_ranks: ranks of the job without a digest.
        nodes: machines.
        steps: steps that all ranks share.
        step_kind: what a step is.
        skipped: inputs that were left out.
    """

    digests: int
    ranks: int
    world_size: int | None
    missing_ranks: list[int]
    nodes: int
    steps: int
    step_kind: str
    skipped: list[Skipped]


class StepTime(msgspec.Struct, frozen=True):
    """Length of a step of the job, the slowest rank's.

    Attributes:
        median: half of the steps take at most this, ns.
        mean: mean, ns.
        p95: 95 in 100 steps take at most this, ns.
    """

    median: int
    mean: int
    p95: int


class JobFinding(msgspec.Struct, frozen=True):
    """One root cause in the job.

    Attributes:
        cause: public id of the cause.
        reason: why the ranks are late; empty for causes that are no lateness.
        root_cause: cause of the idle time behind it, where there is one.
        ranks: ranks that show it.
        place: the node, switch or rail that they make up; empty where they make up none.
        communicators: with ``slow_link``, the communicators that are slow.
        time_ns_per_step: what counts of it, ns a step: what it costs, which is the time that was
            seen to pass in it, or what its repair recovers where that is less than half of that or
            a quarter more.
        share_of_step: that part of the mean step.
        predicted_step_ns: mean step once the cause is gone, those before it in the list too where
            they hide it.
        prediction_low_ns: lower bound.
        prediction_high_ns: upper bound.
        score: robust standard deviations from what its peers need; null where ranks are too few
            for statistics.
        threshold: the score from which on it counts, for as many ranks and places as were looked
            at; null likewise.
        where: annotation, operator or line that holds most of it, on the ranks that show it.
        message: one sentence.
        recommendations: what to do, most effective first.
        evidence: figures of the sentence by name, ns where the name ends so.
    """

    cause: str
    reason: Reason
    root_cause: str | None
    ranks: list[int]
    place: str
    communicators: list[str]
    time_ns_per_step: int
    share_of_step: float
    predicted_step_ns: int
    prediction_low_ns: int
    prediction_high_ns: int
    score: float | None
    threshold: float | None
    where: str
    message: str
    recommendations: list[str]
    evidence: dict[str, float]


class RankRow(msgspec.Struct, frozen=True):
    """One rank, means of the shared steps.

    Attributes:
        rank: the rank.
        hostname: its machine.
        device: CUDA device ordinal inside its process.
        role: number of its group of alike ranks.
        need_ns: what a step would take if it waited for no other, ns.
        compute_ns: compute kernels run.
        waiting_ns: it waits inside collectives and nothing covers it.
        transfer_ns: data moves and nothing covers it.
        idle_ns: its device is idle.
        host_need_ns: what its host does but wait; 0 where unknown.
        kernel_rate: how long its kernels take against those of its peers; 1 is alike.
        joined_last: share of the matched collectives that it joined last.
        sm_clock_mhz: mean SM clock; null where not sampled.
        score: robust standard deviations from what its peers need; null where they are too few.
        late: whether a finding is about it.
        capture: its full capture.
    """

    rank: int
    hostname: str
    device: int
    role: int
    need_ns: int
    compute_ns: int
    waiting_ns: int
    transfer_ns: int
    idle_ns: int
    host_need_ns: int
    kernel_rate: float
    joined_last: float
    sm_clock_mhz: float | None
    score: float | None
    late: bool
    capture: str


class Role(msgspec.Struct, frozen=True):
    """Ranks that do the same work, so that they can be compared.

    Attributes:
        role: its number.
        ranks: how many.
        example: one of them.
        device_name: product name of their GPUs.
        kernels: compute kernels a step, median.
        need_ns: what a step takes on their own account, median.
        p95_ns: 95 in 100 of them need at most this.
        most_ns: what the one that needs most needs.
    """

    role: int
    ranks: int
    example: int
    device_name: str
    kernels: int
    need_ns: int
    p95_ns: int
    most_ns: int


class Communicator(msgspec.Struct, frozen=True):
    """One communicator in the shared steps.

    Attributes:
        name: its ranks.
        members: ranks found.
        size: ranks that it should have.
        use: what it is likely for.
        operations: collectives a step.
        transfer_ns: time from the last rank's join to the end, ns a step: the least of its ranks.
        skew_ns: from the first rank's join to the last one's, mean, ns.
        last_rank: rank that joins last most often.
        last_share: how often it does.
        score: robust standard deviations of its transfer from communicators alike; null for too
            few.
    """

    name: str
    members: int
    size: int
    use: str
    operations: float
    transfer_ns: int
    skew_ns: int
    last_rank: int
    last_share: float
    score: float | None


class HeatMap(msgspec.Struct, frozen=True):
    """How late each rank is in each step.

    Attributes:
        ranks: ranks, in order; the rows.
        steps: number of each step in the first rank's capture; the columns.
        late_ns: what the rank needs beyond the median of its role, ns; one list a rank.
    """

    ranks: list[int]
    steps: list[int]
    late_ns: list[list[int]]


class Fetch(msgspec.Struct, frozen=True):
    """A full capture that is worth fetching.

    Attributes:
        rank: the rank.
        capture: path of the capture, as the digest names it.
        hostname: machine that it was taken on.
        why: what it would show.
        step: number of the step to look at.
    """

    rank: int
    capture: str
    hostname: str
    why: str
    step: int


class Stuck(msgspec.Struct, frozen=True):
    """A collective that did not complete, as flight recorders or logs of NCCL Inspector tell.

    Attributes:
        group: the process group, or the communicator.
        sequence: number of the operation inside the group.
        name: the operation.
        arrived: ranks that enqueued it; numbers inside the communicator where a log does not tell
            those of the job.
        never_arrived: ranks of the group that did not, although their record goes that far.
        not_recorded: ranks of the group without a dump.
        since_ns: wall-clock time of the first rank's call, ns since 1970; 0 where unknown.
        where: innermost line of the program that the ranks wait in; empty where unknown.
        message: one sentence.
    """

    group: str
    sequence: int
    name: str
    arrived: list[int]
    never_arrived: list[int]
    not_recorded: list[int]
    since_ns: int
    where: str
    message: str


LogKind = Literal["late_rank", "late_node", "slow_communicator", "slow_pair", "ends_late"]
"""What logs of NCCL Inspector show: ranks that the others wait for, transfers that take longer than
those alike, a rank whose kernels end after those of the others."""


class LoggedRow(msgspec.Struct, frozen=True):
    """One collective of one size in one communicator, from logs of NCCL Inspector.

    The rank that comes last has the shortest kernel, so the shortest of the ranks is the transfer,
    and what the others take beyond it they wait.

    Attributes:
        communicator: its id, the same on all ranks.
        name: its name, or its ranks.
        ranks: ranks of it that left a log.
        size: ranks that it has.
        nodes: machines that it spans.
        operation: the collective.
        bytes: message size as NCCL counts it, B.
        matched: how many were found on the ranks.
        transfer_ns: median time from the last rank's begin to the end, ns; of a broadcast or
            reduction to one rank, which some ranks end early, that of the kernels.
        waiting_ns: mean time that a rank waits in one, ns; 0 for these.
        bus_gbs: bus bandwidth of the transfer, median, GB/s; null where none is defined.
        bus_low_gbs: 5 in 100 of them have at most this.
        bus_high_gbs: 95 in 100 of them have at most this.
        last: the rank that comes last most often; empty where all come together.
        last_share: share of those with notable waiting in which it comes last.
    """

    communicator: str
    name: str
    ranks: int
    size: int
    nodes: int
    operation: str
    bytes: int
    matched: int
    transfer_ns: int
    waiting_ns: int
    bus_gbs: float | None
    bus_low_gbs: float | None
    bus_high_gbs: float | None
    last: str
    last_share: float


class LogFinding(msgspec.Struct, frozen=True):
    """One conclusion from logs of NCCL Inspector.

    Attributes:
        kind: what it is.
        ranks: ranks of the job; empty where the logs do not tell them.
        members: the same ranks in words, with machine and process.
        node: the machine that they make up, or all stand on; empty otherwise.
        communicators: names of the communicators that show it.
        operation: the collective or message that shows it; empty for several.
        looked_at: how many matched operations were looked at.
        showing: in how many of them it shows.
        excess_ns: how much longer one takes, or the others wait in one, ns; mean of those showing.
        share: part of the time of the operations looked at that it costs.
        score: robust standard deviations from those alike; null for too few of them, and for ranks
            that are late too seldom for their median to show it.
        threshold: the score from which on it counts, for as many as were looked at; null likewise.
        message: one sentence.
        recommendations: what to do, most effective first.
    """

    kind: LogKind
    ranks: list[int]
    members: list[str]
    node: str
    communicators: list[str]
    operation: str
    looked_at: int
    showing: int
    excess_ns: int
    share: float
    score: float | None
    threshold: float | None
    message: str
    recommendations: list[str]


class CollectiveLogs(msgspec.Struct, frozen=True):
    """What logs of NCCL Inspector tell.

    Attributes:
        logs: files.
        processes: processes that wrote them.
        communicators: communicators in them.
        operations: operations in them.
        findings: conclusions, the largest cost first.
        rows: collectives by communicator, name and size, the most time first; 500 at most.
        cannot_tell: what these logs do not tell, and what would; one sentence each.
    """

    logs: int
    processes: int
    communicators: int
    operations: int
    findings: list[LogFinding]
    rows: list[LoggedRow]
    cannot_tell: list[str]


class JobDiagnosis(msgspec.Struct, frozen=True):
    """The diagnosis of a job from digests.

    Attributes:
        schema: name and version of this contract.
        job: what was looked at.
        step_ns: length of a step.
        verdict: the first finding's cause, ``gpu_bound_healthy``, or ``insufficient_data``; from
            records of collectives alone ``hang``, ``straggler``, ``collectives_even`` where no rank
            and no communicator stands out, or ``insufficient_data``.
        findings: root causes, the largest gain first.
        all_repaired_step_ns: mean step with all late ranks like their peers.
        roles: groups of alike ranks.
        communicators: communicators, the largest transfer first.
        ranks: the ranks.
        outliers: ranks whose need is beyond the threshold, whatever it costs the job.
        heat_map: ranks x steps.
        fetch: captures to fetch next, five at most.
        stuck: collectives that did not complete, from flight recorders and logs.
        warnings: what was assumed or odd.
        collective_logs: what logs of NCCL Inspector tell; null without them.
    """

    schema: str
    job: JobSummary
    step_ns: StepTime
    verdict: str
    findings: list[JobFinding]
    all_repaired_step_ns: int
    roles: list[Role]
    communicators: list[Communicator]
    ranks: list[RankRow]
    outliers: list[int]
    heat_map: HeatMap
    fetch: list[Fetch]
    stuck: list[Stuck] = []
    warnings: list[str] = []
    collective_logs: CollectiveLogs | None = None

"""What a capture shows of the loader of batches: its workers, and what brings a batch at most.

PyTorch's DataLoader works in stages, and the slowest sets the pace: W worker processes make one
batch each in ``fetch_ns``, one thread copies each finished batch into pinned memory, and the
training thread uploads it. More workers help until the next stage is the slowest, or until all CPUs
are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.host import loads_by_itself
from stepscope.breakdown.recurrence import Recurrence
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS
from stepscope.diagnosis.warned import Warned
from stepscope.intervals.distinct import among, distinct_values
from stepscope.simulation.settings.workers import FETCH_RANGE
from stepscope.trace.frame import IntArray
from stepscope.trace.units import Unit

_PINNING: Final = "pt_data_pin"

PINNING_BYTES_PER_NS: Final = (5.0, 10.0, 3.0)
"""What one thread copies from memory shared between processes into pinned memory, bytes a ns
(GB/s): expected, most, least. Each page is mapped when it is first read, which takes about as long
as copying it; the least is for a thread whose core the workers use as well."""

MIN_PINNED_BYTES: Final = 1 << 20
"""Smaller batches are pinned in no time."""

CROWDED: Final = 0.25
"""Share of the time in which threads of the workers want a CPU and get none, from which on it is
CPUs that they lack, and not workers. A CPU does not stay idle while a thread waits for one: threads
that wait for a quarter of the time find all CPUs taken nearly always."""

_WORKER: Final = "pt_data_worker"

_SLOWER: Final = 0.1
"""Share by which workers are slower than the steps, from which on that is worth a warning."""

_STATES: Final = (
    "FROM (SELECT state, least(end_ns, (SELECT max(end_ns) FROM step WHERE steady AND {gpu})) - "
    "greatest(start_ns, (SELECT min(start_ns) FROM step WHERE steady AND {gpu})) AS spent FROM "
    "thread_state WHERE process_id IN (SELECT process_id FROM thread WHERE name = "
    f"'{_WORKER}')) WHERE spent > 0"
)

_FETCHES: Final = f"FROM range WHERE name = '{FETCH_RANGE}' AND NOT coalesce(end_missing, false)"
_UPLOADED: Final = (
    "FROM gpu_op WHERE kind = 'memcpy' AND copy_kind = 'HtoD' AND src_memory = 'pinned' "
    "AND {gpu} AND {window}"
)

_PINNED: Final[tuple[tuple[str, Unit, str], ...]] = (
    ("pinned_bytes_per_step", "bytes", STEADY_STEPS),
    ("pinning_ns_per_step", "ns_per_step", f"{STEADY_STEPS} / {PINNING_BYTES_PER_NS[0]:g}"),
)


@dataclass(frozen=True)
class Loader:
    """The loader of one process.

    Attributes:
        who: who makes the batches: ``workers``, the ``main`` thread, or ``unknown``.
        workers: worker processes; 0 where the capture does not hold them.
        fetch_ns: mean time that a worker takes for one batch, ns; 0 where that is not recorded.
        fetch_error: standard error of that mean, as a share.
        pinned_bytes: what one thread pins for a step; 0 where none is known to.
        crowded: share of the time in which threads of the workers want a CPU and get none; 0 where
            that is not known.
    """

    who: str
    workers: int
    fetch_ns: float
    fetch_error: float
    pinned_bytes: float
    crowded: float = 0.0

    @property
    def lacks_cpus(self) -> bool:
        """Whether all CPUs are taken while the workers make batches."""
        return self.crowded >= CROWDED

    @property
    def period_ns(self) -> float:
        """At what pace the workers bring batches, ns each; 0 where that is not known."""
        return self.fetch_ns / self.workers if self.workers else 0.0

    @property
    def pinning_ns(self) -> tuple[float, float, float] | None:
        """What pinning takes a step, ns: expected, least, most; None where nothing is pinned."""
        if self.pinned_bytes < MIN_PINNED_BYTES:
            return None
        expected, most, least = PINNING_BYTES_PER_NS
        return self.pinned_bytes / expected, self.pinned_bytes / most, self.pinned_bytes / least

    def brought(self, step_ns: float, waited_ns: float) -> Recurrence | None:
        """How much of the waiting a mean step of the run holds, by the pace of the workers.

        Workers that began together are late together: of two, every other step waits for both. How
        many of these a window holds is chance; what they take for a batch, over their number, is
        the step of the run. None where that is not known, or where they keep up on average.

        Args:
            step_ns: the mean step of the window.
            waited_ns: what waiting for batches takes of it.
        """
        period, work = self.period_ns, step_ns - waited_ns
        if period <= work:
            return None
        return Recurrence((period - work) / waited_ns, self.fetch_error * period / (period - work))

    def figures(self) -> list[Figure]:
        """The evidence for it, as far as it is known."""
        found = []
        if self.fetch_ns:
            # those that are at their first batch still when the capture ends are workers, too
            counted = f"FROM thread WHERE name = '{_WORKER}'" if self.workers else _FETCHES
            found = [
                Figure("loader_workers", "count", f"SELECT count(DISTINCT process_id) {counted}"),
                Figure("fetch_ns", "ns", f"SELECT avg(end_ns - start_ns)::BIGINT {_FETCHES}"),
            ]
        if self.lacks_cpus:
            found += [
                Figure(
                    "worker_cpus",
                    "count",
                    "SELECT round(sum(spent) FILTER (state = 'running') / (SELECT max(end_ns) - "
                    f"min(start_ns) FROM step WHERE steady AND {{gpu}}))::BIGINT {_STATES}",
                ),
                Figure(
                    "workers_without_cpu",
                    "share",
                    "SELECT sum(spent) FILTER (state = 'runnable') / sum(spent) FILTER (state IN "
                    f"('runnable', 'running')) {_STATES}",
                ),
            ]
        if self.pinning_ns:
            found += [
                Figure(name, unit, f"SELECT round(sum(bytes) / {divisor})::BIGINT {_UPLOADED}")
                for name, unit, divisor in _PINNED
            ]
        return found

    def workers_needed(self, work: str) -> Figure:
        """How many workers keep up with steps of so much work, an expression over ``step``."""
        return Figure(
            "workers_needed",
            "count",
            f"SELECT ceil((SELECT avg(end_ns - start_ns) {_FETCHES}) / ({work}))::BIGINT",
        )


def loader_of(case: Case, *, pinned_on_main: bool) -> Loader:
    """The loader that a capture shows.

    Args:
        case: the device.
        pinned_on_main: whether the training thread itself pins its batches.
    """
    host = case.explanation.gpu.host
    names = set(host.ranges.texts.get("name", [])) | set(host.thread_names)
    if any(words.LOADER_WITH_WORKERS.search(name) for name in names):
        workers, fetch, error = _fetches(case)
        pins = _PINNING in names
        pinned = _pinned_bytes(case) if pins else 0.0
        return Loader("workers", workers, fetch, error, pinned, _crowded(case))
    if pinned_on_main or loads_by_itself(host):
        return Loader("main", 0, 0.0, 0.0, 0.0)
    return Loader("unknown", 0, 0.0, 0.0, 0.0)


def ready_batches_warning(case: Case) -> Warned | None:
    """That workers are slower than the steps, which batches that were ready covered; else None.

    A loader works ahead while a program starts, compiles, or is begun to be recorded: the first
    steps behind that wait for nothing, however slow it is.
    """
    loader = loader_of(case, pinned_on_main=False)
    if not loader.period_ns:
        return None
    waited = case.idle_ns("input_starvation")
    measured = case.explanation.measured
    step = case.step_ns - (max(measured.cost_ns, 0.0) if measured is not None else 0.0)
    slower = loader.period_ns * (1 - 2 * loader.fetch_error) > (1 + _SLOWER) * step
    if not slower or waited >= _SLOWER * case.step_ns:
        return None
    every = f"SELECT (avg(end_ns - start_ns) / {loader.workers})::BIGINT {_FETCHES}"
    return Warned(
        "the run as a whole waits for its input (input_starvation), and these steps do not: "
        "{loader_workers} workers take {fetch_ns} for a batch each, so that one comes every "
        "{batch_every_ns}, and what was ready before the recording covers it; record more steps, "
        "or later (stepscope run --warmup N --steps N), and raise DataLoader(num_workers=...)",
        [*loader.figures()[:2], Figure("batch_every_ns", "ns", every)],
    )


def _fetches(case: Case) -> tuple[int, float, float]:
    """Worker processes, the mean time that a batch took one of them, ns, and its error (share)."""
    if case.several_traces:  # whose workers they are is not recorded
        return 0, 0.0, 0.0
    rows = case.device.read("range", "process_id", "start_ns", "end_ns", "name", "end_missing")
    if not len(rows):
        return 0, 0.0, 0.0
    mine = rows.equals("name", FETCH_RANGE) & (rows["end_missing"] == 0)
    if not mine.any():
        return 0, 0.0, 0.0
    length = (rows["end_ns"] - rows["start_ns"])[mine]
    mean = float(length.mean())
    error = float(length.std(ddof=1)) / mean / len(length) ** 0.5 if len(length) > 1 else 0.5
    return len(_worker_processes(case)), mean, error


def _worker_processes(case: Case) -> IntArray:
    threads = case.device.read("thread", "process_id", "name")
    return distinct_values(threads["process_id"][threads.equals("name", _WORKER)])


def _crowded(case: Case) -> float:
    """Share of the time in which threads of the workers want a CPU and get none."""
    if case.several_traces:
        return 0.0
    e = case.explanation
    states = case.device.read("thread_state", "process_id", "start_ns", "end_ns", "state")
    begin = np.maximum(states["start_ns"], e.begin_ns)
    spent = np.maximum(np.minimum(states["end_ns"], e.end_ns) - begin, 0)
    mine = among(states["process_id"], _worker_processes(case))
    running, runnable = (
        int(spent[mine & states.equals("state", state)].sum()) for state in ("running", "runnable")
    )
    return runnable / max(running + runnable, 1)


def _pinned_bytes(case: Case) -> float:
    """Bytes of pinned memory that are uploaded in a steady step."""
    e = case.explanation
    ops = e.gpu.ops
    mine = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "HtoD")
    mine &= ops.equals("src_memory", "pinned")
    mine &= (ops["start_ns"] >= e.begin_ns) & (ops["start_ns"] < e.end_ns)
    return float(ops["bytes"][mine].sum()) / e.n_steady

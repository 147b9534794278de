"""What a capture shows of the loader of batches: its workers, and what brings a batch at most.

PyTorch's DataLoader works in stages, and the slowest sets the pace: W worker processes make one
batch each in ``fetch_ns``, one thread copies each finished batch into pinned memory, and the
training thread uploads it. More workers help until the next stage is the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stepscope.activity import names as words
from stepscope.activity.host import loads_by_itself
from stepscope.breakdown.recurrence import Recurrence
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.evidence import STEADY_STEPS
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.units import Unit

FETCH_RANGE: Final = "DataLoader fetch"
"""The range that ``stepscope run`` puts around the making of a batch in a worker process."""

_PINNING: Final = "pt_data_pin"

PINNING_BYTES_PER_NS: Final = (5.0, 10.0, 3.0)
"""What one thread copies from memory shared between processes into pinned memory, bytes a ns
(GB/s): expected, most, least. Each page is mapped when it is first read, which takes about as long
as copying it; the least is for a thread whose core the workers use as well."""

MIN_PINNED_BYTES: Final = 1 << 20
"""Smaller batches are pinned in no time."""

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
    """

    who: str
    workers: int
    fetch_ns: float
    fetch_error: float
    pinned_bytes: float

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
        if not self.workers or not self.fetch_ns:
            return None
        period, work = self.fetch_ns / self.workers, step_ns - waited_ns
        if period <= work:
            return None
        return Recurrence((period - work) / waited_ns, self.fetch_error * period / (period - work))

    def figures(self) -> list[Figure]:
        """The evidence for it, as far as it is known."""
        found = []
        if self.fetch_ns:
            found = [
                Figure("loader_workers", "count", f"SELECT count(DISTINCT process_id) {_FETCHES}"),
                Figure("fetch_ns", "ns", f"SELECT avg(end_ns - start_ns)::BIGINT {_FETCHES}"),
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
        return Loader("workers", workers, fetch, error, _pinned_bytes(case) if pins else 0.0)
    if pinned_on_main or loads_by_itself(host):
        return Loader("main", 0, 0.0, 0.0, 0.0)
    return Loader("unknown", 0, 0.0, 0.0, 0.0)


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
    threads = case.device.read("thread", "process_id", "name")
    workers = threads["process_id"][threads.equals("name", "pt_data_worker")]
    mean = float(length.mean())
    error = float(length.std(ddof=1)) / mean / len(length) ** 0.5 if len(length) > 1 else 0.5
    return len(distinct_values(workers)), mean, error


def _pinned_bytes(case: Case) -> float:
    """Bytes of pinned memory that are uploaded in a steady step."""
    e = case.explanation
    ops = e.gpu.ops
    mine = ops.equals("kind", "memcpy") & ops.equals("copy_kind", "HtoD")
    mine &= ops.equals("src_memory", "pinned")
    mine &= (ops["start_ns"] >= e.begin_ns) & (ops["start_ns"] < e.end_ns)
    return float(ops["bytes"][mine].sum()) / e.n_steady

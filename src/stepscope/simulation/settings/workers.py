"""The number of the DataLoader's workers: how often a batch is ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepscope.activity.host import LONG_UNTRACED_STEP_SHARE
from stepscope.activity.names import LOADER_WITH_WORKERS, LOADER_WITHOUT_WORKERS
from stepscope.intervals.distinct import distinct_values
from stepscope.simulation.changes import Bound
from stepscope.simulation.program import MARK, WAIT, C
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.base import Edit, Facts, Setting, steps_of, whole
from stepscope.simulation.settings.items import arranged, put_in
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import IntArray

FETCH_RANGE: Final = "DataLoader fetch"
"""The range that ``stepscope run`` puts around the making of a batch in a worker process."""

MOST: Final = 512

SPREAD: Final = {"low": 1.0, "expected": 1.0, "high": 1.3}
"""More workers share cores and memory: a batch may take each so much longer."""


@dataclass(frozen=True)
class Workers(Edit):
    """So many worker processes make batches.

    Attributes:
        then: how many.
        now: how many in the capture, where stated.
    """

    then: int
    now: int | None = None
    order = 2
    paces_input = True
    batches = 0.0

    @property
    def text(self) -> str:  # type: ignore[override]
        """In words."""
        instead = "" if self.now is None else f" instead of {self.now}"
        workers = "worker" if self.then == 1 else "workers"
        return f"{self.then} DataLoader {workers}{instead}"

    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The programs with input as often as so many workers bring it."""
        self._agrees(facts)
        changed = []
        for subject, one in zip(subjects, facts, strict=True):
            period = self.period_ns(one, subject) * SPREAD[bound]
            changed.append(fed(subject, round(period)))
        return changed

    def limited(self, facts: Sequence[Facts], subjects: list[Subject]) -> list[Subject]:
        """With the present workers, where each of their fetches is timed."""
        self._agrees(facts)
        timed = [_recorded(one) for one in facts]
        if not all(fetch for fetch, _ in timed):
            return subjects
        return [
            fed(subject, round(fetch / max(self.now or workers, 1)))
            for subject, (fetch, workers) in zip(subjects, timed, strict=True)
        ]

    def period_ns(self, facts: Facts, subject: Subject) -> float:
        """How often a batch is ready then, ns.

        Raises:
            UsageError: the capture does not tell what a batch takes.
        """
        fetch, workers = _recorded(facts)
        if fetch:
            return fetch / self.then
        now = self._now(facts, workers)
        waited = _waited_ns(subject)
        if now == 0:
            return waited / self.then  # the training thread made each batch itself
        step = facts.explanation.step_ns
        if waited < LONG_UNTRACED_STEP_SHARE * step:
            if self.then >= now:
                return 0.0  # they kept up
            raise UsageError(
                f"workers={self.then}: the workers keep up, so that the capture does not tell what "
                "a batch takes them; record it with 'stepscope run', which times each fetch"
            )
        return step * now / self.then

    def _agrees(self, facts: Sequence[Facts]) -> None:
        """Whether the stated present number is what the captures show.

        Raises:
            UsageError: a capture shows another one.
        """
        if self.now is None:
            return
        for one in facts:
            _, workers = _recorded(one)
            shown = _shown(one)
            if workers and workers != self.now:
                seen = f"{workers:,} worker" + ("s" if workers != 1 else "")
            elif not workers and shown == {"without"} and self.now:
                seen = "a loader without workers"
            elif not self.now and shown == {"with"}:
                seen = "a loader with workers"
            else:
                continue
            instead = f", or only the new one (workers={self.then})" if self.now else ""
            raise UsageError(
                f"workers={self.now}:{self.then}: the capture of rank {one.rank} shows {seen}, not "
                f"{self.now}; state the number that the capture was made with{instead}"
            )

    def _now(self, facts: Facts, workers: int) -> int:
        if self.now is not None:
            return self.now
        if workers:
            return workers
        shown = _shown(facts)
        if "without" in shown:
            return 0
        known = "there are some" if shown else "nothing in it tells of a loader"
        raise UsageError(
            f"workers={self.then}: the capture does not say how many workers the loader has now "
            f"({known}); state both numbers, as in --set workers=0:{self.then} where the training "
            "thread makes the batches now"
        )

    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed."""
        return [
            "a batch takes a worker as long as it does now, as long as there are cores for them; "
            "without recorded fetches, a loader that is waited for is taken to be the limit"
        ]

    def validity(self, facts: Sequence[Facts]) -> Validity:
        """Modelled, from what a fetch takes or from the pace of the loader."""
        return "modelled"


def _shown(facts: Facts) -> set[str]:
    """Whether loaders ``with`` and ``without`` workers show in the names of ranges and threads."""
    host = facts.gpu.host
    names = {*host.ranges.texts.get("name", []), *host.thread_names}
    kinds = {"with": LOADER_WITH_WORKERS, "without": LOADER_WITHOUT_WORKERS}
    return {kind for kind, pattern in kinds.items() if any(map(pattern.search, names))}


def _recorded(facts: Facts) -> tuple[float, int]:
    """Mean time of a fetch, ns, and the worker processes that fetched; zeros where not recorded.

    A training process that fetches for itself is no worker.
    """
    rows = facts.read("range", "process_id", "start_ns", "end_ns", "name")
    mine = rows.equals("name", FETCH_RANGE) if len(rows) else np.zeros(0, bool)
    if not mine.any():
        return 0.0, 0
    length = (rows["end_ns"] - rows["start_ns"])[mine]
    processes = distinct_values(rows["process_id"][mine])
    return float(length.mean()), int((processes != facts.gpu.process_id).sum())


def _waited_ns(subject: Subject) -> float:
    """What getting input takes the training thread, ns per step."""
    steps = max(int((subject.program.kind == MARK).sum()), 1)
    return int(subject.program.work_ns[:, C["input_starvation"]].sum()) / steps


def fed(subject: Subject, period_ns: int) -> Subject:
    """The program without the time that input takes the host, but no quicker than batches come.

    A stream of its own makes a batch each period; the host waits for one before it goes on.

    Args:
        subject: the program.
        period_ns: from one batch to the next; 0 where input is never waited for.
    """
    program = subject.program
    work = program.work_ns.copy()
    where = np.flatnonzero(work[:, C["input_starvation"]] > 0)
    work[:, C["input_starvation"]] = 0
    freed = subject.becomes(work_ns=work)
    if period_ns <= 0:
        return freed
    at = _places(subject, where)
    m = len(program)
    # behind the item before that which waited: the batch is made, then it is waited for
    position = np.concatenate((np.arange(m) * 3, at * 3 - 2, at * 3 - 1))
    source = np.concatenate((np.arange(m), at, at))
    part = np.repeat([0, 1, 2], [m, len(at), len(at)])
    order = np.argsort(position, kind="stable")
    after, part = arranged(freed, source[order]), part[order]
    return _with_loader(after, np.flatnonzero(part == 1), np.flatnonzero(part == 2), period_ns)


def _places(subject: Subject, where: IntArray) -> IntArray:
    """The item of each step before which most of the waiting for input was; else its first."""
    program = subject.program
    step = steps_of(subject)
    found = []
    for number in range(int(step.max(initial=-1)) + 1):
        mine = where[step[where] == number]
        begin = int(np.flatnonzero((step == number) & (program.kind == MARK))[0])
        spent = program.work_ns[mine, C["input_starvation"]]
        chosen = int(mine[np.argmax(spent)]) if len(mine) else begin
        found.append(max(chosen, begin + 1) if begin + 1 < len(program) else begin)
    return np.array(found, np.int64)


def _with_loader(after: Subject, made: IntArray, waited: IntArray, period_ns: int) -> Subject:
    """The items put in become batches, and waits for them."""
    stream = int(after.program.stream.max(initial=-1)) + 1
    program = put_in(after.program, made, {"stream": stream, "duration_ns": period_ns})
    waiting = {"kind": WAIT, "wait_cause": C["input_starvation"]}
    program = put_in(program, waited, waiting)
    waits = {int(w): (int(k),) for w, k in zip(waited, made, strict=True)}
    return replace(after, program=replace(program, waits={**program.waits, **waits}))


def read(text: str) -> Workers:
    """``8`` or ``4:8``."""
    now, colon, then = text.partition(":")
    if not colon:
        return Workers(whole(text, 1, MOST))
    return Workers(whole(then, 1, MOST), whole(now, 0, MOST))


SETTING = Setting(
    name="workers",
    title="DataLoader workers",
    values="COUNT or NOW:THEN",
    example="4:8",
    help="so many processes make batches (DataLoader's num_workers)",
    model=(
        "a batch is ready every so often: what a fetch takes one worker over their number. Fetches "
        "are timed in captures of 'stepscope run'; else a loader that is waited for brings its "
        "batches at the pace of the step, and without workers a batch takes what the training "
        "thread spends on it. The host waits for a batch where it waited before"
    ),
    assumes="cores for all workers, and memory and disks that keep up; collating, pinning and "
    "handing over are not the limit",
    checked="the training thread's own loading against workers, and eight workers, on one GPU",
    refuses="fewer workers where the present ones keep up and no fetch is timed; where the present "
    "number is not known, or the capture shows another one than is stated",
    reads=read,
)

"""One opened job: the facade that the command line, the server and notebooks share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from stepscope.api.answers import Answers, JobRevision
from stepscope.api.inputs import captures_of, read_ceilings
from stepscope.cache.store import Cache
from stepscope.importers.registry import load
from stepscope.trace import progress
from stepscope.trace.errors import InputError, LimitError, UsageError
from stepscope.trace.given import listed
from stepscope.trace.job import assemble
from stepscope.trace.meta import Meta
from stepscope.trace.one_job import refuse_ranks_as_runs
from stepscope.trace.problems import Problem
from stepscope.trace.text import html_table
from stepscope.trace.trace import RankTrace, Trace
from stepscope.trace.units import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.api.explained import Explained
    from stepscope.api.reports import Reports
    from stepscope.api.tables import Tables
    from stepscope.api.views import Views
    from stepscope.collectives.summary import Communication
    from stepscope.compare.profile import Profile
    from stepscope.compare.result import Comparison
    from stepscope.diagnosis.result import Diagnosis, Finding
    from stepscope.diagnosis.verify import Verification
    from stepscope.memory.fit import Change as MemoryChange
    from stepscope.memory.report import Explained as Allocations
    from stepscope.memory.result import Memory
    from stepscope.operators.averages_result import OperatorAverages
    from stepscope.operators.phases import Phases
    from stepscope.operators.python_time import PythonReport
    from stepscope.operators.roofline import Launches, OperatorRooflines
    from stepscope.operators.sheets import Sheet
    from stepscope.simulation import Change, Simulation
    from stepscope.simulation.result import CriticalPath, MemoryNeed, WhatIf
    from stepscope.timeline.added import Drawn
    from stepscope.timeline.timeline import Timeline

_SHORTEST_S = 1e-3
"""What is left for a statement when the time is up: too little, which is then said."""


class OpenOptions(TypedDict, total=False):
    """How captures are opened; see :class:`Job`."""

    again: bool
    step: str
    step_kernel: str


class Job:
    """One opened job. What it is asked is computed when it is first asked.

    Tables come as :class:`pyarrow.Table`: ``.to_pandas()`` makes a pandas data frame of one,
    ``polars.from_arrow(...)`` one of polars.

    Args:
        paths: a capture, a folder of captures or a Stepscope trace folder, or several of them.
        cache: where imported files are kept; the user's cache by default.
        again: import even what the cache holds.
        ceilings: a file that ``stepscope ceilings`` wrote; by default datasheets tell.
        apart: each capture is looked at by itself, so they need not be of one job.
        step: name of the ranges that are the steps, a regular expression that finds their names,
            or ``none`` for the whole capture as one; by default the capture tells.
        step_kernel: regular expression that finds the kernels at which steps begin.

    Attributes:
        paths: the inputs as the user named them.
        given: the same, as paths of the file system.
        ranks: the traces with their ranks, by rank.
        warnings: what was assumed or left out when they were opened, in sentences.

    Raises:
        UsageError: the captures cannot be the ranks of one job.
        InputError: a path cannot be read as a capture.
        StorageError: the cache cannot be written.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        cache: Cache | None = None,
        again: bool = False,
        ceilings: str | Path = "",
        apart: bool = False,
        step: str = "",
        step_kernel: str = "",
    ) -> None:
        from stepscope.steps.model import StepChoice

        given = listed(paths)
        if not given:
            raise UsageError("no path is given; name a capture")
        self._choice = StepChoice(step, step_kernel)
        self._ceilings = read_ceilings(ceilings) if ceilings else None
        # a file name need not be valid Unicode, but results are
        self.paths = [str(path).encode("utf-8", "replace").decode() for path in given]
        if "" in self.paths:
            raise InputError("one of the paths is empty; name a capture")
        self.given = given
        # kept for as long as the job: the cache holds the locks of the entries that it gave
        self._cache = cache or Cache()
        left_out: list[str] = []
        captures = captures_of(given, left_out)
        self.ranks: list[RankTrace]
        self.warnings: list[str]
        self.ranks, self.warnings = assemble(
            [
                load(path, self._cache, again=again)
                for path in progress.each(captures, "Reading", lambda path: path.name)
            ],
            apart=apart,
        )
        if left_out:
            named = ", ".join(left_out[:4]) + (", ..." if left_out[4:] else "")
            self.warnings.append(
                f"what could not be read beside the captures was left out: {named}"
            )
        given = [repr(self.paths), step, step_kernel, repr(self._ceilings), str(apart)]
        given += [*self.warnings, *map(repr, self.problems)]
        self._revision = JobRevision(self.ranks, given)
        self._answers = Answers(self._revision, self._cache, again=again)

    @property
    def open_options(self) -> OpenOptions:
        """What another process must say to open the same job."""
        return {"step": self._choice.mark, "step_kernel": self._choice.kernel}

    @property
    def cache_folder(self) -> Path:
        """Where imported files are kept."""
        return self._cache.folder

    @property
    def traces(self) -> list[Trace]:
        """The traces, ordered by rank."""
        return [rank_trace.trace for rank_trace in self.ranks]

    @property
    def problems(self) -> list[Problem]:
        """Import problems of all traces, one entry a kind and trace."""
        return [problem for trace in self.traces for problem in trace.meta.problems]

    def events(self) -> int:
        """Number of rows of all tables of all traces."""
        return sum(sum(trace.meta.rows.values()) for trace in self.traces)

    def _repr_html_(self) -> str:
        """The ranks, for a notebook: nothing is computed for it."""
        rows = []
        for rank_trace in self.ranks:
            meta = rank_trace.trace.meta
            length = shown(meta.window_end_ns - meta.window_start_ns, "ns")
            rows.append((rank_trace.rank, rank_trace.trace.path, meta.source, length))
        return html_table("Job", ("rank", "capture", "source", "length"), rows)

    # The parts.

    @cached_property
    def explained(self) -> Explained:
        """Steps, accounting and gaps of every device; its replay; its causes."""
        from stepscope.api.explained import Explained

        return Explained(self.ranks, self.warnings, self._ceilings, self._choice)

    @cached_property
    def tables(self) -> Tables:
        """SQL over the canonical tables, the derived tables and ``prediction``."""
        from stepscope.api.tables import Tables

        return Tables(self.ranks, self.explained, self._answers)

    @cached_property
    def reports(self) -> Reports:
        """Reports and rules."""
        from stepscope.api.reports import Reports

        return Reports(self.ranks, self.figure)

    @cached_property
    def views(self) -> Views:
        """What the page asks of the timeline; files for other viewers."""
        from stepscope.api.stored import StoredTimeline
        from stepscope.api.views import Views

        stored = StoredTimeline(self._revision, self._cache)
        return Views(self.ranks, self.explained, stored)

    @property
    def timeline(self) -> Timeline:
        """All tracks of the job on one clock: stored ones, else built when first shown."""
        return self.views.timeline

    @property
    def simulation(self) -> Simulation:
        """The job as it can be replayed, with or without changes.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self.explained.simulation

    # Tables.

    def query(
        self, sql: str, timeout_s: float | None = None, most_rows: int | None = None
    ) -> pa.Table:
        """Run one SELECT.

        Args:
            sql: the statement.
            timeout_s: seconds that it may take; by default ``STEPSCOPE_QUERY_TIMEOUT``, else 300.
            most_rows: rows after which it need not go on; by default all.

        Raises:
            UsageError: the statement is wrong.
            LimitError: it takes too much time or memory.
        """
        return self.tables.engine.query(sql, timeout_s, most_rows)

    def figure(self, sql: str, timeout_s: float | None = None) -> float | int:
        """The only cell of a statement's answer; 0 for null.

        Args:
            sql: the statement.
            timeout_s: seconds that it may take, as for :meth:`query`.

        Raises:
            UsageError: the statement is wrong, or its answer is not one number.
            LimitError: it takes too much time or memory.
        """
        return self.tables.figure(sql, timeout_s)

    @cached_property
    def steps(self) -> pa.Table:
        """The ``step`` table: one row a step and device.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self.tables.derived("step")

    @cached_property
    def gaps(self) -> pa.Table:
        """The ``idle_gap`` table: one row an interval in which a device is idle, and why.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self.tables.derived("idle_gap")

    @cached_property
    def kernels(self) -> pa.Table:
        """Kernels of the steady steps by category and name, the longest time first.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.kernels.statements import KERNELS_VIEW

        return self.query(KERNELS_VIEW)

    def operators(self, by: str = "") -> pa.Table:
        """Device time of the steady steps by what launched it, the longest time first.

        Args:
            by: key of ``GROUPINGS``; by default operators where any trace holds them, else ranges.

        Raises:
            InputError: a trace holds no GPU work.
            UsageError: there is no such key.
        """
        from stepscope.kernels.statements import operators_view

        if not by:
            known = any(trace.rows("operator") for trace in self.traces)
            by = "operator" if known else "range"
        return self.query(operators_view(by))

    def idle_gaps(
        self, by: str = "cause", *, step: int | None = None, rank: int | None = None, sort: str = ""
    ) -> pa.Table:
        """Idle time of the steady steps: what it is charged to, what ended it, where the host was.

        Args:
            by: ``cause`` for one row a cause, operation that ended the gap and range; ``gap`` for
                one row a gap.
            step: number of one steady step; all of them by default.
            rank: one rank; all by default.
            sort: of causes ``total``, ``longest`` or ``count``; of gaps ``length`` or ``start``;
                by default the first.

        Raises:
            InputError: a trace holds no GPU work.
            UsageError: there is no such step, rank or order.
        """
        from stepscope.gaps.views import LIST_SORTS, SORTS, gaps_view, groups_view

        views = {"cause": (groups_view, SORTS), "gap": (gaps_view, LIST_SORTS)}
        if by not in views:
            raise UsageError(f"gaps are listed by {' or '.join(views)}, not by {by!r}")
        view, sorts = views[by]
        if sort and sort not in sorts:
            raise UsageError(f"{sort!r} is no order of them; by {by} that is {' or '.join(sorts)}")
        ranks = sorted({device.rank for device in self.explained.devices})
        if rank is not None and rank not in ranks:
            raise UsageError(f"there is no rank {rank}; the ranks are {_spans(ranks)}")
        steady = self.query(
            "SELECT DISTINCT step FROM step WHERE steady"
            + (f" AND rank = {rank}" if rank is not None else "")
        )
        steps = sorted(steady.column(0).to_pylist())
        if step is not None and step not in steps:
            raise UsageError(f"step {step} is no steady step; those are {_spans(steps)}")
        return self.query(view(step, rank, sort or next(iter(sorts))))

    # Results.

    @cached_property
    def communication(self) -> Communication:
        """Collectives by kind and group, and how each rank arrives at them.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.collectives.summary import Communication, nothing, summary

        def made() -> Communication:
            view = self.explained.view
            if view.collectives is None:
                return nothing(self.paths, len({device.rank for device in view.devices}))
            return summary(view.collectives, self.paths)

        return self._answers.find("communication", Communication, made)

    def collective_instances(self) -> pa.Table:
        """Every collective on every rank: begin, skew, waiting, sizes, bandwidths.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.collectives.instances import instance_table

        return instance_table(self.explained.view.collectives)

    def all_to_all_splits(self) -> pa.Table:
        """Bytes that all-to-alls carried from each rank to each other one, in the steady steps.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.collectives.instances import split_table

        return split_table(self.explained.view.collectives)

    def key_averages(
        self,
        by: str = "",
        *,
        steady: bool = False,
        join: bool = False,
        kernels: bool = False,
        python: bool = False,
        sort: str = "",
    ) -> OperatorAverages:
        """Host and device time by operator, as ``torch.profiler``'s ``key_averages()`` counts it.

        Captures without any GPU work have it, too.

        Args:
            by: ``name``, ``shape``, ``stack``, ``module``, ``source``, ``range`` or ``category``;
                by default names where any trace holds operators, else ranges.
            steady: only what begins in the steady steps, rather than in the whole capture.
            join: whether the backward pass of an operator counts as its own row's.
            kernels: whether to list the kernels under each.
            python: whether traced Python functions are taken out of the self time of what called
                them, as PyTorch 2.14 does; they are a row of their own then.
            sort: a column of numbers, the largest first.

        Raises:
            UsageError: there is no such grouping or column.
            InputError: the steady steps are wanted, and a trace holds no GPU work.
        """
        from stepscope.operators.averages import operator_averages
        from stepscope.operators.averages_result import OperatorAverages

        if not by:
            known = any(trace.rows("operator") for trace in self.traces)
            by = "name" if known else "range"

        def made() -> OperatorAverages:
            from stepscope.operators.averages import sampled_averages
            from stepscope.operators.scope import steady_sources, whole_sources

            traced = any(trace.rows("python_function") for trace in self.traces)
            if by == "source" and not traced and any(t.rows("stack_frame") for t in self.traces):
                steps = sum(e.n_steady for _, e in self.explained.explanations)
                return sampled_averages(self.operators("source").to_pylist(), self.paths, steps)
            sources = (
                steady_sources(self.explained.view)
                if steady
                else whole_sources([trace.frame for trace in self.traces])
            )
            return operator_averages(
                sources, self.paths, by, join=join, kernels=kernels, python=python, sort=sort
            )

        asked = f"key averages {by} {steady} {join} {kernels} {python} {sort}"
        return self._answers.find(asked, OperatorAverages, made)

    def operator_sheet(self, sheet: str) -> Sheet:
        """Operators of one kind by unique shape, against the device's ceilings.

        Args:
            sheet: ``gemm``, ``convolution``, ``attention``, ``normalisation``, ``elementwise`` or
                ``communication``.

        Raises:
            UsageError: there is no such sheet.
            InputError: a trace holds no GPU work.
        """
        from stepscope.operators.sheets import (
            COMMUNICATION_SQL,
            Sheet,
            communication_sheet,
            operator_sheet,
        )

        def made() -> Sheet:
            view = self.explained.view
            if sheet == "communication":
                rows = self.query(COMMUNICATION_SQL).to_pylist()
                return communication_sheet(view, self.paths, rows)
            return operator_sheet(view, self.paths, sheet)

        return self._answers.find(f"operator sheet {sheet}", Sheet, made)

    def replay_script(self, operator: str, limit: int = 5) -> str:
        """A PyTorch program that runs an operator again with its recorded inputs.

        Args:
            operator: its name, as ``aten::mm``.
            limit: distinct inputs to take, those of most time.

        Raises:
            UsageError: the captures hold no such operator with shapes.
        """
        from stepscope.operators.replay import replay_script

        return replay_script([trace.frame for trace in self.traces], operator, limit)

    def phases(self) -> Phases:
        """Host, GPU and idle time of the steady steps by phase of the step.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.operators.phases import Phases, phases

        return self._answers.find("phases", Phases, lambda: phases(self.explained.view, self.paths))

    def python_time(self) -> PythonReport:
        """Where Python spends the steady steps: functions or lines, the GIL, the collector.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.operators.python_time import PythonReport, python_time

        return self._answers.find(
            "python time", PythonReport, lambda: python_time(self.explained.view, self.paths)
        )

    def memory(
        self, at: str = "peak", change: MemoryChange | None = None, limit_bytes: int | None = None
    ) -> Memory:
        """What was allocated over time, at its peak, and by whom.

        Args:
            at: peak, end or oom: the moment whose holders are listed.
            change: of :mod:`stepscope.memory.fit`: predict the peak after it.
            limit_bytes: what the changed run must fit in.

        Raises:
            InputError: no capture holds allocations.
            UsageError: the change is impossible, or cannot be predicted from these captures.
        """
        from stepscope.memory.report import report
        from stepscope.memory.result import Memory

        def made() -> Memory:
            from stepscope.memory.fit import predict

            known = self.allocations
            changed = [predict(d, change, limit_bytes) for d in known] if change else []
            devices = [report(d, at) for d in known]
            return Memory(paths=self.paths, devices=devices, prediction=changed)

        return self._answers.find(f"memory {at} {change} {limit_bytes}", Memory, made)

    @cached_property
    def allocations(self) -> list[Allocations]:
        """Blocks of every device with what they are for, by rank.

        Raises:
            InputError: no capture holds allocations.
        """
        from stepscope.memory.report import explained

        found = []
        for rank_trace in self.ranks:
            steps = self.explained.host_steps(rank_trace)
            found += explained(rank_trace.trace.frame, rank_trace.rank, steps)
        if not found:
            raise InputError(without_memory(self.paths[0], self.traces[0].meta))
        return found

    def operator_rooflines(self) -> OperatorRooflines:
        """Operators whose shapes are recorded against the device's ceilings, and the step's MFU.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.operators.roofline import OperatorRooflines, operator_rooflines

        return self._answers.find(
            "operator rooflines",
            OperatorRooflines,
            lambda: operator_rooflines(self.explained.view, self.paths),
        )

    def whatif(
        self, changes: Sequence[Change | str], captured: Mapping[str, Job] | None = None
    ) -> WhatIf:
        """Predict the step with some changes, all together.

        Args:
            changes: of :mod:`stepscope.simulation`, from
                :func:`~stepscope.api.explained.changes_of`, or settings as texts:
                ``job.whatif(["batch=2x", "precision=bf16"])``.
            captured: settings as texts, and captures of the same program that were made with
                them: ``job.whatif(["batch=4x"], {"batch=2x": stepscope.open("double.json")})``
                takes the times of kernels from there.

        Raises:
            UsageError: a change is impossible, or is about nothing in the capture.
        """
        from stepscope.api.explained import changes_of, with_times
        from stepscope.simulation.result import WhatIf

        texts = [one for one in changes if isinstance(one, str)]
        known: list[Change] = [one for one in changes if not isinstance(one, str)]
        known += changes_of(settings=texts) if texts else []
        for setting, other in (captured or {}).items():
            devices = [e for _, e in other.simulation.devices]
            known = with_times(known, setting, Path(other.paths[0]).name, devices)

        def made() -> WhatIf:
            from msgspec.structs import replace

            from stepscope.simulation.summary import what_if

            found = what_if(self.simulation, known, self.paths, self.explained.freed)
            return replace(found, memory=self._memory_with(known))

        return self._answers.find(f"what if {known!r}", WhatIf, made)

    def _memory_with(self, changes: Sequence[Change]) -> list[MemoryNeed]:
        """What the devices need of their memory, where a setting changes it and that is known."""
        from stepscope.memory.fit import Change as MemoryChange
        from stepscope.memory.fit import predict
        from stepscope.simulation.result import MemoryNeed
        from stepscope.simulation.settings.batch import Batch

        batch = next((one for one in changes if isinstance(one, Batch)), None)
        if batch is None or not any(trace.rows("memory_event") for trace in self.traces):
            return []
        found = []
        for known in self.allocations:
            size = self._device_bytes(known.rank, known.history.device)
            try:
                need = predict(known, MemoryChange(batch=batch.factor), size)
                now = predict(known, MemoryChange(), None).peak_bytes
            except UsageError:
                continue  # what grows with the batch cannot be told from these records
            found.append(
                MemoryNeed(
                    rank=known.rank,
                    device=known.history.device,
                    now_bytes=now,
                    peak_bytes=need.peak_bytes,
                    low_bytes=need.low_bytes,
                    high_bytes=need.high_bytes,
                    device_bytes=size,
                    fits=need.fits,
                    assumptions=need.assumptions,
                )
            )
        return found

    def _device_bytes(self, rank: int, device: int) -> int | None:
        """Memory of a device; None where the capture does not tell."""
        for rank_trace in self.ranks:
            table = rank_trace.trace.frame("device", "device", "memory_bytes")
            for row in range(len(table)) if rank_trace.rank == rank else ():
                if table["device"][row] == device and table["memory_bytes"][row] > 0:
                    return int(table["memory_bytes"][row])
        return None

    def critical_path(self, step: int | None = None) -> CriticalPath:
        """What decided how long the steps took.

        Args:
            step: number of one step; all replayed steps by default.

        Raises:
            UsageError: the step is not among the replayed ones.
        """
        from stepscope.simulation.result import CriticalPath

        def made() -> CriticalPath:
            from stepscope.simulation.summary import critical_path

            readers = [device.read for device in self.explained.devices]
            return critical_path(self.simulation, readers, self.paths, step)

        return self._answers.find(f"critical path {step}", CriticalPath, made)

    def exported(
        self, kind: str, *, counters: bool = False, critical_path: bool = False
    ) -> Iterator[bytes]:
        """The timeline as a file of another viewer, in parts.

        Args:
            kind: ``perfetto``, ``chrome`` or ``speedscope``.
            counters: whether to add the length of each stream's queue and the bandwidth of copies.
            critical_path: whether to draw what decided how long the steps took.

        Raises:
            InputError: the critical path is asked for, and a trace holds no GPU work.
        """
        drawn: list[Drawn] = []
        if critical_path:
            drawn = list(self._drawn_path())
        return self.views.exported(kind, counters=counters, drawn=drawn)

    def _drawn_path(self) -> Iterator[Drawn]:
        """The critical path, one piece a device."""
        import numpy as np

        from stepscope.simulation.overlay import stretches
        from stepscope.timeline.added import Drawn

        timeline = self.timeline
        offset = {
            rank_trace.rank: offset
            for rank_trace, offset in zip(timeline.rank_traces, timeline.offsets_ns, strict=True)
        }
        devices = self.simulation.devices
        found = stretches(self.simulation, [offset[rank] for rank, _ in devices])
        for number, (rank, e) in enumerate(devices):
            mine = [one for one in found if one.device == number]
            if mine:
                yield Drawn(
                    rank,
                    e.gpu.process_id,
                    e.gpu.device,
                    np.array([one.start_ns for one in mine], np.int64),
                    np.array([one.end_ns for one in mine], np.int64),
                    [one.text for one in mine],
                )

    @property
    def findings(self) -> list[Finding]:
        """Root causes of the step time, the largest predicted gain first.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self.diagnose().findings

    def finding(self, id_: str) -> Finding:
        """A finding or a lever of the diagnosis, with its evidence.

        Args:
            id_: its cause, or the id of the lever.

        Raises:
            UsageError: the diagnosis has none of that id.
            InputError: a trace holds no GPU work.
        """
        found = self.diagnose()
        known = {f.cause: f for f in (*found.findings, *found.levers)}
        if id_ not in known:
            names = ", ".join(known) or f"none, for the verdict is {found.verdict}"
            raise UsageError(f"{id_!r} is no finding or lever of this capture; it has: {names}")
        return known[id_]

    def diagnose(self, ncu: str | Path | Sequence[str | Path] = ()) -> Diagnosis:
        """Name the causes of the job's step time.

        Args:
            ncu: Nsight Compute report of the same program, or several: findings about kernels go
                on to the cause inside them.

        Raises:
            InputError: a report cannot be read, or a trace holds no GPU work.
        """
        from stepscope.api.ncu import read_report, with_insides
        from stepscope.diagnosis.result import Diagnosis

        reports = [(str(path), read_report(path)) for path in listed(ncu)]
        what = self.paths[0] if len(self.paths) == 1 else f"{len(self.paths)} captures"
        for _ in progress.each((Path(what).name,), "Diagnosing", str):
            found = self._answers.find("diagnosis", Diagnosis, self._diagnosis)
        return with_insides(found, self.query, reports) if reports else found

    def _diagnosis(self) -> Diagnosis:
        """The diagnosis, by a fresh look."""
        from stepscope.diagnosis.engine import diagnose
        from stepscope.diagnosis.evidence import Compute
        from stepscope.diagnosis.result import StepOptions

        return diagnose(
            self.explained.cases,
            self.explained.ranked,
            Compute(self.tables.own_figures),
            paths=self.paths,
            source="+".join(sorted({trace.meta.source for trace in self.traces})),
            assumptions=self.warnings,
            problems=self.problems,
            options=StepOptions(self._choice.mark, self._choice.kernel),
            levers=self.explained.levers,
            together=self.explained.together,
        )

    def verify(self, report: bytes, timeout_s: float | None = None) -> Verification:
        """Recompute every figure of a stored diagnosis from its evidence.

        Args:
            report: what ``diagnose --format json`` wrote; its statements may be anybody's.
            timeout_s: seconds that all its statements may take together; by default
                ``STEPSCOPE_QUERY_TIMEOUT``, else 300.

        Raises:
            InputError: it is no diagnosis.
            LimitError: its statements take too much time or memory.
        """
        from stepscope.diagnosis.verify import verify

        engine = self.tables.engine
        allowed_s = engine.limits.within(timeout_s).timeout_s
        before_s = engine.spent_s

        def compute(sql: str) -> float | int:
            left_s = allowed_s - (engine.spent_s - before_s)
            try:
                return self.figure(sql, max(left_s, _SHORTEST_S))
            except LimitError as error:
                if engine.spent_s - before_s < allowed_s:
                    raise
                facts = LimitError(
                    f"verifying was ended: the report's statements took more than {allowed_s:g} s; "
                    "look at them, or allow more with --timeout"
                )
                facts.left_running = error.left_running
                raise facts from error

        return verify(report, cache(compute))

    def profile(self) -> Profile:
        """What is kept of the run: enough to compare it with others.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.compare.profile import Profile

        def made() -> Profile:
            from stepscope.compare.collect import profile_of

            return profile_of(self.explained.view, self.diagnose())

        return self._answers.find("profile", Profile, made)

    def compare(self, after: Job, *, run_noise: float | None = None) -> Comparison:
        """Compare this run with a later one; :mod:`stepscope.api.runs` compares several captures.

        Args:
            after: the later run.
            run_noise: distance that 95 of 100 pairs of single runs of the same code keep, as a
                share.

        Raises:
            InputError: a trace holds no GPU work.
            UsageError: the two are ranks of one job.
        """
        from stepscope.compare.comparison import compare

        refuse_ranks_as_runs([self.traces, after.traces])
        return compare([self.profile()], [after.profile()], run_noise=run_noise)

    def launches_to_examine(self) -> Launches:
        """The launches that ncu should capture: of findings about kernels, and of slow operators.

        Raises:
            UsageError: no finding is about a kernel, and no operator is far below its roof.
        """
        from stepscope.api.ncu import launches_to_examine

        found = launches_to_examine(self.query, self.diagnose(), self.explained.view)
        if found is None:
            raise UsageError(
                f"nothing in {self.paths[0]} says that a kernel is worth examining: no finding is "
                "about one, and no operator with shapes is far below its roof; name kernels with "
                "--kernel REGEX"
            )
        return found


def without_memory(path: str, meta: Meta) -> str:
    """Why a capture tells nothing of memory, and what would."""
    flags = {
        "kineto": "torch.profiler.profile(profile_memory=True), or stepscope run --backend torch "
        "--memory",
        "nsys": "nsys profile --cuda-memory-usage=true",
    }
    flag = flags.get(meta.source, "stepscope run --record memory")
    return f"{path} holds no allocations of memory; capture with {flag}"


def _spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as ``0, 2 to 5``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join(" to ".join(map(str, part)) for part in parts)


def stored_options(report: bytes) -> OpenOptions:
    """What the user said a step is when a stored diagnosis was made.

    Raises:
        InputError: it is no diagnosis of a known version.
    """
    from stepscope.diagnosis.verify import decoded

    options = decoded(report).trace.step.options
    return {"step": options.step, "step_kernel": options.step_kernel}

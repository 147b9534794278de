"""The one facade: open captures, explain, diagnose, query. Every front door calls only this."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.importers.registry import detect, examined, is_trace_folder, load
from stepscope.trace.cache import Cache, remove_leftovers
from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.job import assemble
from stepscope.trace.notes import SUFFIX as NOTES
from stepscope.trace.problems import Problem
from stepscope.trace.trace import Job, Member

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.analysis.aligned.steps import AlignedSteps
    from stepscope.analysis.collectives.summary import Communication
    from stepscope.analysis.explain import Explanation
    from stepscope.analysis.job import Device, JobView
    from stepscope.analysis.kernels.ceilings import Ceilings
    from stepscope.analysis.kernels.examine import Launches
    from stepscope.analysis.kernels.operator_roofline import OperatorRooflines
    from stepscope.analysis.simulation import Change, Simulation
    from stepscope.analysis.simulation.result import CriticalPath, WhatIf
    from stepscope.analysis.tabular.report import Outcome as Outcome  # noqa: PLC0414 - for the doors
    from stepscope.analysis.tabular.report import Report as Report  # noqa: PLC0414 - for the doors
    from stepscope.analysis.tabular.report import Request as Request  # noqa: PLC0414 - for the doors
    from stepscope.analysis.timeline.ask import Asker
    from stepscope.analysis.timeline.panels import Panels
    from stepscope.analysis.timeline.timeline import Timeline
    from stepscope.compare.budgets import CellLimit, SqlLimit
    from stepscope.compare.profile import Profile
    from stepscope.diagnosis.cause import Case, Detection
    from stepscope.diagnosis.ranking import Ranked
    from stepscope.diagnosis.result import Diagnosis, InsideKernel
    from stepscope.diagnosis.verify import Verification
    from stepscope.kernels.model import Report as KernelReport
    from stepscope.kernels.result import Against as KernelsAgainst
    from stepscope.kernels.result import Explanation as KernelExplanation
    from stepscope.kernels.result import KernelTable
    from stepscope.kernels.roofline import Roofline
    from stepscope.shelves import Shelves
    from stepscope.sql.engine import Engine
    from stepscope.trace.notes import Notes

_RAW_FOLDER = "raw"  # where a run of ours keeps what the ranks wrote, one folder a rank
_CAPTURE_SUFFIXES = {".sqlite", ".nsys-rep", ".qdstrm", ".json", ".gz", ".zst", ".stepscope"}

_INSIDE = ("inefficient_kernel", "memory_bound_kernels")  # findings that a report can go on from
_INSIDE_KERNELS = 5  # kernels of a finding that are looked up, the heaviest first

__all__ = ["Session", "bundled_capture", "expand", "open_cache", "remove_leftovers"]


class Session:
    """One opened job.

    Args:
        paths: captures, folders of captures, or Stepscope trace folders.
        cache: where imported files are kept; the user's cache by default.
        again: import even what the cache holds.
        ceilings: a file that ``stepscope ceilings`` wrote; by default data sheets tell.

    Raises:
        InputError: a path cannot be read as a capture.
        StorageError: the cache cannot be written.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        cache: Cache | None = None,
        again: bool = False,
        ceilings: str | Path = "",
    ) -> None:
        self._ceilings = read_ceilings(ceilings) if ceilings else None
        # a file name need not be valid Unicode, but results are
        self.paths = [str(path).encode("utf-8", "replace").decode() for path in paths]
        if "" in self.paths:
            raise InputError("one of the paths is empty; name a capture")
        self.given = list(paths)
        self.explains_elsewhere = False  # set by who lets another process explain
        # kept for as long as the session: the cache holds the locks of the entries that it gave
        self._cache = cache or Cache()
        left_out: list[str] = []
        inputs = [found for path in paths for found in expand(Path(path), left_out)]
        _refuse_twice(inputs)
        for path in inputs:
            if path.suffix == ".ncu-rep":
                raise InputError(
                    f"{path} is an Nsight Compute report, not a trace; stepscope kernels explains "
                    "it, and diagnose TRACE --ncu REPORT takes it beside a trace"
                )
        self.job: Job = assemble([load(path, self._cache, again=again) for path in inputs])
        if left_out:
            named = ", ".join(left_out[:4]) + (", ..." if left_out[4:] else "")
            self.job.remarks.append(
                f"what could not be read beside the captures was left out: {named}"
            )

    @property
    def cache_folder(self) -> Path:
        """Where imported files are kept."""
        return self._cache.folder

    @property
    def explanations(self) -> list[tuple[int, Explanation]]:
        """(rank, explanation) of every device of every rank, by rank.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return [(rank, explanation) for rank, _, explanation in self._explained]

    @cached_property
    def _explained(self) -> list[tuple[int, Member, Explanation]]:
        """(rank, trace, explanation) of every device of every rank.

        Raises:
            InputError: a trace holds no GPU work, or none with sound times.
        """
        from stepscope.analysis.explain import explain

        found: list[tuple[int, Member, Explanation]] = []
        for member in self.job.members:
            of_rank = explain(member.trace.frame, member.trace.meta, self._ceilings)
            if not of_rank:
                raise InputError(
                    f"{member.trace.path} holds no GPU work; capture with CUDA tracing on "
                    "(nsys profile -t cuda,nvtx, or ProfilerActivity.CUDA) while the GPU trains"
                )
            if any(e.end_ns <= e.begin_ns for e in of_rank):
                raise InputError(
                    f"the GPU work in {member.trace.path} takes no time, so its times are "
                    "damaged; capture again, or copy the capture again"
                )
            ranks = self._ranks_of_processes(member, [e.lane.process_id for e in of_rank])
            found += [(ranks[e.lane.process_id], member, e) for e in of_rank]
        if self._ceilings is not None:
            self._check_ceilings([e for _, _, e in found], self._ceilings)
        return sorted(found, key=lambda item: (item[0], item[2].lane.device))

    def _check_ceilings(self, devices: Sequence[Explanation], ceilings: Ceilings) -> None:
        """Say so where ceilings are of another product than the devices."""
        products = {e.kernels.device[0] or "an unnamed device" for e in devices}
        others = sorted(products - {ceilings.device})
        if others:
            self.job.remarks.append(
                f"the ceilings were measured on {ceilings.device}, so they say nothing about "
                f"{', '.join(others)}; its data sheet counts instead"
            )

    def _ranks_of_processes(self, member: Member, processes: list[int]) -> dict[int, int]:
        """Rank of each process of one trace: one report may hold all ranks of a machine."""
        distinct = list(dict.fromkeys(processes))
        if len(distinct) == 1 or len(self.job.members) > 1:
            return dict.fromkeys(distinct, member.rank)
        known = member.trace.frame("process", "process_id", "rank")
        stated = dict(zip(known["process_id"].tolist(), known["rank"].tolist(), strict=True))
        ranks = [stated.get(process, -1) for process in distinct]
        if min(ranks) >= 0 and len(set(ranks)) == len(ranks):
            return dict(zip(distinct, ranks, strict=True))
        remark = (
            f"the capture holds {len(distinct)} processes with GPU work; they are numbered as "
            "ranks in the order of their process ids"
        )
        if remark not in self.job.remarks:
            self.job.remarks.append(remark)
        return {process: rank for rank, process in enumerate(sorted(distinct))}

    @cached_property
    def engine(self) -> Engine:
        """SQL over the canonical tables, the derived tables and ``prediction``."""
        from functools import partial

        from stepscope.analysis.derived import derived_tables
        from stepscope.diagnosis.predictions import prediction_table
        from stepscope.sql.engine import Engine

        return Engine(
            [(member.rank, member.trace) for member in self.job.members],
            {
                **{
                    name: partial(self._derived, table.build)
                    for name, table in derived_tables().items()
                },
                "prediction": lambda: prediction_table(
                    [(r.case, r.cause.id, r.detection, r.predicted) for r in self._ranked]
                ),
            },
        )

    def query(self, sql: str) -> pa.Table:
        """Run one SELECT.

        Raises:
            UsageError: the statement is wrong.
        """
        return self.engine.query(sql)

    def steps(self) -> pa.Table:
        """The ``step`` table: one row a step and device."""
        from stepscope.analysis.derived.step import TABLE

        return TABLE.build(self._view)

    def communication(self) -> Communication:
        """Collectives by kind and group, and how each rank arrives at them.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.analysis.collectives.summary import nothing, summary

        found = self._view.collectives
        if found is None:
            return nothing(self.paths, len({device.rank for device in self._view.devices}))
        return summary(found, self.paths)

    def _derived(self, build: Callable[[JobView], pa.Table]) -> pa.Table:
        return build(self._view)

    @cached_property
    def _view(self) -> JobView:
        """All explained devices."""
        from stepscope.analysis.job import Device, JobView

        return JobView(
            [
                Device(rank, explanation, member.trace.frame, member.trace.meta, member.rank)
                for rank, member, explanation in self._explained
            ]
        )

    @cached_property
    def _cases(self) -> list[Case]:
        """Every device as causes see it."""
        from stepscope.diagnosis.cause import Case, JobCase

        job = JobCase(self._view)
        several = len(self.job.members) > 1
        job.cases += [Case(device, job, several) for device in self._view.devices]
        return job.cases

    @cached_property
    def _ranked(self) -> list[Ranked]:
        """The job's causes, ranked."""
        from stepscope.diagnosis.predictions import Predicted, simulated
        from stepscope.diagnosis.ranking import ranked

        def predict(case: Case, cause: str, detection: Detection) -> Predicted | None:
            return simulated(self.simulation, case, cause, detection)

        return ranked(self._cases, predict)

    def kernels(self) -> pa.Table:
        """Kernels of the steady steps by family and name, the longest time first.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.analysis.kernels.views import KERNELS_VIEW

        return self.query(KERNELS_VIEW)

    def operators(self, by: str = "") -> pa.Table:
        """Device time of the steady steps by what launched it, the longest time first.

        Args:
            by: key of ``GROUPINGS``; by default operators where any trace holds them, else ranges.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.analysis.kernels.views import operators_view

        if not by:
            known = any(trace.rows("operator") for trace in self.job.traces)
            by = "operator" if known else "range"
        return self.query(operators_view(by))

    def operator_rooflines(self) -> OperatorRooflines:
        """Operators whose shapes are recorded against the device's ceilings, and the step's MFU.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.analysis.kernels.operator_roofline import operator_rooflines

        return operator_rooflines(self._view, self.paths)

    def launches_to_examine(self) -> Launches:
        """The launches that ncu should capture: of findings about kernels, and of slow operators.

        Raises:
            UsageError: no finding is about a kernel, and no operator is far below its roof.
        """
        from stepscope.analysis.kernels.examine import launches_of
        from stepscope.analysis.kernels.operator_roofline import far_below

        diagnosed = {finding.cause for finding in self.diagnose().findings} & set(_INSIDE)
        causes = ", ".join(f"'{cause}'" for cause in sorted(diagnosed)) or "''"
        rows = self.query(
            "SELECT g.name AS name, sum(g.end_ns - g.start_ns)::BIGINT AS ns FROM kernel_repair r "
            f"JOIN gpu_op g ON g.rank = r.rank AND g.id = r.gpu_op_id WHERE r.cause IN ({causes}) "
            "GROUP BY g.name ORDER BY ns DESC, name"
        ).to_pylist()
        names = [row["name"] for row in rows[:_INSIDE_KERNELS]] + far_below(self._view)
        found = launches_of(self._view.devices[0].explanation.kernels, names)
        if found is None:
            raise UsageError(
                f"nothing in {self.paths[0]} says that a kernel is worth examining: no finding is "
                "about one, and no operator with shapes is far below its roof; name kernels with "
                "--kernel REGEX"
            )
        return found

    def diagnose(self, ncu: Sequence[str | Path] = ()) -> Diagnosis:
        """Name the causes of the job's step time.

        Args:
            ncu: Nsight Compute reports of the same program: findings about kernels go on to the
                cause inside them.

        Raises:
            InputError: a report cannot be read.
        """
        from stepscope.diagnosis.engine import diagnose

        reports = [(str(path), _read_report(path)) for path in ncu]
        found = diagnose(
            self._cases,
            self._ranked,
            self._known_figure,
            paths=self.paths,
            source="+".join(sorted({trace.meta.source for trace in self.job.traces})),
            remarks=self.job.remarks,
            problems=self.problems,
        )
        return self._with_insides(found, reports) if reports else found

    def _with_insides(
        self, diagnosis: Diagnosis, reports: Sequence[tuple[str, KernelReport]]
    ) -> Diagnosis:
        """The same with what the reports say of the kernels that findings are about."""
        import msgspec

        findings, unmatched = [], 0
        for finding in diagnosis.findings:
            inside: list[InsideKernel] = []
            if finding.cause in _INSIDE:
                inside = self._insides(finding.cause, reports)
                unmatched += not inside
            findings.append(msgspec.structs.replace(finding, inside=inside))
        remarks = list(diagnosis.remarks)
        if unmatched:
            remarks.append(
                "the Nsight Compute reports hold none of the kernels that a finding is about; "
                "capture them with the command that the finding names"
            )
        return msgspec.structs.replace(diagnosis, findings=findings, remarks=remarks)

    def _insides(
        self, cause: str, reports: Sequence[tuple[str, KernelReport]]
    ) -> list[InsideKernel]:
        """The heaviest kernels of a cause that the reports hold."""
        from stepscope.diagnosis.result import InsideKernel
        from stepscope.kernels.limiters import limiter_of
        from stepscope.kernels.match import matched

        rows = self.query(
            "SELECT g.name AS name, g.grid_x AS x, g.grid_y AS y, g.grid_z AS z, "
            "sum(g.end_ns - g.start_ns)::BIGINT AS ns FROM kernel_repair r JOIN gpu_op g "
            f"ON g.rank = r.rank AND g.id = r.gpu_op_id WHERE r.cause = '{cause}' "
            "GROUP BY ALL ORDER BY ns DESC, name, x, y, z"
        ).to_pylist()
        total = sum(row["ns"] for row in rows)
        found: list[InsideKernel] = []
        for row in rows[:_INSIDE_KERNELS]:
            grid = (row["x"], row["y"], row["z"]) if row["x"] else None
            for path, report in reports:
                match = matched(report.launches, row["name"] or "", grid)
                if match is None:
                    continue
                says = limiter_of(match.launch)
                found.append(
                    InsideKernel(
                        kernel=row["name"],
                        report=path,
                        launch=match.launch.number,
                        same_grid=match.same_grid,
                        share=row["ns"] / total if total else 0.0,
                        limiter=says.limiter.id,
                        says=f"limited by {says.limiter.title} ({says.limiter.bound}-bound): "
                        + "; ".join(says.because),
                        do=list(says.limiter.advice),
                    )
                )
                break
        return found

    def profile(self) -> Profile:
        """What is kept of the run: enough to compare it with others.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.compare.collect import profile_of

        return profile_of(self._view, self.diagnose())

    @cached_property
    def _known_figure(self) -> Callable[[str], float | int]:
        """``figure`` that keeps its answers: most findings hold the figures of the step, too."""
        return cache(self.figure)

    def figure(self, sql: str) -> float | int:
        """The only cell of a statement's answer; 0 for null.

        Raises:
            UsageError: the statement is wrong, or its answer is not one number.
        """
        answer = self.query(sql)
        if answer.num_rows != 1 or answer.num_columns != 1:
            raise UsageError(f"{sql!r} gives {answer.num_rows} rows, not one figure")
        value = answer.column(0)[0].as_py()
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{sql!r} does not give a number")
        return value

    def limited(self, item: SqlLimit | CellLimit) -> float:
        """The value of an SQL figure or of a report's cell that a gate limits.

        Raises:
            UsageError: the statement, the report or the column is wrong, or no row fits.
        """
        from stepscope.compare.budgets import SqlLimit

        if isinstance(item, SqlLimit):
            return self.figure(item.sql)
        request = stats_requests([item.report], known_reports() | known_rules())
        for _, outcome in self.answers(request):
            if outcome.table is None:
                raise UsageError(f"{item.report}: {outcome.missing}")
            # "Total Time (ns)", as it is printed, is "Total Time" in nanoseconds
            column = re.sub(r" \([^()]*\)$", "", item.column)
            if column not in outcome.table.column_names:
                columns = ", ".join(outcome.table.column_names)
                raise UsageError(f"{item.report} has no column {item.column!r}; it has {columns}")
            for row in outcome.table.to_pylist():
                if not item.row or any(item.row in str(cell) for cell in row.values()):
                    value = row[column]
                    if isinstance(value, bool) or not isinstance(value, int | float):
                        raise UsageError(f"{item.column!r} of {item.report} is no number")
                    return value
        raise UsageError(f"{item.report} has no row with {item.row!r}")

    def verify(self, report: bytes) -> Verification:
        """Recompute every figure of a stored diagnosis from its evidence.

        Args:
            report: what ``diagnose --format json`` wrote.

        Raises:
            UsageError: it is no diagnosis.
        """
        from stepscope.diagnosis.verify import verify

        return verify(report, self._known_figure)

    def answers(
        self, requests: Sequence[Request], *, window: str = "", nvtx: str = ""
    ) -> Iterator[tuple[Path, Outcome]]:
        """(capture, what a report or rule says of it), captures in order of rank.

        Args:
            requests: from :func:`stats_requests` or :func:`rule_requests`.
            window: ``[start]/[end]``: only events of this time.
            nvtx: ``range[@domain][/index]``: only events of this range; wins over ``window``.

        Raises:
            UsageError: a filter is written wrong.
        """
        from stepscope.analysis.tabular.report import Outcome, answer
        from stepscope.analysis.tabular.source import Scope, Source
        from stepscope.analysis.tabular.window import range_scope, time_scope

        fixed = time_scope(window) if window else Scope()
        for member in self.job.members:
            trace = member.trace
            whole = Source(trace)
            for request in requests:
                scope: Scope | None = fixed
                wanted = nvtx or request.nvtx
                if request.start_ns is not None or request.end_ns is not None:
                    scope = Scope(request.start_ns, request.end_ns)
                elif wanted:
                    scope = range_scope(trace, wanted)
                if scope is None:
                    said = f"{trace.path.name} holds no NVTX range {wanted!r}"
                    yield trace.path, Outcome(request, None, said)
                else:
                    source = whole if scope.everything else Source(trace, scope)
                    yield trace.path, answer(request, source)

    def page(
        self, requests: Sequence[Request]
    ) -> Iterator[tuple[Path, list[str], list[pa.Table], list[str]]]:
        """(capture, facts about it, answers with rows, why others have none) of every capture."""
        answers = self.answers(requests)
        for member in self.job.members:
            meta = member.trace.meta
            length = (meta.window_end_ns - meta.window_start_ns) / 1e9
            facts = [
                f"Recorded by {meta.source} {meta.source_version}".strip() + f", {length:.3f} s"
            ]
            if len(self.job.members) > 1 or meta.rank is not None:
                facts.append(f"Rank {member.rank} ({member.rank_source})")
            facts += [
                f"{problem.severity}: {problem.count:,} x {problem.says}; {problem.do}"
                for problem in meta.problems
                if problem.severity in ("data_loss", "error")
            ]
            tables, missing = [], []
            for _, (_, outcome) in zip(requests, answers, strict=False):
                if outcome.table is None:
                    missing.append(f"{outcome.request.report.name}: {outcome.missing}")
                elif outcome.table.num_rows:
                    tables.append(outcome.table)
            yield member.trace.path, facts, tables, missing

    @property
    def problems(self) -> list[Problem]:
        """Import problems of all traces, one entry a kind and trace."""
        return [problem for member in self.job.members for problem in member.trace.meta.problems]

    @cached_property
    def simulation(self) -> Simulation:
        """The job as it can be replayed, with or without changes.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.analysis.simulation import Simulation

        readers = {rank: member.trace.frame for rank, member, _ in self._explained}
        collectives = self._view.collectives
        matched = collectives.matched if collectives is not None else None
        return Simulation(self.explanations, readers, matched)

    @cached_property
    def timeline(self) -> Timeline:
        """All tracks of the job on one clock: stored ones, else built when first shown."""
        from stepscope.analysis.timeline.timeline import Timeline

        made = Timeline(
            self.job.members,
            self._shelves.offsets_ns() or self._clock_offsets_ns(),
            self._explained_here,
            self._shelves.stored(),
        )
        made.explained = self._shelves.explained()
        return made

    def _explained_here(self) -> list[tuple[Member, Explanation]]:
        if self.explains_elsewhere:
            raise UsageError("idle time is not explained yet; wait until the diagnosis is shown")
        return [(member, e) for _, member, e in self._explained]

    @cached_property
    def _shelves(self) -> Shelves:
        """What is kept of the timeline beside the cached traces."""
        from stepscope.shelves import Shelves

        return Shelves(self.job.members, self._cache, self.paths)

    def stored_timeline_is_missing(self) -> bool:
        """Whether :meth:`store_timeline` has anything to do."""
        return self._shelves.missing()

    def store_timeline(self, progress: Callable[[float], None]) -> None:
        """Store the tracks of every trace for which that is not done yet.

        Args:
            progress: is told the share that is done, 0 to 1.

        Raises:
            InputError: a table is damaged.
            StorageError: the cache cannot be written.
        """
        self._shelves.store(progress, self._clock_offsets_ns)

    def timeline_is_whole(self) -> bool:
        """Whether stored tracks are as they were written; removes those that are not."""
        return self._shelves.whole()

    def events(self) -> int:
        """Number of rows of all tables of all traces."""
        return sum(sum(trace.meta.rows.values()) for trace in self.job.traces)

    def diagnosed(self) -> bytes | None:
        """The stored diagnosis with its places in the timeline, as JSON; None where none is.

        From then on, the timeline shows what belongs to it.
        """
        found = self._shelves.explained()
        if found is None:
            return None
        self.timeline.explained = found
        return found.answer

    def store_diagnosis(self, answer: bytes) -> None:
        """Keep a diagnosis with the tracks that belong to it, for the next time.

        Raises:
            InputError: a trace holds no GPU work.
            StorageError: the cache cannot be written.
        """
        self._shelves.store_explained(self.timeline, answer)

    @cached_property
    def asker(self) -> Asker:
        """Answers about single rows of the timeline."""
        from stepscope.analysis.timeline.ask import Asker

        return Asker(self.timeline)

    @property
    def devices(self) -> list[Device]:
        """The explained devices, by rank.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self._view.devices

    @cached_property
    def aligned(self) -> AlignedSteps:
        """The steps of every device side by side.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.analysis.aligned.steps import AlignedSteps

        timeline = self.timeline
        place = {member.rank: i for i, member in enumerate(timeline.members)}
        offsets = [timeline.offsets_ns[place[device.trace_rank]] for device in self.devices]
        titles = [
            f"Rank {device.rank} · GPU {device.explanation.lane.device}" for device in self.devices
        ]
        return AlignedSteps(self.devices, offsets, titles)

    def packed_steps(self) -> dict[str, object] | None:
        """The step view for a page without a server; None where it would be too large.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self.aligned.packed()

    @cached_property
    def panels(self) -> Panels:
        """Tables and flame graphs of windows of the timeline."""
        from stepscope.analysis.timeline.panels import Panels

        return Panels(self.timeline, lambda: self._view)

    @cached_property
    def notes(self) -> Notes:
        """Marks and notes that people have set on the timeline."""
        from stepscope.trace.notes import Notes

        return Notes(self.job.members[0].trace.path, self.timeline.offsets_ns[0])

    def _clock_offsets_ns(self) -> list[int]:
        """What is added to each trace's times so that all are on one clock, ns.

        By matched collectives where there are any, which do not rely on clocks; else by the wall
        clocks, else all traces begin together.
        """
        members = self.job.members
        if len(members) == 1:
            return [0]
        found: dict[int, int] = {}
        try:
            view = self._view
            if view.collectives is not None:
                offsets = view.collectives.matched.offsets_ns
                pairs = zip(view.devices, offsets, strict=True)
                found = {device.trace_rank: offset for device, offset in pairs}
        except InputError:  # a rank without GPU work has a timeline, too
            found = {}
        if len(found) == len(members):
            return [found[member.rank] for member in members]
        metas = [member.trace.meta for member in members]
        epochs = [meta.origin_epoch_ns for meta in metas if meta.origin_epoch_ns is not None]
        if len(epochs) == len(metas):
            return [epoch - min(epochs) for epoch in epochs]
        return [-meta.window_start_ns for meta in metas]

    def statistics(self, begin_ns: int, end_ns: int, *, explained: bool) -> dict[str, object]:
        """Where each device's time goes in a window of the timeline, and its longest kernels."""
        from stepscope.analysis.timeline.hostwindow import threads
        from stepscope.analysis.timeline.window import statistics

        found = statistics(self.timeline, begin_ns, end_ns, explained=explained)
        return {**found, "threads": threads(self.timeline, begin_ns, end_ns)}

    @property
    def is_explained(self) -> bool:
        """Whether the job has been explained in this process, so that asking again is quick."""
        return "_explained" in self.__dict__

    def instances(self, cause: str, ranks: Sequence[int]) -> list[dict[str, object]]:
        """The worst instances of a cause on the timeline, the worst first.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.analysis.timeline.instances import instances

        return instances(self.asker, self._view, cause, ranks)

    def exported(self, kind: str) -> Iterator[bytes]:
        """The timeline as a file of another viewer, in parts.

        Args:
            kind: ``perfetto``, ``chrome`` or ``speedscope``.
        """
        from stepscope.export import chrome, perfetto, speedscope

        writers: dict[str, Callable[[Timeline], Iterator[bytes]]] = {
            "chrome": chrome.write,
            "perfetto": perfetto.write,
            "speedscope": speedscope.write,
        }
        return writers[kind](self.timeline)

    def extract(self, window: str, step: int | None) -> dict[str, object]:
        """A window of the timeline by itself.

        Args:
            window: ``[start]/[end]``, as for reports; empty for all.
            step: number of the step to take instead; None for ``window``.

        Raises:
            UsageError: the window is written wrong, empty, or holds too much.
            InputError: a step is asked for, and a trace holds no GPU work.
        """
        from stepscope.analysis.timeline.extract import chosen, extract

        begin, end = chosen(
            self.timeline, window, step, self.explanations if step is not None else []
        )
        return extract(self.timeline, begin, end)

    def whatif(self, changes: Sequence[Change]) -> WhatIf:
        """Predict the step with some changes, all together.

        Raises:
            UsageError: a change is impossible, or is about nothing in the capture.
        """
        from stepscope.analysis.simulation.summary import what_if

        return what_if(self.simulation, changes, self.paths)

    def critical_path(self, step: int | None = None) -> CriticalPath:
        """What decided how long the steps took.

        Args:
            step: number of one step; all replayed steps by default.

        Raises:
            UsageError: the step is not among the replayed ones.
        """
        from stepscope.analysis.simulation.summary import critical_path

        readers = [member.trace.frame for _, member, _ in self._explained]
        return critical_path(self.simulation, readers, self.paths, step)


def timeline_classes() -> list[dict[str, str]]:
    """Classes of what is drawn: key and meaning; the position is the code."""
    from stepscope.analysis.timeline.classes import CLASSES

    return [{"key": key, "says": says} for key, says in CLASSES.items()]


def changes_of(
    *,
    free: Sequence[str] = (),
    scale_kernels: Sequence[str] = (),
    launches_free: bool = False,
    overlap_communication: bool = False,
    ranks_like_median: Sequence[int] = (),
) -> list[Change]:
    """Changes as they are written on a command line.

    Args:
        free: causes of idle time that are gone.
        scale_kernels: ``REGEX=FACTOR``: kernels that take another time.
        launches_free: launches cost nothing.
        overlap_communication: communication is hidden as far as dependencies allow.
        ranks_like_median: ranks that are as fast as the median rank.

    Raises:
        UsageError: one is written wrong.
    """
    from stepscope.analysis.simulation import (
        Free,
        LaunchesFree,
        OverlapCommunication,
        RankLike,
        ScaleKernels,
    )

    found: list[Change] = [RankLike(rank) for rank in ranks_like_median]
    found += [Free(cause) for cause in free]
    for text in scale_kernels:
        regex, equals, factor = text.rpartition("=")
        try:
            found.append(ScaleKernels(regex, float(factor)))
        except ValueError:
            equals = ""
        if not equals or not regex:
            raise UsageError(f"{text!r} is not REGEX=FACTOR, as in 'gemm=0.5'")
    if launches_free:
        found.append(LaunchesFree())
    if overlap_communication:
        found.append(OverlapCommunication())
    if not found:
        raise UsageError(
            "nothing to change; name it, as in --free host_sync or --scale-kernel 'gemm=0.5'"
        )
    return found


def known_reports(folders: Sequence[str] = ()) -> dict[str, Report]:
    """Every report by name: those in the folders, those that ship.

    Raises:
        InputError: a folder or a file in it cannot be used.
    """
    from stepscope.reports.registry import reports

    if not folders:
        return reports()
    from stepscope.reports.user import user_reports

    return dict(sorted((reports() | user_reports([Path(folder) for folder in folders])).items()))


def known_rules() -> dict[str, Report]:
    """Every rule by name."""
    from stepscope.rules.registry import rules

    return rules()


def stats_requests(names: Sequence[str], known: Mapping[str, Report]) -> list[Request]:
    """Read ``name[:argument]...``; the default set when there are no names.

    Raises:
        UsageError: unknown report or argument.
    """
    from stepscope.analysis.tabular.report import parse
    from stepscope.reports.registry import DEFAULT

    return [parse(name, known) for name in names or DEFAULT]


def rule_requests(names: Sequence[str]) -> list[Request]:
    """Read ``name[:argument]...``; the default set when there are no names, ``all`` for all.

    Raises:
        UsageError: unknown rule or argument.
    """
    from stepscope.analysis.tabular.report import parse
    from stepscope.rules.registry import DEFAULT, rules

    wanted = list(names) or list(DEFAULT)
    every = [name for item in wanted for name in (rules() if item == "all" else (item,))]
    return [parse(name, rules(), "rule") for name in every]


def open_cache() -> Cache:
    """The user's cache of imported captures."""
    return Cache()


def bundled_capture() -> Path:
    """The bundled capture, unpacked into the cache folder, where it stays for further questions.

    Raises:
        StorageError: the cache cannot be written.
    """
    import lzma
    from importlib import resources

    name = "h200_input_starvation.sqlite"
    packed = resources.files("stepscope.data").joinpath(f"{name}.xz").read_bytes()
    return Cache().keep(name, lzma.decompress(packed))


def _refuse_twice(inputs: Sequence[Path]) -> None:
    """Each capture is a rank of the job: one that is named twice would be two of them."""
    known: set[Path] = set()
    for path in inputs:
        place = path.resolve()
        if place in known:
            raise UsageError(
                f"{path} is given twice; several PATHs are the ranks of one job, each given once"
            )
        known.add(place)


def expand(path: Path, left_out: list[str]) -> list[Path]:
    """The captures that a path stands for: itself, or those inside a folder.

    Args:
        path: a capture or a folder.
        left_out: receives the names of files that look like captures by their name only.

    Raises:
        InputError: nothing is there, or nothing in it is a capture.
    """
    if not stat.S_ISDIR(examined(path)):
        return [path]
    found: list[Path] = []
    try:
        if is_trace_folder(path) or detect(path) is not None:
            return [path]
        # A run of ours whose traces were not made yet, or elsewhere, is read from its raw files.
        for folder in (path, path / _RAW_FOLDER):
            if found or not folder.is_dir():
                continue
            for child in sorted(folder.iterdir()):
                if child.name.startswith(".") or child.name.endswith(NOTES):
                    continue
                if _is_capture(child):
                    found.append(child)
                elif child.suffix in _CAPTURE_SUFFIXES:
                    left_out.append(child.name)
        left_out += _unread_ranks(path, found)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its rights") from error
    if not found:
        raise InputError(
            f"{path} holds no capture that Stepscope knows; name a file, or a folder with Nsight "
            "Systems exports or PyTorch traces"
        )
    # nsys leaves an export beside its report: these are one capture
    exports = {child.with_suffix("") for child in found if child.suffix == ".sqlite"}
    return [c for c in found if c.suffix != ".nsys-rep" or c.with_suffix("") not in exports]


def _unread_ranks(run: Path, found: list[Path]) -> list[str]:
    """Ranks of a run of ours that ``stepscope capture finalise`` could not read, but for others."""
    traces = {path.stem for path in found if is_trace_folder(path)}
    raw = run / _RAW_FOLDER
    if not traces or not raw.is_dir():
        return []
    ranks = [child for child in sorted(raw.iterdir()) if child.is_dir()]
    return [
        f"{_RAW_FOLDER}/{rank.name}"
        for rank in ranks
        if rank.name not in traces and any(rank.glob("*.raw"))
    ]


def _is_capture(path: Path) -> bool:
    if path.is_dir():
        return is_trace_folder(path) or detect(path) is not None
    return path.is_file() and path.stat().st_size > 0 and detect(path) is not None


def _read_report(path: str | Path) -> KernelReport:
    from stepscope.kernels.reading import read_report

    return read_report(Path(path))


def read_ceilings(path: str | Path) -> Ceilings:
    """Read what ``stepscope ceilings`` wrote.

    Raises:
        InputError: it is no such file.
    """
    import msgspec

    from stepscope.analysis.kernels.ceilings import SCHEMA, Ceilings

    advice = "stepscope ceilings -o FILE writes one on the GPU"
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=Ceilings)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {advice}") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path} holds no ceilings: {error}; {advice}") from error
    rates = [v for n in Ceilings.__struct_fields__ if n.endswith("_per_s")
             if (v := getattr(found, n)) is not None]  # fmt: skip
    if found.schema != SCHEMA or not all(0 < rate < float("inf") for rate in rates):
        raise InputError(f"{path} holds no ceilings of {SCHEMA}; {advice}")
    return found


def ceilings_beside_data_sheet(document: bytes) -> pa.Table:
    """What was measured, beside the device's data sheet: one row a figure.

    Args:
        document: what was measured, as JSON.

    Returns:
        Columns ceiling, unit, measured, data_sheet (null where unknown), share.
    """
    import msgspec
    import pyarrow as pa

    from stepscope.analysis.kernels.ceilings import CEILINGS, Ceilings
    from stepscope.analysis.kernels.peaks import peaks_of

    found = msgspec.json.decode(document, type=Ceilings)
    sheet = peaks_of(found.device)
    rows = []
    for name, (title, of_sheet) in CEILINGS.items():
        measured = getattr(found, name)
        if measured is None:
            continue
        stated = (getattr(sheet, of_sheet) or None) if sheet and of_sheet else None
        rows.append(
            {
                "ceiling": title,
                "unit": "byte/s" if name.endswith("bytes_per_s") else "FLOP/s",
                "measured": measured,
                "data_sheet": stated,
                "share": measured / stated if stated else None,
            }
        )
    kinds = {"ceiling": pa.string(), "unit": pa.string(), "measured": pa.float64(),
             "data_sheet": pa.float64(), "share": pa.float64()}  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(list(kinds.items())))


def is_kernel_report(path: str | Path) -> bool:
    """Whether a path is an Nsight Compute report (``.ncu-rep`` or CSV) rather than a trace."""
    from stepscope.kernels.reading import is_report

    return is_report(Path(path))


def kernel_report(path: str | Path) -> KernelTable:
    """The kernels of an Nsight Compute report, each with what limits it.

    Raises:
        InputError: it cannot be read.
    """
    from stepscope.kernels.explain import kernel_table
    from stepscope.kernels.reading import read_report

    return kernel_table(read_report(Path(path)))


def explain_kernel(path: str | Path, kernel: str) -> KernelExplanation:
    """Explain one launch of an Nsight Compute report.

    Args:
        path: the report.
        kernel: its number in the report, its name, or a regular expression; of several launches
            the longest is explained.

    Raises:
        InputError: the report cannot be read.
        UsageError: it has no such kernel.
    """
    from stepscope.kernels.choose import open_for
    from stepscope.kernels.explain import explanation

    report, launch = open_for(Path(path), kernel)
    return explanation(report, launch)


def compare_kernel_reports(path: str | Path, other: str | Path) -> KernelsAgainst:
    """Compare two Nsight Compute reports metric by metric.

    Args:
        path: before.
        other: after.

    Raises:
        InputError: one cannot be read.
    """
    from stepscope.kernels.against import against
    from stepscope.kernels.reading import read_report

    return against(read_report(Path(path)), read_report(Path(other)))


def kernel_rooflines(
    path: str | Path, kernel: str = "", other: str | Path = ""
) -> list[tuple[str, Roofline, Roofline | None]]:
    """(name, roofline, roofline in the other report) of launches, for drawing.

    Args:
        path: the report.
        kernel: as for :func:`explain_kernel`; all launches by default.
        other: a report after a change, matched by name.

    Raises:
        InputError: a report cannot be read.
        UsageError: there is no such kernel.
    """
    from stepscope.kernels.choose import chosen
    from stepscope.kernels.reading import read_report
    from stepscope.kernels.roofline import roofline_of

    launches = read_report(Path(path)).launches
    if other:
        pairs = compare_kernel_reports(path, other).pairs
        wanted = chosen(launches, kernel)[0].name if kernel else ""
        return [
            (pair.name, pair.roofline_before, pair.roofline_after)
            for pair in pairs
            if pair.roofline_before is not None and wanted in ("", pair.name)
        ]
    if kernel:
        launches = [chosen(launches, kernel)[0]]
    found = ((launch.function, roofline_of(launch)) for launch in launches)
    return [(name, roofline, None) for name, roofline in found if roofline is not None]

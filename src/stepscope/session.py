"""The one facade: open captures, explain, diagnose, query. Every front door calls only this."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.importers.registry import detect, examined, is_trace_folder, load
from stepscope.trace.cache import Cache, remove_leftovers
from stepscope.trace.errors import InputError, StepscopeError, UsageError
from stepscope.trace.job import assemble
from stepscope.trace.problems import Problem
from stepscope.trace.trace import Job, Member

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.analysis.explain import Explanation
    from stepscope.analysis.tabular.report import Outcome as Outcome  # noqa: PLC0414 - for the doors
    from stepscope.analysis.tabular.report import Report as Report  # noqa: PLC0414 - for the doors
    from stepscope.analysis.tabular.report import Request as Request  # noqa: PLC0414 - for the doors
    from stepscope.capture.options import Options
    from stepscope.diagnosis.result import Diagnosis
    from stepscope.sql.engine import Engine

_CAPTURE_SUFFIXES = {".sqlite", ".nsys-rep", ".qdstrm", ".json", ".gz", ".zst", ".stepscope"}

__all__ = ["Session", "bundled_capture", "expand", "open_cache", "remove_leftovers"]


class Session:
    """One opened job.

    Args:
        paths: captures, folders of captures, or Stepscope trace folders.
        cache: where imported files are kept; the user's cache by default.
        again: import even what the cache holds.

    Raises:
        InputError: a path cannot be read as a capture.
        StorageError: the cache cannot be written.
    """

    def __init__(
        self, paths: Sequence[str | Path], *, cache: Cache | None = None, again: bool = False
    ) -> None:
        # a file name need not be valid Unicode, but results are
        self.paths = [str(path).encode("utf-8", "replace").decode() for path in paths]
        if "" in self.paths:
            raise InputError("one of the paths is empty; name a capture")
        # kept for as long as the session: the cache holds the locks of the entries that it gave
        self._cache = cache or Cache()
        left_out: list[str] = []
        inputs = [found for path in paths for found in expand(Path(path), left_out)]
        self.job: Job = assemble([load(path, self._cache, again=again) for path in inputs])
        if left_out:
            self.job.remarks.append(
                f"{len(left_out)} files beside the captures are none that Stepscope can read and "
                f"were left out: {', '.join(left_out[:4])}" + (", ..." if left_out[4:] else "")
            )

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
            of_rank = explain(member.trace.frame, member.trace.meta)
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
        return sorted(found, key=lambda item: (item[0], item[2].lane.device))

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
        """SQL over the canonical tables and the analysis tables ``step`` and ``idle_gap``."""
        from stepscope.analysis.tables import gap_table, step_table
        from stepscope.sql.engine import Engine

        return Engine(
            [(member.rank, member.trace) for member in self.job.members],
            {
                "step": lambda: step_table(self.explanations),
                "idle_gap": lambda: gap_table(self.explanations),
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
        from stepscope.analysis.tables import step_table

        return step_table(self.explanations)

    def diagnose(self) -> Diagnosis:
        """Name the causes of the job's step time."""
        from stepscope.diagnosis.cause import Case
        from stepscope.diagnosis.engine import diagnose

        several = len(self.job.members) > 1
        cases = [
            Case(rank, member.trace.meta, explanation, member.rank if several else None)
            for rank, member, explanation in self._explained
        ]

        def compute(sql: str) -> float | int:
            value = self.query(sql).column(0)[0].as_py()
            return 0 if value is None else value

        return diagnose(
            cases,
            compute,
            paths=self.paths,
            source="+".join(sorted({trace.meta.source for trace in self.job.traces})),
            remarks=self.job.remarks,
            problems=self.problems,
        )

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
    found = []
    try:
        if is_trace_folder(path) or detect(path) is not None:
            return [path]
        for child in sorted(path.iterdir()):
            if child.name.startswith("."):
                continue
            if _is_capture(child):
                found.append(child)
            elif child.suffix in _CAPTURE_SUFFIXES:
                left_out.append(child.name)
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


def _is_capture(path: Path) -> bool:
    if path.is_dir():
        return is_trace_folder(path) or detect(path) is not None
    return path.is_file() and path.stat().st_size > 0 and detect(path) is not None


@contextmanager
def _capture_errors() -> Iterator[None]:
    """Captures know nothing of this package's errors; here theirs become ours."""
    from stepscope.capture.errors import CaptureError

    try:
        yield
    except CaptureError as error:
        raise UsageError(str(error)) from error


@dataclass(frozen=True)
class Captured:
    """What ``stepscope run`` made.

    Attributes:
        folder: the capture's folder.
        exit_code: the program's.
        traces: Stepscope traces in it, one a rank.
        results: captures in another tool's format in it.
    """

    folder: Path
    exit_code: int
    traces: list[Path]
    results: list[Path]

    def diagnose(self) -> int:
        """Diagnose it in a process of its own, on this process's output; returns its code."""
        paths = self.traces or self.results
        command = [sys.executable, "-m", "stepscope", "diagnose", *map(str, paths)]
        return subprocess.run(command, check=False).returncode


def capture_options(**options: Any) -> Options:
    """What a capture shall record, by the names of :class:`~stepscope.capture.options.Options`."""
    from stepscope.capture.facade import make_options

    return make_options(**options)


def planned_command(options: Options) -> tuple[str, str]:
    """(why this back-end, the exact command) of a capture, without making it.

    Raises:
        UsageError: it cannot be made here.
    """
    from stepscope.capture.launcher import prepare

    with _capture_errors():
        _, why, plan = prepare(options)
    return why, plan.text()


def capture_program(options: Options, say: Callable[[str], None]) -> Captured:
    """Run a program, record it, and turn what was recorded into traces.

    Raises:
        UsageError: it cannot be recorded here.
    """
    from stepscope import __version__
    from stepscope.capture.launcher import record

    with _capture_errors():
        outcome = record(options, __version__, say)
    traces, failures = _finalised(outcome.raw, keep=options.keep_raw)
    for remark in (*outcome.remarks, *failures):
        say(remark)
    return Captured(outcome.folder, outcome.exit_code, traces, outcome.results)


def finalise_capture(folder: str | Path) -> list[Path]:
    """Turn the raw files of a run into traces; returns these.

    Raises:
        UsageError: the folder is none of a run, or it is still being recorded.
        InputError: nothing in it can be read.
    """
    from stepscope.capture.launcher import order

    with _capture_errors():
        outcome = order(Path(folder))
    traces, failures = _finalised(outcome.raw, keep=False)
    if not traces:
        raise InputError(failures[0] if failures else f"{folder} holds no recorded process")
    return traces


def _finalised(folders: Sequence[Path], *, keep: bool) -> tuple[list[Path], list[str]]:
    """Read each rank's raw folder into a trace beside it; raw files of those that fail stay."""
    from stepscope.importers.registry import convert

    traces, failures = [], []
    for raw in folders:
        target = raw.parents[1] / f"{raw.name}.stepscope"
        try:
            convert(raw, target)
        except StepscopeError as error:
            failures.append(str(error))
            continue
        traces.append(target)
    if folders and not failures:
        everything = folders[0].parent
        if keep:
            # a hidden name: the folder's captures are its traces, and this is the same again
            everything.rename(everything.with_name(f".{everything.name}"))
        else:
            shutil.rmtree(everything, ignore_errors=True)
    return traces, failures


def order_capture(order: str, target: str) -> None:
    """Begin ("start") or end ("stop") recording in a program that is being recorded.

    Args:
        order: what to do.
        target: a process of the program, the launcher's process, or the run's folder.

    Raises:
        UsageError: nothing is recorded there.
    """
    from stepscope.capture.facade import steer

    with _capture_errors():
        steer(order, target)


def examine_machine(command: Sequence[str] = ()) -> list[dict[str, str]]:
    """What can be captured here: checks with name, status, what was found and the remedy."""
    from stepscope.capture.doctor import examine

    return [check.document() for check in examine(tuple(command))]

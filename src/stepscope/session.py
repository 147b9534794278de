"""The one facade: open captures, explain, diagnose, query. Every front door calls only this."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.importers.registry import detect, examined, is_trace_folder, load
from stepscope.trace.cache import Cache, remove_leftovers
from stepscope.trace.errors import InputError
from stepscope.trace.job import assemble
from stepscope.trace.problems import Problem
from stepscope.trace.trace import Job, Member

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.analysis.explain import Explanation
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

    @property
    def problems(self) -> list[Problem]:
        """Import problems of all traces, one entry a kind and trace."""
        return [problem for member in self.job.members for problem in member.trace.meta.problems]


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

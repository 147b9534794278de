"""Import problems: declared counters, shown with every result that they touch.

A problem is never just logged. It has an id, a severity, a scope (the tables it affects) and a
sentence that says what to do. Importers count; renderers show. Adding one is adding one entry to
``DECLARED``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from stepscope.trace.text import without_controls

Severity = Literal["info", "notice", "data_loss", "error"]


@dataclass(frozen=True)
class ProblemKind:
    """A declared kind of import problem.

    Attributes:
        id: stable public id.
        severity: ``info`` (nothing lost), ``notice`` (worth knowing), ``data_loss`` (rows are
            missing or were dropped), ``error`` (results of the scope cannot be trusted).
        message: what it means, in one sentence.
        remedy: what the user can do about it.
    """

    id: str
    severity: Severity
    message: str
    remedy: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A counted problem, as it stands in ``meta.json`` and in results.

    Attributes:
        id: id of a declared :class:`ProblemKind`.
        severity: see :class:`ProblemKind`.
        count: how many rows or events are affected.
        scope: the canonical tables affected.
        message: what happened; ``detail`` adds the first instance.
        remedy: what to do about it.
        detail: the first concrete instance, empty where there is none.
    """

    id: str
    severity: Severity
    count: int
    scope: list[str]
    message: str
    remedy: str
    detail: str = ""


_EARLIER = {"says": "message", "do": "remedy"}  # old name: new name


def with_current_names(problems: object) -> object:
    """Decoded problems with the names of today, whichever version wrote them."""
    return renamed(problems, _EARLIER)


def renamed(rows: object, names: Mapping[str, str]) -> object:
    """Decoded rows with some of their fields renamed; what is no list of objects stays as it is."""
    if not isinstance(rows, list):
        return rows
    return [
        {names.get(name, name): value for name, value in row.items()}
        if isinstance(row, dict)
        else row
        for row in rows
    ]


def _kinds(*kinds: ProblemKind) -> dict[str, ProblemKind]:
    return {kind.id: kind for kind in kinds}


DECLARED: dict[str, ProblemKind] = _kinds(
    ProblemKind(
        "negative_duration",
        "data_loss",
        "events ended before they began and were left out",
        "capture again; a clock that steps back (virtual machine, suspend) is the usual cause",
    ),
    ProblemKind(
        "not_a_number",
        "data_loss",
        "events had a time that is not a finite number and were left out",
        "capture again with a current profiler version",
    ),
    ProblemKind(
        "unknown_release",
        "notice",
        "releases of memory belong to no known allocation",
        "record more of the history (max_entries of _record_memory_history)",
    ),
    ProblemKind(
        "replay_contradicted",
        "notice",
        "blocks have another size than replaying the allocator's history gives; what is allocated "
        "at a time is a little uncertain",
        "compare the peak with torch.cuda.max_memory_allocated()",
    ),
    ProblemKind(
        "negative_time",
        "notice",
        "events lie before the start of the capture",
        "nothing to do where these are initialisation events",
    ),
    ProblemKind(
        "unresolved_correlation",
        "notice",
        "GPU operations have no recorded launching call",
        "capture the CUDA API too (nsys: -t cuda; torch.profiler: ProfilerActivity.CPU)",
    ),
    ProblemKind(
        "launched_before",
        "notice",
        "GPU operations were launched before the recording began, so that their calls are not in"
        " it",
        "nothing to do; to have their calls, begin the recording a step earlier or synchronise"
        " before it",
    ),
    ProblemKind(
        "unclosed_range",
        "notice",
        "ranges were still open when the capture ended; their end is the capture's end",
        "nothing to do where these do not matter; else record a step more, so that they end before"
        " the capture does",
    ),
    ProblemKind(
        "overlapping_range",
        "notice",
        "ranges of one thread overlap without nesting; the parent is the tightest range containing"
        " them",
        "use one domain, or start/end ranges, for overlapping phases",
    ),
    ProblemKind(
        "missing_column",
        "notice",
        "columns that this tool version should export are missing",
        "export again with a newer nsys, or ignore where the column is not needed",
    ),
    ProblemKind(
        "bad_value",
        "data_loss",
        "values had another type than their column declares and were left out",
        "export again; the file may be damaged or written by another program",
    ),
    ProblemKind(
        "number_too_large",
        "notice",
        "numbers are larger than their column holds; they count as absent",
        "nothing to do where these are ids; else capture again with a current profiler version",
    ),
    ProblemKind(
        "malformed_event",
        "data_loss",
        "events could not be parsed and were left out",
        "capture again; the file may have been edited or damaged",
    ),
    ProblemKind(
        "invalid_text",
        "info",
        "names held control characters or invalid UTF-8, which were replaced",
        "nothing to do",
    ),
    ProblemKind(
        "missing_text",
        "notice",
        "names refer to texts that the export does not hold and show as [string N]",
        "export again with all tables",
    ),
    ProblemKind(
        "unpaired_sched",
        "notice",
        "scheduling points have no partner (a thread got or lost a CPU unseen) and were left out",
        "nothing to do for a few; many mean that the kernel dropped events: capture for a shorter"
        " time",
    ),
    ProblemKind(
        "graph_mode",
        "data_loss",
        "CUDA graph launches were recorded as a whole, the kernels inside are unknown",
        "capture with stepscope run --graph node, or nsys profile --cuda-graph-trace=node",
    ),
    ProblemKind(
        "unfinished_capture",
        "data_loss",
        "processes ended without closing their capture (killed, crashed, or os._exit): the last"
        " moments of GPU work may be missing, ranges are whole",
        "let the program end by itself, or stop it with SIGTERM; stepscope run --flush-ms bounds"
        " the loss",
    ),
    ProblemKind(
        "other_profiler",
        "notice",
        "another profiler was in the recorded program; CUPTI serves one tool at a time, so that one"
        " may lack GPU work",
        "switch it off while recording, or record with it (stepscope run --backend torch)",
    ),
    ProblemKind(
        "cupti_taken",
        "data_loss",
        "another profiler held CUPTI, which serves one tool at a time, so GPU work is missing",
        "switch the other profiler off while recording, or record with it (stepscope run --backend"
        " nsys or torch)",
    ),
    ProblemKind(
        "torn_end",
        "notice",
        "files end within a record, as they do when a process is killed while it writes",
        "nothing to do; everything before it was read",
    ),
    ProblemKind(
        "damaged_block",
        "data_loss",
        "parts of the capture's files are damaged and were left out",
        "copy the capture again, and check the disk it was written to",
    ),
    ProblemKind(
        "damaged_file",
        "data_loss",
        "files of the capture are not as they were written; what could not be read in part was left"
        " out",
        "copy the capture again, and check the disk it was written to",
    ),
    ProblemKind(
        "damaged_table",
        "error",
        "stored tables are damaged; what needs them is refused, all else is as it was",
        "restore them from a copy, or capture again",
    ),
    ProblemKind(
        "no_checksums",
        "info",
        "the capture was stored by an earlier version, without checksums: damage in its tables may"
        " go unnoticed",
        "nothing to do; captures made now carry them",
    ),
    ProblemKind(
        "no_time",
        "notice",
        "GPU operations have no time, because they had not finished when recording ended",
        "nothing to do for a few at the end of the capture",
    ),
    ProblemKind(
        "dropped_records",
        "data_loss",
        "the capturing tool says that it lost or may have lost records",
        "capture a shorter window, or let the process exit before the capture ends",
    ),
    ProblemKind(
        "invalid_number",
        "info",
        "values that are not finite numbers were read as absent",
        "nothing to do",
    ),
    ProblemKind(
        "unread_events",
        "notice",
        "events are of kinds that are not read",
        "see the import guide for what is understood",
    ),
    ProblemKind(
        "unresolved_forward",
        "notice",
        "flow events from forward to backward operators end at no recorded operator",
        "nothing to do; the operators at the edge of the capture are the usual ones",
    ),
    ProblemKind(
        "unsupported_source",
        "notice",
        "the trace comes from a source that is read only in part",
        "see the import guide for what is understood",
    ),
)


class ProblemLog:
    """Counts problems during one import.

    ``count`` is cheap and may be called once per batch with a number of affected rows.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._scopes: dict[str, set[str]] = {}
        self._details: dict[str, str] = {}

    def count(self, kind: str, n: int, *, scope: str, detail: str = "") -> None:
        """Add ``n`` occurrences of a declared problem for one canonical table.

        Raises:
            KeyError: when ``kind`` is not declared in ``DECLARED``.
        """
        if kind not in DECLARED:
            raise KeyError(kind)
        if n <= 0:
            return
        self._counts[kind] = self._counts.get(kind, 0) + n
        self._scopes.setdefault(kind, set()).add(scope)
        if detail:
            self._details.setdefault(kind, without_controls(detail[:300]))

    def problems(self) -> list[Problem]:
        """The counted problems, worst severity first, then by id."""
        order = {"error": 0, "data_loss": 1, "notice": 2, "info": 3}
        found = [
            Problem(
                id=kind,
                severity=DECLARED[kind].severity,
                count=count,
                scope=sorted(self._scopes[kind]),
                message=DECLARED[kind].message,
                remedy=DECLARED[kind].remedy,
                detail=self._details.get(kind, ""),
            )
            for kind, count in self._counts.items()
        ]
        return sorted(found, key=lambda p: (order[p.severity], p.id))

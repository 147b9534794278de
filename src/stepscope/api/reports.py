"""Reports and rules: which there are, how they are asked for, and what they say of the job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.tables import is_number
from stepscope.trace.errors import UsageError
from stepscope.trace.given import listed
from stepscope.trace.job import BY_ORDER
from stepscope.trace.trace import RankTrace

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.compare.budgets import CellLimit, SqlLimit
    from stepscope.reports.report import Outcome, Report, Request
    from stepscope.trace.scope import Scope


class Reports:
    """What reports and rules say of the job.

    Args:
        ranks: its traces.
        figure: computes an SQL figure of the job.
    """

    def __init__(self, ranks: Sequence[RankTrace], figure: Callable[[str], float | int]) -> None:
        self._ranks = ranks
        self._figure = figure

    @property
    def stated_ranks(self) -> list[tuple[Path, int | None]]:
        """(capture, its rank where it or its name tells one), in order of rank."""
        return [(m.trace.path, None if m.rank_source == BY_ORDER else m.rank) for m in self._ranks]

    def table(self, name: str, rank: int | None = None) -> pa.Table:
        """What one report or rule says of one rank.

        Args:
            name: ``name[:argument]...``, as on the command line.
            rank: which one; by default the first.

        Raises:
            UsageError: the report, an argument or the rank is unknown, or the capture lacks what
                the report needs.
        """
        requests = stats_requests([name], known_reports() | known_rules())
        for rank_trace, (_, outcome) in zip(self._ranks, self.answers(requests), strict=True):
            if rank not in (None, rank_trace.rank):
                continue
            if outcome.table is None:
                raise UsageError(f"{name}: {outcome.missing}")
            return outcome.table
        raise UsageError(f"the job has no rank {rank}")

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
        from stepscope.reports.report import Outcome, answer
        from stepscope.reports.source import Source, range_scope
        from stepscope.trace.scope import Scope, time_scope

        fixed = time_scope(window) if window else Scope()
        for rank_trace in self._ranks:
            trace = rank_trace.trace
            whole = Source(trace)
            for request in requests:
                scope: Scope | None = fixed
                wanted = nvtx or request.nvtx
                if request.start_ns is not None or request.end_ns is not None:
                    scope = Scope(request.start_ns, request.end_ns)
                elif wanted:
                    scope = range_scope(trace, wanted)
                if scope is None:
                    stated = f"{trace.path.name} holds no NVTX range {wanted!r}"
                    yield trace.path, Outcome(request, None, stated)
                else:
                    source = whole if scope.everything else Source(trace, scope)
                    yield trace.path, answer(request, source)

    def page(
        self, requests: Sequence[Request]
    ) -> Iterator[tuple[Path, list[str], list[pa.Table], list[str]]]:
        """(capture, facts about it, answers with rows, why others have none) of every capture."""
        answers = self.answers(requests)
        for rank_trace in self._ranks:
            facts = _facts(rank_trace, several=len(self._ranks) > 1)
            tables, missing = [], []
            for _, (_, outcome) in zip(requests, answers, strict=False):
                if outcome.table is None:
                    missing.append(f"{outcome.request.report.name}: {outcome.missing}")
                elif outcome.table.num_rows:
                    tables.append(outcome.table)
            yield rank_trace.trace.path, facts, tables, missing

    def limited(self, item: SqlLimit | CellLimit) -> float:
        """The value of an SQL figure or of a report's cell that a gate limits.

        Raises:
            UsageError: the statement, the report or the column is wrong, or no row fits.
        """
        from stepscope.compare.budgets import SqlLimit

        if isinstance(item, SqlLimit):
            return self._figure(item.sql)
        request = stats_requests([item.report], known_reports() | known_rules())
        for _, outcome in self.answers(request):
            if outcome.table is None:
                raise UsageError(f"{item.report}: {outcome.missing}")
            value = _cell(outcome.table, item)
            if value is not None:
                return value
        raise UsageError(f"{item.report} has no row with {item.row!r}")


def _cell(table: pa.Table, item: CellLimit) -> float | None:
    """The cell of the first row that fits; None where no row does."""
    # "Total Time (ns)", as it is printed, is "Total Time" in nanoseconds
    column = re.sub(r" \([^()]*\)$", "", item.column)
    if column not in table.column_names:
        columns = ", ".join(table.column_names)
        raise UsageError(f"{item.report} has no column {item.column!r}; it has {columns}")
    for row in table.to_pylist():
        if not item.row or any(item.row in str(cell) for cell in row.values()):
            value = row[column]
            if not is_number(value):
                raise UsageError(f"{item.column!r} of {item.report} is no number")
            return value
    return None


def _facts(rank_trace: RankTrace, *, several: bool) -> list[str]:
    """What a page says of a capture: its source, length, rank, and what was lost."""
    meta = rank_trace.trace.meta
    length = (meta.window_end_ns - meta.window_start_ns) / 1e9
    facts = [f"Recorded by {meta.source} {meta.source_version}".strip() + f", {length:.3f} s"]
    if several or meta.rank is not None:
        facts.append(f"Rank {rank_trace.rank} ({rank_trace.rank_source})")
    return facts + [
        f"{problem.severity}: {problem.count:,} x {problem.message}; {problem.remedy}"
        for problem in meta.problems
        if problem.severity in ("data_loss", "error")
    ]


def known_reports(folders: str | Path | Sequence[str | Path] = ()) -> dict[str, Report]:
    """Every report by name: those in the folders, those that ship.

    Raises:
        InputError: a folder or a file in it cannot be used.
    """
    from stepscope.reports.registry import reports

    if not folders:
        return reports()
    from stepscope.reports.user import user_reports

    return dict(
        sorted((reports() | user_reports([Path(folder) for folder in listed(folders)])).items())
    )


def known_rules() -> dict[str, Report]:
    """Every rule by name."""
    from stepscope.reports.registry import rules

    return rules()


def stats_requests(names: str | Sequence[str], known: Mapping[str, Report]) -> list[Request]:
    """Read ``name[:argument]...``; the default set when there are no names.

    Raises:
        UsageError: unknown report or argument.
    """
    from stepscope.reports.registry import DEFAULT
    from stepscope.reports.report import parse

    return [parse(name, known) for name in listed(names) or DEFAULT]


def rule_requests(names: str | Sequence[str]) -> list[Request]:
    """Read ``name[:argument]...``; the default set when there are no names, ``all`` for all.

    Raises:
        UsageError: unknown rule or argument.
    """
    from stepscope.reports.registry import DEFAULT_RULES, rules
    from stepscope.reports.report import parse

    wanted = listed(names) or list(DEFAULT_RULES)
    every = [name for item in wanted for name in (rules() if item == "all" else (item,))]
    return [parse(name, rules(), "rule") for name in every]

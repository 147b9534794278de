"""The job as tables: SQL over the canonical ones and over those that analyses compute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeGuard

from stepscope.trace.errors import UsageError
from stepscope.trace.trace import RankTrace

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.api.answers import Answers
    from stepscope.api.explained import Explained
    from stepscope.sql.engine import Engine


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a cell of a table is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class Tables:
    """The job's tables.

    Args:
        ranks: its traces.
        explained: the explained job, which derived tables are made from.
        answers: keeps them.
    """

    def __init__(self, ranks: Sequence[RankTrace], explained: Explained, answers: Answers) -> None:
        self._ranks = ranks
        self._explained = explained
        self._answers = answers

    @cached_property
    def engine(self) -> Engine:
        """SQL over the canonical tables, the derived tables and those of the diagnosis."""
        from stepscope.derived import names
        from stepscope.sql.engine import Engine

        return Engine(
            [(rank_trace.rank, rank_trace.trace) for rank_trace in self._ranks],
            {
                **{name: partial(self.derived, name) for name in names()},
                "prediction": lambda: self._answers.find_table("prediction", self._predictions),
                "kernel_lever": lambda: self._answers.find_table("kernel_lever", self._levers),
            },
        )

    def derived(self, name: str) -> pa.Table:
        """A derived table.

        Raises:
            InputError: a trace holds no GPU work.
        """

        def build() -> pa.Table:
            from stepscope.derived import derived_table

            return derived_table(name).build(self._explained.view)

        return self._answers.find_table(name, build)

    def _predictions(self) -> pa.Table:
        from stepscope.diagnosis.predictions import prediction_table

        both = self._explained.together
        together = []
        if both is not None:
            time = sum(item.detection.time_ns for item in both.items)
            together.append((both.items[0].case, both.id, time, both.predicted))
        return prediction_table(
            [
                *together,
                *(
                    (r.case, r.cause.id, r.detection.time_ns, r.predicted)
                    for r in self._explained.ranked
                ),
                *(
                    (
                        p.case,
                        p.lever.id,
                        p.saved_ns.sum() / p.case.explanation.n_steady,
                        p.predicted,
                    )
                    for p in self._explained.levers
                ),
            ]
        )

    def _levers(self) -> pa.Table:
        from stepscope.diagnosis.lever import lever_table

        return lever_table(self._explained.levers)

    def figure(self, sql: str, timeout_s: float | None = None) -> float | int:
        """The only cell of a statement's answer; see :meth:`stepscope.api.job.Job.figure`."""
        rows = self.engine.cells(sql, timeout_s)
        if len(rows) == 1 and len(rows[0]) > 1:
            raise UsageError(f"{sql!r} gives several columns, not one figure")
        return _only_numbers(sql, rows)[0]

    def own_figures(self, sql: str) -> tuple[float | int, ...]:
        """The only row of a statement that Stepscope itself made; 0 for null.

        Raises:
            UsageError: there are others, or not only numbers.
        """
        return _only_numbers(sql, self.engine.own_cells(sql))


def _only_numbers(sql: str, rows: list[tuple[Any, ...]]) -> tuple[float | int, ...]:
    """The only row; 0 for null.

    Raises:
        UsageError: there are others, or not only numbers.
    """
    if len(rows) != 1:
        raise UsageError(f"{sql!r} gives {'several rows' if rows else 'no row'}, not one figure")
    found = tuple(0 if value is None else value for value in rows[0])
    if not all(is_number(value) for value in found):
        raise UsageError(f"{sql!r} does not give a number")
    return found

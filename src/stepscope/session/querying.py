"""The job as tables: SQL over all of them, and the views that people ask for first."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeGuard

from stepscope.session.ranking import Ranking
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.collectives.summary import Communication
    from stepscope.operators.roofline import OperatorRooflines
    from stepscope.sql.engine import Engine


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a cell of a table is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class Querying(Ranking):
    """The job's tables."""

    @cached_property
    def engine(self) -> Engine:
        """SQL over the canonical tables, the derived tables and ``prediction``."""
        from functools import partial

        from stepscope.derived import names
        from stepscope.sql.engine import Engine

        return Engine(
            [(member.rank, member.trace) for member in self.job.members],
            {
                **{name: partial(self._derived, name) for name in names()},
                "prediction": lambda: self._answers.find_table("prediction", self._predictions),
            },
        )

    def _derived(self, name: str) -> pa.Table:
        def build() -> pa.Table:
            from stepscope.derived import derived_table

            return derived_table(name).build(self._view)

        return self._answers.find_table(name, build)

    def _predictions(self) -> pa.Table:
        from stepscope.diagnosis.predictions import prediction_table

        return prediction_table(
            [(r.case, r.cause.id, r.detection, r.predicted) for r in self._ranked]
        )

    def query(self, sql: str, timeout_s: float | None = None) -> pa.Table:
        """Run one SELECT.

        Args:
            sql: the statement.
            timeout_s: seconds that it may take; by default ``STEPSCOPE_QUERY_TIMEOUT``, else 300.

        Raises:
            UsageError: the statement is wrong.
            LimitError: it takes too much time or memory.
        """
        return self.engine.query(sql, timeout_s)

    def figure(self, sql: str, timeout_s: float | None = None) -> float | int:
        """The only cell of a statement's answer; 0 for null.

        Args:
            sql: the statement.
            timeout_s: seconds that it may take, as for :meth:`query`.

        Raises:
            UsageError: the statement is wrong, or its answer is not one number.
            LimitError: it takes too much time or memory.
        """
        answer = self.query(sql, timeout_s)
        if answer.num_rows != 1 or answer.num_columns != 1:
            raise UsageError(f"{sql!r} gives {answer.num_rows} rows, not one figure")
        value = answer.column(0)[0].as_py()
        if value is None:
            return 0
        if not is_number(value):
            raise UsageError(f"{sql!r} does not give a number")
        return value

    def steps(self) -> pa.Table:
        """The ``step`` table: one row a step and device."""
        return self._derived("step")

    def communication(self) -> Communication:
        """Collectives by kind and group, and how each rank arrives at them.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.collectives.summary import Communication, nothing, summary

        def made() -> Communication:
            found = self._view.collectives
            if found is None:
                return nothing(self.paths, len({device.rank for device in self._view.devices}))
            return summary(found, self.paths)

        return self._answers.find("communication", Communication, made)

    def kernels(self) -> pa.Table:
        """Kernels of the steady steps by family and name, the longest time first.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.kernels.views import KERNELS_VIEW

        return self.query(KERNELS_VIEW)

    def operators(self, by: str = "") -> pa.Table:
        """Device time of the steady steps by what launched it, the longest time first.

        Args:
            by: key of ``GROUPINGS``; by default operators where any trace holds them, else ranges.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.kernels.views import operators_view

        if not by:
            known = any(trace.rows("operator") for trace in self.job.traces)
            by = "operator" if known else "range"
        return self.query(operators_view(by))

    def operator_rooflines(self) -> OperatorRooflines:
        """Operators whose shapes are recorded against the device's ceilings, and the step's MFU.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.operators.roofline import OperatorRooflines, operator_rooflines

        return self._answers.find(
            "operator rooflines",
            OperatorRooflines,
            lambda: operator_rooflines(self._view, self.paths),
        )

"""Figures evaluated: each becomes a value with the statement that recomputes it."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.result import Evidence
from stepscope.trace.errors import UsageError

Numbers: TypeAlias = "tuple[float | int, ...]"

ACCOUNTED: Final = (
    "wall_ns",
    "compute_ns",
    "exposed_communication_ns",
    "exposed_copy_ns",
    "memset_ns",
    "idle_ns",
)
"""Columns of ``step`` that a device's accounting sums over its steady steps."""


class Compute:
    """Runs statements whose only row holds numbers, each once: most findings hold the same figures.

    Args:
        run: runs one; refuses with a :class:`UsageError` what has no such row.
    """

    def __init__(self, run: Callable[[str], Numbers]) -> None:
        self._run = run
        self._known: dict[str, Numbers] = {}

    def __call__(self, sql: str) -> Numbers:
        """What a statement gives."""
        if sql not in self._known:
            self._known[sql] = self._run(sql)
        return self._known[sql]

    def together(self, statements: Iterable[str]) -> None:
        """Run those that read the same rows as one: to plan a statement takes most of its time."""
        same: dict[tuple[bool, str], list[tuple[str, str]]] = {}
        for sql in dict.fromkeys(statements):
            if sql not in self._known:
                chosen, read = _parts(sql)
                same.setdefault((bool(_AGGREGATE.search(chosen)), read), []).append((sql, chosen))
        for (_, read), alike in same.items():
            if len(alike) == 1 or not read or " GROUP BY " in read:
                continue
            columns = ", ".join(chosen for _, chosen in alike)
            with contextlib.suppress(UsageError):  # then each is run, and refused, by itself
                found = iter(self._run(f"SELECT {columns} FROM {read}"))
                for sql, chosen in alike:
                    width = 2 if chosen.endswith(_COUNTED) else 1
                    self._known[sql] = tuple(itertools.islice(found, width))


_AGGREGATE: Final = re.compile(r"\w\(")
_COUNTED: Final = ", count(*)"
_TEXT_OR_LEVEL: Final = re.compile(r"'(?:[^']|'')*'|[()]| FROM ")


def places(case: Case) -> dict[str, str]:
    """What the places of a figure's statement stand for on one device."""
    e = case.explanation
    process = f"process_id = {e.gpu.process_id}"
    if case.several_traces:
        process = f"rank = {case.device.trace_rank} AND {process}"
    return {
        "process": process,
        "gpu": f"{process} AND device = {e.gpu.device}",
        "window": f"start_ns >= {e.begin_ns} AND start_ns < {e.end_ns}",
    }


def evaluated(figure: Figure, case: Case, compute: Compute) -> Evidence:
    """The figure's value on one device."""
    sql = figure.sql.format(**places(case))
    value, *rows = compute(_counted(sql))
    return Evidence(figure.name, value, figure.unit, sql, int(rows[0]) if rows else 1)


def all_evaluated(figures: Sequence[Figure], case: Case, compute: Compute) -> list[Evidence]:
    """The values of figures on one device."""
    at = places(case)
    compute.together(_counted(figure.sql.format(**at)) for figure in figures)
    return [evaluated(figure, case, compute) for figure in figures]


def _counted(sql: str) -> str:
    """The statement, with the number of rows that an aggregate is computed from.

    One without an aggregate has one row, or is refused.
    """
    chosen, read = _parts(sql)
    if _counts_rows(sql) and _AGGREGATE.search(chosen) and not read.startswith("prediction "):
        return f"SELECT {chosen}{_COUNTED} FROM {read}"
    return sql


def _parts(sql: str) -> tuple[str, str]:
    """What a statement chooses, which may hold further ones in parentheses, and what it reads."""
    depth = 0
    for found in _TEXT_OR_LEVEL.finditer(sql):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if found[0] == " FROM " and not depth:
            return sql[: found.start()].removeprefix("SELECT "), sql[found.end() :]
    return sql, ""


def _counts_rows(sql: str) -> bool:
    """Whether the rows of a statement's only FROM are what the figure is computed from."""
    return sql.count("SELECT") == 1 and " GROUP BY " not in sql


STEADY_STEPS: Final = "(SELECT count(*) FROM step WHERE steady AND {gpu})"
STEP_SQL: Final = "SELECT round(sum(wall_ns) / count(*))::BIGINT FROM step WHERE steady AND {gpu}"
"""Mean steady step, ns."""


def idle_time_sql(cause: str) -> str:
    """Idle time charged to a cause, ns per step."""
    return (
        f"SELECT round(sum(end_ns - start_ns) / {STEADY_STEPS})::BIGINT FROM idle_gap "
        f"WHERE cause = '{cause}' AND {{gpu}}"
    )


def predicted_sql(column: str, cause: str) -> str:
    """One column of the prediction for a cause."""
    return f"SELECT {column} FROM prediction WHERE cause = '{cause}' AND {{gpu}}"


def job_figures() -> list[Figure]:
    """Figures about the whole result, of its reference device."""
    steady = "FROM step WHERE steady AND {gpu}"
    return [
        Figure("steps", "count", "SELECT count(*) FROM step WHERE {gpu}"),
        Figure("steady_steps", "count", f"SELECT count(*) {steady}"),
        Figure(
            "warmup_steps",
            "count",
            "SELECT count(*) FROM step WHERE NOT steady AND {gpu} AND step < "
            "(SELECT min(step) FROM step WHERE steady AND {gpu})",
        ),
        Figure("mean_step_ns", "ns", STEP_SQL),
        Figure("median_step_ns", "ns", f"SELECT median(wall_ns)::BIGINT {steady}"),
        Figure("p95_step_ns", "ns", f"SELECT quantile_cont(wall_ns, 0.95)::BIGINT {steady}"),
        Figure(
            "step_variation",
            "share",
            f"SELECT round(stddev_pop(wall_ns) / avg(wall_ns), 4) {steady}",
        ),
        Figure("idle_share", "share", f"SELECT sum(idle_ns) / sum(wall_ns) {steady}"),
        Figure("busy_share", "share", f"SELECT 1 - sum(idle_ns) / sum(wall_ns) {steady}"),
        Figure(
            "exposed_communication_share",
            "share",
            "SELECT sum(exposed_communication_ns) / sum(wall_ns) FROM step WHERE steady",
        ),
    ]


UTILISATION: Final = Figure(
    "gpu_utilization",
    "share",
    "SELECT coalesce(sum(compute_ns + exposed_communication_ns) / nullif(sum(wall_ns), 0), 0) "
    "FROM step WHERE steady AND {gpu}",
)
"""What nvidia-smi calls utilisation: the share of time in which one or more kernels run.

Communication is done by kernels (NCCL), so it counts; copies and memory sets do not. Source: NVML
API reference, ``nvmlUtilization_t``.
"""

_STEPS_SPAN: Final = "(SELECT min(start_ns) AS b, max(end_ns) AS e FROM step WHERE {gpu}) AS w"
_DEVICE_SPAN: Final = (
    "(SELECT min(start_ns) AS first, max(end_ns) AS last FROM gpu_op WHERE {gpu}) AS d"
)
_HELD: Final = "greatest(0, least(end_ns, w.e) - greatest(start_ns, w.b))"


def coverage_figures() -> list[Figure]:
    """How much of what the device did lies in the steps, and what lies outside."""
    return [
        Figure(
            "coverage_gpu",
            "share",
            f"SELECT coalesce(sum({_HELD}) / nullif(sum(end_ns - start_ns), 0), 1) "
            f"FROM gpu_op, {_STEPS_SPAN} WHERE {{gpu}}",
        ),
        Figure(
            "coverage_time",
            "share",
            "SELECT coalesce(greatest(0, least(w.e, d.last) - greatest(w.b, d.first)) "
            f"/ nullif(d.last - d.first, 0), 1) FROM {_STEPS_SPAN}, {_DEVICE_SPAN}",
        ),
        Figure(
            "before_steps_ns",
            "ns",
            "SELECT greatest(0, least(w.b, d.last) - d.first)::BIGINT "
            f"FROM {_STEPS_SPAN}, {_DEVICE_SPAN}",
        ),
        Figure(
            "after_steps_ns",
            "ns",
            "SELECT greatest(0, d.last - greatest(w.e, d.first))::BIGINT "
            f"FROM {_STEPS_SPAN}, {_DEVICE_SPAN}",
        ),
        *(
            Figure(
                f"outside_{name}_ns",
                "ns",
                f"SELECT coalesce(sum(end_ns - start_ns - {_HELD}), 0)::BIGINT "
                f"FROM gpu_op, {_STEPS_SPAN} WHERE {{gpu}} AND {which}",
            )
            for name, which in (
                ("kernels", "kind IN ('kernel', 'graph')"),
                ("copies", "kind IN ('memcpy', 'memset')"),
            )
        ),
    ]


def accounting_figures(case: Case, causes: list[str]) -> list[Figure]:
    """Figures of one device's accounting; their names begin with the rank and device."""
    name = f"rank{case.rank}.device{case.explanation.gpu.device}"
    sums = [
        Figure(
            f"{name}.{column}",
            "ns",
            f"SELECT sum({column})::BIGINT FROM step WHERE steady AND {{gpu}}",
        )
        for column in ACCOUNTED
    ]
    idle = [
        Figure(
            f"{name}.idle_by_cause_ns.{cause}",
            "ns",
            f"SELECT sum(end_ns - start_ns)::BIGINT FROM idle_gap WHERE cause = '{cause}' "
            "AND {gpu}",
        )
        for cause in causes
    ]
    count = Figure(f"{name}.steps", "count", "SELECT count(*) FROM step WHERE steady AND {gpu}")
    return [*sums, *idle, count]

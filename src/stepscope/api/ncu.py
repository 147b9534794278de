"""Nsight Compute reports: what limits each kernel, how two differ, what findings gain by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.diagnosis.result import Diagnosis, InsideKernel
    from stepscope.jobs.view import JobView
    from stepscope.ncu.model import Report
    from stepscope.ncu.result import Explanation, KernelTable, ReportDiff
    from stepscope.ncu.roofline import Roofline
    from stepscope.operators.roofline import Launches

CAUSES: Final = ("inefficient_kernel", "memory_bound_kernels")
"""Causes whose findings a report can go on from."""

MOST_KERNELS: Final = 5
"""Kernels of a finding that are looked up, the heaviest first."""

Query = Callable[[str], "pa.Table"]
"""Runs one SELECT over the job's tables."""


def is_kernel_report(path: str | Path) -> bool:
    """Whether a path is an Nsight Compute report (``.ncu-rep`` or CSV) rather than a trace."""
    from stepscope.ncu.reading import is_report

    return is_report(Path(path))


def read_report(path: str | Path) -> Report:
    """Read an Nsight Compute report.

    Raises:
        InputError: it cannot be read.
    """
    from stepscope.ncu.reading import read_report

    return read_report(Path(path))


def kernel_report(path: str | Path) -> KernelTable:
    """The kernels of an Nsight Compute report, each with what limits it.

    Raises:
        InputError: it cannot be read.
    """
    from stepscope.ncu.explain import kernel_table

    return kernel_table(read_report(path))


def explain_kernel(path: str | Path, kernel: str) -> Explanation:
    """Explain one launch of an Nsight Compute report.

    Args:
        path: the report.
        kernel: its number in the report, its name, or a regular expression; of several launches
            the longest is explained.

    Raises:
        InputError: the report cannot be read.
        UsageError: it has no such kernel.
    """
    from stepscope.ncu.choose import open_for
    from stepscope.ncu.explain import explanation

    report, launch = open_for(Path(path), kernel)
    return explanation(report, launch)


def compare_kernel_reports(path: str | Path, other: str | Path) -> ReportDiff:
    """Compare two Nsight Compute reports metric by metric.

    Args:
        path: before.
        other: after.

    Raises:
        InputError: one cannot be read.
    """
    from stepscope.ncu.report_diff import report_diff

    return report_diff(read_report(path), read_report(other))


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
    from stepscope.ncu.choose import chosen
    from stepscope.ncu.roofline import roofline_of

    launches = read_report(path).launches
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


def launches_to_examine(query: Query, diagnosis: Diagnosis, view: JobView) -> Launches | None:
    """The launches that ncu should capture: of findings about kernels, and of slow operators.

    Returns:
        None where no finding is about a kernel, and no operator is far below its roof.
    """
    from stepscope.operators.roofline import far_below, launches_of

    diagnosed = {finding.cause for finding in diagnosis.findings} & set(CAUSES)
    rows = _heaviest(query, sorted(diagnosed), "name")
    names = [row["name"] for row in rows[:MOST_KERNELS]] + far_below(view)
    return launches_of(view.devices[0].explanation.kernels, names)


def with_insides(
    diagnosis: Diagnosis, query: Query, reports: Sequence[tuple[str, Report]]
) -> Diagnosis:
    """The same with what reports say of the kernels that findings are about.

    Args:
        diagnosis: of the same program.
        query: runs SQL over its trace.
        reports: Nsight Compute reports and their paths.
    """
    import msgspec

    findings, unmatched = [], 0
    for finding in diagnosis.findings:
        inside: list[InsideKernel] = []
        if finding.cause in CAUSES:
            inside = _insides(finding.cause, query, reports)
            unmatched += not inside
        findings.append(msgspec.structs.replace(finding, inside=inside))
    warnings = list(diagnosis.warnings)
    if unmatched:
        warnings.append(
            "the Nsight Compute reports hold none of the kernels that a finding is about; "
            "capture them with the command that the finding names"
        )
    return msgspec.structs.replace(diagnosis, findings=findings, warnings=warnings)


def _heaviest(query: Query, causes: Iterable[str], *columns: str) -> list[dict[str, Any]]:
    """Columns of the GPU operations that causes are about, and their time, the longest first."""
    chosen = ", ".join(f"g.{column}" for column in columns)
    named = ", ".join(f"'{cause}'" for cause in causes) or "''"
    rows: list[dict[str, Any]] = query(
        f"SELECT {chosen}, sum(g.end_ns - g.start_ns)::BIGINT AS ns FROM kernel_repair r "
        f"JOIN gpu_op g ON g.rank = r.rank AND g.id = r.gpu_op_id WHERE r.cause IN ({named}) "
        f"GROUP BY ALL ORDER BY ns DESC, {chosen}"
    ).to_pylist()
    return rows


def _insides(cause: str, query: Query, reports: Sequence[tuple[str, Report]]) -> list[InsideKernel]:
    """The heaviest kernels of a cause that the reports hold."""
    from stepscope.diagnosis.result import InsideKernel
    from stepscope.ncu.decide import limiter_of
    from stepscope.ncu.match import matched

    rows = _heaviest(query, (cause,), "name", "grid_x", "grid_y", "grid_z")
    total = sum(row["ns"] for row in rows)
    found: list[InsideKernel] = []
    for row in rows[:MOST_KERNELS]:
        grid = (row["grid_x"], row["grid_y"], row["grid_z"]) if row["grid_x"] else None
        for path, report in reports:
            match = matched(report.launches, row["name"] or "", grid)
            if match is None:
                continue
            summary = limiter_of(match.launch)
            found.append(
                InsideKernel(
                    kernel=row["name"],
                    report=path,
                    launch=match.launch.number,
                    same_grid=match.same_grid,
                    share=row["ns"] / total if total else 0.0,
                    limiter=summary.limiter.id,
                    message=f"limited by {summary.limiter.title} ({summary.limiter.bound}-bound): "
                    + "; ".join(summary.reasons),
                    recommendations=list(summary.limiter.advice),
                )
            )
            break
    return found

"""Nsight Compute reports: what limits each kernel in one, and how two differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.ncu.model import Report
    from stepscope.ncu.result import Against, Explanation, KernelTable
    from stepscope.ncu.roofline import Roofline


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


def compare_kernel_reports(path: str | Path, other: str | Path) -> Against:
    """Compare two Nsight Compute reports metric by metric.

    Args:
        path: before.
        other: after.

    Raises:
        InputError: one cannot be read.
    """
    from stepscope.ncu.against import against

    return against(read_report(path), read_report(other))


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

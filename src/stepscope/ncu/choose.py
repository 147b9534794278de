"""Which launch a user means: by number, by name, by pattern."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from stepscope.ncu.model import Launch, Report
from stepscope.ncu.reading import read_report
from stepscope.trace.errors import UsageError
from stepscope.trace.regex import regex


def open_for(path: Path, kernel: str) -> tuple[Report, Launch]:
    """The report and the launch that ``kernel`` means, with its rules and lines.

    Raises:
        InputError: the report cannot be read.
        UsageError: nothing in it is called so.
    """
    number = int(kernel) if kernel.isdecimal() and len(kernel) < 10 else -1
    report = read_report(path, lambda at, _: at == number)
    launch, others = chosen(report.launches, kernel)
    if not launch.rules and report.form == "ncu-rep":
        number = launch.number
        detailed = read_report(path, lambda at, _: at == number)
        launch = detailed.launches[number]
    if others:
        report.warnings.append(f"{others + 1:,} launches match {kernel!r}: the longest is shown")
    return report, launch


def chosen(launches: Sequence[Launch], kernel: str) -> tuple[Launch, int]:
    """(the longest launch that is meant, how many others are meant as well).

    Raises:
        UsageError: none is.
    """
    if kernel.isdecimal():
        number = int(kernel) if len(kernel) < 10 else len(launches)
        if number < len(launches):
            return launches[number], 0
        raise UsageError(
            f"the report has no kernel {kernel[:20]}; it has {len(launches):,}, from 0 to "
            f"{len(launches) - 1}"
        )
    found = [launch for launch in launches if kernel in (launch.name, launch.function)]
    if not found:
        found = [launch for launch in launches if kernel in launch.name]
    if not found:
        pattern = regex(kernel, "no kernel of the report has this name, and")
        hits = pattern.search([launch.name for launch in launches])
        found = [launch for launch, hit in zip(launches, hits, strict=True) if hit]
    if not found:
        names = list(dict.fromkeys(launch.function for launch in launches))
        near = difflib.get_close_matches(kernel, names, n=1, cutoff=0.4) or names[:1]
        raise UsageError(f"the report has no kernel {kernel!r}; it has, for example, {near[0]!r}")
    longest = max(found, key=lambda launch: launch.get("duration") or 0.0)
    return longest, len(found) - 1

"""What reports and rules say about themselves."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from stepscope.reports.report import Report, find


def help_text(known: Mapping[str, Report], name: str, kind: str) -> str:
    """The list of all reports, or what one of them says about itself.

    Raises:
        UsageError: there is no such report.
    """
    if not name:
        width = max(map(len, known))
        lines = [f"  {_usage(report):{width}}  {report.title}" for report in known.values()]
        return f"The following {kind}s are known:\n\n" + "\n".join(lines) + "\n"
    name = name.partition(":")[0]
    shown = list(known.values()) if name == "ALL" else [find(name, known, kind)]
    return "\n".join(_described(report) for report in shown)


def _usage(report: Report) -> str:
    parts = [report.name]
    for argument in report.arguments:
        value = "=TEXT" if argument.text else ""
        if argument.default is not None:
            value = f"={argument.default}"
        parts.append(f"[:{argument.name}{value}]")
    return "".join(parts)


def _described(report: Report) -> str:
    def wrapped(text: str, indent: str) -> list[str]:
        return textwrap.wrap(text, 96, initial_indent=indent, subsequent_indent=indent + "  ")

    lines = [f"{_usage(report)} -- {report.title}", "", *wrapped(report.doc, "    "), ""]
    if report.advice:
        lines += [*wrapped(report.advice, "    "), ""]
    for argument in report.arguments:
        default = "" if argument.default is None else f" (default {argument.default})"
        lines += wrapped(f"{argument.name}: {argument.doc}{default}", "    ")
    if report.arguments:
        lines.append("")
    for column in report.columns:
        lines += wrapped(
            f"{column.label}: {column.doc}" if column.doc else column.label, "        "
        )
    if report.aliases:
        lines += ["", *wrapped(f"Other names: {', '.join(report.aliases)}", "    ")]
    for need in report.needs:
        lines += wrapped(f"Needs {need.what}: {need.flag}", "    ")
    return "\n".join(lines) + "\n"

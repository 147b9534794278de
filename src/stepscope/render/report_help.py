"""What reports and rules say about themselves."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.render.fitted import wrapped
from stepscope.reports.report import Report, find


def help_text(known: Mapping[str, Report], name: str, kind: str, width: int | None) -> str:
    """The list of all reports, or what one of them says about itself.

    Raises:
        UsageError: there is no such report.
    """
    if not name:
        longest = max(map(len, known))
        lines = []
        for report in known.values():
            lines += wrapped(
                f"{_usage(report):{longest}}  {report.title}", width, indent=2, hang=longest + 4
            )
        return f"The following {kind}s are known:\n\n" + "\n".join(lines) + "\n"
    name = name.partition(":")[0]
    shown = list(known.values()) if name == "ALL" else [find(name, known, kind)]
    return "\n".join(_described(report, width) for report in shown)


def _usage(report: Report) -> str:
    parts = [report.name]
    for argument in report.arguments:
        value = "=TEXT" if argument.text else ""
        if argument.default is not None:
            value = f"={argument.default}"
        parts.append(f"[:{argument.name}{value}]")
    return "".join(parts)


def _described(report: Report, width: int | None) -> str:
    def paragraph(text: str, indent: int = 4) -> list[str]:
        return wrapped(text, width, indent=indent, hang=indent + 2)

    lines = [*wrapped(f"{_usage(report)} -- {report.title}", width, hang=4), ""]
    lines += [*paragraph(report.doc), ""]
    if report.advice:
        lines += [*paragraph(report.advice), ""]
    for argument in report.arguments:
        default = "" if argument.default is None else f" (default {argument.default})"
        lines += paragraph(f"{argument.name}: {argument.doc}{default}")
    if report.arguments:
        lines.append("")
    for column in report.columns:
        lines += paragraph(f"{column.label}: {column.doc}" if column.doc else column.label, 8)
    if report.aliases:
        lines += ["", *paragraph(f"Other names: {', '.join(report.aliases)}")]
    for need in report.needs:
        lines += paragraph(f"Needs {need.what}: {need.flag}")
    return "\n".join(lines) + "\n"

"""The reference pages of reports and rules."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.reports.differences import DIFFERENCES
from stepscope.reports.registry import DEFAULT, DEFAULT_RULES, reports, rules
from stepscope.reports.report import Argument, Report
from tools.docs.markdown import code, prose, table

_UNITS = {"dur": "time", "ts": "time", "mem": "bytes", "thru": "bytes a second", "ratio": "%"}


def reports_page() -> list[str]:
    """Parts of the page on reports."""
    return [
        "# Reports",
        "What `stepscope stats` prints. Definitions, columns, order and numbers are those of "
        "`nsys stats`, unless [listed below](#differences-from-nsys). Without `-r` the marked "
        "reports are printed.",
        *_entries(reports(), DEFAULT),
        "## Differences from nsys",
        "Equality is tested cell by cell against nsys 2023.4. These differences are intended.",
        table(
            ("where", "nsys", "Stepscope", "why"),
            [(d.where, prose(d.theirs), prose(d.ours), prose(d.why)) for d in DIFFERENCES],
        ),
    ]


def rules_page() -> list[str]:
    """Parts of the page on rules."""
    return [
        "# Rules",
        "What `stepscope analyze` checks. The marked rules are those of `nsys analyze`, with its "
        "numbers, and are checked without `-r`; `-r all` checks all.",
        *_entries(rules(), DEFAULT_RULES),
    ]


def _value(argument: Argument) -> str:
    if argument.text:
        return "=TEXT"
    return "" if argument.default is None else f"={argument.default}"


def _entries(known: Mapping[str, Report], default: tuple[str, ...]) -> list[str]:
    parts = [
        table(
            ("name", "title", "by default"),
            [
                (f"[`{name}`](#{name})", report.title, "yes" if name in default else "")
                for name, report in known.items()
            ],
        )
    ]
    for name, report in known.items():
        parts += [f"## {name}", f"**{report.title}.** {prose(report.doc)}"]
        if report.advice:
            parts.append(prose(report.advice))
        lines = [f"- `{a.name}{_value(a)}`: {prose(a.doc)}" for a in report.arguments]
        lines += [f"- Needs {need.what}: `{need.flag}`" for need in report.needs]
        if report.aliases:
            lines.append(f"- Other names: {', '.join(map(code, report.aliases))}")
        parts.append("\n".join(lines))
        rows = [(c.label.strip(), _UNITS.get(c.unit, ""), prose(c.doc)) for c in report.columns]
        parts.append(table(("column", "unit", "meaning"), rows))
    return [part for part in parts if part]

"""Results about Nsight Compute reports as Markdown: the rows as a table, and what is said of them.

Whatever the text for a terminal says stands here, too: a table alone would hide what makes it
doubtful.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.ncu.limiters import LIMITERS
from stepscope.ncu.result import Explanation, KernelTable, ReportDiff
from stepscope.render.markdown import escape
from stepscope.render.ncu import explanation_rows, kernels_table, renaming, report_diff_rows
from stepscope.render.tables import as_markdown
from stepscope.render.text import clean


def kernels_markdown(table: KernelTable) -> str:
    """Every figure of the table, what the report lacks, and notes."""
    notes = [*(f"not in this report: {text}" for text in table.missing), *table.warnings]
    return as_markdown(kernels_table(table)) + bullets(notes)


def explanation_markdown(found: Explanation) -> str:
    """What limits a launch and what helps, then its figures."""
    known = found.kernel.bound != "unknown"
    limited = f"limited by {found.title} ({found.kernel.bound}-bound)"
    lines = [
        f"### {escape(clean(found.kernel.name, 200))}",
        "",
        escape(f"Launch {found.kernel.id}: {limited if known else 'what limits it is not known'}."),
        escape(found.meaning),
    ]
    rules = [f"{rule.rule}: {rule.message}" for rule in found.rules]
    missing = [f"not in this report: {text}" for text in found.missing]
    return (
        "\n".join(lines)
        + "\n"
        + bullets([*found.reasons, *(f"do: {text}" for text in found.recommendations), *found.also])
        + "\n"
        + as_markdown(explanation_rows(found))
        + bullets([*rules, *missing])
    )


def report_diff_markdown(found: ReportDiff) -> str:
    """Every metric of a comparison, what limits each kernel, and what makes it doubtful."""
    limits = []
    for pair in found.pairs:
        was, now = LIMITERS[pair.limiter_before].title, LIMITERS[pair.limiter_after].title
        change = f", now by {now}" if was != now else ", as before"
        limits.append(
            f"{clean(pair.name, 110)}: {pair.before:,} launches before, {pair.after:,} after, "
            f"limited by {was}{change}"
        )
        limits += [line.strip() for line in renaming(pair)]
    notes = [
        *limits,
        *(f"only before: {clean(name, 200)}" for name in found.only_before),
        *(f"only after: {clean(name, 200)}" for name in found.only_after),
        *found.warnings,
    ]
    return as_markdown(report_diff_rows(found)) + bullets(notes)


def bullets(notes: Sequence[str]) -> str:
    """A list behind a table; nothing where there are no notes."""
    return "".join(["\n", *(f"- {escape(note)}\n" for note in notes)]) if notes else ""

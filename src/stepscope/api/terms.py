"""What is known of a term: the knowledge base, and every registry that explains its members."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from stepscope.knowledge.entry import entries
from stepscope.knowledge.explanation import (
    SCHEMA,
    Detail,
    Explanation,
    Meaning,
    find,
    of_entry,
    of_goal,
)
from stepscope.knowledge.goal import goals


def explain_term(term: str) -> Explanation:
    """Everything of that name: causes, reports, stall reasons, threads, calls, errors ...

    Raises:
        UsageError: nothing has that name.
    """
    found = find(term, list(terms()), entries().values(), _columns())
    return Explanation(SCHEMA, term, found)


@cache
def terms() -> tuple[Meaning, ...]:
    """All that can be explained, columns left out, in the order of the kinds."""
    return (
        *(of_entry(entry) for entry in entries().values()),
        *(of_goal(goal) for goal in goals().values()),
        *_of_diagnosis(),
        *_of_reports(),
        *_of_kernels(),
        *_of_captures(),
    )


def capture_commands() -> dict[str, str]:
    """Commands that record what findings ask for, and what each records."""
    from stepscope.diagnosis.captures import RECORDS

    return dict(RECORDS)


def _of_diagnosis() -> Iterator[Meaning]:
    from stepscope.diagnosis.cause import causes
    from stepscope.diagnosis.lever import levers

    for kind, known in (("cause", causes()), ("lever", levers())):
        for one in known.values():
            yield Meaning(
                kind=kind,
                id=one.id,
                title=one.title,
                meaning=one.definition,
                details=[
                    Detail("told from others", one.differential),
                    Detail("prediction", one.prediction),
                ],
                reference=one.reference,
            )


def _of_reports() -> Iterator[Meaning]:
    from stepscope.reports.registry import reports, rules

    for kind, known in (("report", reports()), ("rule", rules())):
        for one in known.values():
            yield Meaning(
                kind=kind,
                id=one.name,
                title=one.title,
                meaning=one.doc,
                remedies=[one.advice] if one.advice else [],
                details=[Detail(c.label, c.doc) for c in one.columns if c.doc],
            )


def _of_kernels() -> Iterator[Meaning]:
    from stepscope.kernels.categories import CATEGORIES, MATHS
    from stepscope.ncu.limiters import LIMITERS
    from stepscope.ncu.stalls import STALLS

    for limiter in LIMITERS.values():
        yield Meaning(
            kind="limiter",
            id=limiter.id,
            title=limiter.title,
            meaning=limiter.meaning,
            remedies=list(limiter.advice),
        )
    for id_, stall in STALLS.items():
        yield Meaning(
            kind="stall reason",
            id=id_,
            title=stall.title,
            meaning=f"The warp waits for {stall.waits_for}.",
            remedies=[stall.remedy],
        )
    for id_, holds in CATEGORIES.items():
        yield Meaning(kind="kernel category", id=id_, title=id_, meaning=f"Kernels: {holds}.")
    for id_, holds in MATHS.items():
        yield Meaning(kind="arithmetic", id=id_, title=id_, meaning=f"Arithmetic: {holds}.")


def _of_captures() -> Iterator[Meaning]:
    from stepscope.derived import derived_tables
    from stepscope.trace.problems import DECLARED
    from stepscope.trace.schema import TABLES

    for problem in DECLARED.values():
        yield Meaning(
            kind="import problem",
            id=problem.id,
            title=problem.id,
            meaning=problem.message,
            remedies=[problem.remedy],
            details=[Detail("severity", problem.severity)],
        )
    for spec in TABLES.values():
        details = [Detail(column.name, column.doc) for column in spec.columns]
        yield Meaning("table", spec.name, spec.name, spec.doc, details=details)
    for name, table in derived_tables().items():
        details = [Detail(column, doc) for column, doc in table.columns.items()]
        yield Meaning("table", name, name, table.doc, details=details)


def _columns() -> Iterator[Meaning]:
    """Columns of tables and reports, by name alone and as ``TABLE.COLUMN``."""
    for holder in terms():
        if holder.kind not in ("table", "report", "rule"):
            continue
        for column in holder.details:
            yield Meaning(
                kind=f"column of the {holder.kind} {holder.id}",
                id=f"{holder.id}.{column.name}",
                title=column.name,
                meaning=column.text,
                see=[holder.id],
            )

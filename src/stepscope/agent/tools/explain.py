"""``explain``: the evidence of a finding, or what a term means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from stepscope.agent.answers import BUDGET, Answer, cell, page, sentence
from stepscope.agent.answers import Detail as Length
from stepscope.agent.session import Session
from stepscope.agent.tool import Capture, Offset, Tool
from stepscope.render.text import clean
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    from stepscope.api import Job
    from stepscope.diagnosis.result import Evidence, Finding
    from stepscope.knowledge.explanation import Detail


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """What it takes; the types say what each is."""

    what: Annotated[
        str,
        msgspec.Meta(
            description="id of a finding or lever (host_sync), one of its figures "
            "(host_sync/idle_ns), or any term: a cause, column, thread, CUDA call, error message"
        ),
    ]
    capture: Capture | None = None
    detail: Length = "concise"
    offset: Offset = 0


def ask(session: Session, arguments: Arguments) -> Answer:
    """With a capture the evidence of one of its findings, else what is known of a term."""
    if arguments.capture is None:
        if re.fullmatch(r"[a-z_]+/[\w.]+", arguments.what):
            raise UsageError("a figure is one of a capture's: name the capture as well")
        return _term(arguments.what, arguments.detail)
    job = session.job(arguments.capture)
    id_, _, figure = arguments.what.partition("/")
    finding = job.finding(clean(id_))
    if figure:
        return _figure(job, finding, figure)
    return _evidence(finding, arguments)


def _evidence(finding: Finding, arguments: Arguments) -> Answer:
    from stepscope.api.terms import explain_term

    detailed = arguments.detail == "detailed"
    answer: Answer = {
        "id": finding.cause,
        "message": sentence(finding.message, finding.names, 600),
        "told_from_others": _differential(explain_term(finding.cause).found[0].details),
        "status": "verified in the trace; predicted_* and prediction_* are inferred",
    }
    if detailed:
        answer["do"] = [clean(text, 300) for text in finding.recommendations]

    def row(one: Evidence) -> dict[str, object]:
        found = {"figure": one.figure, "value": cell(one.value), "unit": one.unit, "rows": one.rows}
        return found | {"sql": clean(one.sql, 1500)} if detailed else found

    budget = BUDGET[arguments.detail]
    return page(answer, "evidence", finding.evidence, arguments.offset, budget, row)


def _differential(details: Sequence[Detail]) -> str:
    return next((clean(d.text, 500) for d in details if d.name == "told from others"), "")


def _figure(job: Job, finding: Finding, name: str) -> Answer:
    """One figure, computed again from the capture's tables."""
    one = next((e for e in finding.evidence if e.figure == name), None)
    if one is None:
        known = ", ".join(e.figure for e in finding.evidence)
        raise UsageError(f"{finding.cause} has no figure {clean(name)}; it has {known}")
    again = job.figure(one.sql)
    return {
        "figure": f"{finding.cause}/{name}",
        "value": cell(one.value),
        "unit": one.unit,
        "rows": one.rows,
        "sql": clean(one.sql, 2000),
        "computed_again": cell(again),
        "verified": again == one.value,
    }


def _term(term: str, detail: Length) -> Answer:
    from stepscope.api.terms import explain_term

    rows = []
    for found in explain_term(term).found:
        row: Answer = {
            "kind": found.kind,
            "id": found.id,
            "meaning": clean(found.meaning, 600),
            "reading": clean(found.reading, 400),
            "remedies": [clean(text, 300) for text in found.remedies[:4]],
            "see": found.see[:8],
        }
        if detail == "detailed":
            row["details"] = [[d.name, clean(d.text, 300)] for d in found.details]
            row["reference"] = found.reference
        rows.append({name: value for name, value in row.items() if value})
    return page({}, "found", rows, 0, BUDGET[detail])


TOOL = Tool(
    name="explain",
    title="Evidence of a finding, or what a term means",
    description="With `capture`: the figures behind a finding or lever (detailed: with the SQL "
    "that recomputes each); ID/FIGURE computes one figure again and says whether it is verified. "
    "Without: what a term, cause, table, CUDA call or error message means and what to do.",
    arguments=Arguments,
    ask=ask,
)

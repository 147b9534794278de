"""What is known of a term: the knowledge base, and every registry that explains its members."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

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
from stepscope.trace.errors import UsageError


def explain_term(term: str) -> Explanation:
    """Everything of that name: causes, reports, stall reasons, threads, calls, errors ...

    Raises:
        UsageError: nothing has that name.
    """
    try:
        found = find(term, list(terms()), entries().values(), (*_columns(), *_fields()))
    except UsageError:
        found = _kernel(term)
        if not found:
            raise
    return Explanation(SCHEMA, term, found)


@cache
def terms() -> tuple[Meaning, ...]:
    """All that can be explained, columns left out, in the order of the kinds."""
    return (
        *(of_entry(entry) for entry in entries().values()),
        *(of_goal(goal) for goal in goals().values()),
        *_of_diagnosis(),
        *_of_simulation(),
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

    helps = {cause.id: list(cause.remedies) for cause in causes().values()}
    for kind, known in (("cause", causes()), ("lever", levers())):
        for one in known.values():
            yield Meaning(
                kind=kind,
                id=one.id,
                title=one.title,
                meaning=one.definition,
                remedies=helps.get(one.id, []),
                details=[
                    Detail("told from others", one.differential),
                    Detail("prediction", one.prediction),
                ],
                reference=one.reference,
            )


def _of_simulation() -> Iterator[Meaning]:
    from stepscope.simulation.settings.base import settings

    for one in settings().values():
        yield Meaning(
            kind="setting of whatif",
            id=one.name,
            title=one.title,
            meaning=f"{one.help}.",
            remedies=[f"`stepscope whatif CAPTURE --set {one.name}={one.example}`"],
            details=[
                Detail("values", one.values),
                Detail("model", one.model),
                Detail("assumes", one.assumes),
                Detail("checked", one.checked),
                Detail("refused", one.refuses),
            ],
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


def _fields() -> Iterator[Meaning]:
    """Fields of ``diagnose --format json``."""
    from stepscope.diagnosis import result

    for name, kind in vars(result).items():
        if getattr(kind, "__module__", "") != result.__name__ or not isinstance(kind, type):
            continue
        for field, text in _attributes(kind).items():
            yield Meaning(
                f"field of {name}, diagnose --format json", f"{name}.{field}", field, text
            )


def _attributes(kind: type) -> dict[str, str]:
    """The entries of the ``Attributes`` section of a docstring."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    found = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()).replace("``", "`") for name, words in found}


def _kernel(name: str) -> list[Meaning]:
    """What the name of a kernel says, as a capture shows it."""
    from stepscope.kernels.categories import CATEGORIES, MATHS, classify

    if name.startswith("aten::") or (" " in name.strip() and not re.search(r"[<(]|::", name)):
        return []
    found = classify(name.strip())
    if found.category == "other":
        return []
    meaning = f"A kernel of the category {found.category}: {CATEGORIES[found.category]}."
    if found.math:
        meaning += f" It multiplies in {found.math}: {MATHS[found.math]}."
    return [
        Meaning(
            kind="kernel",
            id=found.label,
            title=found.label,
            meaning=meaning,
            reading="`stepscope kernels CAPTURE` shows how often it runs and what it takes, "
            "`stepscope operators CAPTURE --kernels` which operator launches it.",
            remedies=[
                "inside of it: `stepscope run --backend ncu --kernel NAME -- python train.py`"
            ],
            see=[found.category, *_ABOUT.get(found.category, ())],
        )
    ]


_ABOUT: Final = {
    "matmul": ("gemm", "low_precision_unused", "inefficient_kernel"),
    "convolution": ("low_precision_unused", "layout_changes"),
    "attention": ("unfused_attention", "fused_attention"),
    "elementwise": ("fusion_opportunity", "compile"),
    "copy": ("casts_and_copies", "layout_changes"),
    "optimizer": ("unfused_optimizer", "fused_optimizer"),
    "communication": ("collective", "exposed_communication", "straggler"),
}
"""What to look at next, by category."""

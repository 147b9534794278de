"""The page about agents: tools, the brief, and the scores that ``benchmarks/agents`` keeps."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepscope.agent.tool import tools
from stepscope.render import brief
from tools.docs.markdown import attributes, code, prose, summary, table

_SCORES = Path(__file__).parents[2] / "benchmarks" / "agents" / "scores.json"
_BRIEF = (
    brief.Brief,
    brief.BriefFinding,
    brief.BriefCombined,
    brief.BriefTable,
)
_MOST_CALLS, _MOST_TOKENS, _NEAR = 3, 1500, 0.1
_INTRODUCTION = """\
What `stepscope mcp` offers, what `stepscope diagnose --brief` prints, and how agents do with it.
[For coding agents](../guides/agents.md) says how to set them up."""
_EVALUATION = """\
`python benchmarks/agents/evaluate.py` asks agents why a step is slow, on captures whose answer is
known: planted causes, healthy runs, captures of jobs, and captures that cannot tell (no GPU work,
one rank of four, an empty file). `exam` are the programs of the
[exam of predictions](predictions.md), many of which have several real causes; only the planted one
counts there. The scripted agent is a program that knows the rules of the skill and the JSON of the
tools, nothing else: it diagnoses, computes the first figure again, and answers. A model behind an
OpenAI-compatible endpoint is asked as well where one is offered; no result of one is stored here.

A prediction is near when it misses the measured ratio of steps by less than 10 %; it counts where
the cause is right and the repaired program was measured. *Said unreliable* is what the tools marked
so among those that are not near, and *in the range* where the measured ratio lies in the range that
was given. Tokens are bytes over four, of the arguments and answers of all calls of a case, without
paths and schemas."""


def agents_page() -> list[str]:
    """The parts of the page."""
    parts = ["# Agents: tools, brief, evaluation", _INTRODUCTION, "## Tools"]
    for tool in tools().values():
        parts += [f"### {tool.name}", prose(tool.description), _arguments(tool.schema())]
    parts += [
        "## The brief",
        f"`stepscope diagnose --brief` and the tool `diagnose`: `{brief.SCHEMA}`, at most "
        f"{brief.MOST_TOKENS:,} tokens.",
    ]
    for struct in _BRIEF:
        parts += [f"### {struct.__name__}", prose(summary(struct))]
        meanings = attributes(struct)
        rows = [(code(name), prose(meanings[name])) for name in struct.__struct_fields__]
        parts.append(table(("field", "meaning"), rows))
    parts += ["## Evaluation", _EVALUATION]
    if _SCORES.exists():
        for name, rows in json.loads(_SCORES.read_text(encoding="utf-8")).items():
            parts += [f"### {name}", _sums(rows), _misses(rows)]
    return parts


def _arguments(schema: dict[str, Any]) -> str:
    rows = []
    for name, part in schema["properties"].items():
        kinds = part.get("anyOf", [part])
        given = next((p["description"] for p in (part, *kinds) if "description" in p), "")
        values = part.get("items", part).get("enum", [])
        choices = ", ".join(code(value) for value in values if value)
        text = ": ".join(filter(None, [prose(given), choices]))
        rows.append((code(name), "yes" if name in schema["required"] else "", text))
    return table(("argument", "needed", "what it is"), rows)


def _sums(rows: list[dict[str, Any]]) -> str:
    """One row a set of cases."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    return table(
        ("set", "cases", "right", "near", "said unreliable", "in the range", "calls at most",
         "tokens, median", "tokens at most", "over budget"),
        [_sum(kind, [row for row in rows if row["kind"] == kind]) for kind in kinds],
    )  # fmt: skip


def _sum(kind: str, rows: list[dict[str, Any]]) -> tuple[str, ...]:
    scored = [row for row in rows if row["error"] is not None]
    far = [row for row in scored if abs(row["error"]) > _NEAR]
    over = sum(row["calls"] > _MOST_CALLS or row["tokens"] > _MOST_TOKENS for row in rows)
    return (
        kind,
        str(len(rows)),
        str(sum(row["right"] for row in rows)),
        _of(len(scored) - len(far), scored),
        _of(sum(row["unreliable"] for row in far), far),
        _of(sum(bool(row["holds"]) for row in scored), scored),
        str(max(row["calls"] for row in rows)),
        str(round(statistics.median(row["tokens"] for row in rows))),
        str(max(row["tokens"] for row in rows)),
        str(over),
    )


def _of(count: int, rows: Iterable[object]) -> str:
    number = len(list(rows))
    return f"{count} of {number}" if number else ""


def _misses(rows: list[dict[str, Any]]) -> str:
    """Every case that went wrong, or whose prediction is not near."""
    wrong = [
        row
        for row in rows
        if not row["right"] or (row["error"] is not None and abs(row["error"]) > _NEAR)
    ]
    return "What went wrong, or was not near:\n\n" + table(
        ("case", "answer", "said", "error", "in the range", "said unreliable"),
        [
            (
                row["name"],
                code(row["expected"]),
                code(row["verdict"]),
                "" if row["error"] is None else f"{100 * row['error']:+.0f} %",
                {True: "yes", False: "no", None: ""}[row["holds"]],
                "yes" if row["unreliable"] else "",
            )
            for row in wrong
        ],
    )

"""What the page's TypeScript has of the package: types of the results, and what tables group by."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from stepscope.compare.result import Comparison
from stepscope.diagnosis.result import Diagnosis
from stepscope.jobs.job_grid import GridCells, JobGrid
from stepscope.jobs.job_result import JobDiagnosis
from stepscope.jobs.rank_detail import RankDetail
from stepscope.kernels.statements import GROUPINGS
from stepscope.knowledge.guidance import GuideBook
from stepscope.memory.result import Memory

PATH: Final = "src/stepscope/server/ui/src/data/contracts.ts"
_HEAD: Final = (
    "/** The results as JSON, written by `python3 dev.py docs` from the structs of the package. */"
)
_NAMES: Final = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean"}
_SHOWN: Final = (Diagnosis, Comparison, Memory, GuideBook)
_OF_JOBS: Final = (JobDiagnosis, JobGrid, GridCells, RankDetail)
_NOT_SENT: Final = {"Comparison": {"runs"}, "JobDiagnosis": {"heat_map"}}
_RENAMED: Final = {"StepTime": "JobStepTime"}
"""Structs of jobs that share a name with others."""


def page_types() -> str:
    """One interface for each struct that a result consists of which the page shows."""
    made = _interfaces(_SHOWN, {}) | _interfaces(_OF_JOBS, _RENAMED)
    return "\n\n".join((_HEAD, *made.values(), _groupings())) + "\n"


def _groupings() -> str:
    """What the tables of the page are grouped by."""
    texts = {by: (json.dumps(g.title), json.dumps(g.select())) for by, g in GROUPINGS.items()}
    return "\n".join(
        (
            "/** What GPU time is grouped by: what a group is, its keys in `kernel_category`. */",
            "export const GROUPINGS: Record<string, { title: string; select: string }> = {",
            *(f"  {by}: {{ title: {t}, select: {select} }}," for by, (t, select) in texts.items()),
            "};",
        )
    )


def _interfaces(shown: tuple[type, ...], renamed: dict[str, str]) -> dict[str, str]:
    """Name of each struct that some consist of, and its interface."""
    _, structs = msgspec.json.schema_components(shown)
    made: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in made:
            return
        properties = {
            key: part
            for key, part in structs[name]["properties"].items()
            if key not in _NOT_SENT.get(name, ())
        }
        lines = [f"  {key}: {_renamed(_type(part), renamed)};" for key, part in properties.items()]
        made[name] = "\n".join((f"export interface {renamed.get(name, name)} {{", *lines, "}"))
        for inner in _references(properties):
            visit(inner)

    for struct in shown:
        visit(struct.__name__)
    return {renamed.get(name, name): text for name, text in made.items()}


def _renamed(kind: str, renamed: dict[str, str]) -> str:
    return re.sub(r"\w+", lambda name: renamed.get(name[0], name[0]), kind)


def _type(part: dict[str, Any]) -> str:
    """A part of a JSON Schema in TypeScript."""
    if "$ref" in part:
        return str(part["$ref"]).rpartition("/")[2]
    if alternatives := [json.dumps(value) for value in part.get("enum", ())]:
        return " | ".join(alternatives)
    if alternatives := [_type(other) for other in part.get("anyOf", ())]:
        return " | ".join(dict.fromkeys(alternatives))
    if "prefixItems" in part:
        return f"[{', '.join(map(_type, part['prefixItems']))}]"
    kind, inner = part["type"], part.get("items") or part.get("additionalProperties")
    held = _type(inner) if inner else ""
    return {"array": f"({held})[]" if "|" in held else f"{held}[]"}.get(
        kind, f"Record<string, {held}>" if kind == "object" else _NAMES.get(kind, kind)
    )


def _references(part: Any) -> list[str]:
    """Names of the structs that a schema refers to, in their order."""
    if isinstance(part, dict):
        if "$ref" in part:
            return [str(part["$ref"]).rpartition("/")[2]]
        return [name for value in part.values() for name in _references(value)]
    return [name for value in part for name in _references(value)] if isinstance(part, list) else []

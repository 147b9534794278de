"""Reference pages and JSON Schemas of everything that ``--format json`` prints."""

from __future__ import annotations

import json
from typing import Any, Final, get_type_hints

import msgspec

from stepscope.derived import derived_tables
from stepscope.diagnosis import result
from stepscope.jobs import job_result
from stepscope.jobs.recipes import result as recipe_result
from stepscope.knowledge import guidance
from stepscope.memory import result as memory
from stepscope.simulation import path
from stepscope.simulation import result as simulation
from stepscope.trace.problems import Problem
from tools.docs.comparison import CONTRACTS as COMPARISON
from tools.docs.comparison import Structs
from tools.docs.markdown import attributes, code, page, prose, summary, table
from tools.docs.ncu_pages import RESULTS

_DIAGNOSIS: Final[Structs] = [
    result.Diagnosis,
    result.TraceSummary,
    result.StepTime,
    result.DeviceAccounting,
    result.Finding,
    result.InsideKernel,
    result.Location,
    result.Evidence,
    result.RankTime,
    result.OutlierStep,
    result.Combined,
    Problem,
]
CONTRACTS: Final[dict[str, tuple[str, str, str, Structs]]] = {
    "recipe": (
        "a recipe's result",
        "`recipe`",
        recipe_result.SCHEMA,
        [
            recipe_result.RecipeResult,
            recipe_result.RecipeInput,
            recipe_result.RecipeFigure,
            recipe_result.RecipeTable,
        ],
    ),
    "diagnosis": ("a diagnosis", "`diagnose` and `demo`", result.SCHEMA, _DIAGNOSIS),
    "whatif": (
        "a prediction",
        "`whatif`",
        simulation.WHATIF_SCHEMA,
        [
            simulation.WhatIf,
            simulation.StepBudget,
            simulation.OneChange,
            simulation.MemoryNeed,
        ],
    ),
    "critical-path": (
        "a critical path",
        "`critical-path`",
        simulation.CRITICAL_PATH_SCHEMA,
        [
            simulation.CriticalPath,
            simulation.PathPart,
            simulation.PathRank,
            simulation.PathPlace,
            simulation.PathStep,
        ],
    ),
    "memory": (
        "the memory of a job",
        "`memory`",
        memory.SCHEMA,
        [
            memory.Memory,
            memory.DeviceMemory,
            memory.Moment,
            memory.Holder,
            memory.Timeline,
            memory.StepMemory,
            memory.Growth,
            memory.Fragmentation,
            memory.OutOfMemory,
            memory.Prediction,
        ],
    ),
    "job": (
        "the diagnosis of a job from digests",
        "`job`",
        job_result.SCHEMA,
        [
            job_result.JobDiagnosis,
            job_result.JobSummary,
            job_result.Skipped,
            job_result.StepTime,
            job_result.JobFinding,
            job_result.RankRow,
            job_result.Role,
            job_result.Communicator,
            job_result.CollectiveLogs,
            job_result.LogFinding,
            job_result.LoggedRow,
            job_result.HeatMap,
            job_result.Fetch,
            job_result.Stuck,
        ],
    ),
    "guide": (
        "the guide's answer",
        "`guide --goal`",
        guidance.SCHEMA,
        [guidance.Guidance, guidance.Route],
    ),
    **RESULTS,
    **COMPARISON,
}
"""File stem -> what it is, what prints it, its version, its structs with the outermost first."""

_STRUCTS = [struct for *_, structs in CONTRACTS.values() for struct in structs]


def json_page(stem: str) -> str:
    """The page on one of them."""
    what, commands, schema, structs = CONTRACTS[stem]
    parts = [
        f"# JSON of {what}",
        f"What `--format json` of {commands} prints, version `{schema}`; as JSON "
        f"Schema: [{stem}.schema.json]({stem}.schema.json). Times are integer nanoseconds.",
    ]
    for struct in structs:
        parts += [f"## {struct.__name__}", prose(summary(struct))]
        hints = get_type_hints(struct)
        rows = [
            (code(name), _json_type(hints[name]), prose(_meaning(struct, name)))
            for name in struct.__struct_fields__
        ]
        parts.append(table(("field", "type", "meaning"), rows))
    if stem == "critical-path":
        kinds = [(code(name), prose(meaning)) for name, meaning in path.KINDS.items()]
        parts += ["## Kinds", table(("kind", "meaning"), kinds)]
    return page(parts)


def json_schema(stem: str) -> str:
    """JSON Schema of one of them, with the docstrings as descriptions."""
    *_, structs = CONTRACTS[stem]
    schema = msgspec.json.schema(structs[0])
    for struct in structs:
        entry = schema["$defs"][struct.__name__]
        entry["description"] = prose(summary(struct))
        for name, part in entry["properties"].items():
            meaning = _meaning(struct, name)
            if meaning and "$ref" not in part:
                part["description"] = prose(meaning)
    return json.dumps(schema, indent=2) + "\n"


def _meaning(struct: type[msgspec.Struct], name: str) -> str:
    """What a field means: its docstring, else that of its column or of its type."""
    documented = attributes(struct).get(name)
    if documented:
        return documented
    columns = derived_tables()["step"].columns
    if struct is result.DeviceAccounting and name in columns:
        return columns[name]
    inner = get_type_hints(struct)[name]
    inner = next(iter(getattr(inner, "__args__", ())), inner)
    return summary(inner).split("\n\n")[0] if inner in _DIAGNOSIS else ""


def _json_type(hint: Any) -> str:
    """A type as a reader of JSON would call it."""
    names = {int: "integer", float: "number", str: "string", type(None): "null"}
    if hint in names:
        return names[hint]
    if hint in _STRUCTS:
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    parts: tuple[Any, ...] = getattr(hint, "__args__", ())
    origin = getattr(hint, "__origin__", None)
    if origin is list:
        return f"array of {_json_type(parts[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_json_type, parts))}]"
    if origin is dict:
        return f"object of {_json_type(parts[1])}"
    return " or ".join(code(p) if isinstance(p, str) else _json_type(p) for p in parts)

"""What the page's TypeScript has of the package: types of answers, and what tables group by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from stepscope.jobs import job_result
from stepscope.jobs.job_grid import GridCells
from stepscope.jobs.rank_detail import RankDetail
from stepscope.kernels.statements import GROUPINGS
from stepscope.knowledge.guidance import GuideBook
from stepscope.memory.result import Memory
from stepscope.server import answers as server
from stepscope.server.panels import Change
from stepscope.timeline import answers as timeline
from stepscope.trace.notes import PlacedNote

PATH: Final = "src/stepscope/server/ui/src/data/contracts.ts"
_HEAD: Final = (
    "/** What the server answers: `python3 dev.py docs` makes it of the package's types. */"
)
_NAMES: Final = {int: "number", float: "number", str: "string", bool: "boolean", NoneType: "null"}
_SHOWN: Final = (
    *(server.Layout, server.Diagnosed, server.Progress, server.Refusal, server.Packed),
    *(server.JobLayout, server.JobAnswer, GridCells, RankDetail),
    *(server.PairLayout, server.Compared, server.PackedPair, Memory, GuideBook),
    *(timeline.Classes, timeline.TileHeader, timeline.Details, timeline.Hits, timeline.Statistics),
    *(timeline.TableAnswer, timeline.Instances, timeline.FlameAnswer, Change),
    *(timeline.StepsAnswer, timeline.GridHeader),
)
_NOT_SENT: Final = {"Comparison": {"runs"}, "JobDiagnosis": {"heat_map"}}
_RENAMED: Final[dict[Any, str]] = {job_result.StepTime: "JobStepTime", PlacedNote: "Note"}
"""Types that share a name with others."""
_ARRAYS: Final = {
    **{"f8": "Float64Array", "f4": "Float32Array"},
    **{"u4": "Uint32Array", "u1": "Uint8Array"},
}


def page_types() -> str:
    """One interface for each type that an answer consists of."""
    made: dict[Any, str] = {}
    for shown in _SHOWN:
        _add(shown, made)
    names = [_name(kind) for kind in made]
    if twice := {name for name in names if names.count(name) > 1}:
        raise AssertionError(f"several types are called {', '.join(sorted(twice))}")
    tiles = {"RowArrays": timeline.ROW_ARRAYS, "Counter": timeline.COUNTER_ARRAYS}
    arrays = [
        _interface(name, [f"{array}: {_ARRAYS[kind]}" for array, kind in kinds.items()])
        for name, kinds in tiles.items()
    ]
    return "\n\n".join((_HEAD, *made.values(), *arrays, _groupings())) + "\n"


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


def _interface(name: str, lines: list[str]) -> str:
    return "\n".join((f"export interface {name} {{", *(f"  {line};" for line in lines), "}"))


def _add(kind: Any, made: dict[Any, str]) -> None:
    """Add the interface of a type, and of those that it refers to."""
    if kind in made:
        return
    hints = get_type_hints(kind, include_extras=True)
    names = {name: name for name in hints}
    optional = set(getattr(kind, "__optional_keys__", ()))
    if issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        names = {field.name: field.encode_name for field in fields}
        if kind.__struct_config__.omit_defaults:
            optional = {field.name for field in fields if not field.required}
    kept = [name for name in names if names[name] not in _NOT_SENT.get(kind.__name__, ())]
    marks = {name: "?" if name in optional else "" for name in kept}
    lines = [f"{names[name]}{marks[name]}: {_type(hints[name])}" for name in kept]
    made[kind] = _interface(_name(kind), lines)
    for name in kept:
        for other in _references(hints[name]):
            _add(other, made)


def _name(kind: Any) -> str:
    return _RENAMED.get(kind) or str(kind.__name__)


def _type(kind: Any) -> str:
    """A type in TypeScript."""
    if get_origin(kind) is Annotated:  # JSON that was made before, of the type beside
        kind = get_args(kind)[1]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in sorted(inner))
    if origin is dict:
        key = _type(inner[0]) if get_origin(inner[0]) is Literal else "string"
        return f"Record<{key}, {_type(inner[1])}>"
    held = [_type(one) for one in inner if isinstance(one, type) or get_origin(one)]
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(held))
    if origin is tuple and ... not in inner:
        return f"[{', '.join(held)}]"
    if not held:
        return _NAMES.get(kind) or _name(kind)
    return f"({held[0]})[]" if "|" in held[0] else f"{held[0]}[]"


def _references(kind: Any) -> Iterator[Any]:
    """The types that one is made of which have an interface, in their order."""
    if get_origin(kind) is Annotated:
        yield get_args(kind)[1]
    elif get_args(kind) and get_origin(kind) is not Literal:
        for inner in get_args(kind):
            yield from _references(inner)
    elif isinstance(kind, type) and kind not in _NAMES:
        yield kind

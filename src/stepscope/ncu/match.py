"""Find the launches of a report that a trace's kernel is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from stepscope.ncu.model import Launch
from stepscope.trace.text import LONGEST_JUDGED

_LAMBDAS = (
    re.compile(r"\[lambda\((?:[^()]|\([^()]*\))*\) ?\(instance (\d+)\)\]"),  # as ncu writes them
    re.compile(r"\{lambda\((?:[^()]|\([^()]*\))*\)#(\d+)\}"),  # as the C++ ABI has them
)
_CAST = re.compile(r"\([\w: ]+\)(?=-?\d)")
_GROUP = re.compile(r"\([^()]*\)")
_QUALIFIER = re.compile(r"(?:<unnamed>|[A-Za-z_]\w*)::")
_SUFFIX = re.compile(r"(?<=\d)(?:ul|u|l|ull|ll)\b")
_WORDS = re.compile(r"\b(?:void|const|struct|class|enum)\b")
_DEEPEST = 50
"""Levels of parentheses that are removed: real names have under ten."""
_LITERAL = {"false": "0", "true": "1"}


@dataclass(frozen=True)
class Match:
    """One launch that a trace's kernel is.

    Attributes:
        launch: the longest of those that fit best.
        same_grid: whether the grid is the same; False where another grid is the nearest there is.
    """

    launch: Launch
    same_grid: bool


def matched(
    launches: Sequence[Launch], name: str, grid: tuple[int, int, int] | None
) -> Match | None:
    """The launch of a report that fits a trace's kernel best; None where none has its name.

    Args:
        launches: of the report.
        name: demangled name in the trace.
        grid: blocks in the trace; None where not recorded.
    """
    wanted = _plain(name)
    found = [launch for launch in launches if _plain(launch.name) == wanted]
    if not found:
        # one side may have left template arguments and parameters out
        short = _function(name)
        found = [
            launch
            for launch in launches
            if _function(launch.name) == short and ("<" not in launch.name or "<" not in name)
        ]
    if not found:
        return None
    same = [launch for launch in found if grid is not None and launch.grid == grid]
    best = max(same or found, key=lambda launch: launch.get("duration") or 0.0)
    return Match(best, bool(same))


@lru_cache(maxsize=1 << 14)
def _plain(name: str) -> str:
    """A name without what tools spell differently: function and template arguments remain.

    Nsight Compute and the C++ ABI differ in lambdas, casts, literals, ``const``, and in parameters,
    which ncu gives as ``T1``; the CSV of new versions leaves outer namespaces out.
    """
    name = name[:LONGEST_JUDGED]
    for form in _LAMBDAS:
        name = form.sub(r"{lambda#\1}", name)
    name = _CAST.sub("", name.replace("(anonymous namespace)::", ""))
    for _ in range(_DEEPEST):  # from the inside out: parameters hold parameters
        before, name = name, _GROUP.sub("@", name)  # a function's name is no namespace
        if before == name:
            break
    name = re.sub(r"\b(?:false|true)\b", lambda found: _LITERAL[found[0]], _WORDS.sub("", name))
    name = re.sub(r"[\s*&]", "", _SUFFIX.sub("", name))
    return _QUALIFIER.sub("", name)


def _function(name: str) -> str:
    plain = name[:LONGEST_JUDGED].replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    plain = plain.removeprefix("void ")
    return re.split(r"[<(]", plain, maxsplit=1)[0].rsplit("::", 1)[-1].strip()

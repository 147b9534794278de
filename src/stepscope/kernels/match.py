"""Find the launches of a report that a trace's kernel is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.kernels.model import Launch

_CAST = re.compile(r"\((?:int|bool|char|unsigned int|long|unsigned long)\)(?=-?\d)")


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


def _plain(name: str) -> str:
    """A name without what tools spell differently: casts of template values, blanks, ``void``."""
    return _CAST.sub("", name.removeprefix("void ")).replace(" ", "")


def _function(name: str) -> str:
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", plain, maxsplit=1)[0].rsplit("::", 1)[-1].strip()

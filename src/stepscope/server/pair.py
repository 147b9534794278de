"""Two runs side by side: their comparison, steps of both, and the page of each by itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.routing import Mount

from stepscope.api.runs import SIDES
from stepscope.api.views import timeline_classes
from stepscope.render.compare import facts, setup_lines
from stepscope.server.app import PageHandlers, job_routes, page_routes
from stepscope.server.guard import Guard
from stepscope.server.page import written
from stepscope.server.steps import number

if TYPE_CHECKING:
    from stepscope.api.runs import Pair
    from stepscope.compare.step_rows import PairDevice
    from stepscope.server.answers import Compared, PackedPair, PairLayout

LONGEST_TEXT: Final = 400
"""Characters of a name that a table shows."""
MOST_STEPS: Final = 40
"""Steps of each run that a page without a server holds, those around the median step first."""
MOST_BYTES: Final = 8 << 20
"""... as long as they are no larger than this together, before compression."""


class PairHandlers:
    """Handles what is asked about two runs.

    Args:
        pair: the runs.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.lock = threading.RLock()

    def layout(self, query: Mapping[str, str]) -> bytes:
        """Which runs these are; at once, before they are compared."""
        return msgspec.json.encode(pair_layout(self._pair))

    def comparison(self, query: Mapping[str, str]) -> bytes:
        """What ``stepscope compare`` says, and the steps that can be chosen."""
        with self.lock:
            return msgspec.json.encode(compared(self._pair))

    def step(self, query: Mapping[str, str]) -> bytes:
        """One step of a side."""
        side, device = query.get("side", ""), number(query, "device", 0)
        with self.lock:
            found = self._pair.step(side, device, number(query, "step"))
        return msgspec.json.encode(found)


def pair_layout(pair: Pair) -> PairLayout:
    """Names of the runs, and what classes mean."""
    return {
        "pair": {side: _short(pair.jobs[side].paths) for side in SIDES},
        **timeline_classes(),
    }


def compared(pair: Pair, *, names_only: bool = False) -> Compared:
    """The comparison, its sentences, and the steps of both.

    Args:
        pair: the runs.
        names_only: leave out the folders that the captures lie in.
    """
    comparison = pair.comparison
    if names_only:
        comparison = msgspec.structs.replace(
            comparison, before=_names(comparison.before), after=_names(comparison.after)
        )
    details = _short(msgspec.to_builtins(msgspec.structs.replace(comparison, runs=[])))
    return {
        "comparison": details,
        "facts": facts(comparison),
        "notes": [
            *(check.message for check in comparison.predictions),
            *setup_lines(comparison),
            *comparison.warnings,
        ],
        "devices": {side: pair.devices(side) for side in SIDES},
    }


def pair_application(pair: Pair, token: str, port: int) -> Guard:
    """The server's application: the comparison, and each run at ``before/`` and ``after/``.

    Args:
        pair: the runs.
        token: first part of every path.
        port: port that it listens on.
    """
    handlers = PairHandlers(pair)
    json = "application/json"
    routes: list[Any] = list(
        page_routes(
            {
                "layout": (handlers.layout, json),
                "comparison": (handlers.comparison, json),
                "step": (handlers.step, json),
            }
        )
    )
    routes += [
        Mount(f"/{side}", routes=job_routes(PageHandlers(job, lock=handlers.lock)))
        for side, job in pair.jobs.items()
    ]
    return Guard(Starlette(routes=routes), token, port)


def pair_page(pair: Pair) -> str:
    """Both runs as one HTML file that opens from disk.

    It holds the steps around the median steps of the first devices, up to a size.

    Raises:
        InputError: a run holds no GPU work.
    """
    details = compared(pair, names_only=True)
    steps: dict[str, msgspec.Raw] = {}
    size = 0
    order = {side: _around(details["devices"][side][0]) for side in SIDES}
    for turn in range(MOST_STEPS):
        for side in SIDES:
            if turn >= len(order[side]):
                continue
            data = msgspec.json.encode(pair.step(side, 0, order[side][turn]))
            if turn and size + len(data) > MOST_BYTES:
                continue
            size += len(data)
            steps[f"{side}/0/{order[side][turn]}"] = msgspec.Raw(data)
    layout = pair_layout(pair)
    for side in SIDES:
        (layout["pair"][side],) = _names([layout["pair"][side]])
    found: PackedPair = {"layout": layout, "comparison": details, "pair_steps": steps}
    return written(msgspec.json.encode(found))


def _names(runs: list[list[str]]) -> list[list[str]]:
    """The last parts of the paths of some runs."""
    return [[path.rstrip("/").rpartition("/")[2] for path in paths] for paths in runs]


def _around(device: PairDevice) -> list[int]:
    """Numbers of the counted steps, the median one first, then its neighbours."""
    counted = range(device["first"], device["last"] + 1)
    return sorted(counted, key=lambda step: (abs(step - device["median"]), step))


def _short(value: Any) -> Any:
    """The same with texts that a page can show."""
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    if isinstance(value, list):
        return [_short(item) for item in value]
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return value

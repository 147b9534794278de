"""The stages of a pipeline, by who sends to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.collectives.job import Collectives


def stages_of(c: Collectives) -> list[list[int]]:
    """Positions of the devices of each stage, from one end of the pipeline to the other.

    Devices are neighbours where sends and receives connect them. Replicas of a pipeline have
    stages of the same place in it.
    """
    pipeline = {guess.channel for guess in c.groups if guess.id == "pipeline_parallel"}
    near: dict[int, set[int]] = {}
    for number in pipeline:
        members = {device for device, _ in c.matched.channels[number].members}
        for device in members:
            near.setdefault(device, set()).update(members - {device})
    found: dict[int, int] = {}
    for start in sorted(near, key=lambda device: (len(near[device]), device)):
        if start in found:
            continue
        around = _component(near, start)
        if len(around) > 2 and all(len(near[device]) == 2 for device in around):
            # interleaved stages send from the last rank to the first one as well: a ring
            found.update({device: place for place, device in enumerate(around)})
            continue
        place, front = 0, [start]
        while front:
            for device in front:
                found[device] = place
            front = sorted({d for device in front for d in near[device]} - found.keys())
            place += 1
    stages: list[list[int]] = [[] for _ in range(max(found.values(), default=-1) + 1)]
    for device, place in sorted(found.items()):
        stages[place].append(device)
    return stages


def _component(near: dict[int, set[int]], start: int) -> list[int]:
    """All devices that are connected with one, ascending."""
    seen, front = {start}, {start}
    while front:
        front = {other for device in front for other in near[device]} - seen
        seen |= front
    return sorted(seen)

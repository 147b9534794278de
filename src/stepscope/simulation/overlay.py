"""The critical path laid over the capture: where in recorded time its parts are.

The path is found in the replay, whose times differ a little from the recorded ones. What it holds
of the GPU is drawn at the recorded operations; what lies between two of them is divided over the
time between them, in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.gaps.idle import CAUSES
from stepscope.simulation.model import Simulation
from stepscope.simulation.path import Part, Walker

_ON_GPU = ("kernel", "communication", "copy", "memset")


@dataclass(frozen=True)
class Stretch:
    """A part of the critical path in recorded time.

    Attributes:
        device: number of the device in the simulation that it is on.
        start_ns: begin on the job's clock.
        end_ns: end.
        text: the operation, or what the host or the device did.
    """

    device: int
    start_ns: int
    end_ns: int
    text: str


def stretches(simulation: Simulation, offsets_ns: Sequence[int]) -> list[Stretch]:
    """The critical path of all replayed steps of the slowest device, in order of time.

    Args:
        simulation: the job.
        offsets_ns: what is added to the times of each of its devices to be on the job's clock.
    """
    replays = simulation.unchanged
    slow = max(range(len(replays)), key=lambda n: replays[n].step_ns)
    _, e = simulation.devices[slow]
    run = simulation.runs[slow]
    walker = Walker(simulation.subjects, replays)
    found: list[Stretch] = []
    for step in range(run.first, run.last + 1):
        parts = walker.step(slow, step - run.first)[::-1]
        begin, end = (int(e.bounds_ns[at]) + offsets_ns[slow] for at in (step, step + 1))
        found += _placed(simulation, offsets_ns, parts, begin, end)
    return found


def _placed(
    simulation: Simulation, offsets_ns: Sequence[int], parts: list[Part], cursor: int, end_ns: int
) -> list[Stretch]:
    """The parts of one step, earliest first, in recorded time, from the cursor on."""
    found: list[Stretch] = []
    waiting: list[Part] = []
    for part in parts:
        if part.kind not in _ON_GPU:
            waiting.append(part)
            continue
        subject = simulation.subjects[part.device]
        op = int(subject.program.op[part.item])
        ops, offset = subject.gpu.ops, offsets_ns[part.device]
        stop = min(int(ops["end_ns"][op]) + offset, end_ns)
        start = min(max(int(ops["start_ns"][op]) + offset, cursor), max(stop, cursor))
        found += _between(waiting or [_late(part)], cursor, start)
        waiting = []
        if stop > start:
            found.append(Stretch(part.device, start, stop, ops.text("name", op)))
        cursor = max(stop, start)
    rest = waiting or [_late(part) for part in parts[-1:]]
    return found + _between(rest, cursor, max(end_ns, cursor))


def _late(part: Part) -> Part:
    """What stands where the replay has nothing between two operations and the record has time."""
    return Part("unexplained", -1, part.device, part.item, 1)


def _between(parts: list[Part], low_ns: int, high_ns: int) -> list[Stretch]:
    """Divide a stretch of time over parts, in proportion to their lengths."""
    whole = sum(part.ns for part in parts)
    found, done = [], 0
    for part in parts:
        start = low_ns + (high_ns - low_ns) * done // max(whole, 1)
        done += part.ns
        stop = low_ns + (high_ns - low_ns) * done // max(whole, 1)
        if stop > start:
            text = part.kind.replace("_", " ")
            text += f": {CAUSES[part.cause]}" if part.cause >= 0 else ""
            found.append(Stretch(part.device, start, stop, text))
    return found

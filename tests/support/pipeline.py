"""Pipelines of stages, by hand: every message is a rendezvous of two neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.build import Build

from stepscope.api import Job

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
STEPS = 6
MOVES = 60.0
"""What one message takes once both are there, us."""
UPDATE = 280.0
"""What the optimizer takes, us."""
CALL = 5.0
"""What a launch takes the host, us."""

Op = tuple[str, int, float]
"""What (forward, backward, recording, send, recv), of or with whom, and how long, us."""


@dataclass(frozen=True)
class Done:
    """What a stage did: what, when it began and ended, us, and the step."""

    what: str
    start: float
    end: float
    step: int


def gpipe(stages: int, micro_batches: int, forward: Callable[[int], float]) -> list[list[Op]]:
    """All forward passes, then all backward passes, which take twice as long."""
    programs = []
    for stage in range(stages):
        ops: list[Op] = []
        for _ in range(micro_batches):
            ops += _forward(stage, stages, forward)
        for _ in range(micro_batches):
            ops += _backward(stage, stages, forward)
        programs.append(ops)
    return programs


def one_by_one(stages: int, micro_batches: int, forward: Callable[[int], float]) -> list[list[Op]]:
    """Each micro-batch forth and back before the next one."""
    return [
        [
            *_forward(stage, stages, forward),
            *_backward(stage, stages, forward),
        ]
        * micro_batches
        for stage in range(stages)
    ]


def _forward(stage: int, stages: int, forward: Callable[[int], float]) -> list[Op]:
    received: list[Op] = [("recv", stage - 1, 0.0)] if stage > 0 else []
    sent: list[Op] = [("send", stage + 1, 0.0)] if stage < stages - 1 else []
    return [*received, ("forward", stage, forward(stage)), *sent]


def _backward(stage: int, stages: int, forward: Callable[[int], float]) -> list[Op]:
    received: list[Op] = [("recv", stage + 1, 0.0)] if stage < stages - 1 else []
    sent: list[Op] = [("send", stage - 1, 0.0)] if stage > 0 else []
    return [*received, ("backward", stage, 2 * forward(stage)), *sent]


def scheduled(programs: list[list[Op]], steps: int = STEPS) -> list[list[Done]]:
    """When each stage does what: an exact simulation of the schedule, hosts taking no time."""
    now = [100.0] * len(programs)
    done: list[list[Done]] = [[] for _ in programs]
    for step in range(steps):
        at = [0] * len(programs)
        while any(a < len(p) for a, p in zip(at, programs, strict=True)):
            before = list(at)
            for stage, ops in enumerate(programs):
                if at[stage] == len(ops):
                    continue
                what, other, length = ops[at[stage]]
                if what in ("forward", "backward", "recording"):
                    done[stage].append(Done(what, now[stage], now[stage] + length, step))
                    now[stage] += length
                    at[stage] += 1
                    continue
                back = "recv" if what == "send" else "send"
                theirs = programs[other]
                if at[other] < len(theirs) and theirs[at[other]][:2] == (back, stage):
                    end = max(now[stage], now[other]) + MOVES
                    for one, name in ((stage, what), (other, back)):
                        done[one].append(Done(name, now[one], end, step))
                        now[one] = end
                        at[one] += 1
            assert at != before, "the programs wait for each other"
        for stage in range(len(programs)):
            done[stage].append(Done("update", now[stage], now[stage] + UPDATE, step))
            now[stage] += UPDATE
    return done


def step_us(programs: list[list[Op]]) -> float:
    """The step of a pipeline that has run for a while, us."""
    ends = [[d.end for d in stage if d.what == "update"] for stage in scheduled(programs)]
    return max((own[-1] - own[1]) / (len(own) - 2) for own in ends)


def played(
    folder: Path,
    programs: list[list[Op]],
    pieces: Callable[[int], int] = lambda stage: 3 + stage,
    *,
    ahead: bool = False,
) -> Job:
    """The captures of all stages over some steps, launched ahead of the device.

    Args:
        folder: where to write them.
        programs: what the stages do in a step.
        pieces: kernels that a pass of a stage consists of.
        ahead: hosts enqueue a whole step while the one before runs, as fast as they can; else each
            launch comes shortly before its kernel.
    """
    for stage, done in enumerate(scheduled(programs)):
        build = Build()
        called, begun = 0.0, done[0].start - 90

        def launch(start: float, ahead: bool = ahead) -> tuple[float, float]:
            """A call that ends before the work begins."""
            nonlocal called
            called = called + CALL if ahead else max(called + 3, start - 90)
            return called, called + (CALL - 1 if ahead else 2)

        for step in range(STEPS):
            mine = [d for d in done if d.step == step]
            if ahead:  # the loop begins a step when the device begins the one before
                called = max(called, begun)
                begun = mine[0].start
                build.range(called, called + 2, f"step {step}")
            for one in mine:
                if ahead and one.what != "update":
                    # a message waits for the compute before it, and compute for the message
                    called += CALL
                    build.api(called, called + 1, "cudaStreamWaitEvent")
                if one.what in ("send", "recv"):
                    build.kernel(one.start, one.end, call=launch(one.start), name=SEND_RECV,
                                 stream=20, grid_x=2)  # fmt: skip
                elif one.what == "recording":  # the host is kept from launching
                    build.overhead(called + 3, one.end, "buffer flush")
                    called = one.end
                elif one.what == "update":
                    build.kernel(one.start, one.end, call=launch(one.start), name="adam", grid_x=64)
                else:
                    count, length = pieces(stage), one.end - one.start
                    for k in range(count):
                        start = one.start + k * length / count
                        build.kernel(start, start + length / count, call=launch(start),
                                     name=f"{one.what}_{k}", grid_x=64)  # fmt: skip
            if not ahead:
                build.range(mine[0].start, mine[-1].end, f"step {step}")
        place = folder / f"rank{stage}"
        place.mkdir(parents=True)
        build.trace(place, rank=stage, rank_source="test", origin_epoch_ns=10**18,
                    world_size=len(programs))  # fmt: skip
    return Job([folder / f"rank{s}" / "built.stepscope" for s in range(len(programs))])

"""Jobs of many ranks made from real ones: digests of 64 to 1024 ranks with a known straggler.

Each rank is a real rank of one, two or four GPUs, resampled: its steps are drawn with replacement
from those of a real rank, so that what varies from step to step and from rank to rank is real. The
ranks are then put together again: their steps are played step by step with the real ranks'
collectives, each of which ends on all members when the last has joined and the data has moved.
Waiting, exposed communication and times follow from that. Ranks of a machine share a clock that is
off by milliseconds and drifts; captures begin at different times and steps. Of a capture of one
GPU, which does not communicate, the collectives are those of the four-GPU captures, in proportion.

A plant changes one rank before the steps are played:

- ``slow_gpu``: each kernel takes longer.
- ``slow_host``: the host leaves its device idle between launches in every step.
- ``late_input``: the batch comes later in every step.
- ``extra_work``: more kernels, which take longer together.
- ``slow_link``: data moves more slowly in each communicator that the rank belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.jobs.digest import LISTS, Digest
from stepscope.jobs.digest_make import short_group

PLANTS = ("slow_gpu", "slow_host", "late_input", "extra_work", "slow_link")
NODE = 8
_CALLS = 6
Floats = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Plant:
    """What is wrong with a rank; ``amount`` is a share of the step."""

    kind: str
    rank: int
    amount: float


@dataclass(frozen=True)
class Shape:
    """How a job is made.

    Attributes:
        ranks: number of ranks.
        layout: ``ddp`` (one communicator), ``hsdp`` (one a machine, one a rail) or ``stages`` (four
            pipeline stages with different kernels, data parallel inside, one communicator of all).
        steps: steps to record.
    """

    ranks: int
    layout: str = "hsdp"
    steps: int = 20


@dataclass
class _Own:
    """What each rank does by itself; arrays are steps x ranks, ns."""

    compute: Floats
    copy: Floats
    memset: Floats
    idle: dict[str, Floats]
    kernels: Floats
    threads: Floats

    def whole(self) -> Floats:
        found = self.compute + self.copy + self.memset
        for time in self.idle.values():
            found = found + time
        return found


def made(templates: Sequence[Digest], shape: Shape, seed: int, plant: Plant | None) -> list[Digest]:
    """The digests of a job."""
    chance = np.random.default_rng(seed)
    n, steps = shape.ranks, shape.steps
    stage = np.arange(n) * 4 // n if shape.layout == "stages" else np.zeros(n, np.int64)
    source = chance.integers(0, len(templates), n)
    own, drawn = _drawn(templates, source, steps, chance)
    pace = np.exp(chance.normal(0, 0.003, n))  # GPUs of one product differ by some tenths
    share = np.array([1.0, 0.93, 0.97, 0.88])[stage]
    own.compute *= share
    own.kernels *= share
    own.threads *= share
    own.compute *= pace
    slow = np.ones(n)
    host = np.zeros(n)
    usual = float(np.median(own.whole()))
    moves = np.ones(n)
    if plant is not None:
        r, more = plant.rank, plant.amount * usual
        factor = 1 + more / float(np.median(own.compute[:, r]))
        if plant.kind == "slow_gpu":
            own.compute[:, r] *= factor
            slow[r] = factor
        elif plant.kind == "extra_work":
            own.compute[:, r] *= factor
            own.kernels[:, r] *= factor
            own.threads[:, r] *= factor
        elif plant.kind in ("slow_host", "late_input"):
            cause = "launch_bound" if plant.kind == "slow_host" else "input_starvation"
            own.idle.setdefault(cause, np.zeros((steps, n)))[:, r] += more * chance.normal(
                1, 0.05, steps
            )
            host[r] = more
        else:
            moves[r] = 1 + plant.amount * 10
    played = _played(own, shape, stage, moves, usual, chance)
    offsets = np.repeat(chance.normal(0, 5e6, -(-n // NODE)), NODE)[:n]
    drifts = np.repeat(chance.normal(0, 1e-5, -(-n // NODE)), NODE)[:n]
    return [
        _digest(
            deepcopy(templates[source[r]].facts), templates[source[r]], r, shape, own, played,
            (float(offsets[r]), float(drifts[r])), float(pace[r] * slow[r]), float(host[r]),
            int(stage[r]), drawn, chance,
        )
        for r in range(n)
    ]  # fmt: skip


def _drawn(
    templates: Sequence[Digest], source: Floats, steps: int, chance: np.random.Generator
) -> tuple[_Own, Floats]:
    causes = sorted({cause for t in templates for cause in t.texts("idle", "cause")})
    n = len(source)
    tables = []
    for t in templates:
        idle = {cause: np.zeros(t.n_steps) for cause in causes}
        for step, cause, time in zip(
            t.ints("idle", "step"), t.texts("idle", "cause"), t.ints("idle", "time_ns"), strict=True
        ):
            idle[cause][step] = time
        tables.append((t, idle))
    rows = np.stack([chance.integers(0, templates[s].n_steps, steps) for s in source], axis=1)

    def of(name: str) -> Floats:
        return np.stack(
            [tables[s][0].ints("steps", name)[rows[:, r]] for r, s in enumerate(source)], axis=1
        ).astype(float)

    idle = {
        cause: np.stack([tables[s][1][cause][rows[:, r]] for r, s in enumerate(source)], axis=1)
        for cause in causes
    }
    own = _Own(of("compute_ns"), of("copy_ns"), of("memset_ns"), idle, of("kernels"), of("threads"))
    assert own.compute.shape == (steps, n)
    return own, rows


@dataclass
class _Played:
    """The steps as they went, on the job's clock; ns."""

    begin: Floats  # steps + 1 x ranks
    start: Floats  # steps x calls x ranks
    end: Floats
    behind: Floats  # where compute ends and only communication is left: steps x ranks
    groups: list[list[str]]  # name of the communicator of each call on each rank


def _groups(shape: Shape, stage: Floats) -> list[Floats]:
    """Communicator of each rank at each call of a step, as numbers."""
    ranks = np.arange(shape.ranks)
    whole = np.zeros(shape.ranks, np.int64)
    if shape.layout == "ddp":
        return [whole] * _CALLS
    if shape.layout == "stages":
        return [stage] * (_CALLS - 1) + [whole]
    node, rail = ranks // NODE, ranks % NODE
    return [node if call % 2 else rail for call in range(_CALLS)]


def _played(
    own: _Own, shape: Shape, stage: Floats, moves: Floats, usual: float, chance: Any
) -> _Played:
    steps, n = own.compute.shape
    numbers = _groups(shape, stage)
    ready = np.linspace(0.4, 0.9, _CALLS)
    done = 0.92
    begin = np.zeros((steps + 1, n))
    start, end = np.zeros((steps, _CALLS, n)), np.zeros((steps, _CALLS, n))
    behind = np.zeros((steps, n))
    whole = own.whole()
    slowest = [np.zeros(int(g.max()) + 1) for g in numbers]
    for which, g in zip(slowest, numbers, strict=True):
        np.maximum.at(which, g, moves)
    for s in range(steps):
        free = begin[s]
        for call, g in enumerate(numbers):
            start[s, call] = np.maximum(begin[s] + ready[call] * whole[s], free)
            last = np.zeros(len(slowest[call]))
            np.maximum.at(last, g, start[s, call])
            takes = 0.02 * usual * slowest[call] * chance.normal(1, 0.03, len(last))
            end[s, call] = (last + takes)[g] + chance.normal(0, 2_000, n)
            free = end[s, call]
        behind[s] = np.maximum(begin[s] + done * whole[s], begin[s])
        begin[s + 1] = np.maximum(behind[s], free) + (1 - done) * whole[s]
    names = []
    for g in numbers:
        members = [np.flatnonzero(g == k) for k in range(int(g.max()) + 1)]
        texts = [short_group(",".join(map(str, m.tolist()))) for m in members]
        names.append([texts[k] for k in g])
    return _Played(begin, start, end, behind, names)


def _digest(
    facts: dict[str, Any], template: Digest, r: int, shape: Shape, own: _Own, played: _Played,
    clock: tuple[float, float], rate: float, host: float, stage: int, drawn: Floats, chance: Any,
) -> Digest:  # fmt: skip
    first = int(chance.integers(0, 3))  # captures begin at different steps
    epoch = 1_700_000_000_000_000_000
    origin = float(played.begin[first, r] - chance.uniform(1e6, 9e6))

    def at(times: Floats) -> Floats:
        local = (times - origin) * (1 + clock[1])
        return np.rint(local).astype(np.int64)

    begin = at(played.begin[first:, r])
    steps = len(begin) - 1
    wall = np.diff(begin)
    parts = {
        name: np.rint(getattr(own, name)[first:, r]).astype(np.int64)
        for name in ("compute", "copy", "memset")
    }
    idle = {cause: np.rint(time[first:, r]).astype(np.int64) for cause, time in own.idle.items()}
    spent = sum(parts.values()) + sum(idle.values())
    exposed = np.maximum(wall - spent, 0)
    rest = wall - spent - exposed  # the clock's drift makes a step shorter than its parts
    idle_sum = sum(idle.values(), np.zeros(steps, np.int64)) + rest
    idle["unexplained"] = idle.get("unexplained", np.zeros(steps, np.int64)) + rest
    facts.update(
        rank=r, world_size=shape.ranks, process_id=1000 + r, device=r % NODE,
        hostname=f"node{r // NODE:03d}", capture=f"rank{r}.sqlite", capture_digest=f"made{r}",
        origin_epoch_ns=round(epoch + origin + clock[0]), steady_steps=steps,
        steps_with_calls=steps, steps_found=steps, step_ns=float(wall.mean()),
        host_need_ns=min(facts["host_need_ns"], 0.8 * float(own.whole().mean())) + host,
        host_least_ns=0.0, host_recording_ns=0.0,
        host_calling_ns=facts["host_calling_ns"] + host, input_ns=host,
        host_untraced_ns=facts["host_untraced_ns"] + host,
    )  # fmt: skip
    names = [table.name for table in LISTS.values()]
    lists: dict[str, dict[str, Any]] = {name: dict(template.lists[name]) for name in names}
    lists["steps"] = {
        "number": np.arange(steps), "begin_ns": begin[:-1], "wall_ns": wall,
        "compute_ns": parts["compute"], "communication_ns": exposed, "copy_ns": parts["copy"],
        "memset_ns": parts["memset"], "idle_ns": idle_sum,
        "alone_ns": parts["compute"] // 2,
        "kernels": np.rint(own.kernels[first:, r]).astype(np.int64),
        "threads": np.rint(own.threads[first:, r]).astype(np.int64),
    }  # fmt: skip
    rows = [(s, cause, int(time[s])) for cause, time in idle.items() for s in range(steps)]
    rows = [row for row in rows if row[2]]
    lists["idle"] = {
        "step": np.array([row[0] for row in rows], np.int64),
        "cause": [row[1] for row in rows],
        "time_ns": np.array([row[2] for row in rows], np.int64),
    }
    start, end = at(played.start[first:, :, r]).ravel(), at(played.end[first:, :, r]).ravel()
    calls = len(start)
    lists["calls"] = {
        "start_ns": start, "duration_ns": np.maximum(end - start, 1),
        "kind": ["all_reduce"] * calls, "looks": ["said|1|Float|6553600"] * calls,
        "group": [played.groups[c][r] for _ in range(steps) for c in range(_CALLS)],
        "communicator": [""] * calls, "use": ["data_parallel"] * calls,
        "stream": np.full(calls, 20), "sequence": np.full(calls, -1),
        "bytes": np.full(calls, 26214400), "nccl_bytes": np.full(calls, -1),
        "size": np.full(calls, -1), "kernels_before": np.zeros(calls, np.int64),
        "stated": np.ones(calls, bool),
    }  # fmt: skip
    knots = np.stack((at(played.behind[first:, r]), at(played.behind[first:, r]) + exposed), axis=1)
    lists["exposure"] = {
        "start_ns": knots.ravel(),
        "exposed_ns": np.stack((exposed, np.zeros_like(exposed)), axis=1).ravel(),
        "blocking_ns": np.stack((exposed, np.zeros_like(exposed)), axis=1).ravel(),
    }
    kernels = dict(lists["kernels"])
    noise = rate * np.exp(chance.normal(0, 0.004, len(kernels["key"])))
    more = float(own.kernels[:, r].sum()) / max(
        float(template.ints("steps", "kernels")[drawn[:, r]].sum()), 1.0
    )
    for name in ("p10_ns", "median_ns", "p90_ns"):
        kernels[name] = np.rint(kernels[name] * noise).astype(np.int64)
    kernels["count"] = np.rint(kernels["count"] * more * steps / template.n_steps).astype(np.int64)
    kernels["total_ns"] = np.rint(kernels["total_ns"] * noise * more).astype(np.int64)
    if stage:  # other layers: half of the kernels are others
        other = np.asarray(kernels["key"]) % 2 == 1
        kernels["key"] = np.where(other, kernels["key"] + stage, kernels["key"])
        kernels["name"] = [
            f"stage{stage}_{name}" if changed else name
            for name, changed in zip(kernels["name"], other, strict=True)
        ]
    lists["kernels"] = kernels
    lists["findings"] = {name: [] for name in lists["findings"]}
    return Digest(facts, lists)

"""The critical path of replayed steps: the chain of things that decided when each step ended.

The path is walked backwards through the replay. Whatever was waited for last decided: the walk goes
from an operation's start to its launch, its predecessor or what it depends on, from the host to
what it waited for, and from a collective to the rank that came last. Each stretch of time between
becomes a part; the parts of a step cover it without gap or overlap, so they sum to it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.simulation.program import MARK, WAIT, Replay
from stepscope.simulation.subject import Subject, previous_items

KINDS: Final = {
    "kernel": "a compute kernel runs",
    "communication": "a collective transfers, or a communication kernel of unmatched ranks runs",
    "copy": "a copy runs",
    "memset": "a memory set runs",
    "host_work": "the host works between two calls; by cause",
    "launch_call": "the host is inside a call that enqueues",
    "launch_latency": "from the call to the start of the operation on an idle device",
    "kernel_gap": "from one operation to the next on a stream",
    "dependency": "from the end of an operation to the start of one of another stream",
    "synchronisation": "the host returns from a wait for the device",
    "unexplained": "an operation starts late, and nothing in the capture says why",
}
"""Kinds of parts and what they mean."""


@dataclass(frozen=True)
class Part:
    """One stretch of a critical path.

    Attributes:
        kind: one of ``KINDS``.
        cause: column of the cause of host work; -1 for other kinds.
        device: number of the device (of its program) that it is on.
        item: item of that program.
        ns: its length.
    """

    kind: str
    cause: int
    device: int
    item: int
    ns: int


class Walker:
    """Walks critical paths in the last pass of a replay.

    Args:
        subjects: the programs.
        replays: their replays, in the same order.
    """

    def __init__(self, subjects: list[Subject], replays: list[Replay]) -> None:
        self._tracks = [_Track(s, r) for s, r in zip(subjects, replays, strict=True)]
        self._rank_traces: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for device, track in enumerate(self._tracks):
            m = len(track.program)
            rows = np.flatnonzero(track.program.instance >= 0).tolist()
            for pass_ in range(len(track.host_ns) // max(m, 1)):
                for i in rows:
                    key = (pass_, track.instance[i])
                    self._rank_traces.setdefault(key, []).append((device, pass_ * m + i))

    def step(self, device: int, step: int) -> list[Part]:
        """The path of one step of the last pass, latest part first.

        Args:
            device: whose step.
            step: number of the step in the run, from 0.
        """
        bounds = self._tracks[device].bounds_ns
        steps = self._tracks[device].steps
        at = len(bounds) - 1 - steps + step
        walk = _Walk(self._tracks, self._rank_traces, bounds[at], bounds[at + 1])
        walk.from_bound(device, at + 1)
        return walk.parts


class _Track:
    """One device's program and replay as plain lists."""

    def __init__(self, subject: Subject, replay: Replay) -> None:
        program = subject.program
        self.program, self.steps = program, replay.steps
        self.bounds_ns: list[int] = replay.bounds_ns.tolist()
        self.host_ns: list[int] = replay.host_ns.tolist()
        self.start_ns: list[int] = replay.start_ns.tolist()
        self.end_ns: list[int] = replay.end_ns.tolist()
        self.kind: list[int] = program.kind.tolist()
        self.work: list[int] = program.work_ns.sum(axis=1).tolist()
        self.call: list[int] = program.call_ns.tolist()
        self.latency: list[int] = program.latency_ns.tolist()
        self.kernel_gap: list[int] = program.kernel_gap_ns.tolist()
        self.delay: list[int] = program.delay_ns.tolist()
        self.duration: list[int] = program.duration_ns.tolist()
        self.behind: list[int] = program.behind.tolist()
        self.hosted: list[bool] = program.hosted.tolist()
        self.blocks: list[bool] = program.blocks.tolist()
        self.instance: list[int] = program.instance.tolist()
        self.previous: list[int] = previous_items(program).tolist()
        ops, row = subject.gpu.ops, np.maximum(program.op, 0)
        names = np.full(len(program), 0)
        names[program.communication] = 1
        names[ops.equals("kind", "memcpy")[row]] = 2
        names[ops.equals("kind", "memset")[row]] = 3
        self.op_kind = [("kernel", "communication", "copy", "memset")[n] for n in names.tolist()]
        self.end = replay.end_ns
        self.marks = np.flatnonzero(program.kind == MARK).tolist()

    def before(self, j: int) -> int:
        """When the host was done with the item before."""
        return self.host_ns[j - 1] if j else 0

    def room(self, j: int) -> int:
        """When the launch queue had room for an item; 0 where it always had."""
        i = j % len(self.program)
        back = j - i + self.behind[i]
        return self.start_ns[back] if self.hosted[i] and back >= 0 else 0


class _Walk:
    """The walk through one step."""

    def __init__(
        self,
        tracks: list[_Track],
        rank_traces: dict[tuple[int, int], list[tuple[int, int]]],
        begin_ns: int,
        end_ns: int,
    ) -> None:
        self.tracks, self.rank_traces = tracks, rank_traces
        self.begin, self.cursor = begin_ns, end_ns
        self.parts: list[Part] = []

    def emit(self, kind: str, device: int, j: int, since: int, cause: int = -1) -> None:
        """Cover the time from ``since`` up to the cursor."""
        low = max(since, self.begin)
        if low < self.cursor:
            item = j % len(self.tracks[device].program)
            self.parts.append(Part(kind, cause, device, item, self.cursor - low))
            self.cursor = low

    def from_bound(self, device: int, bound: int) -> None:
        """Walk from a boundary of steps, which the host or the device decided."""
        track = self.tracks[device]
        m = len(track.program)
        pass_, mark = divmod(bound, track.steps)
        j = pass_ * m + track.marks[mark]
        host = track.before(j) + track.work[j % m]
        state: tuple[str, int, int] | None = ("work", device, j)
        if host < self.cursor:
            hits = np.flatnonzero(track.end[:j] == self.cursor)
            state = ("end", device, int(hits[-1])) if len(hits) else None
        while state is not None and self.cursor > self.begin:
            where, device, j = state
            state = getattr(self, f"_{where}")(device, j)
        # a walk that finds no reason leaves the rest unexplained
        self.emit("unexplained", device, j, self.begin)

    def _end(self, device: int, j: int) -> tuple[str, int, int]:
        """At the end of an operation."""
        track = self.tracks[device]
        m = len(track.program)
        i = j % m
        last = (device, j)
        since = track.start_ns[j]
        if track.instance[i] >= 0:
            arrived = self.rank_traces[(j // m, track.instance[i])]
            latest = max(arrived, key=lambda at: self.tracks[at[0]].start_ns[at[1]])
            start = self.tracks[latest[0]].start_ns[latest[1]]
            if start <= track.end_ns[j]:
                last, since = latest, start
        self.emit(track.op_kind[i], device, j, since)
        return ("start", *last)

    def _start(self, device: int, j: int) -> tuple[str, int, int] | None:
        """At the start of an operation."""
        track = self.tracks[device]
        m = len(track.program)
        i, base = j % m, j - j % m
        at = track.start_ns[j] - track.delay[i]
        self.emit("unexplained", device, j, at)
        previous = base + track.previous[i]
        if previous >= 0 and track.end_ns[previous] + track.kernel_gap[i] == at:
            self.emit("kernel_gap", device, j, track.end_ns[previous])
            return ("end", device, previous)
        for k, between in track.program.depends.get(i, ()):
            if base + k >= 0 and track.end_ns[base + k] + between == at:
                self.emit("dependency", device, j, track.end_ns[base + k])
                return ("end", device, base + k)
        if not track.hosted[i]:
            return None
        self.emit("launch_latency", device, j, at - track.latency[i])
        return self._called(device, j)

    def _called(self, device: int, j: int) -> tuple[str, int, int]:
        """At the begin of a launching call: after its work, or when the queue had room."""
        track = self.tracks[device]
        i = j % len(track.program)
        host = track.before(j) + track.work[i]
        back = j - i + track.behind[i]
        if track.room(j) > host:
            self.emit("launch_call", device, j, track.room(j))
            return ("start", device, back)
        return ("work", device, j)

    def _work(self, device: int, j: int) -> tuple[str, int, int]:
        """At the end of the work before an item."""
        track = self.tracks[device]
        i = j % len(track.program)
        since = track.before(j) + track.work[i]
        for cause in np.flatnonzero(track.program.work_ns[i]).tolist():
            since -= int(track.program.work_ns[i, cause])
            self.emit("host_work", device, j, since, cause)
        return ("host", device, j - 1)

    def _host(self, device: int, j: int) -> tuple[str, int, int]:
        """When the host was done with an item."""
        track = self.tracks[device]
        m = len(track.program)
        i, base = j % m, j - j % m
        done = track.host_ns[j]
        called = track.before(j) + track.work[i]
        if track.kind[i] == MARK:
            return ("work", device, j)
        if track.kind[i] == WAIT:
            if done > called + track.call[i]:
                on = max(
                    (k for k in track.program.waits[i] if base + k >= 0),
                    key=lambda k: track.end_ns[base + k],
                )
                self.emit("synchronisation", device, j, track.end_ns[base + on])
                return ("end", device, base + on)
            self.emit("synchronisation", device, j, called)
            return ("work", device, j)
        begun = max(called, track.room(j))
        if track.blocks[i] and done > begun + track.call[i]:
            self.emit("synchronisation", device, j, track.end_ns[j])
            return ("end", device, j)
        self.emit("launch_call", device, j, begun)
        return self._called(device, j)

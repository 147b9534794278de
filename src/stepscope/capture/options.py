"""What a user may ask of a capture."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.capture.errors import CaptureError

RECORDS: dict[str, tuple[int, ...]] = {
    "kernel": (10,),
    "copy": (1, 22, 2),
    "call": (5, 4),
    "sync": (38,),
    "overhead": (17,),
    "graph": (51,),
    "stream": (37,),
    "event": (36,),
    "memory": (49,),
}
"""What the collector records, and CUPTI's numbers of the activity kinds it stands for."""
DEFAULT_RECORDS = ("kernel", "copy", "call", "sync", "overhead", "graph", "stream")
PROFILER_RANGE = "cudaProfilerApi"
_LONGEST_RANGE, _LONGEST_DOMAIN, _LONGEST_PATH = 511, 255, 4000
"""Bytes that the collector keeps of a range's name, of its domain, and of the rest."""


def refuse_unwritable(name: str, text: str, most: int) -> None:
    """Refuse a value that cannot be a line of the file that the collector and the hook read.

    Args:
        name: what the value is, for the message.
        text: the value.
        most: bytes that it may have.

    Raises:
        CaptureError: it holds a control character, such as a newline, is no UTF-8, or too long.
    """
    if found := re.search(r"[\x00-\x1f\x7f]", text):
        raise CaptureError(
            f"{name} holds the control character {found[0]!a}, which cannot be written to the "
            "recorder's configuration; give it without"
        )
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise CaptureError(f"{name} is no UTF-8, so its files cannot be read; rename it") from error
    if length > most:
        raise CaptureError(f"{name} has more than {most:,} bytes; give a shorter one")


@dataclass(frozen=True)
class Options:
    """One capture.

    Attributes:
        command: program and arguments.
        output: folder of the capture; made again.
        backend: ``auto``, ``collector``, ``nsys``, ``torch`` or ``ncu``.
        steps: record so many optimizer steps; 0: not by steps.
        warmup: optimizer steps to let pass first.
        settle: let more pass while steps use up batches that the loader had ready before.
        range: record inside NVTX ranges of this name (``NAME`` or ``NAME@DOMAIN``), or between
            the calls of ``cudaProfilerApi``; empty: not by range.
        ranges: be done after so many of those ranges; 0: record each of them.
        delay_s: begin so many seconds after the program's start.
        duration_s: record so many seconds; 0: to the end.
        paused: begin when ``stepscope capture start`` says so.
        ring_s: keep only the last so many seconds; 0: everything.
        slow_step: dump the ring when an optimizer step takes so many times the usual; 0: not.
        max_bytes: end recording when one process's file has this size; 0: no limit.
        ranks: record only these ranks; empty: all.
        graph: ``graph`` records a CUDA graph as one operation, ``node`` every kernel in it.
        record: further things to record: ``event``, ``memory``.
        every_call: also record calls that only query.
        counters: sample the GPUs' counters beside the program.
        counters_hz: how often a second.
        threads_hz: how often a second the threads' states are read from ``/proc``; 0: not.
        sample_hz: how often a second Python stacks are sampled inside the program; 0: not.
        stand_aside: leave the GPU to torch.profiler or Proton where the program starts one.
        hook: load the hook, which notes other profilers, into Python programs.
        gc: record Python's garbage collections.
        waits: record waits in the C library and for the GIL.
        stacks: record Python stacks (``torch`` only).
        memory: record what tensors allocate (``torch`` only).
        memory_snapshot: also dump the history of PyTorch's allocator in the recorded steps, and
            where memory runs out (``torch`` only).
        ops: record PyTorch's operators with shapes, in the recorded steps.
        flush_ms: how often GPU records are fetched: bounds what a killed process loses.
        stop_program: end the program when recording has ended.
        keep_raw: keep the raw files after they were read.
        kernel: what ``ncu --kernel-name`` takes (``ncu`` only); empty: every kernel.
        launch_skip: matching launches to let pass first (``ncu`` only).
        launch_count: matching launches to record (``ncu`` only); 0: its default.
    """

    command: tuple[str, ...]
    output: Path
    backend: str = "auto"
    steps: int = 0
    warmup: int = 0
    settle: bool = False
    range: str = ""
    ranges: int = 0
    delay_s: float = 0.0
    duration_s: float = 0.0
    paused: bool = False
    ring_s: float = 0.0
    slow_step: float = 0.0
    max_bytes: int = 0
    ranks: tuple[int, ...] = ()
    graph: str = "graph"
    record: tuple[str, ...] = field(default=())
    every_call: bool = False
    counters: bool = True
    counters_hz: float = 10.0
    threads_hz: float = 20.0
    sample_hz: float = 0.0
    stand_aside: bool = False
    hook: bool = True
    gc: bool = False
    waits: bool = False
    stacks: bool = False
    memory: bool = False
    memory_snapshot: bool = False
    ops: bool = False
    flush_ms: int = 500
    stop_program: bool = False
    keep_raw: bool = False
    kernel: str = ""
    launch_skip: int = 0
    launch_count: int = 0

    def check(self) -> None:
        """Refuse what makes no sense together.

        Raises:
            CaptureError: with one sentence.
        """
        if not self.command:
            raise CaptureError("no program to run; give it after --, as in: -- python train.py")
        for name, text, most in (
            ("-o", str(self.output), _LONGEST_PATH),
            ("--range", self.range.partition("@")[0], _LONGEST_RANGE),
            ("--range", self.range.partition("@")[2], _LONGEST_DOMAIN),
            ("--kernel", self.kernel, _LONGEST_PATH),
            ("--ranks", ",".join(map(str, self.ranks)), _LONGEST_PATH),
        ):
            refuse_unwritable(name, text, most)
        ways = {
            "--steps": self.steps > 0,
            "--range": bool(self.range),
            "--paused": self.paused,
        }
        asked = [name for name, given in ways.items() if given]
        if len(asked) > 1:
            raise CaptureError(f"{' and '.join(asked)} both say when to record; give one of them")
        if self.kernel and self.backend != "ncu":
            raise CaptureError("single kernels are for Nsight Compute; give --backend ncu, too")
        if self.warmup and not self.steps:
            raise CaptureError("--warmup counts steps before those of --steps; give --steps too")
        if self.ranges and not self.range:
            raise CaptureError("--ranges counts the ranges of --range; give --range too")
        for name, number in (
            ("--steps", self.steps),
            ("--ranges", self.ranges),
            ("--warmup", self.warmup),
            ("--delay", self.delay_s),
            ("--duration", self.duration_s),
            ("--ring", self.ring_s),
            ("--slow-step", self.slow_step),
            ("--max-size", self.max_bytes),
            ("--ranks", min(self.ranks, default=0)),
        ):
            if not math.isfinite(number) or number < 0:
                raise CaptureError(f"{name} is {number:g}; give a number from 0 on")
        if asked and self.delay_s:
            raise CaptureError(f"--delay and {asked[0]} both say when to begin; give one of them")
        self._check_rates()

    def _check_rates(self) -> None:
        if self.flush_ms < 1:
            raise CaptureError(f"--flush-ms is {self.flush_ms}; give 1 ms or more")
        for name, rate, most in (
            ("--counters-hz", self.counters_hz, 1000),
            ("--threads-hz", self.threads_hz, 1000),
            ("--sample-hz", self.sample_hz, 200),
        ):
            if not 0 <= rate <= most:
                raise CaptureError(f"{name} is {rate:g} a second; give 0 to {most}")
        if self.slow_step and (not self.ring_s or self.slow_step <= 1):
            raise CaptureError(
                f"--slow-step {self.slow_step:g} dumps the ring after a step that took so many "
                "times the usual; give --ring, too, and a number above 1"
            )
        if self.slow_step and self.steps:
            raise CaptureError("--slow-step watches all steps; leave --steps out")
        needing = {
            "--steps": self.steps > 0,
            "--slow-step": self.slow_step > 0,
            "--gc": self.gc,
            "--sample-hz": self.sample_hz > 0,
            "--stand-aside": self.stand_aside,
        }
        if not self.hook and any(needing.values()):
            name = next(name for name, given in needing.items() if given)
            raise CaptureError(f"{name} needs the hook in the program; leave --no-hook out")

    def kinds(self) -> list[int]:
        """Numbers of the CUPTI activity kinds to record."""
        wanted = [*DEFAULT_RECORDS, *self.record]
        if self.graph == "node":
            wanted.remove("graph")
        return list(dict.fromkeys(kind for name in wanted for kind in RECORDS[name]))

    def summary(self) -> dict[str, str]:
        """The options that differ from their defaults, as text, for the capture's metadata."""
        default = Options((), Path())
        skipped = ("command", "output")
        return {
            name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            for name, value in vars(self).items()
            if name not in skipped and value != getattr(default, name)
        }

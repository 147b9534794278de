"""What kind of step was found, and what repeats inside one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from stepscope.activity import names as words
from stepscope.activity.device import Lane
from stepscope.activity.host import SMALL_COPY_BYTES
from stepscope.intervals.distinct import distinct_values
from stepscope.steps.model import Inner, InnerKind, Kind, Steps
from stepscope.steps.repetition import Launches, find_repetition
from stepscope.steps.workload import Workload
from stepscope.trace.frame import BoolArray, IntArray

_DIFFUSION = re.compile(r"diffusion|denois|(?<![a-z])unet|stable_?diff", re.IGNORECASE)
_LAYER = re.compile(
    r"(?<![a-z])(layers?|blocks?|attn|attention|mlp|ffn|(de|en)coder)(?![a-z])", re.IGNORECASE
)
_ATTENTION_KERNEL = re.compile(
    r"flash|fmha|attention|attn|softmax|paged|(?<![a-z])mha(?![a-z])", re.IGNORECASE
)
_LEAST: Final = 0.5
"""What repeats inside a step is worth naming if it makes up this share of its device time."""


def kind_of(steps: Steps, lane: Lane, does: Workload) -> Kind:
    """What one step is: by the name of its mark, else by whether the program trains.

    Args:
        steps: the steps.
        lane: the device.
        does: whether the program trains.
    """
    first = _first_mark(steps, lane)
    known: list[tuple[Kind, Callable[[], bool]]] = [
        ("whole_capture", lambda: steps.source == "whole_capture"),
        ("decode_step", lambda: words.is_decode(first)),
        ("denoising_step", lambda: words.is_denoising(first)),
        ("training_step", lambda: does.kind == "training"),
        ("graph_replay", lambda: steps.kind == "graph_replay"),
        ("engine_iteration", lambda: bool(words.engine_family(first))),
        ("forward", lambda: does.infers),
    ]
    return next((kind for kind, holds in known if holds()), "step")


def _first_mark(steps: Steps, lane: Lane) -> str:
    """Name of the first range that marks a step; empty where none does."""
    ranges = lane.host.ranges
    if not steps.label or not len(ranges):
        return ""
    at = np.flatnonzero(ranges["start_ns"] == steps.begin_ns[0])
    names = [ranges.text("name", int(row)) for row in at]
    return next((name for name in names if name.startswith(steps.label)), steps.label)


def inner_of(
    steps: Steps, found: Launches, bounds_ns: IntArray, does: Workload
) -> tuple[Inner, ...]:
    """What repeats inside a step, looked for in one of usual length.

    Args:
        steps: the steps.
        found: what the host enqueued.
        bounds_ns: step boundaries on the device's timeline, ns.
        does: whether the program trains.
    """
    length = np.diff(bounds_ns)
    usual = int(np.argsort(length, kind="stable")[len(length) // 2])
    ends = np.append(steps.begin_ns[1:], max(steps.end_ns, int(steps.begin_ns[-1])))
    enqueued = found.lane.enqueue_begin_ns[found.op]
    rows = np.flatnonzero((enqueued >= steps.begin_ns[usual]) & (enqueued <= ends[usual]))
    inside = found.take(rows)
    repeated = find_repetition(inside)
    if repeated is None or len(repeated) < 3:
        return ()
    start_ns = found.lane.ops["start_ns"][inside.op]
    every = int(np.median(np.diff(np.sort(start_ns[repeated.anchors]))))
    if every * len(repeated) < _LEAST * int(np.ptp(start_ns)):
        return ()
    return (Inner(_inner_kind(inside, repeated.anchors, does), len(repeated), every),)


def _inner_kind(inside: Launches, anchors: IntArray, does: Workload) -> InnerKind:
    """What a repetition inside a step is, as far as its content tells."""
    lane, n = inside.lane, len(anchors)

    def in_most(mask: BoolArray) -> bool:
        held = distinct_values(np.searchsorted(anchors, np.flatnonzero(mask), side="right"))
        return len(held) >= 0.8 * n

    def kernels(pattern: re.Pattern[str]) -> BoolArray:
        return lane.ops.matches("name", pattern)[inside.op]

    def named(pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(name) for name in lane.host.ranges.texts.get("name", []))

    large = lane.ops["bytes"][inside.op] > SMALL_COPY_BYTES
    known: list[tuple[InnerKind, Callable[[], bool]]] = [
        ("training_step", lambda: in_most(inside.optimizer)),
        ("denoising_step", lambda: named(_DIFFUSION)),
        ("batch" if does.infers else "micro_batch", lambda: in_most(inside.upload & large)),
        ("layer", lambda: named(_LAYER)),
        ("graph_replay", lambda: in_most(inside.several)),
        ("layer", lambda: in_most(kernels(_ATTENTION_KERNEL))),
    ]
    return next((kind for kind, holds in known if holds()), "repetition")

"""Whether the captured program trains or only infers, as far as names tell.

What helps differs: an inference has no optimizer to fuse and no batch to load ahead, but a
scheduler and a cache of keys and values. What is seen outweighs what is said: one kernel of a
backward pass counts more than any range that says ``generate``, for training samples too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from stepscope.activity import names as words
from stepscope.activity import shapes
from stepscope.activity.device import Lane, Reader
from stepscope.intervals.distinct import distinct_values
from stepscope.trace.frame import Frame

Kind = Literal["training", "inference", "unknown"]

BACKWARD_KERNEL: Final = re.compile(
    r"backward|(?<![a-z])bwd|_bwd_|Bwd(?![a-z])|dgrad|wgrad|gradinput|gradweight|_grad_(input|weight)",
    re.IGNORECASE,
)
_BACKWARD_OPERATOR: Final = re.compile(r"^autograd::engine|Backward\d*$|^aten::\w+_backward\b")
_TRAINING_RANGE: Final = re.compile(
    r"^Optimizer\.(step|zero_grad)#|(?<![a-z])(backward|bwd|optimi[sz]er|zero_?grad|train(ing)?|1f1b)(?![a-z])",
    re.IGNORECASE,
)
_SERVING: Final = re.compile(
    r"(?<![a-z])(execute_(model|context|new|\d+)|generat(e|ion)|prefill|decode_?(step|forward|batch)?"
    r"|(?:model_?)?inference|predict(ion)?|denois(e|ing)|sampling_?step)(?![a-z])"
    r"|vllm|sglang|tensorrt_?llm|(?<![a-z])lmdeploy|gpu_model_runner|model_runner\.py"
    r"|execute_diffusion",
    re.IGNORECASE,
)
_SERVING_KERNEL: Final = re.compile(
    r"paged_?attention|WithPagedKVCache|reshape_and_cache|store_?kv_?cache|kv_?cache|(?<![a-z])mmha"
    r"|\bxqa_|vllm::|sgl_|tensorrt_llm",
    re.IGNORECASE,
)
_END: Final = re.compile(
    r"^aten::(embedding|_embedding_bag|nll_loss|nll_loss_nd|cross_entropy_loss|argmax|multinomial)"
    r"(?![a-z_])"
)
_FEW: Final = 2
"""Different sequence numbers from which on autograd records: else all have the same, or none."""

_ENOUGH: Final = 20
"""Operators from which on their names say what the program does."""


@dataclass(frozen=True)
class Workload:
    """What the program does.

    Attributes:
        kind: ``training``, ``inference`` or ``unknown``.
        why: what tells, in words; empty where nothing does.
        passes: how often the model ran from one end to the other, at most: how often the operators
            ran that stand at its ends; 0 where none was recorded.
    """

    kind: Kind
    why: str
    passes: int = 0

    @property
    def infers(self) -> bool:
        """Whether advice about batches, optimizers and backward passes is out of place."""
        return self.kind == "inference"


def workload(lane: Lane, read: Reader) -> Workload:
    """What the program on one device does.

    Args:
        lane: the device.
        read: gives tables as frames.
    """
    ranges = lane.host.ranges
    operators = _of(read("operator", "process_id", "name", "sequence_number"), lane)
    functions = _of(read("python_function", "process_id", "name"), lane)
    clues: tuple[tuple[Kind, str, Callable[[], bool]], ...] = (
        ("training", "kernels update parameters", lambda: _kernel(lane, words.OPTIMIZER_NAME)),
        ("training", "kernels belong to a backward pass", lambda: _kernel(lane, BACKWARD_KERNEL)),
        ("training", "a range says so", lambda: _any(ranges, _TRAINING_RANGE)),
        (
            "training",
            "operators belong to a backward pass",
            lambda: _any(operators, _BACKWARD_OPERATOR),
        ),
        (
            "inference",
            "kernels use a cache of keys and values",
            lambda: _kernel(lane, _SERVING_KERNEL),
        ),
        ("inference", "a range says so", lambda: _any(ranges, _SERVING)),
        ("inference", "a Python function says so", lambda: _any(functions, _SERVING)),
        (
            "training",
            "operators build the graph of a backward pass",
            lambda: _numbered(operators) >= _FEW,
        ),
        (
            "inference",
            "no operator belongs to a backward pass or an optimizer",
            lambda: len(operators) >= _ENOUGH,
        ),
    )
    passes = _passes(operators)
    for kind, why, seen in clues:
        if seen():
            return Workload(kind, why, passes)
    return Workload("unknown", "", passes)


def _passes(operators: Frame) -> int:
    """Runs of the operator that runs most often of those that no layer has, but a model's ends."""
    if not len(operators):
        return 0
    rows = shapes.hits(operators, "name", lambda text: _END.search(text) is not None)
    counts = np.bincount(operators["name"][rows]) if rows.any() else np.zeros(1, np.int64)
    return int(counts.max())


def _of(frame: Frame, lane: Lane) -> Frame:
    return frame.take(frame["process_id"] == lane.process_id) if len(frame) else frame


def _numbered(operators: Frame) -> int:
    """Different sequence numbers: autograd counts on where it will go back, and only there."""
    if not len(operators):
        return 0
    numbers = distinct_values(operators["sequence_number"])
    return int((numbers >= 0).sum())


def _kernel(lane: Lane, pattern: re.Pattern[str]) -> bool:
    return bool((lane.is_kernel & lane.ops.matches("name", pattern)).any())


def _any(frame: Frame, pattern: re.Pattern[str]) -> bool:
    def holds(text: str) -> bool:
        return pattern.search(text) is not None

    return bool(len(frame)) and bool(shapes.hits(frame, "name", holds).any())

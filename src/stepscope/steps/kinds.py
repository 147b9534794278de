"""What kind of step was found, and whether the program trains or only infers.

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
from stepscope.activity.device import GpuTimeline, Reader
from stepscope.activity.host import SMALL_COPY_BYTES
from stepscope.intervals.distinct import distinct_values
from stepscope.steps.model import MIN_STEPS, Inner, InnerKind, Kind, Steps
from stepscope.steps.repetition import Launches, find_repetition, replayed_graph
from stepscope.trace.frame import BoolArray, Frame, IntArray

Purpose = Literal["training", "inference", "unknown"]

BACKWARD_KERNEL: Final = re.compile(
    r"backward|(?<![a-z])bwd|_bwd_|Bwd(?![a-z])|wgrad|gradinput|gradweight|_grad_(input|weight)",
    re.IGNORECASE,
)
"""Kernels of a backward pass. Not ``dgrad``: the gradient of a convolution's input is what a
transposed convolution calculates on its way forward; who trains needs that of the weights, too."""
_BACKWARD_OPERATOR: Final = re.compile(r"^autograd::engine|Backward\d*$|^aten::\w+_backward\b")
_TRAINING_RANGE: Final = re.compile(
    r"(?<![a-z])(backward|bwd|optimi[sz]er|train(ing)?|1f1b|gradient_?tape)(?![a-z])",
    re.IGNORECASE,
)
_CLEARING_RANGE: Final = re.compile(r"(?<![a-z])zero_?grad(?![a-z])", re.IGNORECASE)
"""Ranges that clear gradients: a program that trains does so, whether it goes back there or not."""
_SERVING: Final = re.compile(
    r"(?<![a-z])(execute_(model|context|new|\d+)|generat(e|ion)|prefill|decode_?(step|forward|batch)?"
    r"|(?:model_?)?inference|predict(ion)?|denois(e|ing)|sampling_?step)(?![a-z])"
    r"|vllm|sglang|tensorrt_?llm|(?<![a-z])lmdeploy|gpu_model_runner|model_runner\.py"
    r"|execute_diffusion|^ExecutionContext::",
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
_END_KERNEL: Final = re.compile(
    r"(?<![a-z_])embedding_?(backward|bag)|nll_?loss|cross_?entropy", re.IGNORECASE
)
"""Kernels at the ends of a model, which no layer has; layers rotate embeddings, too."""

_FEW: Final = 2
"""Different sequence numbers from which on autograd records: else all have the same, or none."""

_CLEARS: Final = "a range clears gradients"

_BUILDS: Final = "operators build the graph of a backward pass"

_ENOUGH: Final = 20
"""Operators from which on their names say what the program does."""


@dataclass(frozen=True)
class Workload:
    """What the program does.

    Attributes:
        kind: ``training``, ``inference`` or ``unknown``.
        why: what tells, in words; empty where nothing does.
        passes: how often the model ran from one end to the other, at most: how often the operators
            ran that stand at its ends, or kernels where no operator is recorded; 0 where none was.
        goes_back: whether a backward pass or an update of parameters is seen or said.
    """

    kind: Purpose
    why: str
    passes: int = 0
    goes_back: bool = False

    @property
    def infers(self) -> bool:
        """Whether advice about batches, optimizers and backward passes is out of place."""
        return self.kind == "inference"


def workload(gpu: GpuTimeline, read: Reader) -> Workload:
    """What the program on one device does.

    Args:
        gpu: the device.
        read: gives tables as frames.
    """
    ranges = gpu.host.ranges
    operators = _of(read("operator", "process_id", "name", "sequence_number"), gpu)
    functions = _of(read("python_function", "process_id", "name"), gpu)
    clues: tuple[tuple[Purpose, str, Callable[[], bool]], ...] = (
        ("training", "kernels update parameters", lambda: _kernel(gpu, words.OPTIMIZER_NAME)),
        ("training", "kernels belong to a backward pass", lambda: _kernel(gpu, BACKWARD_KERNEL)),
        (
            "training",
            "a range says so",
            lambda: _any(ranges, _TRAINING_RANGE, but=_CLEARING_RANGE),
        ),
        (
            "training",
            "operators belong to a backward pass",
            lambda: _any(operators, _BACKWARD_OPERATOR),
        ),
        (
            "inference",
            "kernels use a cache of keys and values",
            lambda: _kernel(gpu, _SERVING_KERNEL),
        ),
        ("training", _CLEARS, lambda: _any(ranges, _CLEARING_RANGE)),
        ("inference", "a range says so", lambda: _any(ranges, _SERVING)),
        ("inference", "a Python function says so", lambda: _any(functions, _SERVING)),
        (
            "training",
            _BUILDS,
            lambda: _numbered(operators) >= _FEW,
        ),
        (
            "inference",
            "no operator belongs to a backward pass or an optimizer",
            lambda: len(operators) >= _ENOUGH,
        ),
    )
    passes = _passes(operators, gpu)
    for kind, why, seen in clues:
        if seen():
            return Workload(kind, why, passes, kind == "training" and why not in (_CLEARS, _BUILDS))
    return Workload("unknown", "", passes)


def _passes(operators: Frame, gpu: GpuTimeline) -> int:
    """Runs of the operator that runs most often of those that no layer has, but a model's ends.

    Of the kernel where no operator is recorded.
    """
    if len(operators):
        rows = words.hits(operators, "name", lambda text: _END.search(text) is not None)
        ends = operators["name"][rows]
    else:
        ends = gpu.ops["name"][gpu.is_kernel & gpu.ops.matches("name", _END_KERNEL)]
    return int(np.bincount(ends).max()) if len(ends) else 0


def _of(frame: Frame, gpu: GpuTimeline) -> Frame:
    return frame.take(frame["process_id"] == gpu.process_id) if len(frame) else frame


def _numbered(operators: Frame) -> int:
    """Different sequence numbers: autograd counts on where it will go back, and only there."""
    if not len(operators):
        return 0
    numbers = distinct_values(operators["sequence_number"])
    return int((numbers >= 0).sum())


def _kernel(gpu: GpuTimeline, pattern: re.Pattern[str]) -> bool:
    return bool((gpu.is_kernel & gpu.ops.matches("name", pattern)).any())


def _any(frame: Frame, pattern: re.Pattern[str], but: re.Pattern[str] | None = None) -> bool:
    def holds(text: str) -> bool:
        return pattern.search(text) is not None and not (but and but.search(text))

    return bool(len(frame)) and bool(words.hits(frame, "name", holds).any())


_DIFFUSION = re.compile(r"diffusion|denois|(?<![a-z])unet|stable_?diff", re.IGNORECASE)
_LAYER = re.compile(
    r"(?<![a-z])(layers?|blocks?|attn|attention|mlp|ffn|(de|en)coder)(?![a-z])", re.IGNORECASE
)
_ATTENTION_KERNEL = re.compile(
    r"flash|fmha|attention|attn|softmax|paged|(?<![a-z])mha(?![a-z])", re.IGNORECASE
)
_LEAST: Final = 0.5
"""What repeats inside a step is worth naming if it makes up this share of its device time."""


def kind_of(steps: Steps, gpu: GpuTimeline, does: Workload) -> Kind:
    """What one step is: by the name of its mark, else by whether the program trains.

    Args:
        steps: the steps.
        gpu: the device.
        does: whether the program trains.
    """
    first = _first_mark(steps, gpu)
    known: list[tuple[Kind, Callable[[], bool]]] = [
        ("whole_capture", lambda: steps.source == "whole_capture"),
        ("decode_step", lambda: words.is_decode(first)),
        ("denoising_step", lambda: words.is_denoising(first)),
        ("training_step", lambda: does.goes_back),
        ("graph_replay", lambda: steps.kind == "graph_replay"),
        ("engine_iteration", lambda: bool(words.engine_family(first))),
        # also where autograd keeps what a backward pass needs that is not in the capture
        ("forward", lambda: does.infers or does.kind == "training"),
    ]
    return next((kind for kind, holds in known if holds()), "step")


def _first_mark(steps: Steps, gpu: GpuTimeline) -> str:
    """Name of the first range that marks a step; empty where none does."""
    ranges = gpu.host.ranges
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
    # the first launch of the next step is not this one's
    until = np.append(steps.begin_ns[1:], max(steps.end_ns, int(steps.begin_ns[-1])) + 1)
    enqueued = found.gpu.enqueue_begin_ns[found.op]
    rows = np.flatnonzero((enqueued >= steps.begin_ns[usual]) & (enqueued < until[usual]))
    inside = found.take(rows)
    repeated = find_repetition(inside)
    start_ns = found.gpu.ops["start_ns"][inside.op]
    anchors = (repeated.anchors if repeated else np.empty(0, np.int64), replayed_graph(inside))
    for at in anchors:
        every = int(np.median(np.diff(np.sort(start_ns[at])))) if len(at) >= MIN_STEPS else 0
        if every and every * len(at) >= _LEAST * int(np.ptp(start_ns)):
            # a mark may end while the device still runs what was launched under it
            within = int((start_ns[at] + every // 2 <= bounds_ns[usual + 1]).sum())
            if within == len(at):
                every = min(every, int(length[usual]) // within)
            return (Inner(_inner_kind(inside, at, does), len(at), every, within),)
    return ()


def with_several(kind: Kind, inner: tuple[Inner, ...]) -> Kind:
    """What a step is that holds several of what it would be called: batches, denoising steps."""
    several = any(part.kind in ("batch", "denoising_step", "training_step") for part in inner)
    return "engine_iteration" if several and kind == "forward" else kind


def _inner_kind(inside: Launches, anchors: IntArray, does: Workload) -> InnerKind:
    """What a repetition inside a step is, as far as its content tells."""
    gpu, n = inside.gpu, len(anchors)

    def in_most(mask: BoolArray) -> bool:
        held = distinct_values(np.searchsorted(anchors, np.flatnonzero(mask), side="right"))
        return len(held) >= 0.8 * n

    def kernels(pattern: re.Pattern[str]) -> BoolArray:
        return gpu.ops.matches("name", pattern)[inside.op]

    def named(pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(name) for name in gpu.host.ranges.texts.get("name", []))

    # where an update is named, other kernels over lists of tensors copy and scale gradients (FSDP)
    named_update = kernels(words.OPTIMIZER_NAME)
    updates = named_update if named_update.any() else inside.optimizer
    large = gpu.ops["bytes"][inside.op] > SMALL_COPY_BYTES
    known: list[tuple[InnerKind, Callable[[], bool]]] = [
        ("training_step", lambda: in_most(updates)),
        ("denoising_step", lambda: named(_DIFFUSION)),
        ("batch" if does.infers else "micro_batch", lambda: in_most(inside.upload & large)),
        ("layer", lambda: named(_LAYER)),
        ("graph_replay", lambda: in_most(inside.several)),
        ("layer", lambda: in_most(kernels(_ATTENTION_KERNEL))),
    ]
    return next((kind for kind, holds in known if holds()), "repetition")

"""What the search for steps gives: where they begin, what marks them, what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from stepscope.trace.frame import IntArray

Kind = Literal[
    "training_step",
    "forward",
    "decode_step",
    "engine_iteration",
    "denoising_step",
    "graph_replay",
    "step",
    "whole_capture",
]
"""What one step is; ``step`` where nothing tells whether the program trains."""

InnerKind = Literal[
    "training_step", "batch", "micro_batch", "denoising_step", "graph_replay", "layer", "repetition"
]
"""What repeats inside one step."""

INNER_PLURAL: Final[dict[str, str]] = {
    "training_step": "training steps",
    "batch": "batches",
    "micro_batch": "micro-batches",
    "denoising_step": "denoising steps",
    "graph_replay": "graph replays",
    "layer": "layers",
    "repetition": "repetitions of one sequence of kernels",
}

Source = Literal[
    "user",
    "profiler_step",
    "numbered_range",
    "repeating_range",
    "single_range",
    "optimizer_range",
    "kernel_sequence",
    "graph_replay",
    "whole_capture",
]
"""What the steps were found by; ``user`` where the caller said what a step is."""


@dataclass(frozen=True)
class Inner:
    """What repeats inside one step.

    Attributes:
        kind: what it is.
        count: how many of them a step holds.
        median_ns: from one to the next on the device, ns.
    """

    kind: InnerKind
    count: int
    median_ns: int


@dataclass(frozen=True)
class Steps:
    """Where the steps begin on the host.

    Attributes:
        begin_ns: begin of each step on the host, ascending.
        end_ns: the host's end of the last step.
        source: what the steps were found by.
        message: how they were found, in one sentence.
        label: range name or stem that marks them; empty where none does.
        kind: what one step is.
        inner: what repeats inside a step, if anything was seen to.
    """

    begin_ns: IntArray
    end_ns: int
    source: Source
    message: str
    label: str = ""
    kind: Kind = "step"
    inner: tuple[Inner, ...] = ()

    @property
    def open_end(self) -> bool:
        """Whether nothing marks the end of the last step."""
        return self.source in ("kernel_sequence", "graph_replay")

    @property
    def marked(self) -> bool:
        """Whether the program or the user marks the steps, so that none was inferred."""
        return self.source not in ("kernel_sequence", "graph_replay", "whole_capture")

    def __len__(self) -> int:
        return len(self.begin_ns)


@dataclass(frozen=True)
class StepChoice:
    """What the user says a step is; nothing chosen lets the capture tell.

    Attributes:
        mark: name of a range, or a regular expression that finds names of ranges; ``none`` for
            the whole capture as one step.
        kernel: regular expression that finds names of kernels, each of which begins a step.
    """

    mark: str = ""
    kernel: str = ""

    def __bool__(self) -> bool:
        return bool(self.mark or self.kernel)

    @property
    def text(self) -> str:
        """The options as they are written on a command line; empty for none."""
        parts = [("--step", self.mark), ("--step-kernel", self.kernel)]
        return " ".join(f"{name} {value!r}" for name, value in parts if value)


AUTOMATIC: Final = StepChoice()
"""The capture itself tells what a step is."""

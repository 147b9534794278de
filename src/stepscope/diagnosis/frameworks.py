"""Advice in the words of the framework that the program uses.

Causes speak PyTorch, which most captures are of. Programs compiled by XLA, which here means JAX,
are known by the ranges that XLA puts around its programs and their parts. A program in which
nothing shows a framework makes its own calls, and advice names those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Final

from stepscope.activity import names as words
from stepscope.activity.device import GpuTimeline
from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Detection

Detect = Callable[[Case], Detection | None]

_XLA: Final = re.compile(r"^(?:TSL:)?(?:XlaModule|Thunk):#|:XLA GPU module$|^PjitFunction\(")
_INSTEAD: Final = {captures.STACKS: captures.SAMPLES}
"""What torch.profiler would record, by the collector."""
_OF_STEPS: Final = re.compile(r" --steps \d+")


def is_jax(gpu: GpuTimeline) -> bool:
    """Whether a device's process runs programs of XLA."""
    return bool(gpu.host.ranges.matches("name", _XLA).any())


def advised_where(
    applies: Callable[[Case], bool],
    advice: Sequence[str],
    adapted: Callable[[Detection], Detection],
) -> Callable[[Detect], Detect]:
    """Give other advice about some programs.

    Args:
        applies: whether a program is one of them; asked where something was found.
        advice: what to change, most effective first.
        adapted: what else changes.
    """

    def around(detect: Detect) -> Detect:
        @wraps(detect)
        def detected(case: Case) -> Detection | None:
            found = detect(case)
            if found is None or not applies(case):
                return found
            return replace(adapted(found), recommendations=list(advice))

        return detected

    return around


def in_jax(*advice: str) -> Callable[[Detect], Detect]:
    """Give other advice where the program is one of JAX.

    Args:
        advice: what to change, most effective first.
    """
    return advised_where(lambda case: is_jax(case.explanation.gpu), advice, _with_collector)


def _with_collector(found: Detection) -> Detection:
    capture = found.next_capture
    return replace(found, next_capture=_INSTEAD.get(capture or "", capture))


def is_torch(case: Case) -> bool:
    """Whether anything shows that a device's process runs PyTorch."""
    gpu, read = case.explanation.gpu, case.device.read
    if any(len(read(table, "process_id")) for table in ("operator", "python_function")):
        return True
    return bool(
        gpu.ops.matches("name", words.TORCH_NAME).any()
        or gpu.host.ranges.matches("name", words.TORCH_NAME).any()
    )


def is_own_program(case: Case) -> bool:
    """Whether nothing shows that a framework makes the calls, nor training or serving."""
    unknown = case.explanation.workload.kind == "unknown"
    return unknown and not is_torch(case) and not is_jax(case.explanation.gpu)


def in_cuda(*advice: str) -> Callable[[Detect], Detect]:
    """Give other advice where nothing shows a framework, training or serving: a program of its own.

    Args:
        advice: what to change, most effective first.
    """
    return advised_where(is_own_program, advice, of_no_training)


def of_no_training(found: Detection) -> Detection:
    """What was found, of a program that does not train."""
    return replace(found, message=found.message.replace("training thread", "launching thread"))


def for_program(command: str | None, case: Case) -> str | None:
    """The capture that a cause asks for, as it can be made of the program.

    ``--steps`` and torch.profiler count the steps of an optimizer. Where nothing shows that the
    program trains, what works without one is offered instead.

    Args:
        command: as the cause names it, for programs that train.
        case: the device.
    """
    if command is None or case.explanation.workload.kind == "training":
        return command
    return _OF_STEPS.sub("", _INSTEAD.get(command, command))

"""Advice that fits what the program does: an inference has no optimizer and no epoch to load."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.diagnosis.cause import Case
from stepscope.diagnosis.frameworks import Detect, advised_where, is_jax, of_no_training


def in_inference(*advice: str) -> Callable[[Detect], Detect]:
    """Give other advice where the program infers, as far as its names tell.

    Args:
        advice: what to change, most effective first.
    """
    return advised_where(_infers, advice, of_no_training)


def _infers(case: Case) -> bool:
    e = case.explanation
    return e.workload.infers and not is_jax(e.gpu)

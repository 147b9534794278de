"""Advice that fits what the program does: an inference has no optimizer and no epoch to load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from stepscope.diagnosis.cause import Case, Detection
from stepscope.diagnosis.frameworks import is_jax

Detect = Callable[[Case], Detection | None]


def in_inference(*advice: str) -> Callable[[Detect], Detect]:
    """Give other advice where the program infers, as far as its names tell.

    Args:
        advice: what to change, most effective first.
    """

    def around(detect: Detect) -> Detect:
        @wraps(detect)
        def detected(case: Case) -> Detection | None:
            found = detect(case)
            e = case.explanation
            if found is None or not e.workload.infers or is_jax(e.gpu):
                return found
            message = found.message.replace("training thread", "launching thread")
            return replace(found, message=message, recommendations=list(advice))

        return detected

    return around

"""Judging names by their shape gives what judging each name gives."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.activity import names as words
from stepscope.kernels import kernels
from stepscope.trace.frame import Frame

PREDICATES = (
    words.is_input_range,
    words.is_step_range,
    words.is_checkpoint_range,
    words.is_compile_range,
    words.holds_a_step,
    kernels._is_optimizer,
    kernels._is_backward,
    kernels._is_backward_operator,
)
PARTS = ["step", "iter", "batch", "data", "load", "Optimizer.step#", "backward", "Backward", "opt"]
PARTS += ["ProfilerStep#", "epoch", "ckpt", "save", "_", " ", "#", ".", "a", "autograd::engine"]
PARTS += ["0", "7", "42", "1234567", "٣", "é", "compile", "warmup", "val", "inputs", "\n"]
NAMES = st.lists(st.lists(st.sampled_from(PARTS), max_size=5).map("".join), min_size=1, max_size=12)


@pytest.mark.parametrize("holds", PREDICATES)
@given(texts=NAMES)
def test_names_of_one_shape_are_judged_as_each_by_itself(
    holds: Callable[[str], bool], texts: list[str]
) -> None:
    assert words.judged(texts, holds).tolist() == [holds(text) for text in texts]


@given(texts=NAMES, label=st.sampled_from(["", "step", "step1", "it 4", "batch_", "a"]))
def test_names_that_mark_steps(texts: list[str], label: str) -> None:
    wanted = [words.marks_steps(text, label) for text in texts]
    assert words.marking_steps(texts, label).tolist() == wanted


def test_a_shape_is_asked_once() -> None:
    asked = []

    def holds(text: str) -> bool:
        asked.append(text)
        return bool(re.search("request", text))

    texts = [f"request {number}" for number in range(5000)] + ["other"]
    assert words.judged(texts, holds).sum() == 5000
    assert len(asked) == 2


def test_rows_with_null_satisfy_nothing() -> None:
    frame = Frame({"name": np.array([1, -1, 0], np.int32)}, {"name": ["data", "step 3"]})
    assert words.hits(frame, "name", words.is_step_range).tolist() == [True, False, False]


def test_lists_that_are_gone_are_not_mistaken_for_others() -> None:
    for number in range(50):  # a new list may get the place in memory of an old one
        texts = [f"{'step' if number % 2 else 'kernel'} {i}" for i in range(3)]
        assert words.judged(texts, words.is_step_range).tolist() == [bool(number % 2)] * 3

"""Expressions of users: linear in time, refused in one line, given up in time."""

from __future__ import annotations

import re

import pytest
from tests.cli.command import Stepscope, is_one_line

from stepscope.api.inputs import bundled_capture
from stepscope.trace.errors import GivenUpError, LimitError, UsageError
from stepscope.trace.regex import regex

NAMES = ["void gemm<float>", "Memcpy HtoD", "step_12", "", "größe", "a\ufffdb", "x" * 3000]


@pytest.mark.parametrize(
    "text",
    ["gemm", "^step_[0-9]+$", "(?i)memcpy", "ö", r"\bHtoD\b", "", "x{500}", "<(float|half)>"],
)
def test_the_same_is_found_as_with_python(text: str) -> None:
    assert regex(text).search(NAMES).tolist() == [bool(re.search(text, name)) for name in NAMES]


def test_case_and_broken_text() -> None:
    assert regex("MEMCPY", ignore_case=True).search(NAMES).tolist()[:2] == [False, True]
    assert regex("b$").search(["\udcffb", "\udcff"]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(", "missing )"),
        ("[", "missing ]"),
        ("*", "no argument for repetition"),
        ("a(?=b)", "no look-ahead, look-behind or back-references"),
        (r"(a)\1", "no look-ahead, look-behind or back-references"),
        ("(?P<n>a)(?P=n)", "no look-ahead, look-behind or back-references"),
        ("((a{100}){100}){100}", "repetition size"),
        ("\udcff", "is no regular expression"),
        ("a\nb(", "missing )"),
        ("a" * 2000, "longer than 1,000 characters"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        regex(text, "--step")
    assert str(refused.value).startswith("--step ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["([a-z_]+)+([a-z]+)+$X", "(a|a)*$X", "(x+x+)+y"])
def test_what_python_never_ends_is_found_at_once(text: str) -> None:
    names = ["void_kernel_name_" * 50, "x" * 2000, "a" * 2000] * 100
    assert not regex(text).search(names).any()


def test_a_large_expression_ends_in_time() -> None:
    slow = ".{1000}" * 13 + "X"
    with pytest.raises(LimitError, match="takes too long; give a simpler expression"):
        regex(slow).search(["void_kernel_name" * 120] * 1_000_000, timeout_s=0.1)
    with pytest.raises(GivenUpError):
        regex("a").search(NAMES, given_up=lambda: True)


SLOW = "([a-z_]+)+([a-z]+)+$X"
"""On a kernel's name, Python's engine tries for longer than anyone waits."""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["steps", "--step", SLOW], "names no range"),
        (["steps", "--step-kernel", SLOW], "finds no kernel"),
        (["whatif", "--scale-kernel", f"{SLOW}=0.5"], "no kernel in the replayed steps matches"),
        (["steps", "--step", "(?!a)"], "has no look-ahead"),
        (["steps", "--step-kernel", "(?!a)"], "has no look-ahead"),
        (["whatif", "--scale-kernel", "(?!a)=0.5"], "has no look-ahead"),
    ],
)
def test_every_option_that_takes_one(words: list[str], message: str, reader: Stepscope) -> None:
    done = reader(*words, bundled_capture(), expect=2)
    assert done.stdout == ""
    assert message in is_one_line(done.stderr)

"""The commands that findings name can be run as they stand."""

from __future__ import annotations

import shlex

import pytest

from stepscope.cli.run import command
from stepscope.diagnosis import captures

NAMED = {name: value for name, value in vars(captures).items() if name.isupper()}


@pytest.mark.parametrize("line", NAMED.values(), ids=NAMED)
def test_a_named_capture_is_a_command(line: str) -> None:
    stepscope, name, *arguments = shlex.split(line)
    assert (stepscope, name) == ("stepscope", "run")
    context = command.make_context(name, arguments)  # raises on a wrong option or value
    assert list(context.params["program"]) == ["python", "train.py"]

"""The commands that findings name can be run as they stand."""

from __future__ import annotations

import shlex

import pytest

from stepscope.cli.main import cli
from stepscope.cli.run import command
from stepscope.diagnosis import captures

NAMED = {
    name: value for name, value in vars(captures).items() if name.isupper() and name != "RECORDS"
}


@pytest.mark.parametrize("line", NAMED.values(), ids=NAMED)
def test_a_named_capture_is_a_command(line: str) -> None:
    stepscope, name, *arguments = shlex.split(line)
    assert (stepscope, name) == ("stepscope", "run")
    # with the settings of the whole command line, for click keeps the help option of the first call
    context = command.make_context(name, arguments, **cli.context_settings)  # raises where wrong
    assert list(context.params["program"]) == ["python", "train.py"]

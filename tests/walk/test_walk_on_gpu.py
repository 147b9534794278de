"""The walk as a test: every documented command on three unlike programs, on a GPU."""

from __future__ import annotations

import pytest
from tests.walk.walk import walk


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_every_documented_command_does_what_it_says() -> None:
    wrong = [(one.program, " ".join(one.words), one.wrong) for one in walk(10.0) if one.wrong]
    assert wrong == []

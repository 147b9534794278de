"""Fixtures of the tests of exports."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import Stepscope


@pytest.fixture
def stepscope(tmp_path: Path) -> Stepscope:
    """The command line with an empty cache."""
    return Stepscope(tmp_path / "cache")

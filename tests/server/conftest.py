"""One server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import Stepscope
from tests.server.served import Served, serving

from stepscope.session import bundled_capture


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with serving(bundled_capture()) as found:
        yield found


@pytest.fixture
def stepscope(tmp_path: Path) -> Stepscope:
    """The command line with an empty cache."""
    return Stepscope(tmp_path / "cache")

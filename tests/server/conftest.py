"""One server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope
from tests.server.browser import launched
from tests.server.served import Served, serving

from stepscope.api.inputs import bundled_capture


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with serving(bundled_capture()) as found:
        yield found


@pytest.fixture
def stepscope(tmp_path: Path) -> Stepscope:
    """The command line with an empty cache."""
    return Stepscope(tmp_path / "cache")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all tests; each opens pages of its own in it."""
    with launched() as found:
        yield found

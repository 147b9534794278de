"""A PostgreSQL server for the tests of the run history."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.postgres import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason="needs psycopg, which the development lock holds")
    try:
        running = Server()
    except RuntimeError as reason:
        pytest.skip(str(reason))
    try:
        yield running
    finally:
        running.remove()

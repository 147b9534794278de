"""Fixtures of the command-line tests."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.cli.command import Stepscope
from tests.support.captures import DATA, unpack


@pytest.fixture
def stepscope(tmp_path: Path) -> Stepscope:
    """The command line with an empty cache."""
    return Stepscope(tmp_path / "cache")


@pytest.fixture(scope="session")
def unpacked_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captures")


@pytest.fixture(scope="session")
def sqlite_capture(unpacked_once: Path) -> Path:
    """A small whole Nsight Systems export; do not change it."""
    return unpack(DATA / "nsys" / "cnn_disk.sqlite.xz", unpacked_once)


@pytest.fixture(scope="session")
def kineto_capture() -> Path:
    """A small whole PyTorch trace; do not change it."""
    return DATA / "kineto" / "cnn_disk.json.gz"


@pytest.fixture(scope="session")
def warm(sqlite_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Stepscope:
    """The command line with a cache that holds the small export already; only for reading."""
    command = Stepscope(tmp_path_factory.mktemp("warm") / "cache")
    command("info", sqlite_capture)
    return command


def changed(capture: Path, target: Path, *statements: str) -> Path:
    """A copy of a SQLite export after some statements."""
    target.write_bytes(capture.read_bytes())
    with sqlite3.connect(target) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return target

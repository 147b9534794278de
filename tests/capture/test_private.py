"""Captures hold command lines: nobody but their owner may read them, at no moment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.capture.conftest import Program, read
from tests.cli.command import Stepscope
from tests.support.captures import DATA

from stepscope.capture.collector import build

LOOK = """
import json, pathlib
push("step"); launch(50); pop()
mine = pathlib.Path({mine!r})
mine.write_text("the program's own file")
raw = pathlib.Path(os.environ["STEPSCOPE_CAPTURE"]).parent
seen = {{}}
for _ in range(20):
    for path in (raw.parent, *raw.rglob("*")):
        seen[str(path)] = max(seen.get(str(path), 0), path.stat().st_mode & 0o777)
    time.sleep(0.02)
mine.with_suffix(".seen").write_text(json.dumps(seen))
"""


@pytest.fixture(params=[0, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """What is open to whom, by name; the folder itself with its own."""
    paths = [folder, *folder.rglob("*")]
    return {path.name: path.stat().st_mode & 0o777 for path in paths if not path.is_symlink()}


def open_to_others(folder: Path) -> dict[str, int]:
    return {name: mode for name, mode in modes(folder).items() if mode & 0o077}


def test_a_capture_is_private_from_its_first_moment(
    program: Program, tmp_path: Path, umask: int
) -> None:
    mine = tmp_path / "mine"
    outcome = program.record(LOOK.format(mine=str(mine)), threads_hz=50, keep_raw=True)
    assert os.umask(umask) == umask  # and so does this process
    assert mine.stat().st_mode & 0o777 == 0o666 & ~umask  # the program keeps its umask
    seen = json.loads(mine.with_suffix(".seen").read_text())
    assert any(name.endswith(".raw") for name in seen)
    assert {name: mode for name, mode in seen.items() if mode & 0o077} == {}
    assert open_to_others(outcome.folder) == {}
    trace = read(outcome.raw[0])
    assert trace.rows("gpu_op") == 50
    assert open_to_others(trace.folder) == {}
    assert modes(trace.folder)[trace.folder.name] == 0o700
    assert modes(trace.folder)["gpu_op.parquet"] == 0o600
    assert modes(trace.folder)["meta.json"] == 0o600


def test_the_cache_is_private(tmp_path: Path, umask: int) -> None:
    command = Stepscope(tmp_path / "parent" / "other")
    program = (
        f"import os, sys; os.umask({umask}); sys.argv[0] = 'stepscope'\n"
        "from stepscope.cli.main import main; main()"
    )
    done = command.ends("info", DATA / "kineto" / "cnn_small.json.gz", program=program)
    assert done.returncode == 0, done.stderr
    assert open_to_others(command.cache) == {}
    assert (tmp_path / "parent").stat().st_mode & 0o777 == 0o777 & ~umask


def test_what_is_compiled_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library in a folder that others may write to would be loaded into programs."""
    folder = tmp_path / "cache" / "collector"
    monkeypatch.setattr(build, "compiler", lambda: "/bin/false")
    before = os.umask(0)
    build.compile_into(folder)
    os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in (folder.parent, folder)] == [0o700, 0o700]

"""Digests made of captures: exit codes, work that goes on, addresses, a cluster."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.command import Stepscope, is_one_line
from tests.jobs.test_engine_faults import local_cluster
from tests.support.captures import unpack
from tests.support.s3 import s3_server

from stepscope.api import digest_making
from stepscope.api.digest_files import SUFFIX, read_digests
from stepscope.api.digest_making import digest_captures
from stepscope.api.items import Engine
from stepscope.cli.main import cli
from stepscope.jobs.job import diagnose_job
from stepscope.trace.errors import StorageError

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Two ranks and a file that is none."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in (0, 1):
        unpacked = unpack(DATA / "ranks" / f"ddp_imbalance.rank{rank}.sqlite.xz")
        shutil.copy(unpacked, folder / f"rank{rank}.sqlite")
    (folder / "rank2.sqlite").write_bytes(b"SQLite format 3\0" + b"\1" * 500)
    return sorted(folder.iterdir())


def digested(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["digest", *map(str, words)])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def of(*ranks: int) -> list[str]:
    return [f"rank{rank}.sqlite{SUFFIX}" for rank in ranks]


def told(folder: Path) -> tuple[str, list[int]]:
    found = diagnose_job([d for path in sorted(folder.iterdir()) for d in read_digests(path)])
    return found.verdict, found.findings[0].ranks


def test_a_broken_capture_is_named_and_the_others_stay(inputs: list[Path], tmp_path: Path) -> None:
    done = digested("-j", "2", *inputs, "-o", tmp_path / "made")
    assert (done.exit_code, names(tmp_path / "made")) == (1, of(0, 1))
    assert "rank2.sqlite" in done.stderr
    assert done.stderr.count("\n") == 1
    assert told(tmp_path / "made") == ("load_imbalance", [1])
    done = digested(*inputs[1:], "-o", tmp_path / "one", "--format", "json")
    found = json.loads(done.stdout)
    assert (done.exit_code, len(found["digests"]), len(found["skipped"])) == (1, 1, 1)
    assert "rank2.sqlite" in done.stderr


def test_whole_none_and_strict_have_exit_codes_of_their_own(
    reader: Stepscope, inputs: list[Path], tmp_path: Path
) -> None:
    done = digested(*inputs[:2], "-o", tmp_path / "whole")
    assert (done.exit_code, done.stderr) == (0, "")
    # a path that is not there is left out like a capture that is damaged
    done = digested(inputs[0], tmp_path / "gone.sqlite", "-o", tmp_path / "gone")
    assert (done.exit_code, names(tmp_path / "gone")) == (1, of(0))
    for words in ([inputs[2]], [inputs[2], tmp_path / "gone.sqlite"], [*inputs, "--strict"]):
        failed = reader("digest", *words, "-o", tmp_path / "none", expect=2)
        assert "rank2.sqlite" in failed.stderr
        assert is_one_line(failed.stderr)


def test_an_interrupted_run_goes_on_where_it_was(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures, folder = [str(path) for path in inputs[:2]], tmp_path / "made"
    asked: list[str] = []
    make = digest_making.make_digest

    def counted(capture: Path, options: Any = None) -> Any:
        asked.append(capture.name)
        if len(asked) == 2:
            raise StorageError("no space left")
        return make(capture, options)

    monkeypatch.setattr(digest_making, "make_digest", counted)
    with pytest.raises(StorageError, match="run the same again"):
        digest_captures(captures, folder, {}, engine=Engine(1))
    assert asked == ["rank0.sqlite", "rank1.sqlite"]
    assert names(folder) == [".partial"]
    digest_captures(captures, folder, {}, engine=Engine(1))
    assert asked == ["rank0.sqlite", "rank1.sqlite", "rank1.sqlite"]
    assert names(folder) == of(0, 1)
    assert told(folder) == ("load_imbalance", [1])


def test_a_kept_digest_of_another_capture_or_option_is_not_used(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second capture fails each time, so that what was made of the first one is kept."""
    captures, folder = [str(path) for path in inputs[:2]], tmp_path / "made"
    asked: list[str] = []
    make = digest_making.make_digest

    def first_only(capture: Path, options: Any = None) -> Any:
        if capture.name == "rank1.sqlite":
            raise StorageError("no space left")
        asked.append(capture.name)
        return make(capture, options)

    def interrupted(options: Any) -> int:
        with pytest.raises(StorageError):
            digest_captures(captures, folder, options, engine=Engine(1))
        return len(asked)

    monkeypatch.setattr(digest_making, "make_digest", first_only)
    assert (interrupted({}), interrupted({})) == (1, 1)
    assert interrupted({"step": "none"}) == 2
    inputs[0].touch()
    assert (interrupted({}), interrupted({})) == (3, 3)
    assert interrupted({"again": True}) == 4


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The files of a folder behind a server on the loopback interface."""
    pytest.importorskip("aiohttp", reason="needs fsspec's HTTP: pip install aiohttp")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_digests_are_read_from_addresses() -> None:
    files = sorted(path.name for path in (DATA / "digests").glob("healthy_four.*"))
    with served(DATA / "digests") as address:
        done = CliRunner().invoke(cli, ["job", *(f"{address}/{name}" for name in files)])
        assert done.exit_code == 0, done.output
        assert "3 of 4 ranks" in done.output
        missing = CliRunner().invoke(cli, ["job", f"{address}/none{SUFFIX}"])
    assert missing.exit_code != 0


def test_captures_behind_addresses_give_the_digests_of_files(
    inputs: list[Path], tmp_path: Path
) -> None:
    with served(inputs[0].parent) as address:
        urls = [f"{address}/{path.name}" for path in inputs]
        done = digested(*urls, f"{address}/gone.sqlite", "-o", tmp_path / "away")
    assert (done.exit_code, names(tmp_path / "away")) == (1, of(0, 1))
    assert [name in done.stderr for name in ("rank2.sqlite", "gone.sqlite")] == [True, True]
    digested(*inputs, "-o", tmp_path / "here")
    for number, name in enumerate(of(0, 1)):
        (away,) = read_digests(tmp_path / "away" / name, whole=True)
        (here,) = read_digests(tmp_path / "here" / name, whole=True)
        assert away.facts.pop("capture") == urls[number]
        here.facts.pop("capture")
        assert (away.facts, away.n_steps) == (here.facts, here.n_steps)


def test_digests_of_captures_on_an_s3_server(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(monkeypatch) as fs:
        fs.mkdir("digested")
        for path in inputs:
            fs.put(str(path), f"digested/run/{path.name}")
        done = digested("s3://digested/run/*.sqlite", "-o", tmp_path / "made")
    assert (done.exit_code, names(tmp_path / "made")) == (1, of(0, 1)), done.output
    assert told(tmp_path / "made") == ("load_imbalance", [1])
    (first,) = read_digests(tmp_path / "made" / of(0)[0])
    assert first.facts["capture"] == "s3://digested/run/rank0.sqlite"


def test_a_capture_deleted_midway_costs_a_cluster_only_its_digest(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there when the folder is listed, and gone when a worker comes to it."""
    make = digest_making.make_digest

    def first_deletes_the_last(capture: Path, options: Any = None) -> Any:
        inputs[-1].unlink(missing_ok=True)
        return make(capture, options)

    shutil.copy(inputs[0], inputs[-1])  # all three are whole
    monkeypatch.setattr(digest_making, "make_digest", first_deletes_the_last)
    with local_cluster() as cluster:  # its one worker is a thread of this process
        done = digested(
            inputs[0].parent, "-o", tmp_path / "made", "--cluster", cluster.scheduler_address
        )
    assert (done.exit_code, names(tmp_path / "made")) == (1, of(0, 1)), done.output
    assert "rank2.sqlite" in done.stderr
    assert "Traceback" not in done.stderr
    assert told(tmp_path / "made") == ("load_imbalance", [1])

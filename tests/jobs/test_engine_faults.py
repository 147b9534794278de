"""Faults while recipes and digests are made: what is left is whole, or is said not to be."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.cli.command import Stepscope, is_one_line
from tests.jobs.test_recipe_engine import ROOT, TASK, inputs, states, values
from tests.support.captures import DATA, unpack

from stepscope.api import items
from stepscope.api import recipes as facade
from stepscope.api.digest_files import write_digests
from stepscope.api.digest_making import digest_captures
from stepscope.api.recipes import Engine, run_recipe
from stepscope.jobs.engine import run
from stepscope.jobs.engine.work import Item
from stepscope.trace.errors import InputError, StorageError, UsageError

RECIPE = "cuda_gpu_kern_sum"


@pytest.fixture
def captures(tmp_path: Path) -> list[Path]:
    """Three captures of one job, which each test may damage."""
    folder = tmp_path / "job"
    folder.mkdir()
    good = unpack(DATA / "nsys" / "cnn_small.sqlite.xz")
    return [shutil.copy(good, folder / f"run.rank{rank}.sqlite") for rank in range(3)]


def asked(captures: list[Path], folder: Path, **more: Any) -> Any:
    return run_recipe(RECIPE, captures, folder, engine=Engine(1), page=False, **more)


def kept(folder: Path) -> list[Path]:
    return sorted((folder / ".partial").glob("*.parquet"))


def is_whole(folder: Path) -> bool:
    """Whether a folder passes for a whole result."""
    path = folder / "recipe.json"
    return path.exists() and bool(json.loads(path.read_text())["complete"])


def wait_for(what: Callable[[], object]) -> None:
    """Wait for something that another process does; the test's own limit ends it."""
    while not what():
        time.sleep(0.01)


# --- a process that is killed ---------------------------------------------------------------------


def test_a_process_killed_from_outside_is_replaced(tmp_path: Path) -> None:
    """The kernel kills a process wherever it is, not where the task says so."""
    items = inputs(tmp_path, "a", "waits", "ab", "abc")
    mark = Path(items[1].place).with_suffix(".pid")

    def kill() -> None:
        wait_for(lambda: mark.exists() and mark.read_text())
        os.kill(int(mark.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = run.mapped(TASK, items, tmp_path / "out", Engine(jobs=2))
    killer.join()
    assert states(found) == ["done"] * 4
    assert values(found) == [1, 5, 2, 3]


def test_a_capture_whose_process_dies_each_time_is_named_and_not_in_the_result(
    reader: Stepscope, captures: list[Path], tmp_path: Path
) -> None:
    recipe, mark, out = tmp_path / "own.py", tmp_path / "mark", tmp_path / "out"
    recipe.write_text(
        "import os, signal\n"
        "from stepscope.jobs.recipes import Output, Recipe\n"
        "import pyarrow as pa\n"
        "def ask(capture, values):\n"
        f"    if os.path.exists({str(mark)!r}) and 'rank1' in str(capture.trace.path):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return pa.table({'one': [1]})\n"
        "RECIPE = Recipe('own', 'Own', 'Ranks.', ask, (Output('ranks', 'A rank.',"
        " {'rank': 'rank', 'one': 'one'}, 'SELECT rank, one FROM part ORDER BY rank'),),"
        " columns=('one',))\n"
    )
    mark.touch()
    command = ("recipe", "--file", recipe, *captures, "--no-page", "-j", "2", "-o", out)
    done = reader(*command, expect=1)
    assert "1 capture could not be read and is NOT in the result" in done.stdout
    assert f"left out: {captures[1]}: its process was ended by SIGKILL" in done.stdout
    result = json.loads((out / "recipe.json").read_text())
    assert [i["state"] for i in result["inputs"]] == ["done", "killed", "done"]
    assert "SIGKILL" in result["inputs"][1]["message"]
    assert not is_whole(out)
    assert len(kept(out)) == 2
    mark.unlink()
    reader(*command)
    assert is_whole(out)
    assert pq.read_table(out / "ranks.parquet").num_rows == 3


def test_workers_end_with_the_command_that_is_killed(tmp_path: Path) -> None:
    items = inputs(tmp_path, "waits", "waits")
    marks = [Path(item.place).with_suffix(".pid") for item in items]
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from stepscope.jobs.engine import run\n"
        "from stepscope.jobs.engine.work import Item, Task\n"
        "if __name__ == '__main__':\n"
        "    run.mapped(Task('tests.jobs.tasks:counted', {}), [Item(p) for p in sys.argv[2:]],"
        " Path(sys.argv[1]), run.Engine(jobs=2))\n"
    )
    script = tmp_path / "command.py"
    script.write_text(program)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path / "out", *(item.place for item in items)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
    )  # fmt: skip
    wait_for(lambda: all(mark.exists() and mark.read_text() for mark in marks))
    workers = [int(mark.read_text()) for mark in marks]
    process.kill()
    process.wait()
    for mark in marks:  # what they had in work ends by itself; nothing then keeps them
        mark.with_suffix(".go").touch()
    wait_for(lambda: not any(_runs(worker) for worker in workers))
    items = inputs(tmp_path, "again", "again")
    again = run.mapped(TASK, items, tmp_path / "out", Engine(jobs=1))
    assert values(again) == [5, 5]


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# --- a full disk ----------------------------------------------------------------------------------


def test_a_full_disk_in_a_worker_keeps_what_the_others_did(tmp_path: Path) -> None:
    items = inputs(tmp_path, "a", "ab", "full", "abc")
    with pytest.raises(StorageError, match=r"cannot write .*No space left on device.* make room"):
        run.mapped(TASK, items, tmp_path / "out", Engine(jobs=2))
    Path(items[2].place).write_text("room")
    again = run.mapped(TASK, items, tmp_path / "out", Engine(jobs=1))
    assert values(again) == [1, 2, 4, 3]
    assert again.reused >= 1
    assert not list((tmp_path / "out").glob("*.part"))


@pytest.mark.parametrize("blocks", [1, 24])
def test_a_command_on_a_full_disk_ends_in_one_line(
    reader: Stepscope, captures: list[Path], tmp_path: Path, blocks: int
) -> None:
    """A limit on file sizes makes all writing fail: of the first answer, or of the page."""
    if blocks > 1:
        pytest.importorskip("plotly")
    first = tmp_path / "first"
    cache = tmp_path / "cache"
    env = {**os.environ, "STEPSCOPE_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    out = tmp_path / "out"
    words = [sys.executable, "-m", "stepscope", "recipe", RECIPE, *map(str, captures), "-j", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSCOPE_CACHE_DIR", str(cache))
        run_recipe(RECIPE, captures, first, engine=Engine(1), page=False)
    limited = ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh"]
    done = subprocess.run(
        [*limited, *words, "-o", str(out)], capture_output=True, text=True, env=env, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "make room" in is_one_line(done.stderr)
    assert "cannot" in done.stderr
    assert not (out / "recipe.json").exists()
    assert len(kept(out)) == (3 if blocks > 1 else 0)
    run_recipe(RECIPE, captures, out, engine=Engine(1), page=False)
    assert is_whole(out)
    assert not (out / ".partial").exists()
    whole = pq.read_table(first / "all_stats.parquet")
    assert pq.read_table(out / "all_stats.parquet").equals(whole)


@pytest.mark.parametrize("place", ["parquet", "csv", "json"])
def test_a_disk_that_fills_while_the_result_is_written(
    captures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    out = tmp_path / "out"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    with monkeypatch.context() as patch:
        if place == "parquet":
            patch.setattr("stepscope.jobs.engine.reduce.Reduction.write", full)
        elif place == "csv":
            patch.setattr(Path, "write_text", full)
        else:
            patch.setattr(Path, "write_bytes", full)
        with pytest.raises(StorageError, match="cannot write somewhere: No space left") as error:
            asked(captures, out)
        assert "\n" not in str(error.value)
    assert not (out / "recipe.json").exists()
    assert len(kept(out)) == 3
    # the answers are there: no capture is asked again
    for capture in captures:
        stat = capture.stat()
        capture.write_bytes(b"\0" * stat.st_size)
        os.utime(capture, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert asked(captures, out).complete


def test_a_result_that_is_replaced_is_none_until_it_is_whole(
    captures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    pytest.importorskip("plotly")
    run_recipe(RECIPE, captures[:1], out, engine=Engine(1))
    assert (out / "index.html").exists()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    monkeypatch.setattr("stepscope.jobs.engine.reduce.Reduction.write", full)
    with pytest.raises(StorageError):
        asked(captures, out, force=True)
    assert not (out / "recipe.json").exists()
    assert not (out / "index.html").exists()  # it would be of the first result's tables


def test_a_digest_on_a_full_disk_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captures: list[Path]
) -> None:
    def full(_: object, where: Path, **__: object) -> None:
        Path(where).write_bytes(b"PAR1 and no more")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("stepscope.jobs.digest.as_table", lambda _: None)
        patch.setattr(pq, "write_table", full)
        with pytest.raises(StorageError, match=r"cannot write .*No space left.*make room"):
            write_digests([], tmp_path / "rank0.digest.parquet")
    assert not list(tmp_path.glob("*digest*"))
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="choose another folder"):
        digest_captures([str(captures[0])], tmp_path / "file", {})


# --- inputs and kept answers that go away, or are damaged -----------------------------------------


def test_a_capture_that_is_deleted_midway_is_named(
    captures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is looked at, and between that and its reading."""
    looked = items._identity

    def looked_too_late(path: Path) -> tuple[str, int]:
        if path == captures[1]:
            path.unlink()
        return looked(path)

    monkeypatch.setattr(items, "_identity", looked_too_late)
    found = asked([captures[0].parent], tmp_path / "a")
    assert [i.state for i in found.inputs] == ["done", "failed", "done"]
    assert "does not exist" in found.inputs[1].message
    assert not found.complete
    monkeypatch.setattr(items, "_identity", looked)
    done = facade.mapped

    def deleted_before(*given: Any, **more: Any) -> Any:
        captures[2].unlink()
        return done(*given, **more)

    monkeypatch.setattr(facade, "mapped", deleted_before)
    found = asked([captures[0].parent], tmp_path / "b")
    assert [i.state for i in found.inputs] == ["done", "failed"]
    captures[2].touch()
    with pytest.raises(InputError, match=r"run.rank2.sqlite"):
        asked([captures[0].parent], tmp_path / "c", strict=True)


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"\0" * 500])
def test_a_kept_answer_that_lost_its_content_is_made_again(tmp_path: Path, damage: bytes) -> None:
    """A machine that loses power may keep a file's name only."""
    items = inputs(tmp_path, "a", "ab")
    first = run.mapped(TASK, items, tmp_path / "out", Engine(jobs=1))
    first.files[0].write_bytes(damage)
    again = run.mapped(TASK, items, tmp_path / "out", Engine(jobs=1))
    assert (again.reused, values(again)) == (1, [1, 2])


def test_a_kept_answer_of_something_else_is_no_part_of_the_result(
    captures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(facade, "_reduced", _gone)
        with pytest.raises(StorageError):
            asked(captures, out)
    first = kept(out)[0]
    held = first.read_bytes()
    first.write_bytes(held[:8] + b"\xff" * (len(held) - 16) + held[-8:])
    found = asked(captures, out)
    assert sorted(i.state for i in found.inputs) == ["done", "done", "failed"]
    assert "run the same again" in next(i.message for i in found.inputs if i.state == "failed")
    assert asked(captures, out).complete


def _gone(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_kept_answer_that_is_deleted_before_it_is_used(
    captures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    reduced = facade._reduced

    def after_deleting(*given: Any, **more: Any) -> Any:
        kept(out)[1].unlink()
        return reduced(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(facade, "_reduced", after_deleting)
        with pytest.raises(StorageError, match="run the same again") as error:
            asked(captures, out)
        assert "\n" not in str(error.value)
    assert not (out / "recipe.json").exists()
    assert asked(captures, out).complete


def test_a_damaged_result_is_not_overwritten_unasked(captures: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked(captures, out)
    (out / "recipe.json").write_text('{"complete": tr')
    with pytest.raises(UsageError, match="holds a result; --force replaces it"):
        asked(captures, out)
    assert asked(captures, out, force=True).complete
    (out / "all_stats.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="make the result again"):
        run_recipe("diff", [out, out], tmp_path / "diff", page=False)
    assert not (tmp_path / "diff").exists()


# --- a cluster of Dask ----------------------------------------------------------------------------


@contextlib.contextmanager
def local_cluster(workers: int = 1) -> Iterator[Any]:
    """A scheduler in this process, as a notebook has one."""
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=None,
        protocol="tcp", host="127.0.0.1",
    )  # fmt: skip
    try:
        yield cluster
    finally:
        if cluster.scheduler.status.name == "running":
            cluster.close()
        else:  # it would wait half a minute for the scheduler to agree
            for worker in cluster.workers.values():
                cluster.sync(worker.close, nanny=False, timeout=1)
            cluster._loop_runner.stop()
            cluster.status = distributed.Status.closed


def test_a_scheduler_of_this_process_that_closes_midway(tmp_path: Path) -> None:
    items = inputs(tmp_path, "a", "ab", "waits")
    mark = Path(items[2].place).with_suffix(".pid")
    with local_cluster() as cluster:
        engine = Engine(cluster=cluster.scheduler_address)

        def close() -> None:
            wait_for(lambda: mark.exists() and len(list((tmp_path / "out").glob("*.parquet"))) == 2)
            cluster.scheduler.loop.add_callback(cluster.scheduler.close)
            mark.with_suffix(".go").touch()

        closing = threading.Thread(target=close)
        closing.start()
        with pytest.raises(StorageError, match=r"is gone, 1 of the captures .* kept"):
            run.mapped(TASK, items, tmp_path / "out", engine)
        closing.join()
    # without the cluster it goes on where it was
    again = run.mapped(TASK, items, tmp_path / "out", Engine(jobs=1))
    assert (again.reused, values(again)) == (2, [1, 2, 5])


def test_a_scheduler_file_of_one_that_is_gone(
    tmp_path: Path, captures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("stepscope.jobs.engine.cluster._CONNECT_S", 1)
    file = tmp_path / "dask.json"
    for content, told in (
        ('{"address": "tcp://127.0.0.1:9"}', "no Dask scheduler answers"),
        ('{"addr', "dask.json"),
        ("{}", "dask.json"),
    ):
        file.write_text(content)
        with pytest.raises(UsageError, match=told) as error:
            run_recipe(RECIPE, captures, tmp_path / "out", engine=Engine(scheduler_file=str(file)),
                       page=False)  # fmt: skip
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "recipe.json").exists()


def test_what_the_cluster_sends_and_this_machine_cannot_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [*inputs(tmp_path, "a"), Item(str(tmp_path / "gone.txt"))]
    with local_cluster() as cluster:
        engine = Engine(cluster=cluster.scheduler_address)

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            with pytest.raises(StorageError, match=r"No space left on device; make room"):
                run.mapped(TASK, items[:1], tmp_path / "out", engine)
        assert not list((tmp_path / "out").iterdir())
        found = run.mapped(TASK, items, tmp_path / "out", engine)
    assert states(found) == ["done", "failed"]
    assert "No such file" in found.outcomes[1].message

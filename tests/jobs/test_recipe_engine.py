"""The engine: one task over many inputs, whatever happens to them or to its processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.jobs.engine import cluster, pool, reduce, run
from stepscope.jobs.engine.work import Item, Outcome, Task
from stepscope.trace.errors import StorageError, UsageError

TASK = Task("tests.jobs.tasks:counted", {})
ROOT = Path(__file__).parents[2]


def inputs(folder: Path, *texts: str) -> list[Item]:
    items = []
    for number, text in enumerate(texts):
        path = folder / f"input{number}.txt"
        path.write_text(text)
        items.append(Item(str(path), str(number), len(text)))
    return items


def values(mapped: run.Mapped) -> list[int | None]:
    return [
        pq.read_table(file)["length"][0].as_py() if outcome.state == "done" else None
        for file, outcome in zip(mapped.files, mapped.outcomes, strict=True)
    ]


def states(mapped: run.Mapped) -> list[str]:
    return [outcome.state for outcome in mapped.outcomes]


def test_what_fails_is_told_and_stops_nobody(tmp_path: Path) -> None:
    items = [*inputs(tmp_path, "a", "broken", "bug", "abcd"), Item(str(tmp_path / "gone.txt"))]
    found = run.mapped(TASK, items, tmp_path / "out", run.Engine(jobs=1))
    assert states(found) == ["done", "failed", "failed", "done", "failed"], found.outcomes
    assert values(found) == [1, None, None, 4, None]
    assert "input1.txt is broken" in found.outcomes[1].message
    assert "KeyError" in found.outcomes[2].message
    assert "No such file" in found.outcomes[4].message
    assert not list((tmp_path / "out").glob("*.part"))


def test_what_was_done_is_not_done_again(tmp_path: Path) -> None:
    items = inputs(tmp_path, "a", "broken")
    first = run.mapped(TASK, items, tmp_path / "out", run.Engine(jobs=1))
    Path(items[0].place).write_text("changed, but not what tells so")
    again = run.mapped(TASK, items, tmp_path / "out", run.Engine(jobs=1))
    assert (first.reused, again.reused) == (0, 1)
    assert values(again) == [1, None]
    other = run.mapped(Task(TASK.function, {"times": 2}), items, tmp_path / "out", run.Engine(1))
    assert other.reused == 0
    changed = [Item(items[0].place, "later")]
    assert run.mapped(TASK, changed, tmp_path / "out", run.Engine(1)).reused == 0


def test_a_killed_process_costs_its_input_only_and_is_tried_again(tmp_path: Path) -> None:
    items = inputs(tmp_path, "a", "kill", "abc", "once", "ab")
    found = run.mapped(TASK, items, tmp_path / "out", run.Engine(jobs=2))
    assert states(found) == ["done", "killed", "done", "done", "done"]
    assert values(found) == [1, None, 3, 4, 2]
    assert "SIGKILL" in found.outcomes[1].message


def test_processes_fit_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(pool, "available_bytes", lambda: 6 << 30)
    assert pool.size([Item("a")] * 100) == 6
    assert pool.size([Item("a")] * 3) == 3
    assert pool.size([Item("a", bytes=1 << 30)] * 100) == 3
    assert pool.size([Item("a", bytes=1 << 40)] * 100) == 1


def test_processes_are_started_where_they_gain_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captures of 10 bytes take so many seconds each, two at a time elsewhere, 0.8 s to begin."""
    clock = [0.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: clock[0])

    def done_here(count: int, seconds: float, item: Item) -> int:
        def perform(*_: object) -> Outcome:
            clock[0] += seconds
            return Outcome("done")

        monkeypatch.setattr(pool, "perform", perform)
        works = [(n, item, tmp_path) for n in range(count)]
        found = len(list(pool.perform_small(TASK, works, 2)))
        assert found + len(works) == count
        return found

    small = Item("a", bytes=10)
    assert done_here(10, 0.1, small) == 10
    assert done_here(100, 0.1, small) == 2  # they tell how long the others take: 9.8 s, or half
    assert done_here(4, 0.7, small) == 4  # after two: 1.4 s here, 0.7 s and the begin elsewhere
    assert done_here(10, 0.1, Item("a", bytes=1 << 30)) == 0
    assert done_here(10, 0.1, Item("s3://a")) == 0  # of a size that nobody knows


def test_a_full_disk_ends_the_run_and_keeps_what_was_done(tmp_path: Path) -> None:
    """A limit on file sizes makes writing fail as a full disk does."""
    items = inputs(tmp_path, "a")
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from stepscope.jobs.engine import run\n"
        "from stepscope.jobs.engine.work import Item, Task\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "import pyarrow.parquet\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
        "run.mapped(Task('tests.jobs.tasks:counted', {}), [Item(sys.argv[1])],"
        " Path(sys.argv[2]), run.Engine(jobs=1))\n"
    )
    done = subprocess.run(
        # -B: a compiled module would be cut short as well, and stay so
        [sys.executable, "-B", "-c", program, items[0].place, tmp_path / "out"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.search(r"StorageError: cannot write .*File too large", done.stderr), done.stderr
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(StorageError, match="cannot write"):
        run.mapped(TASK, items, Path(items[0].place) / "below", run.Engine(jobs=1))


# --- reduction ------------------------------------------------------------------------------------


@settings(max_examples=5)
@given(
    parts=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), max_size=4), max_size=9
    ),
    fan_in=st.integers(2, 4),
)
def test_a_tree_gives_what_one_statement_gives(
    parts: list[list[tuple[int, int]]], fan_in: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    files = {}
    for number, rows in enumerate(parts):
        table = pa.table(
            {
                "key": pa.array([k for k, _ in rows], pa.int64()),
                "n": pa.array([n for _, n in rows], pa.int64()),
            }
        )
        files[number] = folder / f"{number}.parquet"
        pq.write_table(table, files[number])
    captures = pa.table(
        {
            "input": pa.array(range(len(parts)), pa.int64()),
            "rank": pa.array(range(len(parts)), pa.int64()),
            "capture": pa.array([f"c{i}" for i in range(len(parts))], pa.string()),
        }
    )
    sums: dict[int, int] = {}
    for key, n in (pair for rows in parts for pair in rows):
        sums[key] = sums.get(key, 0) + n
    statement = "SELECT key, sum(n)::BIGINT AS n FROM part GROUP BY key ORDER BY key"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduce, "FAN_IN", fan_in)
        for merge in ("", "SELECT key, sum(n)::BIGINT AS n FROM part GROUP BY key"):
            with reduce.reduction(files, captures, merge, folder, ["key", "n"]) as made:
                found = made.make("all", statement).to_pylist()
                assert [(r["key"], r["n"]) for r in found] == sorted(sums.items())
    assert sorted(p.name for p in folder.iterdir()) == sorted(f.name for f in files.values())


def test_a_wrong_statement_is_named(tmp_path: Path) -> None:
    nothing = pa.table({"input": pa.array([], pa.int64())})
    with (
        reduce.reduction({}, nothing, "", tmp_path, []) as made,
        pytest.raises(UsageError, match="no_such_column"),
    ):
        made.make("all", "SELECT no_such_column FROM part")


# --- a cluster of Dask ----------------------------------------------------------------------------


@contextlib.contextmanager
def scheduler(folder: Path, workers: int = 1) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A scheduler in one process and its workers in others, as on a cluster."""
    program = (
        "import sys\n"
        "from distributed import LocalCluster\n"
        "if __name__ == '__main__':\n"
        "    with LocalCluster(n_workers=int(sys.argv[1]), threads_per_worker=1,"
        " dashboard_address=None, host='127.0.0.1') as made:\n"
        "        print(made.scheduler_address, flush=True)\n"
        "        sys.stdin.read()\n"
    )
    script = folder / "cluster.py"
    script.write_text(program)
    process = subprocess.Popen(
        [sys.executable, script, str(workers)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip(), process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_cluster_answers_as_this_machine_does_and_may_go_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    items = inputs(tmp_path, "a", "broken", "once", "abc")
    with scheduler(tmp_path) as (address, process):
        engine = run.Engine(cluster=address)
        found = run.mapped(TASK, items, tmp_path / "out", engine)
        # the worker that died is replaced by another
        assert states(found) == ["done", "failed", "done", "done"]
        assert values(found) == [1, None, 4, 3]

        slow = inputs(tmp_path, "slow", "ab")
        started = Path(slow[0].place).with_suffix(".started")

        def end_it() -> None:
            while not started.exists():
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)

        ending = threading.Thread(target=end_it)
        ending.start()
        with pytest.raises(StorageError, match=r"is gone, .* were not done; what was done is kept"):
            run.mapped(TASK, slow, tmp_path / "out2", engine)
        ending.join()
    monkeypatch.setattr(cluster, "_CONNECT_S", 1)
    with pytest.raises(UsageError, match="no Dask scheduler answers at"):
        run.mapped(TASK, slow, tmp_path / "out3", run.Engine(cluster="tcp://127.0.0.1:9"))
    with pytest.raises(UsageError, match="does not exist"):
        run.mapped(TASK, slow, tmp_path / "out3", run.Engine(scheduler_file="/no/such.json"))

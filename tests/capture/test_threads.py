"""Thread states: read from outside while a program runs, and worked out from the readings."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.conftest import Program, read, texts

from stepscope.capture.threads import name_of, threads_of, tree_of
from stepscope.importers.common.sink import Sink
from stepscope.importers.stepscope import samples as importer
from stepscope.importers.stepscope.about import Window
from stepscope.importers.stepscope.raw import Files
from stepscope.trace.meta import Meta
from stepscope.trace.problems import ProblemLog
from stepscope.trace.store import TraceWriter, write_meta
from stepscope.trace.trace import Trace

MS = 1_000_000


def states_of(folder: Path, lines: list[tuple[object, ...]], window: Window) -> list[tuple]:
    """(thread, begin, end, state) that readings come to."""
    (folder / importer.THREADS_FILE).write_text(
        "".join("\t".join(map(str, line)) + "\n" for line in lines) + "12\t"  # cut short
    )
    target = folder / "t.stepscope"
    target.mkdir()
    writer = TraceWriter(target, ProblemLog())
    sink = Sink(writer, 0)
    importer.read_threads(sink, Files(folder), {7}, window)
    write_meta(target, Meta(source="stepscope", rows=writer.close()))
    trace = Trace(target)
    rows = trace.arrow("thread_state").to_pylist() if trace.rows("thread_state") else []
    return [(r["thread_id"], r["start_ns"], r["end_ns"], r["state"]) for r in rows]


def test_readings_become_states(tmp_path: Path) -> None:
    lines = [
        # time, process, thread, letter, on a CPU, waiting for one
        (100, 7, 7, "R", 0, 0),
        (200, 7, 7, "R", 100, 0),  # ran throughout
        (300, 7, 7, "S", 130, 20),  # ran 30, waited 20, slept 50
        (400, 7, 7, "D", 150, 30),  # slept, waited 10, ran 20
        (500, 7, 7, "R", 150, 30),  # did not run: in the disk's hands
        (100, 7, 8, "T", 5, 5),
        (500, 7, 8, "T", 5, 5),
        (100, 9, 9, "R", 0, 0),  # another rank's
        (500, 9, 9, "R", 400, 0),
    ]
    found = states_of(tmp_path, lines, Window(0, 1000))
    assert [row[1:] for row in found if row[0] == 7] == [
        (100, 230, "running"),
        (230, 250, "runnable"),
        (250, 370, "sleeping"),
        (370, 380, "runnable"),
        (380, 400, "running"),
        (400, 500, "disk"),
    ]
    assert [row for row in found if row[0] != 7] == [(8, 100, 500, "stopped")]


def test_kernels_without_schedstat_tell_the_state_at_each_reading(tmp_path: Path) -> None:
    lines = [(0, 7, 7, "R", -1, -1), (50, 7, 7, "S", -1, -1), (80, 7, 7, "R", -1, -1)]
    found = states_of(tmp_path, lines, Window(10, 70))
    assert found == [(7, 10, 50, "running"), (7, 50, 70, "sleeping")]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 50), st.sampled_from("RSD"), st.integers(0, 60), st.integers(0, 60)
        ),
        min_size=2,
        max_size=8,
    )
)
def test_every_period_is_filled_and_sums_are_exact(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, int, int]]
) -> None:
    time, run, wait, lines = 0, 0, 0, []
    want_run, want_wait = 0, 0
    for at, (length, letter, most_run, most_waited) in enumerate(steps):
        ran = min(most_run, length)
        waited = min(most_waited, length - ran)
        if at:
            time, run, wait = time + length, run + ran, wait + waited
            want_run, want_wait = want_run + ran, want_wait + waited
        lines.append((time, 7, 7, letter, run, wait))
    found = states_of(tmp_path_factory.mktemp("s"), lines, Window(0, 10**6))
    assert all(one[2] == other[1] for one, other in itertools.pairwise(found))
    assert sum(end - begin for _, begin, end, _ in found) == time
    sums = dict.fromkeys(("running", "runnable"), 0)
    for _, begin, end, state in found:
        if state in sums:
            sums[state] += end - begin
    assert (sums["running"], sums["runnable"]) == (want_run, want_wait)


def test_threads_of_a_recorded_program(program: Program) -> None:
    trace = program.trace(
        """
        limit = time.monotonic() + 100
        def work():
            # until it ran for long enough and was seen to, however busy the machine is
            before, me = readings(os.getpid()), os.getpid()
            while time.thread_time() < enough or readings(me) < before + 10:
                assert time.monotonic() < limit
                for _ in range(200_000): pass
        worked = threading.Event()
        threads = [threading.Thread(target=worked.wait) for _ in range(2)]
        [t.start() for t in threads]
        child = os.fork()
        enough = time.thread_time() + 0.4
        if child == 0:
            work(); os._exit(0)
        while not all(readings(t.native_id) for t in threads): time.sleep(0.01)
        launch(5); work(); launch(5); os.waitpid(child, 0); worked.set()
        [t.join() for t in threads]
        launch(1)
        """,
        threads_hz=50,
    )
    frame = trace.frame("thread_state", "process_id", "thread_id", "start_ns", "end_ns", "state")
    (main,) = set(trace.frame("gpu_op", "process_id")["process_id"].tolist())
    length = frame["end_ns"] - frame["start_ns"]
    assert (length > 0).all()
    mine = (frame["process_id"] == main) & (frame["thread_id"] == main)
    on = mine & frame.equals("state", "running")
    wanted = mine & (frame.equals("state", "running") | frame.equals("state", "runnable"))
    assert 0.05e9 < length[on].sum() <= length[wanted].sum()
    assert length[wanted].sum() > 0.1e9
    # sleepers are seen asleep, and the child without CUDA or NVTX belongs here
    others = frame.equals("state", "sleeping") & (frame["process_id"] == main) & ~mine
    assert length[others].sum() > 0.05e9
    assert len(set(frame["process_id"].tolist())) == 2
    assert trace.rows("process") == 2
    assert "thread_state" not in {a.table for a in trace.meta.missing}
    for thread in np.unique(frame["thread_id"]).tolist():
        of = np.flatnonzero(frame["thread_id"] == thread)
        assert (frame["start_ns"][of][1:] >= frame["end_ns"][of][:-1]).all()


def test_not_when_not_wanted(program: Program) -> None:
    trace = program.trace("launch(5); time.sleep(0.3)", threads_hz=0)
    assert trace.rows("thread_state") == 0
    assert {a.table: a.flag for a in trace.meta.missing}["thread_state"].endswith("--threads-hz 20")


def test_workers_of_ranks_are_told_apart(program: Program) -> None:
    outcome = program.record(
        """
        import subprocess
        if "RANK" not in os.environ:
            codes = [subprocess.Popen([sys.executable, __file__],
                     env={**os.environ, "RANK": str(r)}) for r in range(2)]
            sys.exit(max(c.wait() for c in codes))
        nvtx.nvtx_load(); cuda.fake_init()
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.2)"])
        launch(5); child.wait(); launch(5)
        """,
        start="",
        threads_hz=50,
    )
    traces = [read(raw) for raw in outcome.raw]
    found = [set(trace.frame("thread_state", "process_id")["process_id"].tolist())
             for trace in traces]  # fmt: skip
    assert [len(processes) for processes in found] == [2, 2]
    assert not found[0] & found[1]
    assert any("python" in str(name) for name in texts(traces[0], "process", "name"))


def test_what_has_ended_is_nothing() -> None:
    assert threads_of(2**22 + 1) == []
    assert name_of(2**22 + 1, 2**22 + 1) == ("", 0)
    assert tree_of(2**22 + 1) == {2**22 + 1}

"""When recording begins and ends, and every way in which a process can end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.capture.conftest import Program, read, texts
from tests.cli.command import Stepscope

from stepscope.api.recording import finalise_capture
from stepscope.capture import control
from stepscope.capture.backends.collector import CONFIGURATION
from stepscope.capture.launcher import order, record
from stepscope.capture.process_tree import members
from stepscope.trace.trace import Trace

BUSY = '[(push(f"r{i % 7}"), launch(), pop()) for i in range(10_000)]\n'


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError('planned')", 1),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)", 128 + 15),
    ],
)
def test_orderly_ends_lose_nothing(program: Program, ending: str, code: int) -> None:
    trace = program.trace(BUSY + ending, exit_code=code)
    assert (trace.rows("gpu_op"), trace.rows("range")) == (10_000, 10_000)
    assert trace.meta.problems == []


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("os._exit(0)", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9),
        ("os.abort()", 128 + 6),
        ("ctypes.string_at(0)", 128 + 11),
    ],
)
def test_sudden_ends_lose_the_last_moments_of_gpu_work_only(
    program: Program, ending: str, code: int
) -> None:
    """All NVTX events survive, and GPU records up to the last flush."""
    trace = program.trace(BUSY + "written(10_000); launch(100)\n" + ending, exit_code=code)
    assert trace.rows("range") == 10_000
    assert 10_000 <= trace.rows("gpu_op") <= 10_100
    names = set(texts(trace, "range", "name"))
    assert names == {f"r{i}" for i in range(7)}
    found = {problem.id: problem for problem in trace.meta.problems}
    unfinished = found.pop("unfinished_capture")
    assert unfinished.count == 1
    assert f"pid {os.getpid()}" not in unfinished.detail
    # of the last launches the GPU's record may be written, and that of the call not
    assert {id_: one for id_, one in found.items() if id_ != "unresolved_correlation"} == {}
    assert all(one.count <= 100 for one in found.values())
    assert list(Path("/dev/shm").glob(f"stepscope-{os.getuid()}-{os.getpid()}-*")) == []


def test_a_driver_that_ends_before_us_is_not_called(program: Program) -> None:
    """Native programs: the driver's own exit handler is registered after cuInit."""
    trace = program.trace("cuda.fake_context(); launch(1000)")
    assert trace.rows("gpu_op") == 1000


def test_forked_workers_have_files_of_their_own(program: Program) -> None:
    trace = program.trace(
        """
        push("before")
        children = []
        for k in range(3):
            pid = os.fork()
            if pid == 0:
                for i in range(1000): push(f"worker {k}"); pop()
                os._exit(0)
            children.append(pid)
        launch(10)
        [os.waitpid(pid, 0) for pid in children]
        pop()
        """
    )
    frame = trace.frame("range", "name", "process_id")
    assert sorted(set(frame.texts["name"])) == ["before", "worker 0", "worker 1", "worker 2"]
    assert len(frame) == 3001
    assert len(set(frame["process_id"].tolist())) == 4
    assert trace.rows("process") == 4
    assert trace.meta.problems == []  # that workers leave by os._exit loses nothing
    assert len(set(trace.frame("gpu_op", "process_id")["process_id"].tolist())) == 1


def test_a_fork_in_the_middle_of_threads_that_record(program: Program) -> None:
    trace = program.trace(
        """
        end = threading.Event()
        def work():
            while not end.is_set(): push("thread"); pop()
        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                push("child"); pop(); os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        end.set(); [t.join() for t in threads]; launch()
        """
    )
    assert texts(trace, "range", "name").count("child") == 10


def test_spawned_ranks_become_traces_of_their_own(program: Program) -> None:
    outcome = program.record(
        """
        import subprocess
        if "RANK" not in os.environ:
            codes = [subprocess.Popen([sys.executable, __file__],
                     env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2"}) for r in range(2)]
            sys.exit(max(c.wait() for c in codes))
        push("of rank " + os.environ["RANK"]); launch(10 * (1 + int(os.environ["RANK"]))); pop()
        if os.fork() == 0:
            push("worker"); pop(); os._exit(0)
        os.wait()
        """,
        start="",
        # the launcher of the ranks uses neither CUDA nor NVTX
    )
    assert [raw.name for raw in outcome.raw] == []
    outcome = program.record(
        """
        import subprocess
        if "RANK" not in os.environ:
            codes = [subprocess.Popen([sys.executable, __file__],
                     env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2"}) for r in range(2)]
            sys.exit(max(c.wait() for c in codes))
        nvtx.nvtx_load(); cuda.fake_init()
        push("of rank " + os.environ["RANK"]); launch(10 * (1 + int(os.environ["RANK"]))); pop()
        if os.fork() == 0:
            push("worker"); pop(); os._exit(0)
        os.wait()
        """,
        start="",
    )
    assert [raw.name for raw in outcome.raw] == ["rank0", "rank1"]
    traces = [read(raw) for raw in outcome.raw]
    assert [trace.rows("gpu_op") for trace in traces] == [10, 20]
    assert [trace.meta.rank for trace in traces] == [0, 1]
    assert {trace.meta.world_size for trace in traces} == {2}
    for rank, trace in enumerate(traces):
        assert set(texts(trace, "range", "name")) == {f"of rank {rank}", "worker"}
    # one time zero for all ranks of a machine
    assert len({trace.meta.origin_epoch_ns for trace in traces}) == 1


def test_only_the_ranks_asked_for(program: Program) -> None:
    outcome = program.record(
        """
        import subprocess
        if "RANK" not in os.environ:
            [subprocess.run([sys.executable, __file__], env={**os.environ, "RANK": str(r)})
             for r in range(3)]
        else:
            nvtx.nvtx_load(); cuda.fake_init(); launch(5)
        """,
        start="",
        ranks=(2,),
    )
    assert [raw.name for raw in outcome.raw] == ["rank2"]


# --- when to record -------------------------------------------------------------------------------


def kernels_in(trace: Trace) -> int:
    return texts(trace, "gpu_op", "kind").count("kernel")


def test_between_the_calls_of_the_profiler_api(program: Program) -> None:
    trace = program.trace(
        """
        launch(10); push("before"); pop()
        cuda.fake_profiler(1); push("in"); launch(20); pop(); cuda.fake_profiler(0)
        launch(30); push("after"); pop()
        cuda.fake_profiler(1); launch(5); cuda.fake_profiler(0)
        """,
        range="cudaProfilerApi",
    )
    assert kernels_in(trace) == 25
    assert texts(trace, "range", "name") == ["in"]
    ops = trace.frame("gpu_op", "start_ns")["start_ns"]
    assert trace.meta.window_start_ns <= ops.min()
    assert ops.max() <= trace.meta.window_end_ns


def test_inside_ranges_of_a_name(program: Program) -> None:
    script = """
        d = nvtx.domain(b"library"); s = nvtx.registered(d, b"step")
        for i in range(3):
            launch(10)
            push("step"); push("step"); launch(1); pop(); launch(1); pop()
        nvtx.domain_push(d, s, 0, 0.0); launch(100); nvtx.domain_pop(d)
        r = nvtx.range_start(b"step"); launch(1000); nvtx.range_end(r); launch(10)
    """
    assert kernels_in(program.trace(script, range="step")) == 6 + 100 + 1000
    assert kernels_in(program.trace(script, range="step@library")) == 100
    outcome = program.record(script, range="nowhere")
    assert any("the range nowhere was never opened" in text for text in outcome.warnings)


def test_workers_record_within_their_parents_window(program: Program) -> None:
    trace = program.trace(
        """
        def worker(name):
            if os.fork() == 0:
                push(name); time.sleep(0.01); pop(); os._exit(0)
            os.wait()
        worker("before"); time.sleep(0.05)
        cuda.fake_profiler(1); worker("within"); launch(5); cuda.fake_profiler(0)
        time.sleep(0.05); worker("after")
        """,
        range="cudaProfilerApi",
    )
    assert texts(trace, "range", "name") == ["within"]


def test_ranges_before_the_first_cuda_call_are_not_of_a_later_window(program: Program) -> None:
    trace = program.trace(
        """
        nvtx.nvtx_load(); push("import"); pop(); push("around")
        cuda.fake_init(); push("before"); pop()
        cuda.fake_profiler(1); launch(5); push("in"); pop(); cuda.fake_profiler(0)
        pop()
        """,
        start="",
        range="cudaProfilerApi",
    )
    assert sorted(texts(trace, "range", "name")) == ["around", "in"]


def test_start_and_stop_from_outside(program: Program) -> None:
    options = program.options(
        """
        from pathlib import Path
        here = Path(__file__).parent
        launch(10)
        (here / "ready").touch()
        while not (here / "go").exists(): launch(1); time.sleep(0.001)
        (here / "went").touch()
        while not (here / "end").exists(): time.sleep(0.001)
        time.sleep(0.2); launch(5)
        """,
        paused=True,
    )
    here = program.folder
    outcome = []
    thread = threading.Thread(
        target=lambda: outcome.append(record_without_signals(options, program))
    )
    thread.start()
    wait_for(here / "ready")
    ready = (here / "run1" / "raw" / "control").exists()
    from stepscope.capture.facade import steer

    steer("start", str(here / "run1"))
    time.sleep(0.4)
    (here / "go").touch()
    wait_for(here / "went")
    steer("stop", str(here / "run1"))
    (here / "end").touch()
    thread.join()
    trace = read(outcome[0].raw[0])
    assert ready
    assert 1 <= kernels_in(trace) < 1000
    assert kernels_in(trace) == trace.rows("api_call")


def record_without_signals(options, program):  # type: ignore[no-untyped-def]
    """``record`` from a thread, where signal handlers cannot be set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepscope.capture.launcher.signal.signal", lambda number, handler: None)
        return record(options, "test", program.output.append)


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < limit, path
        time.sleep(0.01)


def running(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A program that has begun: until then its environment is not to be seen."""
    code = "import sys, time; print(flush=True); time.sleep(300)"
    child = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"\n"
    return child


def test_pids_lead_to_their_capture(program: Program) -> None:
    environment = {**os.environ, "STEPSCOPE_CAPTURE": str(program.folder / "collector.conf")}
    with running(environment) as child:
        try:
            assert control.folder_of(child.pid) == program.folder
            assert control.folder_of(os.getpid()) == program.folder
        finally:
            child.kill()
    with pytest.raises(Exception, match="is not recorded by the collector"):
        control.folder_of(os.getpid())


def test_a_run_that_has_finished_takes_no_orders(program: Program) -> None:
    from stepscope.capture.errors import CaptureError
    from stepscope.capture.facade import steer

    program.record("launch()")
    here = program.folder / "run1" / "raw"
    for target in (here, here.parent):
        for order_ in ("start", "stop"):
            with pytest.raises(CaptureError, match="has finished"):
                steer(order_, str(target))
    # a launcher that was killed leaves the file of orders, but nobody reads it
    control.prepare(here)
    with pytest.raises(CaptureError, match="none of its processes is left"):
        steer("stop", str(here.parent))
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        pass
    with pytest.raises(CaptureError, match=f"no process {child.pid} "):
        steer("stop", str(child.pid))


def test_other_tools_take_no_orders(tmp_path: Path) -> None:
    environment = {**os.environ, "STEPSCOPE_CAPTURE": str(tmp_path / "hook.conf")}
    with running(environment) as child:
        try:
            with pytest.raises(Exception, match="another tool"):
                control.folder_of(child.pid)
        finally:
            child.kill()


def test_delay_and_duration(program: Program) -> None:
    # the stand-in CUDA is there at once; the program's own start-up counts, too
    trace = program.trace(
        """
        begin = time.monotonic()
        while time.monotonic() - begin < 2.5: launch(1); time.sleep(0.002)
        """,
        delay_s=1.0,
        duration_s=0.5,
    )
    span = trace.frame("gpu_op", "start_ns")["start_ns"]
    assert 300_000_000 < span.max() - span.min() < 900_000_000
    assert span.min() > 900_000_000


def test_a_size_limit_ends_recording(program: Program) -> None:
    outcome = program.record(
        "for _ in range(40): launch(1000); time.sleep(0.03)", max_bytes=1_000_000
    )
    assert any("limit of 1000000 bytes" in text for text in outcome.warnings)
    trace = read(outcome.raw[0])
    assert 5_000 < kernels_in(trace) < 40_000


def test_a_ring_keeps_the_last_moments(program: Program) -> None:
    trace = program.trace(
        'for i in range(300): push(f"r{i}"); launch(10); pop(); time.sleep(0.01)', ring_s=0.8
    )
    ops = trace.frame("gpu_op", "start_ns")["start_ns"]
    assert 500_000_000 < ops.max() - ops.min() < 1_500_000_000
    assert 300 < len(ops) < 2000
    assert "r299" in texts(trace, "range", "name") or trace.rows("range") > 0


# --- a launcher that did not live -----------------------------------------------------------------


def test_a_capture_whose_launcher_died_is_read_later(program: Program) -> None:
    options = program.options(BUSY + "written(10_000); os.kill(os.getppid(), 9); os._exit(0)")
    code = (
        "import sys; from stepscope.capture.launcher import record;"
        "from stepscope.capture.options import Options; from pathlib import Path;"
        f"record(Options({options.command!r}, Path({str(options.output)!r}), counters=False,"
        " backend='collector', flush_ms=100), 'test', print)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr
    limit = time.monotonic() + 60
    while members(options.output.resolve() / "raw" / CONFIGURATION):  # nobody waits for them now
        assert time.monotonic() < limit
        time.sleep(0.01)
    traces, whole = finalise_capture(options.output, print)
    (trace,) = map(Trace, traces)
    assert whole
    assert (trace.rows("gpu_op"), trace.rows("range")) == (10_000, 10_000)
    assert not (options.output / "raw").exists()


def test_raw_files_that_shall_be_kept_stay_after_finalise(
    program: Program, tmp_path: Path, stepscope: Stepscope
) -> None:
    outcome = program.record(BUSY, keep_raw=True)
    before = sorted(path.name for path in outcome.raw[0].iterdir())
    assert stepscope("capture", "finalise", outcome.folder).stdout.endswith("rank0.stepscope\n")
    kept = outcome.folder / ".raw" / "rank0"
    assert sorted(path.name for path in kept.iterdir()) == sorted([*before, "files.json"])
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}


def test_finalise_says_which_rank_it_could_not_read(program: Program, stepscope: Stepscope) -> None:
    outcome = program.record(BUSY)
    bad = outcome.raw[0].with_name("rank1")
    bad.mkdir()
    (bad / "p1-1.raw").write_bytes(b"no capture")
    (bad / "capture.json").write_text((outcome.raw[0] / "capture.json").read_text())
    done = stepscope("capture", "finalise", outcome.folder, expect=2)
    assert done.stdout.endswith("rank0.stepscope\n")
    assert "rank1 holds no capture" in done.stderr
    assert outcome.raw[0].is_dir()  # nothing is removed while a rank is unread
    warnings = stepscope.json("info", outcome.folder)["warnings"]
    assert any("left out: raw/rank1" in remark for remark in warnings)


def test_a_raw_folder_is_read_wherever_it_is_copied(
    program: Program, tmp_path: Path, stepscope: Stepscope
) -> None:
    outcome = program.record(BUSY)
    elsewhere = tmp_path / "elsewhere" / "raw" / "copy"
    elsewhere.parent.mkdir(parents=True)
    outcome.raw[0].rename(elsewhere)
    assert read(elsewhere).rows("gpu_op") == 10_000
    shown = stepscope("query", elsewhere.parents[1], "select count(*) as n from gpu_op")
    assert "10000" in shown.stdout, shown.stderr
    with pytest.raises(Exception, match="holds no raw capture"):
        order(tmp_path)


def test_a_signal_during_the_end_waits_for_what_is_being_written(program: Program) -> None:
    # as Pool.terminate sends it to workers that are leaving by themselves
    outcome = program.record(
        """
        libc = ctypes.CDLL(None)
        for number in range(60):
            reading, writing = os.pipe()
            child = os.fork()
            if child:
                os.read(reading, 1)
                time.sleep(number * 5e-5)
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
                os.close(reading); os.close(writing)
                continue
            for _ in range(2000):
                push("work"); pop()
            os.write(writing, b"x")
            libc.exit(0)
        """
    )
    assert outcome.exit_code == 0
    trace = read(outcome.raw[0])
    assert trace.rows("range") == 60 * 2000
    assert trace.meta.problems == []

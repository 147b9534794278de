"""Dumps: what was recorded up to now, while the program runs on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.capture.conftest import Program, read, texts
from tests.capture.test_hook import torch as torch  # noqa: PLC0414 - a fixture
from tests.capture.test_lifecycle import record_without_signals, wait_for
from tests.cli.command import Stepscope

from stepscope.api.recording import dump_capture
from stepscope.capture.collector.build import find
from stepscope.capture.dumps import _copy_blocks
from stepscope.capture.launcher import Outcome
from stepscope.capture.lines import KeptLines, whole
from stepscope.trace.trace import Trace

MARKED = """
    from pathlib import Path
    here = Path(__file__).parent
    def until(name):
        while not (here / name).exists(): time.sleep(0.01)
    for i in range(2000): push(f"early {i % 5}"); launch(); pop()
    (here / "ready").touch(); until("go")
    for i in range(50): push("late"); launch(); pop()
    sys.exit(3)
"""


def in_background(program: Program, text: str, **options: object) -> list[Outcome]:
    assert find().path  # compiled before the clock runs
    wanted = program.options(text, **options)
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.append(record_without_signals(wanted, program)))
    thread.start()
    program.output.append(thread)  # type: ignore[arg-type]
    return found


def joined(program: Program) -> None:
    for one in program.output:
        if isinstance(one, threading.Thread):
            one.join()


def test_what_is_there_is_read_while_the_program_runs(program: Program) -> None:
    found = in_background(program, MARKED)
    wait_for(program.folder / "ready")
    traces, complete = dump_capture(str(program.folder / "run1"), print)
    assert found == []  # it runs on
    (program.folder / "go").touch()
    joined(program)
    (dump,) = map(Trace, traces)
    assert complete
    assert (dump.rows("gpu_op"), dump.rows("range")) == (2000, 2000)
    assert dump.meta.problems == []  # nobody was killed
    assert dump.meta.capture_options["dump"] == "asked for by stepscope capture dump"
    (outcome,) = found
    assert outcome.exit_code == 3
    assert [folder.name for folder in outcome.dumps] == ["dump1"]
    after = read(outcome.raw[0])
    assert (after.rows("gpu_op"), after.rows("range")) == (2050, 2050)


def test_a_dump_of_nothing_that_runs(stepscope: Stepscope, tmp_path: Path) -> None:
    done = stepscope("capture", "dump", tmp_path, expect=2)
    assert "neither a process nor the folder of a capture that runs" in done.stderr


def test_a_slow_step_dumps_the_ring_once(program: Program, torch: Path) -> None:
    outcome = program.record(
        """
        from torch.optim import Optimizer
        one, other = Optimizer(), Optimizer()
        for i in range(60):
            push(f"loop {i}"); launch(10); time.sleep(0.02)
            if i in (30, 33): time.sleep(1)  # the second one lies in the same ring
            pop(); one.step(); other.step()
        time.sleep(0.6)
        """,
        ring_s=30.0,
        slow_step=20.0,
    )
    (dump,) = outcome.dumps
    (line,) = [line for line in program.output if line.startswith("dumped into")]
    assert "dump1: step 30 of process" in line
    from stepscope.api.recording import finalise_capture

    (trace,) = map(Trace, finalise_capture(dump, print)[0])
    assert {"loop 30", "loop 10"} <= set(texts(trace, "range", "name"))
    assert trace.rows("gpu_op") >= 310


def test_steady_steps_dump_nothing(program: Program, torch: Path) -> None:
    outcome = program.record(
        """
        from torch.optim import Optimizer
        one = Optimizer()
        for i in range(60): time.sleep(1.0 if i in (0, 5) else 0.005); one.step()
        launch()
        """,
        ring_s=30.0,
        slow_step=150.0,  # of 5 ms: only a machine that stands still for as long looks slow
    )
    assert outcome.dumps == []  # start-up is no slow step


@pytest.mark.parametrize("ring", [30.0, 0.0])
def test_a_signal_dumps_the_ring_and_else_reaches_the_program(
    program: Program, ring: float
) -> None:
    options = program.options(
        """
        from pathlib import Path
        signal.signal(signal.SIGUSR2, lambda *_: sys.exit(42))
        launch(500); push("a"); pop()
        (Path(__file__).parent / "ready").touch()
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            time.sleep(0.02)
            if list(Path(__file__).parent.glob("run1/dump1/raw/capture.json")): sys.exit(7)
        """,
        ring_s=ring,
    )
    code = (
        "import sys; from stepscope.capture.launcher import record;"
        "from stepscope.capture.options import Options; from pathlib import Path;"
        f"o = record(Options({options.command!r}, Path({str(options.output)!r}), ring_s={ring},"
        " counters=False, backend='collector', flush_ms=100), 'test', print);"
        "sys.exit(o.exit_code)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as launcher:
        wait_for(program.folder / "ready")
        launcher.send_signal(signal.SIGUSR2)
        assert launcher.wait(60) == (7 if ring else 42)


def test_the_window_of_a_ring_begins_where_it_is_whole(program: Program) -> None:
    trace = program.trace(
        'for i in range(200): push(f"r{i}"); launch(10); pop(); time.sleep(0.01)', ring_s=0.5
    )
    ops = trace.frame("gpu_op", "start_ns")["start_ns"]
    assert 200_000_000 < trace.meta.window_end_ns - trace.meta.window_start_ns < 1_200_000_000
    # what lies before was fetched late, and is not all there was
    assert trace.meta.window_start_ns - ops.min() < 500_000_000
    begin = trace.frame("thread_state", "start_ns")["start_ns"].min()
    assert begin >= trace.meta.window_start_ns


def test_a_copy_ends_with_its_last_whole_block(program: Program, tmp_path: Path) -> None:
    outcome = program.record("for i in range(3000): push('a'); launch(); pop()")
    (raw,) = outcome.raw[0].glob("*.raw")
    data = raw.read_bytes()
    torn, copied = tmp_path / "torn.raw", tmp_path / "copied.raw"
    for cut in (1, 39, 41, 5000):
        torn.write_bytes(data[:-cut])
        _copy_blocks(torn, copied)
        kept = copied.read_bytes()
        assert data.startswith(kept)
        assert 0 < len(kept) <= len(data) - cut
        _copy_blocks(copied, torn)
        assert torn.read_bytes() == kept


def test_lines_of_long_runs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    path = tmp_path / "a.tsv"
    with KeptLines(path, 10.0, lambda: ["state\n"]) as kept:
        for second in range(100):
            now[0] = float(second)
            kept.writelines([f"{second}\n"])
            if second == 34:
                kept.flush()
                assert whole(path).decode().split() == [
                    "state",
                    *(str(n) for n in range(20, 30)),
                    "state",
                    *(str(n) for n in range(30, 35)),
                ]
    lines = [line for line in path.read_text().split() if line != "state"]
    assert lines == [str(n) for n in range(80, 100)]
    assert [p.name for p in tmp_path.iterdir()] == ["a.tsv"]

"""Python stacks sampled inside the program, end to end."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.capture.conftest import Program, read, texts

from stepscope.capture.launcher import record
from stepscope.importers.stepscope.samples import _frames

BUSY = """
    def inner(n):
        end = time.monotonic() + n
        while time.monotonic() < end: sum(range(100))
    def outer(n): inner(n)
    def sleeper(): time.sleep(1.0)
    thread = threading.Thread(target=sleeper); thread.start()
    launch(5); outer(0.7); launch(5); thread.join()
"""


def stacks(trace) -> dict[int, list[tuple[str, str, int]]]:  # type: ignore[no-untyped-def]
    found: dict[int, list[tuple[str, str, int]]] = {}
    rows = trace.arrow("stack_frame").to_pylist()
    for row in sorted(rows, key=lambda row: (row["stack_id"], row["depth"])):
        frame = (row["function"], row["module"], row["line"])
        found.setdefault(row["stack_id"], []).append(frame)
        assert len(found[row["stack_id"]]) == row["depth"] + 1
    return found


def test_where_the_time_goes(program: Program) -> None:
    trace = program.trace(BUSY, sample_hz=50)
    samples = trace.arrow("cpu_sample").to_pylist()
    known = stacks(trace)
    assert {row["stack_id"] for row in samples} == set(known)
    process = texts(trace, "process", "process_id")[0]
    main = [known[row["stack_id"]] for row in samples if row["thread_id"] == process]
    busy = [stack for stack in main if stack[-1][0] == "inner"]
    assert len(busy) > 5
    for stack in busy:
        assert [name for name, _, _ in stack] == ["<module>", "outer", "inner"]
        assert Path(stack[-1][1]).name == "program1.py"
    text = (program.folder / "program1.py").read_text().splitlines()
    lines = {text[stack[-1][2] - 1].strip() for stack in busy}
    assert lines <= {
        "end = time.monotonic() + n",
        "while time.monotonic() < end: sum(range(100))",
    }
    others = [known[r["stack_id"]] for r in samples if r["thread_id"] != process]
    assert any(stack[-1][0] == "sleeper" for stack in others)
    assert not any("sampling" in frame[1] for stack in known.values() for frame in stack)
    assert {row["weight"] for row in samples} == {20_000_000}
    # the clock is that of all else: samples lie between the first and the last launch
    times = [r["time_ns"] for r in samples if known[r["stack_id"]][-1][0] == "inner"]
    ops = trace.frame("gpu_op", "start_ns")["start_ns"]
    assert ops.min() - 20e6 < min(times)
    assert max(times) < ops.max() + 20e6
    assert {"cpu_sample", "stack_frame"}.isdisjoint(a.table for a in trace.meta.missing)


def test_forked_workers_are_sampled_and_killed_ones_keep_their_samples(program: Program) -> None:
    outcome = program.record(
        """
        def worker():
            end = time.monotonic() + 1.2
            while time.monotonic() < end: sum(range(100))
        child = os.fork()
        if child == 0:
            worker(); os._exit(0)
        launch(5); os.waitpid(child, 0); launch(5); time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        sample_hz=50,
    )
    trace = read(outcome.raw[0])
    samples = trace.arrow("cpu_sample").to_pylist()
    processes = {row["process_id"] for row in samples}
    assert len(processes) == 2
    known = stacks(trace)
    (worker,) = processes - set(trace.frame("gpu_op", "process_id")["process_id"].tolist())
    names = {known[r["stack_id"]][-1][0] for r in samples if r["process_id"] == worker}
    assert "worker" in names


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_programs_of_other_pythons(program: Program, version: str) -> None:
    python = shutil.which(f"python{version}")
    if (
        python is None
        or subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode
    ):
        pytest.skip(f"there is no Python {version} here")
    options = program.options(BUSY, sample_hz=50)
    command = (python, *options.command[1:])
    outcome = record(replace(options, command=command), "test", program.output.append)
    assert outcome.exit_code == 0
    trace = read(outcome.raw[0])
    assert any(name.endswith("inner") for name in texts(trace, "stack_frame", "function"))


def test_an_unwritable_folder_harms_nobody(
    program: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = program.record(
        """
        import shutil
        launch(5)
        folder = os.path.dirname(os.environ["STEPSCOPE_CAPTURE"])
        shutil.rmtree(folder)
        time.sleep(1.0)
        print("done")
        """,
        sample_hz=100,
        threads_hz=50,
    )
    assert outcome.exit_code == 0
    output = capfd.readouterr()
    assert (output.out, output.err) == ("done\n", "")


def test_files_that_were_cut_are_read_up_to_there(tmp_path: Path) -> None:
    whole = "P\t7\t1\t-1\t20000000\nF\t0\t3\tmain\ta.py\nF\t1\t9\tf\ta.py\nS\t0\t0,1\nS\t1\t0\n"
    for cut in range(len(whole) + 1):
        (tmp_path / "f").write_text(whole[:cut])
        found = _frames(tmp_path / "f")
        assert found.period_ns in (0, 20_000_000)
        assert set(found.stacks) <= {0, 1}
        assert all(set(stack) <= set(found.frames) for stack in found.stacks.values())
    assert (found.frames[1], found.stacks[0]) == ((9, "f", "a.py"), [0, 1])

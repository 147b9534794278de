"""Programs and machines that make it hard: the program's exit code and output stay its own.

Each row of the table in docs/guides/run.md is one of these tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.capture.conftest import Program, read, texts

from stepscope.capture.errors import CaptureError
from stepscope.capture.launcher import Outcome, record
from stepscope.importers.registry import convert
from stepscope.trace.trace import Trace


def printed(program: Program, capfd: pytest.CaptureFixture[str], text: str, **options) -> Outcome:  # type: ignore[no-untyped-def]
    """Run a program that ends with "done" and code 7: recording changes neither."""
    outcome = program.record(text + "\n        print('done', flush=True); sys.exit(7)", **options)
    output = capfd.readouterr()
    assert (output.out, output.err) == ("done\n", "")
    assert outcome.exit_code == 7
    return outcome


# --- room -----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_disk_that_is_full(
    program: Program, capfd: pytest.CaptureFixture[str], small_disk: Path
) -> None:
    program.folder = small_disk
    outcome = printed(
        program,
        capfd,
        """
        launch(1000); written(1000)
        launch(40_000); time.sleep(0.4)
        [(push("a"), pop()) for _ in range(40_000)]
        """,
    )
    (line,) = [line for line in outcome.warnings if "No space left on device" in line]
    assert "free some space, or give -o a folder on a larger disk" in line
    target = small_disk.parent / "t.stepscope"
    convert(outcome.raw[0], target)
    trace = Trace(target)
    assert 1000 <= trace.rows("gpu_op") < 41_000
    assert not {p.id for p in trace.meta.problems} & {"damaged_block"}


def test_room_that_comes_back_is_used(
    program: Program, capfd: pytest.CaptureFixture[str], small_disk: Path
) -> None:
    program.folder = small_disk
    outcome = printed(
        program,
        capfd,
        """
        from pathlib import Path
        ballast = Path(__file__).parent / "ballast"
        launch(10); written(10)
        with ballast.open("wb") as file:
            try:
                while True: file.write(bytes(4096)); file.flush()
            except OSError: pass
            try: file.close()
            except OSError: pass
        launch(200); time.sleep(0.4)
        ballast.unlink()
        launch(3000); time.sleep(0.3)
        """,
    )
    assert any("No space left" in line for line in outcome.warnings)
    target = small_disk.parent / "t.stepscope"
    convert(outcome.raw[0], target)
    trace = Trace(target)
    assert trace.rows("gpu_op") >= 3010
    problems = {p.id for p in trace.meta.problems}
    assert "dropped_records" in problems
    assert not problems & {"damaged_block", "torn_end", "unfinished_capture"}


def test_shared_memory_of_64_megabytes(program: Program, tmp_path: Path) -> None:
    """The default of containers: processes beyond the eighth keep ranges on their heap."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to make a mount namespace")
    options = program.options(
        """
        children = []
        for k in range(12):
            pid = os.fork()
            if pid == 0:
                [(push(f"worker {k}"), pop()) for _ in range(5000)]
                time.sleep(0.5)
                nvtx.nvtx_load()
                os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)
            children.append(pid)
        launch(10)
        assert {os.waitpid(pid, 0)[1] for pid in children} == {signal.SIGTERM}
        """
    )
    code = (
        "import sys; from stepscope.capture.launcher import record;"
        "from stepscope.capture.options import Options; from pathlib import Path;"
        f"o = record(Options({options.command!r}, Path({str(options.output)!r}), counters=False,"
        " backend='collector', flush_ms=100), 'test', print); print(o.remarks);"
        " sys.exit(o.exit_code)"
    )
    inside = f'mount -t tmpfs -o size=64m none /dev/shm && exec {sys.executable} -c "$0"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", inside, code], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    trace = read(options.output / "raw" / "rank0")
    assert trace.rows("gpu_op") == 10
    assert trace.rows("range") == 12 * 5000


# --- folders --------------------------------------------------------------------------------------


def test_an_output_folder_that_is_removed(
    program: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = printed(
        program,
        capfd,
        """
        import shutil
        launch(10); push("a"); pop(); written(10)
        shutil.rmtree(os.path.dirname(os.path.dirname(os.environ["STEPSCOPE_CAPTURE"])))
        launch(1000); time.sleep(0.5)
        """,
    )
    assert [line for line in outcome.warnings if "was removed while" in line]
    assert outcome.raw == []


def test_an_output_that_cannot_be_written(program: Program) -> None:
    options = program.options("launch(10)")
    with pytest.raises(CaptureError, match=r"cannot write /proc/self/capture: .*; give another"):
        record(replace(options, output=Path("/proc/self/capture")), "test", print)


# --- descriptors ----------------------------------------------------------------------------------


def test_a_program_that_closes_every_descriptor(
    program: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own files, under numbers that were ours, hold what it wrote and nothing else."""
    outcome = printed(
        program,
        capfd,
        """
        launch(100); push("before"); pop(); written(100)
        os.closerange(3, 4096)
        mine = [open(f"{__file__}.{n}", "wb") for n in range(12)]
        for n in range(200):
            launch(10); push("after"); pop()
            mine[n % 12].write(b"mine" * 100); mine[n % 12].flush()
        time.sleep(0.3)
        for file in mine:
            file.close()
            assert set(open(file.name, "rb").read()) == set(b"mine"), file.name
        """,
    )
    trace = read(outcome.raw[0])
    assert trace.rows("gpu_op") == 2100
    assert texts(trace, "range", "name").count("after") == 200
    assert trace.meta.problems == []


def test_few_descriptors(program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = printed(
        program,
        capfd,
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        keep = []
        try:
            while True: keep.append(open("/dev/null"))
        except OSError: pass
        nvtx.nvtx_load(); launch(500)
        [(push("a"), pop()) for _ in range(5000)]
        child = os.fork()
        if child == 0:
            push("b"); pop(); os._exit(5)
        assert os.waitpid(child, 0)[1] == 5 << 8
        del keep
        """,
    )
    trace = read(outcome.raw[0])
    assert trace.rows("gpu_op") == 500
    assert texts(trace, "range", "name").count("a") == 5000


# --- processes ------------------------------------------------------------------------------------


def test_a_storm_of_forks(program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = printed(
        program,
        capfd,
        """
        push("around")
        for burst in range(10):
            children = []
            for k in range(20):
                pid = os.fork()
                if pid == 0:
                    if k % 2: push("child"); pop()
                    os._exit(k)
                children.append((k, pid))
            assert all(os.waitpid(pid, 0)[1] == k << 8 for k, pid in children)
        launch(10); pop()
        """,
    )
    trace = read(outcome.raw[0])
    assert texts(trace, "range", "name").count("child") == 100
    assert trace.rows("gpu_op") == 10


def test_a_daemon_is_waited_for(program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = printed(
        program,
        capfd,
        """
        if os.fork() == 0:
            os.setsid()
            if os.fork(): os._exit(0)
            push("of the daemon"); pop()
            time.sleep(1.5)
            open(f"{__file__}.ended", "w").close()
            os._exit(0)
        os.wait(); launch(10); time.sleep(0.5); launch(10)
        """,
    )
    assert (program.folder / "program1.py.ended").exists()  # its files were not read before
    trace = read(outcome.raw[0])
    assert texts(trace, "range", "name") == ["of the daemon"]


def test_another_user(program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    if os.geteuid():
        pytest.skip("needs root, to become somebody else")
    outcome = printed(
        program,
        capfd,
        """
        launch(10); push("a"); pop()
        os.setgid(65534); os.setuid(65534)
        launch(10); push("b"); pop()
        child = os.fork()
        if child == 0:
            push("c"); pop(); os._exit(0)
        os.waitpid(child, 0)
        """,
    )
    trace = read(outcome.raw[0])
    assert trace.rows("gpu_op") == 20
    assert {"a", "b"} <= set(texts(trace, "range", "name"))


@pytest.mark.parametrize("ending", ["os._exit(7)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_ends_at_once_loses_one_flush_at_most(program: Program, ending: str) -> None:
    outcome = program.record(
        f"""
        [(push("a"), launch(), pop()) for _ in range(3000)]
        written(3000)
        [(push("b"), launch(), pop()) for _ in range(50)]
        {ending}
        """
    )
    assert outcome.exit_code in (7, 137)
    trace = read(outcome.raw[0])
    assert trace.rows("range") == 3050
    assert 3000 <= trace.rows("gpu_op") <= 3050

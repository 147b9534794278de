"""What a program sees of being recorded: modules, descriptors, signals, the keys of a terminal."""

from __future__ import annotations

import ast
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.capture.conftest import Program, read
from tests.capture.test_hook import TRAIN
from tests.capture.test_hook import torch as torch  # noqa: PLC0414 - a fixture

from stepscope.capture.backends.base import HOOK_FOLDER

WORK = '[(push("a"), launch(), pop()) for _ in range(3000)]\n'

# --- modules --------------------------------------------------------------------------------------


def test_nothing_but_sitecustomize_is_on_the_search_path() -> None:
    """Whatever lies there hides the program's own modules of that name."""
    assert [p.name for p in HOOK_FOLDER.iterdir() if p.name != "__pycache__"] == [
        "sitecustomize.py"
    ]


def test_the_programs_modules_are_its_own(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for hook in [*HOOK_FOLDER.parent.glob("*.py"), *HOOK_FOLDER.glob("*.py")]:
        (packages / hook.name).write_text("of_the_program = True")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    names = sorted(path.stem for path in packages.glob("*.py"))
    program.record(
        f"""
        import importlib
        for name in {names}: assert importlib.import_module(name).of_the_program, name
        assert "_stepscope_hook" in sys.modules
        launch()
        open(__file__ + ".done", "w")
        """
    )
    assert list(tmp_path.glob("*.done"))


def test_old_pythons_are_left_alone(tmp_path: Path) -> None:
    """They execute the same file."""
    text = (HOOK_FOLDER / "sitecustomize.py").read_text()
    ast.parse(text, feature_version=(3, 4))
    (tmp_path / "sitecustomize.py").write_text("print('the other one')\n")
    (tmp_path / "program.py").write_text("print('program')\n")
    path = f"{HOOK_FOLDER}{os.pathsep}{tmp_path}"
    found = [which for name in ("2.7", "3.6", "3.7") if (which := shutil.which(f"python{name}"))]
    for python in found:
        done = subprocess.run(
            [python, tmp_path / "program.py"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode in (126, 127):  # a version manager's stand-in for none
            continue
        assert (done.stdout, done.stderr) == ("the other one\nprogram\n", ""), python


def test_a_failing_sitecustomize_fails_as_without_us(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "sitecustomize.py").write_text("raise RuntimeError('planned')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    trace = program.trace('assert "_stepscope_hook" in sys.modules; launch(5)')
    assert trace.rows("gpu_op") == 5


# --- descriptors ----------------------------------------------------------------------------------


def test_descriptors_are_passed_on(program: Program) -> None:
    """As a shell's <(...) needs it."""
    out, into = os.pipe()
    os.set_inheritable(out, True)
    try:
        os.write(into, b"from the shell")
        trace = program.trace(f'assert os.read({out}, 99) == b"from the shell"; launch(3)')
    finally:
        os.close(out)
        os.close(into)
    assert trace.rows("gpu_op") == 3


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise KeyboardInterrupt", 130),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(5)", 130),
        ("os.kill(os.getpid(), signal.SIGHUP); time.sleep(5)", 129),
    ],
)
def test_interrupts_lose_nothing(program: Program, ending: str, code: int) -> None:
    trace = program.trace(WORK + ending, exit_code=code)
    assert (trace.rows("gpu_op"), trace.rows("range")) == (3000, 3000)
    assert trace.meta.problems == []


def test_interrupts_of_native_programs_lose_nothing(program: Program) -> None:
    trace = program.trace(
        "signal.signal(signal.SIGINT, signal.SIG_DFL)  # as where no Python has taken it\n"
        "nvtx.nvtx_load(); cuda.fake_init()\n" + WORK + "signal.raise_signal(signal.SIGINT)",
        start="",
        exit_code=130,
    )
    assert trace.rows("gpu_op") == 3000


def test_handlers_of_the_program_stay(program: Program) -> None:
    trace = program.trace(
        """
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(9))
        nvtx.nvtx_load(); cuda.fake_init(); launch(3)
        os.kill(os.getpid(), signal.SIGHUP); time.sleep(5)
        """,
        start="",
        exit_code=9,
    )
    assert trace.rows("gpu_op") == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_to_the_launcher_reach_the_program(program: Program, number: int) -> None:
    """Without a terminal nobody but the launcher gets them."""
    ready = program.folder / "ready"
    options = program.options(
        f"""
        signal.signal({int(number)}, lambda *_: sys.exit(42))
        launch(5); open({str(ready)!r}, "w"); time.sleep(30)
        """
    )
    code = (
        "import sys; from stepscope.capture.launcher import record;"
        "from stepscope.capture.options import Options; from pathlib import Path;"
        f"sys.exit(record(Options({options.command!r}, Path({str(options.output)!r}),"
        " counters=False, backend='collector'), 'test', print).exit_code)"
    )
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as launcher:
        limit = time.monotonic() + 60
        while not ready.exists() and time.monotonic() < limit:
            time.sleep(0.02)
        launcher.send_signal(number)
        assert launcher.wait(60) == 42
    assert read(options.output / "raw" / "rank0").rows("gpu_op") == 5


@pytest.mark.parametrize("ignored", [(), (signal.SIGHUP,), (signal.SIGINT, signal.SIGQUIT)])
def test_dispositions_are_inherited(program: Program, ignored: tuple[int, ...]) -> None:
    """As nohup and a shell's background set them."""
    report = program.folder / "report"
    options = program.options(
        f"""
        launch(3)
        text = open("/proc/self/status").read()
        open({str(report)!r}, "w").write(text[text.index("SigIgn:"):].split()[1])
        """
    )
    code = (
        "import signal, sys; from stepscope.capture.launcher import record;"
        f"[signal.signal(number, signal.SIG_IGN) for number in {tuple(map(int, ignored))}];"
        "from stepscope.capture.options import Options; from pathlib import Path;"
        f"record(Options({options.command!r}, Path({str(options.output)!r}),"
        " counters=False, backend='collector'), 'test', print)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    found = int(report.read_text(), 16)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR2):
        assert bool(found >> (number - 1) & 1) == (number in ignored), number


def typed(argv: list[str], keys: bytes) -> tuple[int, str]:
    """Run a command on a terminal of its own, and type when it says "ready"."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(argv[0], argv)
    shown, sent = b"", False
    limit = threading.Timer(90, lambda: os.kill(process, signal.SIGKILL))
    limit.start()
    while True:
        try:
            if select.select([terminal], [], [], 0.1)[0]:
                if not (part := os.read(terminal, 4096)):
                    break
                shown += part
        except OSError:
            break
        if b"ready\r\n" in shown and not sent:
            os.write(terminal, keys)
            sent = True
    _, status = os.waitpid(process, 0)
    limit.cancel()
    os.close(terminal)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code, shown.decode().replace("\r\n", "\n")


_NAPS = "[time.sleep(0.1) for _ in range(300)]"
"""Python misses a signal that comes just before it sleeps until it wakes up."""


@pytest.mark.parametrize(
    ("text", "keys", "code"),
    [
        (_NAPS, b"\x03", 130),
        (f"signal.signal(2, lambda *_: sys.exit(42)); print('ready'); {_NAPS}", b"\x03", 42),
        (_NAPS, b"\x1c", 131),
        ("print('got', input()); sys.exit(5)", b"hello\n", 5),
    ],
)
def test_a_terminal_is_the_programs(program: Program, text: str, keys: bytes, code: int) -> None:
    options = program.options(
        "print(os.isatty(0), os.isatty(1), os.tcgetpgrp(0) == os.getpgrp())\n"
        "sys.tracebacklimit = 0  # the key may come before or in the last call\n"
        f"launch(500); print('ready', flush=True) if 'ready' not in {text!r} else None; {text}"
    )
    alone = typed(list(options.command), keys)
    code_text = (
        "import sys; from stepscope.capture.launcher import record;"
        "from stepscope.capture.options import Options; from pathlib import Path;"
        f"sys.exit(record(Options({options.command!r}, Path({str(options.output)!r}),"
        " counters=False, backend='collector'), 'test', lambda _: None).exit_code)"
    )
    recorded = typed([sys.executable, "-c", code_text], keys)
    assert recorded == alone
    assert recorded[0] == code
    raw = options.output / "raw" / "rank0"
    assert raw.is_dir()  # the launcher outlived the program
    if keys != b"\x1c":  # which may be killed before its first block
        assert read(raw).rows("gpu_op") == 500


# --- torch.profiler -------------------------------------------------------------------------------


def test_a_program_that_ends_before_its_steps_is_recorded(program: Program, torch: Path) -> None:
    """torch.profiler crashes a process that ends while it records."""
    outcome = program.record(TRAIN, backend="torch", steps=400, warmup=3)
    (path,) = outcome.results
    assert '"with_stack": false' in path.read_text()
    assert outcome.exit_code == 0


def test_ranks_that_tell_no_rank_write_files_of_their_own(program: Program, torch: Path) -> None:
    outcome = program.record(
        f"""
        import subprocess
        if len(sys.argv) == 1:
            subprocess.run([sys.executable, __file__, "child"], check=True)
        {TRAIN.strip().replace(chr(10), chr(10) + "    ")}
        """,
        backend="torch",
        steps=2,
        warmup=1,
    )
    assert [p.name for p in outcome.results] == ["torch.rank0.json.gz", "torch.rank1.json.gz"]


def test_a_recorder_that_fails_leaves_the_program_alone(
    program: Program, torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (torch / "torch" / "profiler.py").write_text("raise ImportError('broken')")
    (torch / "torch" / "__init__.py").write_text(
        (torch / "torch" / "__init__.py").read_text().replace("optim, profiler", "optim")
    )
    outcome = program.record(TRAIN, backend="torch", steps=2, warmup=1)
    assert outcome.exit_code == 0
    assert "recording by steps failed: ImportError" in capfd.readouterr().err

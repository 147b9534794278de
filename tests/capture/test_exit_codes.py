"""``stepscope run`` ends as the program does, whatever becomes of the recording."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.capture.conftest import PRELUDE, Program
from tests.cli.command import Stepscope, is_one_line, python

from stepscope.api import recording
from stepscope.api.recording import capture_options, capture_program
from stepscope.capture import libraries

RUN = ("run", "--no-counters", "--backend", "collector")


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("pass", 0),
        ("import sys; sys.exit(2)", 2),
        ("import sys; sys.exit(255)", 255),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143),
    ],
)
def test_a_program_without_a_gpu(
    stepscope: Stepscope, tmp_path: Path, program: str, code: int
) -> None:
    done = stepscope(*RUN, "-o", tmp_path / "a", "--", sys.executable, "-c", program, expect=code)
    assert "nothing was recorded: the program used neither CUDA nor NVTX" in done.stderr
    assert done.stdout == ""
    # --strict makes a success with nothing recorded a failure, and no failure another one
    stepscope(
        *(*RUN, "--strict", "-o", tmp_path / "b", "--", sys.executable, "-c", program),
        expect=code or 2,
    )


def test_only_nvtx(program: Program, stepscope: Stepscope) -> None:
    script = program.script('push("a"); pop()', start="nvtx.nvtx_load()")
    done = stepscope(*RUN, "-o", program.folder / "a", "--", sys.executable, script)
    assert "did not use CUDA; only NVTX ranges were recorded" in done.stderr
    assert "captured in" in done.stderr


def test_a_diagnosis_that_fails(program: Program, stepscope: Stepscope) -> None:
    """Its exit code is not the program's; --strict makes it one."""
    script = program.script('push("step_1"); launch(3); pop()')
    code = (
        "import sys; from stepscope.cli.main import main; "
        "from stepscope.api.recording import Captured; Captured.diagnose = lambda *_: 3; main()"
    )
    for strict, expected in ((), 0), (("--strict",), 2):
        folder = program.folder / f"run{expected}"
        arguments = (*RUN, *strict, "-o", str(folder), "--", sys.executable, str(script))
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=stepscope.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expected, done.stderr
        assert "the diagnosis failed with exit code 3; the capture is there" in done.stderr
        assert (folder / "rank0.stepscope").is_dir()


def test_what_fails_after_the_program_is_said(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a bug of ours: the program's exit code is known then."""
    printed: list[str] = []

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording, "_finalised", fail)
    options = program.options("launch(); sys.exit(9)")
    found = capture_program(options, printed.append)
    assert (found.exit_code, found.is_whole, found.traces) == (9, False, [])
    assert any("No space left" in text and "capture finalise" in text for text in printed)
    monkeypatch.setattr("stepscope.capture.launcher.rawfiles.sort_by_rank", lambda _: 1 / 0)
    found = capture_program(program.options("launch(); sys.exit(8)"), printed.append)
    assert (found.exit_code, found.is_whole) == (8, False)
    assert "division by zero" in printed[-2]


def test_nobody_reads_what_is_said(stepscope: Stepscope, tmp_path: Path) -> None:
    """A closed pipe, a closed descriptor or a full disk behind standard error changes nothing."""
    program = (sys.executable, "-c", "import sys; sys.exit(5)")
    for index, after in enumerate(("2>&-", "2>/dev/full", "2>&1 >/dev/null | true; exit 5")):
        command = [*python(*RUN), "-o", str(tmp_path / str(index)), "--", *program]
        shell = 'set -o pipefail; "$@" ' + after
        done = subprocess.run(
            ["bash", "-c", shell, "bash", *command],
            env=stepscope.environment(),
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 5, after


# --- programs that cannot be started --------------------------------------------------------------


def test_a_program_that_is_not_there(stepscope: Stepscope, tmp_path: Path) -> None:
    for name in ("no-such-program", str(tmp_path / "none"), "", "./none/below"):
        for strict in ((), ("--strict",)):
            output = tmp_path / "o"
            done = stepscope(*RUN, *strict, "-o", output, "--", name, expect=2)
            assert "is no program that can be found" in is_one_line(done.stderr)
            assert not output.exists()


def test_a_program_that_cannot_be_executed(stepscope: Stepscope, tmp_path: Path) -> None:
    (tmp_path / "not-executable").write_text("print(1)\n")
    text = tmp_path / "text"
    text.write_bytes(b"\x7fELF, but no more than that")
    text.chmod(0o755)
    missing = tmp_path / "missing"
    missing.write_text("#!/no/such/interpreter\n")
    missing.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name, message in (
        (str(tmp_path / "not-executable"), "may not be executed"),
        ("not-executable", "may not be executed"),
        (str(tmp_path), "is a folder"),
        (str(text), "no program for this machine"),
        (str(missing), "names an interpreter that is not there"),
    ):
        output = tmp_path / "o"
        done = stepscope(*RUN, "-o", output, "--", name, "argument", expect=2, **environment)
        assert message in done.stderr.splitlines()[-1]
        assert not output.exists(), name  # the next run may have the same name
    assert not list(Path("/dev/shm").glob(f"stepscope-{os.getuid()}-{os.getpid()}-*"))


def test_options_that_make_no_sense_stay_2(stepscope: Stepscope, tmp_path: Path) -> None:
    assert "give --steps too" in stepscope.refuses(*RUN, "--warmup", "3", "--", "no-such-program")


# --- ranks ----------------------------------------------------------------------------------------


def test_a_rank_that_nobody_asked_for(program: Program, stepscope: Stepscope) -> None:
    """As with srun, which starts stepscope once a rank: no failure, with --strict neither."""
    script = program.script("launch(3)")
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        done = stepscope(
            *(*RUN, "--strict", "--ranks", "0,7", "-o", program.folder / name, "--"),
            *(sys.executable, script),
            **{name: "3"},
        )
        assert "--ranks asks for 0, 7, and the processes here have rank 3" in done.stderr
        assert not (program.folder / name).exists()


def test_a_rank_that_torch_profiler_was_not_asked_for(stepscope: Stepscope, tmp_path: Path) -> None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK"):
        done = stepscope(
            *("run", "--strict", "--backend", "torch", "--ranks", "0", "-o", tmp_path / name),
            *("--", sys.executable, "-c", "pass"),
            **{name: "3"},
        )
        assert "--ranks asks for 0, and the processes here have rank 3" in done.stderr


def test_a_launcher_of_ranks_one_of_which_fails(program: Program, stepscope: Stepscope) -> None:
    """As torchrun does it: its exit code, and the traces of all ranks."""
    script = program.folder / "launcher.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "if 'RANK' not in os.environ:\n"
        "    codes = [subprocess.Popen([sys.executable, __file__], env={**os.environ, 'RANK': r,\n"
        "             'WORLD_SIZE': '2'}) for r in '01']\n"
        "    sys.exit(max(code.wait() for code in codes))\n"
        f"{PRELUDE}\nnvtx.nvtx_load(); cuda.fake_init(); launch(5)\n"
        "sys.exit(int(os.environ['RANK']) * 4)\n"
    )
    folder = program.folder / "ranks"
    arguments = (*RUN, "--no-diagnose", "--strict", "-o", folder, "--", sys.executable, script)
    stepscope(*arguments, expect=4)
    assert {path.name for path in folder.iterdir()} == {"rank0.stepscope", "rank1.stepscope"}


# --- other tools ----------------------------------------------------------------------------------


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for nsys and ncu that run the program and may end with a code of their own."""
    folder = tmp_path / "tools"
    folder.mkdir()
    version = '[ "$1" = --version ] && echo "version 2025.3.1" && exit\n'
    nsys = (
        'for a; do [ "$a" = -- ] && break; case $a in --*|profile) shift;; *) break;; esac; done\n'
    )
    (folder / "nsys").write_text(f'#!/bin/sh\n{version}{nsys}exec "$@"\n')
    ncu = (
        '[ "$1" = --help ] && exit\n'
        "while :; do case $1 in --log-file) log=$2; shift 2;; --force-overwrite) shift;;"
        ' --*) shift 2;; *) break;; esac; done\n"$@"; code=$?\n'
        'echo "==PROF== Connected to process 1" > "$log"\n'
        '[ $code = 0 ] || echo "==WARNING== The application returned an error code ($code)."'
        ' >> "$log"\necho "==PROF== Disconnected from process 1" >> "$log"\nexit 9\n'
    )
    (folder / "ncu").write_text(f"#!/bin/sh\n{version}{ncu}")
    for path in folder.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    libraries.find_tool.cache_clear()
    return folder


@pytest.mark.parametrize("backend", ["nsys", "ncu", "torch"])
@pytest.mark.parametrize("code", [0, 3])
def test_back_ends_pass_the_programs_code_on(
    stepscope: Stepscope, tmp_path: Path, tools: Path, backend: str, code: int
) -> None:
    """Where the tool wrote nothing, too, and where it ended with a code of its own."""
    program = (sys.executable, "-c", f"import sys; sys.exit({code})")
    arguments = ("run", "--backend", backend, "-o", tmp_path / "o", "--", *program)
    done = stepscope(*arguments, expect=code)
    if backend == "torch":
        assert "nothing was recorded: the program did not import torch.optim" in done.stderr
    else:
        assert "the tool wrote no" in done.stderr
    strict = ("run", "--strict", "--backend", backend, "-o", tmp_path / "p", "--", *program)
    stepscope(*strict, expect=code or 2)


@pytest.mark.parametrize("backend", ["nsys", "ncu"])
def test_steps_that_another_tool_waited_for(
    stepscope: Stepscope, tmp_path: Path, tools: Path, backend: str
) -> None:
    program = (sys.executable, "-c", "pass")
    arguments = ("run", "--backend", backend, "--steps", "3", "-o", tmp_path / "o", "--", *program)
    assert "nothing was recorded: the program did not import torch.optim" in (
        stepscope(*arguments).stderr
    )
    if backend == "nsys":
        arguments = ("run", "--backend", "nsys", "--delay", "60", "-o", tmp_path / "p", "--")
        assert "before the 60 s of --delay were over" in stepscope(*arguments, *program).stderr
        arguments = ("run", "--backend", "nsys", "--range", "train", "-o", tmp_path / "q", "--")
        assert "with --backend collector it is said which ones were" in (
            stepscope(*arguments, *program).stderr
        )


def test_a_signal_through_stepscope(stepscope: Stepscope, tmp_path: Path) -> None:
    """What is sent to stepscope run goes to the program, and comes back as its end."""
    code = "import time; print('ready', flush=True); time.sleep(60)"
    command = [*python(*RUN), "-o", str(tmp_path / "o"), "--", sys.executable, "-c", code]
    with subprocess.Popen(
        command, env=stepscope.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 143


def test_json_stays_json(program: Program, stepscope: Stepscope) -> None:
    script = program.script('push("step_1"); launch(3); pop(); sys.exit(4)')
    folder = program.folder / "json"
    done = stepscope(
        *(*RUN, "--format", "json", "-o", folder, "--", sys.executable, script), expect=4
    )
    assert json.loads(done.stdout)["schema"].startswith("stepscope.diagnosis/")


def test_the_session_of_a_program_by_name(tmp_path: Path) -> None:
    """The Python interface raises what the command line says."""
    options = capture_options(command=("no-such-program",), output=str(tmp_path / "o"))
    with pytest.raises(recording.ProgramError) as error:
        capture_program(options, print)
    assert error.value.exit_code == 2

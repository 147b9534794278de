"""Options, the choice of the back-end, the commands it would run, and what doctor says."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.capture.conftest import Program
from tests.cli.command import Stepscope

import stepscope.capture
from stepscope.capture import doctor, libraries
from stepscope.capture.backends import registry
from stepscope.capture.backends.base import Readiness
from stepscope.capture.errors import CaptureError
from stepscope.capture.launcher import prepare, record
from stepscope.capture.options import Options

COMMAND = (sys.executable, "train.py")


def options(tmp_path: Path, **more: Any) -> Options:
    return Options(COMMAND, tmp_path / "out", **more)


def tool(folder: Path, name: str, version: str, body: str = "") -> Path:
    path = folder / name
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "version {version}" && exit\n{body}\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libraries, "_TOOL_FOLDERS", {"nsys": (), "ncu": ()})
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    libraries.find_tool.cache_clear()


# --- the capture room stands alone ----------------------------------------------------------------


def test_nothing_but_the_standard_library_is_loaded() -> None:
    """The launcher works, and with it every module beside it, in a Python without packages."""
    root = Path(stepscope.capture.__file__).parent
    modules = [
        ".".join(("stepscope.capture", *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("*.py")
        if path.name not in ("__init__.py", "sitecustomize.py")
    ]
    assert len(modules) > 12
    code = (
        f"import sys; sys.path.insert(0, {str(root.parents[1])!r})\n"
        f"import importlib; [importlib.import_module(m) for m in {modules!r}]\n"
        "print([m for m in sys.modules if m.split('.')[0] not in {*sys.stdlib_module_names,"
        " 'stepscope'} and m != '__main__'],"
        " [m for m in sys.modules if m.startswith('stepscope.') and '.capture' not in m])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[] []\n", "")


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "summary"),
    [
        ({"steps": 3, "range": "step"}, "--steps and --range both say when"),
        ({"warmup": 3}, "give --steps too"),
        ({"paused": True, "delay_s": 1.0}, "--delay and --paused both say"),
        ({"hook": False, "gc": True}, "--gc needs the hook"),
        ({"sample_hz": 1e6}, "--sample-hz is 1e"),
        ({"steps": -1}, "--steps is -1; give a number from 0 on"),
        ({"delay_s": -1.0}, "--delay is -1"),
        ({"duration_s": float("nan")}, "--duration is nan"),
        ({"ring_s": float("inf")}, "--ring is inf"),
        ({"max_bytes": -5}, "--max-size is -5"),
        ({"ranks": (0, -3)}, "--ranks is -3"),
        ({"flush_ms": 0}, "--flush-ms is 0"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, more: dict[str, Any], summary: str) -> None:
    with pytest.raises(CaptureError, match=summary):
        prepare(options(tmp_path, backend="collector", **more))


def test_a_tool_that_is_missing_is_named(tmp_path: Path) -> None:
    for backend in ("nsys", "ncu"):
        with pytest.raises(CaptureError, match=f"^{backend} is not installed: install "):
            prepare(options(tmp_path, backend=backend))


def test_an_output_that_exists_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(CaptureError, match="exists and is not empty"):
        record(options(tmp_path, backend="collector"), "test", print)
    with pytest.raises(CaptureError, match="no program that can be found"):
        record(Options(("no-such-program",), tmp_path / "o"), "test", print)


def test_an_output_that_exists_is_refused_first(stepscope: Stepscope, tmp_path: Path) -> None:
    """Before a plan is shown, or a capture to examine is read."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    for more in ((), ("--dry-run",), ("--backend", "ncu", "--examine", str(tmp_path / "none"))):
        output = stepscope.refuses("run", "-o", tmp_path / "out", *more, "--", "true")
        assert "exists and is not empty" in output
    assert "Not a directory" in stepscope.refuses("run", "-o", tmp_path / "out/mine", "--", "true")


def test_names_are_filled_in(stepscope: Stepscope, tmp_path: Path) -> None:
    arguments = ("run", "--dry-run", "--backend", "collector", "-o")
    name = f"{tmp_path}/%q{{RANK}}-%h-%p-100%%"
    text = stepscope(*arguments, name, "--", "true", RANK="3/4").stdout
    assert f"{tmp_path}/3_4-{platform.node()}-" in text
    assert "-100%/raw" in text
    message = stepscope.refuses(*arguments, name, "--", "true")
    assert "asks for RANK, which is not set here" in message
    for slip in ("%q{RANK", "%r", "100%"):
        message = stepscope.refuses(*arguments, tmp_path / slip, "--", "true", RANK="3")
        assert "write %% for a percent sign" in message


# --- commands -------------------------------------------------------------------------------------


def planned(tmp_path: Path, **more: Any) -> tuple[list[str], dict[str, str]]:
    _, _, plan = prepare(options(tmp_path, **more))
    return list(plan.command), plan.environment


def test_nsys_gets_the_flags_that_its_version_knows(tmp_path: Path) -> None:
    tool(tmp_path, "nsys", "2023.4.4.54-234433681190v0")
    command, environment = planned(tmp_path, backend="nsys", range="step@lib", graph="node")
    assert command[-2:] == list(COMMAND)
    assert {
        *("--trace=cuda,nvtx", "--sample=none", "--cuda-graph-trace=node"),
        *("--capture-range=nvtx", "--nvtx-capture=step@lib", "--capture-range-end=stop"),
        f"--output={(tmp_path / 'out').resolve()}/run",
    } <= set(command)
    assert environment == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    with pytest.raises(CaptureError, match="or newer"):
        planned(tmp_path, backend="nsys", record=("event",))
    libraries.find_tool.cache_clear()
    tool(tmp_path, "nsys", "2025.3.1.90-253135822126v0")
    command, environment = planned(tmp_path, backend="nsys", record=("event",), steps=5)
    assert {"--cuda-event-trace=true", "--capture-range=cudaProfilerApi"} <= set(command)
    assert set(environment) == {"PYTHONPATH", "STEPSCOPE_CAPTURE"}
    with pytest.raises(CaptureError, match="does not know --ring"):
        planned(tmp_path, backend="nsys", ring_s=1.0)


def test_operators_by_nsys_where_it_knows_how(tmp_path: Path) -> None:
    tool(tmp_path, "nsys", "2023.4.4", 'echo "  --python-sampling="')
    with pytest.raises(CaptureError, match=r"nsys 2023.4.4 does not record .* give --steps, too"):
        planned(tmp_path, backend="nsys", ops=True)
    _, _, plan = prepare(options(tmp_path, backend="nsys", ops=True, steps=3))
    assert "--pytorch=autograd-shapes-nvtx" not in plan.command
    (text,) = plan.files.values()
    assert "ops=1" in text.splitlines()  # the hook does it, in the steps only
    libraries.find_tool.cache_clear()
    tool(tmp_path, "nsys", "2025.3.1", 'echo "	--pytorch=<functions>"')
    command, _ = planned(tmp_path, backend="nsys", ops=True)
    assert "--pytorch=autograd-shapes-nvtx" in command


def test_ncu_is_bounded_to_a_range(tmp_path: Path) -> None:
    tool(tmp_path, "ncu", "2025.3.1.0")
    command, _ = planned(tmp_path, backend="ncu", range="forward")
    assert shlex.join(command).startswith(f"{tmp_path}/ncu --set full --target-processes all")
    assert command[command.index("--nvtx-include") + 1] == "forward/"
    command, _ = planned(tmp_path, backend="ncu", range="cudaProfilerApi")
    assert command[command.index("--profile-from-start") + 1] == "off"


def test_a_tool_that_writes_nothing_is_told(tmp_path: Path) -> None:
    body = 'for a; do case $a in --output=*) touch "${a#--output=}.qdstrm";; esac; done'
    tool(tmp_path, "nsys", "2025.3.1.90", body)
    outcome = record(options(tmp_path, backend="nsys"), "test", lambda text: None)
    assert outcome.results == []
    assert "cannot import its own stream" in outcome.warnings[0]


def test_auto_explains_its_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def say(**ready: Readiness) -> None:
        found = {
            name: registry.Backend(name, "", lambda c, r=ready[name]: r, backend.plan)
            for name, backend in registry.BACKENDS.items()
            if name in ready
        }
        monkeypatch.setattr(registry, "BACKENDS", found)

    yes, no = Readiness(True, "ready"), Readiness(False, "it is not installed", "install it")
    say(collector=no, nsys=yes, torch=yes)
    backend, why = registry.choose(options(tmp_path))
    assert (backend.name, why) == (
        "nsys",
        "nsys: it is installed (not collector: it is not installed)",
    )
    assert registry.choose(options(tmp_path, stacks=True))[0].name == "torch"
    say(collector=no, nsys=no, torch=no)
    with pytest.raises(CaptureError, match=r"nothing here can make a capture.*install it"):
        registry.choose(options(tmp_path))


# --- the command line -----------------------------------------------------------------------------


def test_dry_run_prints_a_command_that_works_as_it_stands(
    stepscope: Stepscope, tmp_path: Path
) -> None:
    arguments = ("run", "--dry-run", "--backend", "collector", "-o", tmp_path / "o")
    done = stepscope(*arguments, "--", sys.executable, "-c", "print('a b')")
    assert "collector: as asked for" in done.stderr
    words = shlex.split(done.stdout)
    assert words[-3:] == [sys.executable, "-c", "print('a b')"]
    assert {word.split("=")[0] for word in words[:-3]} == {
        "STEPSCOPE_CAPTURE",
        "CUDA_INJECTION64_PATH",
        "NVTX_INJECTION64_PATH",
        "PYTHONPATH",
    }
    assert not (tmp_path / "o").exists()
    printed = stepscope(
        *("run", "--dry-run", "--format", "json", "-o", tmp_path / "o", "--", "true")
    ).stdout
    document = json.loads(printed)
    assert document["schema"] == "stepscope.plan/1"
    assert document["command"].endswith(" true")
    shell = subprocess.run(["sh", "-c", done.stdout], capture_output=True, text=True, check=False)
    assert shell.stdout == "a b\n"


def test_run_returns_the_programs_code_and_says_when_nothing_was_recorded(
    stepscope: Stepscope, tmp_path: Path
) -> None:
    arguments = ("run", "--backend", "collector", "-o")
    program = (sys.executable, "-c", "import sys; sys.exit(7)")
    done = stepscope(*arguments, tmp_path / "a", "--", *program, expect=7)
    assert "used neither CUDA nor NVTX" in done.stderr
    assert not (tmp_path / "a").exists()  # nothing is left of nothing
    done = stepscope(*arguments, tmp_path / "b", "--", "true")
    assert "used neither CUDA nor NVTX" in done.stderr
    assert "0,3" in stepscope.refuses("run", "--ranks", "a", "--", "true")
    assert "500M" in stepscope.refuses("run", "--max-size", "lots", "--", "true")
    assert "not recorded" in stepscope.refuses("capture", "start", str(os.getpid()))
    assert "no raw capture" in stepscope.refuses("capture", "finalise", tmp_path / "a" / "x")


def test_run_captures_and_diagnoses(stepscope: Stepscope, program: Program) -> None:
    script = program.script("""
        for i in range(12):
            push(f"step_{i}"); launch(50); time.sleep(0.004); pop()
    """)
    folder = program.folder / "captured"
    arguments = ("run", "--backend", "collector", "--no-counters", "--range", "step_3", "-o")
    done = stepscope(*arguments, folder, "--", sys.executable, script)
    assert "12 steps" not in done.stdout
    whole = program.folder / "whole"
    done = stepscope("run", "--keep-raw", "-o", whole, "--", sys.executable, script)
    assert "Where a step goes" in done.stdout
    assert f"read it again with: stepscope diagnose {whole}" in done.stderr
    assert {path.name for path in whole.iterdir()} == {"rank0.stepscope", ".raw"}
    diagnosis = stepscope.json("diagnose", whole)
    arguments = ("run", "-o", program.folder / "json", "--format", "json", "--")
    printed = stepscope(*arguments, sys.executable, script).stdout
    assert json.loads(printed[printed.index("{") :])["schema"] == diagnosis["schema"]
    assert diagnosis["trace"]["source"] == "stepscope"
    assert diagnosis["trace"]["steps"] == 12
    assert stepscope.json("diagnose", whole / ".raw")["findings"] == diagnosis["findings"]


def test_doctor_names_what_is_missing_and_the_remedy(stepscope: Stepscope) -> None:
    document = stepscope.json("doctor", PATH="/usr/bin:/bin")
    assert document["schema"] == "stepscope.doctor/2"
    checks = {check["name"]: check for check in document["checks"]}
    assert {"driver", "cupti", "backend collector", "backend nsys", "backend torch"} <= set(checks)
    for check in checks.values():
        assert check["status"] in ("ok", "warning", "missing")
        assert check["message"]
        assert check["remedy"] or check["status"] != "missing"
    assert "backend collector" in stepscope("doctor").stdout


def test_doctor_tells_rights_in_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("ptrace", "2\n"), ("perf", "4\n"), ("params", "RmProfilingAdminOnly: 1\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(doctor, "_PTRACE", tmp_path / "ptrace")
    monkeypatch.setattr(doctor, "_PERF", tmp_path / "perf")
    monkeypatch.setattr(doctor, "_ADMIN_ONLY", tmp_path / "params")
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor, "_container", lambda: "a Docker container")

    def answer(capabilities: int) -> dict[str, doctor.Check]:
        monkeypatch.setattr(doctor, "_capabilities", lambda: capabilities)
        return {check.name: check for check in doctor._permissions()}

    without = answer(0)
    wanted = ("hardware counters", "attach", "cpu sampling", "container")
    assert [without[name].status for name in wanted] == ["warning"] * 4
    assert "--cap-add=SYS_ADMIN" in without["container"].remedy
    with_all = answer(1 << 21 | 1 << 38)
    assert [with_all[name].status for name in wanted] == ["ok"] * 4
    assert with_all["container"].message == "a Docker container, with CAP_SYS_ADMIN, CAP_PERFMON"
    monkeypatch.setattr(doctor, "_ADMIN_ONLY", tmp_path / "nothing")
    assert "hardware counters" not in answer(0)  # without a driver there are none


def test_without_a_compiler_the_collector_says_what_is_missing(tmp_path: Path) -> None:
    from stepscope.capture.collector import build

    if (build.HERE / build.file_name()).exists():
        pytest.skip("this installation brings a compiled collector")
    stepscope = Stepscope(tmp_path / "cache")  # without a compiled collector
    bare = tmp_path / "bare"
    bare.mkdir()
    env = {"PATH": str(bare), "CXX": ""}
    message = stepscope.refuses(
        *("run", "--backend", "collector", "-o", tmp_path / "o", "--", sys.executable, "-c", ""),
        **env,
    )
    assert "there is no C++ compiler here" in message
    document = stepscope.json("doctor", **env)
    check = next(c for c in document["checks"] if c["name"] == "backend collector")
    assert (check["status"], "compiler" in check["remedy"]) == ("missing", True)
    assert json.dumps(document)


_FILTERS = '[ "$1" = --help ] && echo "  per-launch-config: Apply filters separately" && exit\n'


def test_ncu_records_one_launch_of_each_kernel_and_shape(tmp_path: Path) -> None:
    tool(tmp_path, "ncu", "2025.3.1.0", _FILTERS)
    _, _, plan = prepare(options(tmp_path, backend="ncu", kernel="regex:nvjet|flash"))
    text = shlex.join(plan.command)
    assert "--kernel-name 'regex:nvjet|flash' --kernel-name-base demangled" in text
    assert "--filter-mode per-launch-config --launch-count 1 --launch-skip 5" in text
    assert "one launch of each matching kernel and launch shape" in plan.notes[0]
    # steps let the warm-up pass themselves
    command, _ = planned(tmp_path, backend="ncu", steps=1, warmup=5)
    assert "--launch-skip" not in command
    assert command[command.index("--launch-count") + 1] == "1"
    # named launches of a diagnosed capture are counted over all of them
    command, _ = planned(tmp_path, backend="ncu", kernel="regex:^(a|b)$", launch_skip=7,
                         launch_count=3)  # fmt: skip
    assert "--filter-mode" not in command
    assert command[command.index("--launch-count") + 1] == "3"


def test_an_ncu_that_cannot_tell_launches_apart_lets_warm_up_pass_too(tmp_path: Path) -> None:
    """By the number of each kernel's invocation; never more than some kernels."""
    tool(tmp_path, "ncu", "2020.1.0")
    for kernel, chosen in (
        ("regex:gemm", "--kernel-id ::regex:gemm:6 --launch-count 20"),
        ("", "--kernel-id :::6 --launch-count 20"),
        # a colon would end the name: counted over all kernels that match
        ("regex:at::gemm", "--kernel-name regex:at::gemm --launch-count 20 --launch-skip 5"),
    ):
        _, _, plan = prepare(options(tmp_path, backend="ncu", kernel=kernel))
        assert "--filter-mode" not in plan.command
        assert chosen in " ".join(plan.command)
    assert "20 matching kernels" in plan.notes[0]
    command, _ = planned(tmp_path, backend="ncu", range="forward")
    assert command[command.index("--launch-count") + 1] == "20"
    assert "--launch-skip" not in command


@pytest.mark.parametrize(
    "more", [{"ranks": (0,)}, {"max_bytes": 10}, {"range": "a", "ranges": 2}, {"paused": True}]
)
def test_ncu_refuses_what_it_would_leave_out(tmp_path: Path, more: dict[str, Any]) -> None:
    tool(tmp_path, "ncu", "2025.3.1.0")
    with pytest.raises(CaptureError, match="the ncu back-end does not know --"):
        planned(tmp_path, backend="ncu", **more)


# --- commands for tools that are not here ---------------------------------------------------------


@pytest.mark.parametrize("backend", ["nsys", "ncu"])
def test_the_command_of_a_tool_that_is_not_installed_can_be_shown(
    stepscope: Stepscope, tmp_path: Path, backend: str
) -> None:
    arguments = ("run", "--dry-run", "--backend", backend, "--steps", "2", "-o", tmp_path / "a b")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    program = ("no-such-launcher", "train.py", "it's")
    done = stepscope(*arguments, "--", *program, **environment)
    assert f"{backend} is not installed here; the command is for version 2025.3" in done.stderr
    assert "no-such-launcher is no program that can be found" in done.stderr
    assert "stepscope run writes" in done.stderr
    words = shlex.split(done.stdout)
    printed = stepscope(*arguments, "--format", "json", "--", *program, **environment).stdout
    document = json.loads(printed)
    assert document["command"] == done.stdout.rstrip("\n")
    assert words[len(document["environment"]) :] == document["arguments"]
    assert document["arguments"][0] == backend
    assert document["arguments"][-3:] == list(program)
    (name,) = document["files"]
    assert document["environment"]["STEPSCOPE_CAPTURE"] == name
    assert "steps=2" in document["files"][name].splitlines()
    assert not (tmp_path / "a b").exists()
    # the command is the one that an installed tool of that version would get
    extra = 'echo "  --pytorch=<functions>"' if backend == "nsys" else _FILTERS
    found = tool(tmp_path, backend, "2025.3.0", extra)
    installed = stepscope(*arguments, "--", *program, **environment)
    assert "not installed" not in installed.stderr
    assert shlex.split(installed.stdout)[len(document["environment"]) :] == [
        str(found),
        *document["arguments"][1:],
    ]
    if backend == "nsys":  # and where it is to be run, it must be there
        message = stepscope.refuses(
            *("run", "--backend", backend, "-o", tmp_path / "o", "--", "true"), PATH="/usr/bin:/bin"
        )
        assert "install Nsight Systems" in message


@pytest.mark.parametrize("backend", ["nsys", "ncu"])
def test_percent_signs_of_a_folder_are_no_macros_of_a_tool(tmp_path: Path, backend: str) -> None:
    tool(tmp_path, backend, "2025.3.1.90", _FILTERS)
    _, _, plan = prepare(Options(COMMAND, tmp_path / "100%p", backend=backend))
    assert f"{tmp_path}/100%%p/" in " ".join(plan.command)
    assert "100%p/" not in " ".join(plan.command)


def test_a_tool_that_takes_too_long_is_ended_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        _FILTERS + "while [ $# -gt 0 ]; do case $1 in --log-file) log=$2;; --export) out=$2;; esac;"
        ' shift; done\necho "==ERROR== no right to read counters" > "$log"\n'
        "trap 'touch \"$out.ncu-rep\"; exit 0' INT\n"
        'echo "==PROF== Profiling \\"gemm\\"" >> "$log"\nwhile :; do sleep 0.1; done'
    )
    tool(tmp_path, "ncu", "2025.3.1.0", body)
    monkeypatch.setattr("stepscope.capture.backends.ncu._LIMIT_S", 0.5)
    output: list[str] = []
    outcome = record(options(tmp_path, backend="ncu"), "test", output.append)
    assert [path.name for path in outcome.results] == ["kernels.ncu-rep"]
    assert outcome.exit_code == 0
    assert any("what was recorded is kept" in text for text in output)


def test_errors_of_a_tool_are_said(tmp_path: Path) -> None:
    body = (
        _FILTERS + "while [ $# -gt 0 ]; do case $1 in --log-file) log=$2;; esac; shift; done\n"
        'echo "==ERROR== ERR_NVGPUCTRPERM: no right to read counters" > "$log"\nexit 1'
    )
    tool(tmp_path, "ncu", "2025.3.1.0", body)
    output: list[str] = []
    outcome = record(options(tmp_path, backend="ncu"), "test", output.append)
    assert any(text.endswith("ERR_NVGPUCTRPERM: no right to read counters") for text in output)
    assert outcome.exit_code == 1

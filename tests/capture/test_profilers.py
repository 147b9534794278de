"""Other profilers beside the collector: noticed before, during and after, and never in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.capture.conftest import COMPILER, Program, read, texts
from tests.cli.command import Stepscope

from stepscope.capture.profilers import LIBRARIES, ProfilerWatch, in_environment, in_process

TORCH_PROFILER = """
def _prepare_profiler(config, activities): print("prepare")
def _enable_profiler(config, activities): print("enable")
def _disable_profiler(): print("disable"); return "results"
class profile:
    def __init__(self, *activities): self.activities = set(activities)
    def __enter__(self):
        _prepare_profiler(None, self.activities)
        _enable_profiler(None, self.activities)
    def __exit__(self, *_): assert _disable_profiler() == "results"
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "packages" / "torch" / "autograd"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "profiler.py").write_text(TORCH_PROFILER)
    monkeypatch.setenv("PYTHONPATH", str(folder.parents[1]))


def others(trace) -> list[str]:  # type: ignore[no-untyped-def]
    return [p.detail for p in trace.meta.problems if p.id == "other_profiler"]


def test_torch_profiler_is_noted_from_when_to_when(
    program: Program, torch: None, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = program.trace(
        """
        from torch.autograd.profiler import profile
        launch(10)
        with profile("CPU"): launch(1)
        with profile("CPU", "CUDA"): launch(20); time.sleep(0.1)
        launch(30)
        """
    )
    assert capfd.readouterr().out.split() == ["prepare", "enable", "disable"] * 2
    (detail,) = others(trace)  # without CUDA it does not meet CUPTI
    assert detail.startswith("torch.profiler in process")
    assert "this capture went on (20 GPU operations within)" in detail
    assert trace.rows("gpu_op") == 61
    begin, end = (float(detail.split(" s:")[0].split()[at]) for at in (-3, -1))
    ops = trace.frame("gpu_op", "start_ns")["start_ns"]
    assert begin - 0.001 < ops[11] / 1e9 < ops[30] / 1e9 < end + 0.001  # shown in ms
    assert end - begin >= 0.099
    assert texts(trace, "diagnostic", "text") == [
        "other profiler began: torch.profiler",
        "other profiler ended: torch.profiler",
    ]


def test_what_the_other_took_is_told(program: Program, torch: None) -> None:
    trace = program.trace(
        """
        from torch.autograd.profiler import profile
        launch(10)
        for kind in (4, 5, 10): cuda.cuptiActivityDisable(kind)  # as one that takes the buffers
        profile("CPU", "CUDA").__enter__(); launch(20)
        time.sleep(0.05)
        """
    )
    assert others(trace) == []
    (taken,) = (p for p in trace.meta.problems if p.id == "cupti_taken")
    assert "no GPU work was recorded meanwhile" in taken.detail
    assert trace.rows("gpu_op") == 10


def test_a_profiler_that_was_first_is_a_loss_of_the_whole_capture(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUPTI_BUSY", "1")
    outcome = program.record('launch(5); push("a"); time.sleep(0.2); pop(); launch(5)')
    assert outcome.exit_code == 0
    trace = read(outcome.raw[0])
    (problem,) = (p for p in trace.meta.problems if p.id == "cupti_taken")
    assert problem.severity == "data_loss"
    assert "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" in problem.detail
    begin, end = (float(problem.detail.split(" s:")[0].split()[at]) for at in (-3, -1))
    assert end - begin >= 0.2
    assert (trace.rows("range"), trace.rows("gpu_op")) == (1, 0)


def test_no_hook_means_none(program: Program, torch: None) -> None:
    trace = program.trace(
        """
        from torch.autograd.profiler import profile
        assert "_stepscope_hook" not in sys.modules
        with profile("CPU", "CUDA"): launch(20)
        """,
        hook=False,
    )
    assert others(trace) == []


def test_a_hook_that_fails_leaves_the_program_alone(
    program: Program, torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = program.record(
        """
        os.environ["STEPSCOPE_CAPTURE"] = "/nowhere"
        import ctypes
        ctypes.CDLL = None
        from torch.autograd.profiler import profile
        with profile("CPU", "CUDA"): launch(20)
        """
    )
    assert outcome.exit_code == 0
    assert read(outcome.raw[0]).rows("gpu_op") == 20


# --- libraries ------------------------------------------------------------------------------------


def test_loaded_libraries_tell(tmp_path: Path, program: Program) -> None:
    assert COMPILER
    source = tmp_path / "empty.c"
    source.write_text("int nothing;")
    library = tmp_path / "libproton.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", library], check=True)
    outcome = program.record(
        f"ctypes.CDLL({str(library)!r}); launch(5); time.sleep(1.6); launch(7)"
    )
    assert any("loaded Proton (Triton's profiler) (libproton.so)" in r for r in outcome.warnings)
    trace = read(outcome.raw[0])
    (detail,) = others(trace)
    assert detail.startswith("Proton (Triton's profiler) in process")
    assert detail.endswith("; 7 GPU operations were recorded after that")
    # a process that has nothing of the kind
    assert list(in_process(os.getpid())) == []
    assert list(in_process(2**22 + 1)) == []


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("libToolsInjection64.so", "Nsight Systems"),
        ("libToolsInjectionProxy64.so", "Nsight Systems"),
        ("libcuda-injection.so", "Nsight Compute"),
        ("libcupti.so.13", None),
        ("libkineto.so", None),
        ("libprotonfoo.so", None),
    ],
)
def test_names_of_libraries(name: str, tool: str | None) -> None:
    assert [sign.tool for sign in LIBRARIES if sign.pattern.match(name)] == ([tool] if tool else [])


def test_a_watch_that_finds_nothing_writes_nothing(tmp_path: Path) -> None:
    watch = ProfilerWatch(tmp_path / "p.json")
    watch.look(os.getpid())
    watch.stop()
    assert not (tmp_path / "p.json").exists()


# --- the environment ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"NSYS_PROFILING_SESSION_ID": "7"}, "Nsight Systems already records"),
        ({"NV_COMPUTE_PROFILER_PERFWORKS_DIR": "/x"}, "Nsight Compute already records"),
        ({"LD_PRELOAD": "/a/libx.so:/opt/libToolsInjectionProxy64.so"}, "LD_PRELOAD is set"),
        ({"CUDA_INJECTION64_PATH": "/a.so"}, "CUDA_INJECTION64_PATH is set to /a.so"),
        ({"KINETO_USE_DAEMON": "1"}, "may be started from outside"),
        ({"LD_PRELOAD": "/a/libjemalloc.so"}, None),
        ({}, None),
    ],
)
def test_what_the_environment_tells(environment: dict[str, str], message: str | None) -> None:
    found = list(in_environment(environment))
    assert (len(found) == 1 and message in found[0][0]) if message else not found
    assert all(remedy for _, remedy in found)


def test_run_and_doctor_say_so(stepscope: Stepscope, tmp_path: Path) -> None:
    environment = {"NSYS_PROFILING_SESSION_ID": "7"}
    check = next(
        check
        for check in stepscope.json("doctor", **environment)["checks"]
        if check["name"] == "other profilers"
    )
    assert check["status"] == "warning"
    assert "Nsight Systems already records" in check["message"]
    clean = next(
        check for check in stepscope.json("doctor")["checks"] if check["name"] == "other profilers"
    )
    assert clean["status"] == "ok"
    true = shutil.which("true") or sys.executable
    arguments = ("run", "--backend", "collector", "-o", tmp_path / "o", "--", true)
    done = stepscope(*arguments, **environment)
    assert "holds CUPTI, so Stepscope would record NVTX ranges only" in done.stderr

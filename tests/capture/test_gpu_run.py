"""On a real GPU: exit codes, ranges that never open, and what ncu records without being told."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from tests.capture.test_gpu import TRAIN
from tests.cli.command import Stepscope

from stepscope.capture.libraries import find_tool

pytestmark = pytest.mark.gpu
STEPS = TRAIN + "for i in range(20): step(i)\ntorch.cuda.synchronize()\n"


def script(folder: Path, text: str) -> tuple[str, str]:
    path = folder / "train.py"
    path.write_text(text)
    return sys.executable, str(path)


@pytest.mark.parametrize("backend", ["collector", "nsys", "ncu", "torch"])
@pytest.mark.parametrize(("ending", "code"), [("", 0), ("sys.exit(3)\n", 3)])
def test_the_programs_exit_code(
    stepscope: Stepscope, tmp_path: Path, backend: str, ending: str, code: int
) -> None:
    if backend in ("nsys", "ncu") and find_tool(backend) is None:
        pytest.skip(f"{backend} is not installed")
    program = script(tmp_path, STEPS + ending)
    arguments = ("run", "--backend", backend, "--no-diagnose", "-o", tmp_path / "run", "--")
    stepscope(*arguments, *program, expect=code)
    assert any((tmp_path / "run").iterdir())
    killed = STEPS + "os.kill(os.getpid(), signal.SIGTERM)\n"
    arguments = ("run", "--backend", backend, "--no-diagnose", "-o", tmp_path / "killed", "--")
    # ncu tells the number of a signal as if the program had ended with it
    stepscope(*arguments, *script(tmp_path, killed), expect=15 if backend == "ncu" else 128 + 15)


def test_a_range_that_was_never_opened(stepscope: Stepscope, tmp_path: Path) -> None:
    arguments = ("run", "--strict", "--backend", "collector", "--range", "stepp_3")
    done = stepscope(
        *(*arguments, "-o", tmp_path / "run", "--", *script(tmp_path, STEPS)), expect=2
    )
    assert "the range stepp_3 was never opened (did you mean 'step_3'?)" in done.stderr
    assert "'step_0' and 19 like it (25 times)" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(find_tool("ncu") is None, reason="ncu is not installed")
def test_ncu_records_one_launch_of_each_shape_after_warm_up(
    stepscope: Stepscope, tmp_path: Path
) -> None:
    """One launch each, though there are hundreds."""
    pytest.importorskip("ncu_report")
    run = tmp_path / "run"
    arguments = ("run", "--backend", "ncu", "--no-diagnose", "--kernel", "gemm|elementwise", "-o")
    stepscope(*arguments, run, "--", *script(tmp_path, STEPS))
    launches = stepscope.json("kernels", run / "kernels.ncu-rep")["kernels"]
    shapes = [(one["name"], tuple(one["grid"]), tuple(one["block"])) for one in launches]
    assert 0 < len(shapes) < 40
    assert len(set(shapes)) == len(shapes)
    assert shutil.which("nvidia-smi")

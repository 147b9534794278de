"""Captures that findings ask for can be made on the device that the trace is of."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tests.support.build import Build

from stepscope.api import Job
from stepscope.diagnosis import captures, vendors
from stepscope.diagnosis.cause import Case
from stepscope.diagnosis.causes import profiler_overhead
from stepscope.kernels.vendors import Vendor, no_ceilings
from stepscope.render import budget
from stepscope.render.levers import bound_lines

NCU = "ncu --set full -k regex:Cijk_Ailk -c 5 -o kernel python train.py"
NSYS = "nsys profile -t cuda,nvtx,osrt --cpuctxsw=process-tree python train.py"


def waiting(
    tmp_path: Path, device: str = "", kernel: str = "gemm", call: str = "cudaLaunchKernel"
) -> Job:
    """A loop that waits 3 ms for input before each step, on some device."""
    b = Build()
    if device:
        b.gpu(device)
    for step in range(8):
        at = 10_000.0 * step
        b.range(at, at + 9_990, f"step {step}")
        b.range(at + 10, at + 3_000, "dataload")
        for k in range(20):
            begin = at + 3_010 + 340 * k
            b.kernel(begin + 6, begin + 330, call=(begin, begin + 4), name=kernel, call_name=call)
    return Job([b.trace(tmp_path).folder])


def case(job: Job) -> Case:
    return job.explained.cases[0]


@pytest.mark.parametrize(
    ("device", "kernel", "call", "vendor"),
    [
        ("NVIDIA H200", "gemm", "cudaLaunchKernel", Vendor.NVIDIA),
        ("Tesla V100-SXM2-32GB", "gemm", "cudaLaunchKernel", Vendor.NVIDIA),
        ("AMD Instinct MI300X VF", "gemm", "hipLaunchKernel", Vendor.AMD),
        ("AMD Radeon Pro V520", "gemm", "cudaLaunchKernel", Vendor.AMD),
        ("Intel(R) Arc(TM) A770 Graphics", "gemm", "urEnqueueKernelLaunch", Vendor.INTEL),
        ("", "gemm", "hipExtModuleLaunchKernel", Vendor.AMD),
        ("", "Cijk_Ailk_Bljk_HSS_BH_MT128x64", "launch", Vendor.AMD),
        ("", "gemm", "cuLaunchKernelEx", Vendor.NVIDIA),
        ("", "gemm", "urEnqueueKernelLaunch", Vendor.INTEL),
        ("", "gemm", "launch", Vendor.UNKNOWN),
    ],
)
def test_the_vendor(device: str, kernel: str, call: str, vendor: Vendor, tmp_path: Path) -> None:
    assert case(waiting(tmp_path, device, kernel, call)).explanation.kernels.vendor is vendor


def test_captures_of_an_amd_device(tmp_path: Path) -> None:
    of = case(waiting(tmp_path, "AMD Instinct MI300X", "at::native::gemm"))
    assert vendors.next_capture(NCU, of) == (
        "rocprof-compute profile -n kernels -k Cijk_Ailk -- python train.py"
    )
    ours = "stepscope run --backend ncu --examine CAPTURE --steps 1 -- python train.py"
    assert vendors.next_capture(ours, of) == "rocprof-compute profile -n kernels -- python train.py"
    assert vendors.next_capture(NSYS, of) == captures.STACKS
    assert vendors.next_capture(captures.WAITS, of) == captures.STACKS
    assert vendors.next_capture(captures.SAMPLES, of) == captures.STACKS
    assert vendors.next_capture(captures.PLAIN, of) == vendors.TORCH
    for same in (captures.STACKS, None, "capture at least five whole steps after warm-up"):
        assert vendors.next_capture(same, of) == same


def test_captures_of_a_program_without_a_framework(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    amd = case(waiting(folders[0], "AMD Instinct MI300X"))
    assert vendors.next_capture(captures.PLAIN, amd) == "rocprofv3 --sys-trace -- ./program"
    nvidia = case(waiting(folders[1], "NVIDIA H200"))
    assert vendors.next_capture(captures.SAMPLES, nvidia) == captures.SAMPLES.replace(
        "python train.py", "./program"
    )


def test_captures_of_others(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    intel = case(waiting(folders[0], "Intel(R) Data Center GPU Max 1550"))
    assert (vendors.next_capture(NCU, intel) or "").startswith("vtune ")
    for folder, device, call in ((folders[1], "NVIDIA H200", "x"), (folders[2], "", "launch")):
        of = case(waiting(folder, device, "at::native::gemm", call))
        assert vendors.next_capture(NCU, of) == NCU
        assert vendors.next_capture(captures.PLAIN, of) == captures.PLAIN


def test_no_finding_on_an_amd_device_names_a_tool_of_nvidia(tmp_path: Path) -> None:
    job = waiting(tmp_path, "AMD Instinct MI300X", "Cijk_Ailk", "hipLaunchKernel")
    found = job.diagnose()
    assert found.findings
    for finding in found.findings:
        output = " ".join([finding.next_capture or "", *finding.recommendations])
        assert not any(tool in output for tool in ("nsys", "ncu ", "--waits"))


def test_advice_that_names_a_tool_of_nvidia_is_reworded(tmp_path: Path) -> None:
    (answer,) = re.findall(
        r'"(capture with stepscope run, [^"]*)"', inspect.getsource(profiler_overhead)
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    amd = vendors.advice([answer], case(waiting(tmp_path / "a", "AMD Instinct MI300X")))
    assert "nsys" not in amd[0]
    assert "--backend torch" in amd[0]
    assert vendors.advice([answer], case(waiting(tmp_path / "b", "NVIDIA H200"))) == [answer]


def test_calls_of_cuda_are_named_as_hip_has_them(tmp_path: Path) -> None:
    text = "order streams by cudaEventRecord; CUDA_MODULE_LOADING=EAGER, torch.cuda.synchronize()"
    (found,) = vendors.advice([text], case(waiting(tmp_path, "AMD Instinct MI300X")))
    assert found == text.replace("cudaEventRecord", "hipEventRecord")


@pytest.mark.parametrize(
    ("device", "state", "processes"),
    [
        ("NVIDIA H200", "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER", "nvidia-smi pmon"),
        (
            "AMD Instinct MI300X",
            "rocm-smi --showclocks --showpower --showtemp",
            "rocm-smi --showpids",
        ),
        ("Intel(R) Data Center GPU Max 1550", "xpu-smi stats -d 0", "xpu-smi ps"),
    ],
)
def test_the_state_of_a_device_is_read_by_its_own_tool(
    device: str, state: str, processes: str, tmp_path: Path
) -> None:
    text = "watch nvidia-smi -q -d CLOCK,PERFORMANCE,POWER, and who else runs (nvidia-smi pmon)"
    (found,) = vendors.advice([text], case(waiting(tmp_path, device)))
    assert found == f"watch {state}, and who else runs ({processes})"


@pytest.mark.parametrize(
    ("device", "call", "shown"),
    [
        ("NVIDIA H200", "cudaLaunchKernel", True),
        ("", "cudaLaunchKernel", True),
        ("AMD Instinct MI300X", "hipLaunchKernel", False),
        ("", "hipLaunchKernel", False),
        ("", "launch", False),
    ],
)
def test_utilisation_as_nvidia_smi_counts_it_is_told_of_nvidia_devices(
    device: str, call: str, shown: bool, tmp_path: Path
) -> None:
    found = waiting(tmp_path, device, call=call).diagnose()
    assert found.gpu_utilization is not None
    assert bool(budget.utilisation(found)) is shown


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            "cudaLaunchKernel",
            "the ceilings of this device are not known: stepscope ceilings -o FILE measures them "
            "there, and --ceilings FILE takes them",
        ),
        ("hipLaunchKernel", "no roofline bound: the ceilings of this device are not known"),
    ],
)
def test_ceilings_are_measured_where_that_is_possible(call: str, line: str, tmp_path: Path) -> None:
    job = waiting(tmp_path, call=call)
    split = job.diagnose().kernels
    assert split is not None
    assert bound_lines(split) == [line]
    kernels = case(job).explanation.kernels
    assert ("stepscope ceilings" in no_ceilings("", kernels.vendor)) is ("stepscope" in line)

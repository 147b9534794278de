"""Ceilings: the bookkeeping against a driver of known speed, the kernels' text, the operands."""

from __future__ import annotations

import csv
import ctypes
import json
import math
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope

from stepscope.capture.ceilings import driver, gemms, measure, programs
from stepscope.capture.errors import CaptureError

READ, COPY, L2 = 4e12, 3.6e12, 9e12
FP32, FP64, BF16 = 60e12, 30e12, 700e12
L2_BYTES, FREE = 50 << 20, 64 << 30


class FakeCuda:
    """A driver whose kernels take the time that the rates above give."""

    def __init__(self, devices: int = 1) -> None:
        self.devices, self.elapsed, self.began = devices, 0.0, 0.0
        self.names: list[str] = []
        self.pattern = ""
        self.freed = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("cuMemFree"):
            self.freed += 1
        return lambda *_: 0

    def cuInit(self, _: int) -> int:  # noqa: N802
        return 0 if self.devices else 100

    def cuGetErrorString(self, _: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"no device"
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self.devices
        return 0

    def cuDeviceGetName(self, buffer: Any, *_: Any) -> int:  # noqa: N802
        buffer.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetAttribute(self, out: Any, number: int, _: Any) -> int:  # noqa: N802
        out._obj.value = {16: 132, 38: L2_BYTES, 75: 9, 76: 0}[number]
        return 0

    def cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802
        out._obj.value = 13010
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:  # noqa: N802
        free._obj.value = FREE
        return 0

    def cuMemAlloc_v2(self, out: Any, size: Any) -> int:  # noqa: N802
        out._obj.value = 1 << 20
        return 0

    def cuModuleGetFunction(self, out: Any, _: Any, name: bytes) -> int:  # noqa: N802
        self.names.append(name.decode() + ("64" if self.pattern.count(".f64") else ""))
        out._obj.value = len(self.names)
        return 0

    def cuModuleLoadData(self, out: Any, text: bytes) -> int:  # noqa: N802
        self.pattern = text.decode()
        return 0

    def cuLaunchKernel(self, kernel: Any, *rest: Any) -> int:  # noqa: N802
        blocks, threads, pointers = rest[0], rest[3], rest[8]
        name = self.names[kernel.value - 1]

        def given(at: int, kind: Any) -> int:
            return int(ctypes.cast(pointers[at], ctypes.POINTER(kind)).contents.value)

        if name.startswith("chain"):
            done = 2 * blocks * threads * given(1, ctypes.c_uint32)
            done *= self.pattern_length(name)
            self.elapsed += done / (FP64 if name.endswith("64") else FP32)
        else:
            size = 16 * given(2, ctypes.c_uint64) * given(3, ctypes.c_uint32)
            assert given(2, ctypes.c_uint64) % (blocks * threads * programs.UNROLLED) == 0
            small = given(2, ctypes.c_uint64) * 16 <= L2_BYTES // 2
            rate = L2 if small else READ if name == "read_all" else COPY / 2
            self.elapsed += size / rate
        return 0

    @staticmethod
    def pattern_length(name: str) -> int:
        """Multiply-adds of a thread in one round, counted in the text."""
        return programs.chain("chain", 64 if name.endswith("64") else 32).count("fma.rn")

    def cuEventRecord(self, event: Any, _: Any) -> int:  # noqa: N802
        self.began, self.ended = getattr(self, "ended", 0.0), self.elapsed
        return 0

    def cuEventElapsedTime(self, out: Any, *_: Any) -> int:  # noqa: N802
        out._obj.value = (self.ended - self.began) * 1e3
        return 0


class FakeLt:
    """Products at a known rate; of FP8 it knows nothing, and one way of each kind is slow."""

    version = "13.1.0"
    cuda: FakeCuda

    def gemms(self, kind: gemms.Kind, size: int, _: Any) -> Iterator[Callable[[], None]]:
        if kind.item == 1:
            raise OSError("cublasLtMatmulAlgoGetHeuristic failed with status 15")
        for slow in (3.0, 1.0):

            def run(slow: float = slow) -> None:
                self.cuda.elapsed += slow * 2 * size**3 / BF16

            yield run


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(driver, "load", lambda *_: fake)
    monkeypatch.setattr(measure, "_WARM_UP_S", 0.0)
    return fake


def test_what_is_measured_is_what_the_device_does(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLt.cuda = cuda
    monkeypatch.setattr(measure, "Lt", FakeLt)
    output: list[str] = []
    found = measure.measure(0, output.append)
    assert found["device"] == "NVIDIA H200"
    assert found["library"] == "cuBLASLt 13.1.0"
    expected = {"dram_read_bytes_per_s": READ, "dram_copy_bytes_per_s": COPY,
                "dram_bytes_per_s": READ, "l2_bytes_per_s": L2, "fp32_flop_per_s": FP32,
                "fp64_flop_per_s": FP64, "bf16_flop_per_s": BF16, "tf32_flop_per_s": BF16,
                "fp16_flop_per_s": BF16, "fp64_gemm_flop_per_s": BF16}  # fmt: skip
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-3), name
    assert "fp8_flop_per_s" not in found
    assert any("fp8 was not measured" in remark for remark in found["warnings"])
    assert output[0] == "measuring NVIDIA H200"
    assert cuda.freed


def test_without_cublas_the_rest_is_measured(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise OSError("cuBLASLt is not installed")

    monkeypatch.setattr(measure, "Lt", missing)
    found = measure.measure(0, lambda _: None)
    assert "bf16_flop_per_s" not in found
    assert found["warnings"] == ["the tensor cores were not measured: cuBLASLt is not installed"]


def test_no_gpu_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "load", lambda *_: None)
    with pytest.raises(CaptureError, match="no NVIDIA driver"):
        measure.measure(0, print)
    monkeypatch.setattr(driver, "load", lambda *_: FakeCuda(devices=0))
    with pytest.raises(CaptureError, match="finds no GPU"):
        measure.measure(0, print)
    monkeypatch.setattr(driver, "load", lambda *_: FakeCuda())
    with pytest.raises(CaptureError, match="there is no GPU 3"):
        measure.measure(3, print)


TEXTS = {
    "read": programs.stream("read", store=False),
    "copy": programs.stream("copy", store=True),
    "fp32": programs.chain("fp32", 32),
    "fp64": programs.chain("fp64", 64),
}


@pytest.mark.parametrize("name", TEXTS)
def test_registers_are_declared(name: str) -> None:
    text = TEXTS[name]
    declared = {kind: int(n) for kind, n in re.findall(r"\.reg \.\w+ %([a-z]+)<(\d+)>", text)}
    used: dict[str, int] = {}
    for kind, n in re.findall(r"%([a-z]+)(\d+)\b", text):
        used[kind] = max(used.get(kind, 0), int(n))
    assert used.keys() <= declared.keys()
    assert all(used[kind] < declared[kind] for kind in used)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas of the CUDA toolkit")
def test_kernels_assemble(name: str, tmp_path: Path) -> None:
    source = tmp_path / "k.ptx"
    source.write_text(TEXTS[name])
    done = subprocess.run(
        ["ptxas", "-arch=sm_90", source, "-o", tmp_path / "k.cubin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


FORMS = {"fp64_gemm": "<d", "tf32": "<f", "fp16": "<e", "bf16": "", "fp8": ""}


@pytest.mark.parametrize("name", gemms.KINDS)
def test_operands_are_finite_and_near_one(name: str) -> None:
    kind = gemms.KINDS[name]
    data = gemms.numbers(kind)[: 1 << 16]
    assert gemms.numbers(kind)[: 1 << 16] == data  # the same ones every time
    if name == "bf16":
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
    if name == "fp8":  # E4M3: sign, 4 bits with bias 7, 3 bits
        values = [math.ldexp(8 + (b & 7), (b >> 3 & 15) - 10) for b in data]
        assert not {0x7F, 0xFF} & set(data)  # its only NaNs
    else:
        values = [v for (v,) in struct.iter_unpack(FORMS[name] or "<f", data)]
    assert all(2**-4 <= abs(v) <= 4 for v in values if v)
    assert sum(v == 0 for v in values) < len(values) / 100
    assert len(set(values)) > 5


def test_the_command_without_a_gpu(tmp_path: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        line = Stepscope(tmp_path)("ceilings", expect=2).stderr
        assert line.startswith("stepscope: this machine has no NVIDIA driver")
        assert line.count("\n") == 1
    else:
        pytest.skip("this machine has a driver")


@pytest.mark.gpu
def test_a_real_gpu_is_near_its_data_sheet(tmp_path: Path) -> None:
    stepscope = Stepscope(tmp_path)
    path = tmp_path / "c.json"
    rows = stepscope.json("ceilings", "-o", path)
    assert rows == json.loads(path.read_text())
    assert rows["schema"] == "stepscope.ceilings/2"
    lines = stepscope("ceilings", "-f", "csv").stdout.splitlines()
    for title, _, _, sheet, share in list(csv.reader(lines))[1:]:
        if sheet:
            assert 0.5 < float(share) < 1.1, title

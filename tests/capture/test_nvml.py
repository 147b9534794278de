"""NVML and its GPM counters, against a stand-in."""

from __future__ import annotations

import csv
import ctypes
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.capture.conftest import COMPILER, NATIVE

from stepscope.capture import doctor, gpm, nvml


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("needs a C compiler for the stand-in of NVML")
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")
    subprocess.run([COMPILER, *flags, str(NATIVE / "fake_nvml.c"), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


@pytest.fixture
def fake(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    monkeypatch.setattr(nvml, "load", lambda *names: library)
    return library


def sampled(path: Path, hertz: float, seconds: float) -> dict[tuple[int, str], list[float]]:
    sampler = nvml.Sampler(path, 1 / hertz)
    sampler.start()
    time.sleep(seconds)
    sampler.stop()
    assert sampler.failure == ""
    found = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as stream:
        for _, gpu, uuid, name, value in csv.reader(stream):
            assert uuid == f"GPU-{gpu}"
            found[int(gpu), name].append(float(value))
    return found


def test_what_each_gpu_can_tell(fake: ctypes.CDLL, tmp_path: Path) -> None:
    began = time.monotonic()
    found = sampled(tmp_path / "c.csv", 100, 0.6)
    took_s = time.monotonic() - began
    assert set(found[0, "sm_clock_mhz"]) == {1980}
    assert set(found[0, "power_watt"]) == set(found[1, "power_watt"]) == {512}
    assert (1, "sm_clock_mhz") not in found
    assert (1, "sm_active_percent") not in found
    assert (1, "throttled_by_heat") not in found
    assert set(found[0, "throttled_by_heat"]) == {0.0, 1.0}
    assert found[0, "throttled_by_heat"] == found[0, "throttled_by_power"]
    assert set(found[0, "throttled_by_hardware"]) == {0.0}
    # a mean is between one sample and the next; after one that failed there is none
    assert {round(value, 6) for value in found[0, "sm_active_percent"]} == {1.02}
    assert set(found[0, "nvlink_received_bytes_per_second"]) == {2.0 * (1 << 20)}
    assert (0, "fp64_active_percent") not in found
    assert (0, "fp32_active_percent") not in found  # not a number
    readings = len(found[0, "sm_clock_mhz"])
    assert len(found[0, "sm_active_percent"]) == readings - 3
    assert 20 < readings <= 100 * took_s + 1
    assert fake.fake_alive() == 0


def test_numbers_are_those_of_the_header() -> None:
    assert ctypes.sizeof(gpm._Metric) == 40
    assert gpm._Request.before.offset == 8
    assert gpm._Request.metrics.offset == 24


def test_doctor_tells(fake: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = (c for c in doctor._streams() if c.name == "gpu activity")
    assert (check.status, "of 1 GPUs" in check.message) == ("ok", True)
    monkeypatch.setenv("FAKE_NO_GPM", "1")
    (check,) = (c for c in doctor._streams() if c.name == "gpu activity")
    assert check.status == "warning"


def test_without_nvml_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "load", lambda *names: None)
    sampler = nvml.Sampler(tmp_path / "c.csv", 0.01)
    sampler.start()
    sampler.stop()
    assert "no NVIDIA driver here" in sampler.failure
    assert not (tmp_path / "c.csv").exists()

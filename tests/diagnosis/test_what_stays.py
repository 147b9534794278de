"""What stays when an offload or host work goes: launches of the program, not reads for the work."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.test_time_causes import diagnosed
from tests.support.build import Build

STEPS = 10


@pytest.mark.parametrize("launch", [5.0, 60.0])
def test_launches_between_the_copies_of_an_offload_stay(tmp_path: Path, launch: float) -> None:
    """Activations go down layer by layer and come back: forward and backward are the program's.

    Repaired, a step takes its 96 launches or its 96 kernels of 20 us, whichever is longer; where it
    is the launches, the kernel that runs beside each of the 48 copies may count in addition.
    """
    build, at = Build(), 0.0
    for step in range(STEPS):
        begin = at
        for copied, kind in enumerate(["DtoH"] * 24 + ["HtoD"] * 24):
            size = (1 + copied % 2) << 20
            copy = size / 10_000
            for i in range(2):
                build.kernel(
                    at + launch,
                    at + launch + 20,
                    call=(at + launch - 4, at + launch - 1),
                    name=f"gemm_{i}",
                )
                at += max(launch, 21)
            down = kind == "DtoH"
            build.copy(at + 25, at + 25 + copy, call=(at, at + 30 + copy), kind=kind, size=size,
                       src="device" if down else "pageable", dst="pageable" if down else "device",
                       call_name="cudaMemcpyAsync")  # fmt: skip
            at += 32 + copy
        build.range(begin, at, f"step {step}")
    found = diagnosed(build, tmp_path)
    first = found.findings[0]
    assert first.cause == "cpu_offload"
    least, most = max(96 * launch, 96 * 20) * 1e3, (96 * max(launch, 21) + 48 * 20) * 1e3
    assert first.predicted_step_ns is not None
    assert 0.97 * least <= first.predicted_step_ns <= most


@pytest.mark.parametrize("used_here", [True, False])
def test_a_value_read_for_host_work_is_not_read_where_the_work_goes(
    tmp_path: Path, used_here: bool
) -> None:
    """A step launches 20 short kernels at 40 us, then 20 of 100 us; then the loss is read.

    Read for the host work that follows, it is read no more: a step takes its kernels, 2.1 ms. Where
    kernels are launched first, the read is the program's and stays: 20 launches and 2.0 ms.
    """
    build, at = Build(), 0.0
    for step in range(STEPS):
        begin = at
        free = at
        for i in range(40):
            took = 5 if i < 20 else 100
            free = max(free, at + 40)
            build.kernel(free, free + took, call=(at + 36, at + 39), name=f"k{i}")
            free += took
            at += 40
        build.copy(
            free,
            free + 2,
            call=(at, free + 10),
            kind="DtoH",
            size=4,
            src="device",
            dst="pageable",
            call_name="cudaMemcpyAsync",
        )
        at = free + 12
        if not used_here:
            for _ in range(4):
                build.kernel(at + 8, at + 10, call=(at, at + 4), name="adam")
                at += 10
        at += 6_000
        build.range(begin, at, f"step {step}")
    found = diagnosed(build, tmp_path)
    first = found.findings[0]
    assert first.cause == "host_compute"
    assert first.predicted_step_ns == pytest.approx(2.1e6 if used_here else 2.86e6, rel=0.05)


def test_results_that_the_host_computes_with_are_not_copied_where_the_work_goes(
    tmp_path: Path,
) -> None:
    """20 kernels of 100 us; 12 MB are copied back for 3 ms, with which NumPy computes for 8 ms."""
    build, at = Build(), 0.0
    for step in range(STEPS):
        begin = free = at
        for i in range(20):
            free = max(free, at + 30)
            build.kernel(free, free + 100, call=(at, at + 5), name=f"k{i}")
            free += 100
            at += 10
        build.copy(
            free,
            free + 3_000,
            call=(at, free + 3_010),
            kind="DtoH",
            size=12_000_000,
            src="device",
            dst="pageable",
            call_name="cudaMemcpyAsync",
        )
        at = free + 3_010 + 8_000
        build.range(begin, at, f"step {step}")
    found = diagnosed(build, tmp_path)
    first = found.findings[0]
    assert first.cause == "host_compute"
    last_ns = 3.04e6 / STEPS  # behind the last copy nothing is enqueued: it may have another use
    assert first.predicted_step_ns == pytest.approx(2.0e6 + last_ns, rel=0.02)
    assert first.prediction_high_ns is not None
    assert first.prediction_high_ns >= 5e6

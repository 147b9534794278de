"""Late launches that the capturing tool may have made: what is claimed, said and put first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.diagnosis.test_time_causes import diagnosed, figures
from tests.support.build import Build

from stepscope.activity.device import gpus
from stepscope.diagnosis.causes import exposed_communication
from stepscope.diagnosis.sentence import unsupported
from stepscope.gaps.profiler_overhead import LARGEST_PART, UNIT_COSTS, call_cost_ns, call_overhead

KERNELS, STEP, STEPS = 500, 10_000, 4


def launching(kernel_us: float, *, untraced_us: float = 0.0) -> Build:
    """Steps of 500 kernels, one every 20 us, each called 1 us after the one before has ended.

    Args:
        kernel_us: length of a kernel.
        untraced_us: what the host computes at the begin of each step, beyond the 10 ms of launches.
    """
    build, at = Build(), 0.0
    for i in range(STEPS):
        build.range(at, at + STEP + untraced_us, f"step {i}")
        at += untraced_us
        for k in range(KERNELS):
            start = at + 20.0 * k + 20.0 - kernel_us
            build.kernel(start, start + kernel_us, call=(at + 20.0 * k + 1, at + 20.0 * k + 2))
        at += STEP
    return build


def test_what_the_tool_may_have_made_is_not_claimed(tmp_path: Path) -> None:
    """3 us a call: twice the usual cost of Nsight Systems."""
    found = diagnosed(launching(17.0), tmp_path)
    assert (found.verdict, found.findings) == ("gpu_bound_healthy", [])
    (warning,) = [text for text in found.warnings if "waits for launches" in text]
    assert unsupported(warning, found.evidence, []) == []
    about = {evidence.figure: evidence.value for evidence in found.evidence}
    assert about["late_launches_ns_per_step"] == pytest.approx(1.5e6, rel=0.01)
    assert about["cuda_calls_per_step"] == KERNELS
    assert about["least_tool_ns_per_step"] == KERNELS * 250
    assert about["most_tool_ns_per_step"] == KERNELS * 9_000


def test_what_it_cannot_have_made_is(tmp_path: Path) -> None:
    """10 us a call, of which the tool may have made nine at the most."""
    found = diagnosed(launching(10.0), tmp_path)
    (finding,) = found.findings
    assert finding.cause == "launch_bound"
    assert finding.time_ns_per_step == pytest.approx(5e6, rel=0.01)
    assert (
        "is some 0.75 ms a step (0.12 ms to 4.5 ms) for what Nsight Systems adds to its 500 CUDA "
        "calls" in finding.message
    )
    assert figures(finding)["most_tool_ns_per_step"] == 4_500_000
    assert not [text for text in found.warnings if "waits for launches" in text]


def test_the_tool_makes_no_more_than_its_part_of_a_step(tmp_path: Path) -> None:
    (gpu,) = gpus(launching(10.0).trace(tmp_path).frame)
    cost = call_overhead(gpu, "nsys", 0, 2 * STEP * 100, 2)  # a tenth of a step each
    assert cost is not None
    assert cost.calls == KERNELS / 10
    assert cost.most_ns == KERNELS / 10 * 9_000
    quick = call_overhead(gpu, "nsys", 0, 100_000, 1)  # five calls in 100 us
    assert quick is not None
    assert quick.calls == 5
    assert quick.most_ns == pytest.approx(min(45_000, LARGEST_PART * 100_000))
    assert call_overhead(gpu, "kineto", 0, 100_000, 1) is None


@pytest.mark.parametrize(
    ("call_us", "source", "each_ns"),
    [
        (6.0, "stepscope", 3_800),  # 2.2 us are the launch itself
        (2.3, "stepscope", 300),  # the least that was measured
        (40.0, "stepscope", 12_000),  # the most
        (6.0, "nsys", 1_500),
    ],
)
def test_recorded_launches_show_what_the_collector_costs(
    tmp_path: Path, call_us: float, source: str, each_ns: int
) -> None:
    build = Build()
    for k in range(9):
        build.kernel(1_000 * k + 50, 1_000 * k + 60, call=(1_000 * k, 1_000 * k + call_us))
    (gpu,) = gpus(build.trace(tmp_path).frame)
    tool = call_overhead(gpu, source, 0, 9_000_000, 1)
    assert tool is not None
    assert call_cost_ns(gpu, tool) == each_ns


def test_a_surer_cause_comes_first(tmp_path: Path) -> None:
    """The host computes for 2 ms a step; 5 ms of late launches may be the tool's but for 0.5."""
    found = diagnosed(launching(10.0, untraced_us=2_000.0), tmp_path)
    first, second = found.findings
    assert (first.cause, second.cause) == ("host_compute", "launch_bound")
    assert second.time_ns_per_step > 2 * first.time_ns_per_step


def test_units_are_ordered_and_in_the_middle() -> None:
    for unit in UNIT_COSTS.values():
        assert unit.least_ns < unit.typical_ns < unit.most_ns
        middle = (unit.least_ns * unit.most_ns) ** 0.5
        assert unit.typical_ns == pytest.approx(middle, rel=0.1)


@pytest.mark.parametrize(
    ("needs", "most", "expected", "low"),
    [((4e6, 6e6), 1e6, 6e6, 5e6), ((4e6, 12e6), 1e6, 10e6, 10e6), ((0.0, 0.0), 1e6, 0.0, 0.0)],
)
def test_bubbles_gain_no_more_than_the_slowest_host_allows(
    needs: tuple[float, float], most: float, expected: float, low: float
) -> None:
    tool = SimpleNamespace(most_ns=most)
    job = SimpleNamespace(cases=[SimpleNamespace(explanation=SimpleNamespace(tool=tool))] * 2)
    case: Any = SimpleNamespace(job=job, step_ns=10e6)
    c: Any = SimpleNamespace(paces=[SimpleNamespace(need_ns=n, recording_ns=0.0) for n in needs])
    assert exposed_communication._hosts_need(case, c, "expected") == expected
    assert exposed_communication._hosts_need(case, c, "low") == low

"""Causes that show in time and on the host: verdicts, sentences and figures on hand-made traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.simulation.test_events import STATE, contended, save, saving, step, untraced
from tests.support.build import Build
from tests.support.evidence import check_evidence

from stepscope.api import Job
from stepscope.diagnosis.result import Diagnosis, Finding
from stepscope.diagnosis.sentence import costing, unsupported

STEPS = 12


def diagnosed(build: Build, folder: Path) -> Diagnosis:
    job = Job([build.trace(folder).folder])
    diagnosis = job.diagnose()
    for finding in diagnosis.findings:
        assert unsupported(finding.message, finding.evidence, finding.names) == [], finding.message
    check_evidence(diagnosis, job)
    return diagnosis


def figures(finding: Finding) -> dict[str, float | int]:
    return {evidence.figure: evidence.value for evidence in finding.evidence}


@pytest.mark.parametrize("named", [True, False])
def test_checkpoint(tmp_path: Path, named: bool) -> None:
    build = Build()
    saving(build, every=4, named=named, ranges="checkpoint" if named else "")
    found = diagnosed(build, tmp_path)
    assert [f.cause for f in found.findings] == ["checkpoint_stall"]
    first = found.findings[0]
    known = figures(first)
    assert known["stalls"] == 3
    assert known["steps_between"] == 4
    assert known["state_bytes"] == 20 * STATE
    assert known["reads"] == 20
    # 10 ms of copies and 30 ms of writing each
    assert known["stall_ns"] == pytest.approx(40e6, rel=0.05)
    assert (first.next_capture is None) == named
    assert first.predicted_step_ns < 25e6


def test_a_single_checkpoint(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        at = step(build, at) + 5
        if i == 6:
            at = save(build, at, write=90_000)
    found = diagnosed(build, tmp_path)
    assert found.verdict == "checkpoint_stall"
    assert figures(found.findings[0])["stalls"] == 1
    assert "once" in found.findings[0].message


def test_a_checkpoint_beside_blocking_copies(tmp_path: Path) -> None:
    """What is read back in each step stays a blocking copy; only the state is the checkpoint's."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = step(build, at, kernels=10) + 5
        build.copy(at + 10, at + 4_000, call=(at, at + 4_010), kind="DtoH", size=8 * STATE,
                   src="device", dst="pageable")  # fmt: skip
        at = step(build, at + 4_020, kernels=10) + 5
        if i % 4 == 3:
            at = save(build, at, copies=60)
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    by_cause = {f.cause: f for f in found.findings}
    assert set(by_cause) == {"checkpoint_stall", "blocking_copy"}
    assert figures(by_cause["checkpoint_stall"])["reads"] == 60
    assert by_cause["blocking_copy"].time_ns_per_step == pytest.approx(4e6, rel=0.1)


def test_gil(tmp_path: Path) -> None:
    build = Build()
    waits = contended(build)
    found = diagnosed(build, tmp_path)
    assert found.verdict == "gil_contention"
    assert figures(found.findings[0])["waits"] == waits
    assert figures(found.findings[0])["on_interval"] > 0.9
    assert "py-spy" in (found.findings[0].next_capture or "")


def test_an_emptied_cache(tmp_path: Path) -> None:
    """Releases wait for the device; the allocations that follow hold the launches up."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for k in range(20):
            build.api(at, at + 200, "cudaMalloc")
            build.kernel(
                at + 230, at + 530, call=(at + 205, at + 215), name=f"void at::native::work<{k}>"
            )
            at += 220
        done = begin + 230 + 20 * 300
        build.api(at, done + 10, "cudaFree")
        at = done + 11
        for _ in range(19):
            build.api(at, at + 100, "cudaFree")
            at += 101
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    assert found.verdict == "allocator_churn"
    assert "host_sync" not in [f.cause for f in found.findings]
    known = figures(found.findings[0])
    assert known["allocations"] == known["releases"] == 20 * STEPS
    assert "empty_cache() or" in found.findings[0].message


def test_an_allocator_without_a_cache(tmp_path: Path) -> None:
    """Each tensor is allocated before its kernel and given back behind it, in 20 places a step."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for _ in range(20):
            build.api(at, at + 20, "cudaMalloc")
            name = "void at::native::work"
            build.kernel(at + 30, at + 60, call=(at + 22, at + 28), name=name)
            build.api(at + 30, at + 100, "cudaFree")
            at += 100
        build.range(begin, at, f"step {i}")
    finding = diagnosed(build, tmp_path).findings[0]
    assert finding.cause == "allocator_churn"
    assert "keeps no cache" in finding.message
    assert "empty_cache() or" not in finding.message
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in finding.recommendations[0]


def collected(
    folder: Path, *, releases: int = 6, name: str = "void at::native::work", apart: bool = False
) -> Diagnosis:
    """Steps of 2 ms of launches, then 30 ms of silence, and releases."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for _ in range(20):
            build.kernel(at + 20, at + 110, call=(at + 5, at + 15), name=name)
            at += 100
        if apart:
            build.range(at + 50, at + 29_900, "metrics")
        at += 30_000
        for _ in range(releases):
            build.api(at, at + 100, "cudaFree")
            at += 101
        build.range(begin, at, f"step {i}")
    return diagnosed(build, folder)


def test_garbage_is_collected_before_a_cache_is_emptied(tmp_path: Path) -> None:
    """gc.collect() takes 30 of 32.6 ms."""
    (found,) = collected(tmp_path).findings
    assert found.cause == "allocator_churn"
    assert found.time_ns_per_step == pytest.approx(30.5e6, rel=0.02)
    assert "gc.collect()" in found.message
    assert found.predicted_step_ns == pytest.approx(2e6, rel=0.1)


@pytest.mark.parametrize(
    "other",
    [{"releases": 1}, {"name": "my_own_kernel"}, {"apart": True}],
    ids=["room is made for one tensor", "no PyTorch", "a range names other work"],
)
def test_other_silences_before_releases_are_host_work(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    assert collected(tmp_path, **other).verdict == "host_compute"


def test_copies_that_map_pages_in_some_steps_leave_the_gain_open(tmp_path: Path) -> None:
    """Copies take 1 ms in half of the steps of 3 or 13, as it happens: a run may hold either."""
    found = {}
    for folder, slow in (("uneven", 11_000), ("alike", 6_000)):
        build, at = Build(), 0.0
        (tmp_path / folder).mkdir()
        for i in range(2 * STEPS):
            begin, took = at, slow if i % 2 else 12_000 - slow
            build.kernel(at + 20, at + 2_000, call=(at + 5, at + 15))
            build.copy(at + 2_000, at + 2_000 + took, call=(at + 20, at + 2_010 + took),
                       kind="DtoH", size=20 << 20, src="device", dst="pageable")  # fmt: skip
            at += 2_050 + took
            build.range(begin, at, f"step {i}")
        (finding,) = diagnosed(build, tmp_path / folder).findings
        assert finding.cause == "blocking_copy"
        found[folder] = finding
    width = {k: f.prediction_high_ns - f.prediction_low_ns for k, f in found.items()}
    assert width["uneven"] > 1.5 * width["alike"]
    assert "pages of host memory" in found["uneven"].message
    assert "pages of host memory" not in found["alike"].message
    known = figures(found["uneven"])
    assert (known["quick_copy_ns"], known["slow_copy_ns"]) == (1_000_000, 11_000_000)


def test_compiling_again_and_again(tmp_path: Path) -> None:
    build = Build()
    for begin in untraced(build):
        build.api(begin + 7_800, begin + 7_900, "cuModuleLoadData", api="driver")
    found = diagnosed(build, tmp_path)
    assert found.verdict == "compilation_or_warmup"
    assert figures(found.findings[0])["compilations"] == 4
    assert figures(found.findings[0])["steps_with_compilation"] == 4


def loading(build: Build, *, later: float = 10, idle: bool = True) -> float:
    """A first call that loads for 40 ms, then launches of ``later`` us; when all is done."""
    build.api(0, 6_000, "cudaFuncGetAttributes")
    build.kernel(6_020, 6_100, call=(6_010, 6_015), name="fill")
    until = 6_100 if idle else 46_300
    if not idle:
        build.kernel(6_100, until, call=(6_020, 6_025), name="long")
    build.kernel(max(46_250, until), max(46_350, until + 100), call=(6_200, 46_200), name="conv")
    at = max(46_350, until + 100)
    for k in range(40):
        call = (at + 10, at + 10 + later)
        build.kernel(
            call[1] + 5, call[1] + 300, call=call, name="conv" if k in (7, 19, 30) else f"k{k}"
        )
        at = call[1] + 300
    return at


def test_the_first_launch_of_a_kernel_loads_its_code(tmp_path: Path) -> None:
    build = Build()
    loading(build)
    found = diagnosed(build, tmp_path)
    assert found.verdict == "compilation_or_warmup"
    first = found.findings[0]
    assert "the first launch of 'conv' took 40.0 ms: its code was loaded then" in first.message
    assert figures(first)["first_call_ns"] == 40_000_000
    assert first.recommendations[0].startswith("warm up before measuring")
    step = figures(first)["step_ns"]
    assert step - first.predicted_step_ns > 39_000_000


@pytest.mark.parametrize(
    ("later", "idle"),
    [(8_000, True), (10, False)],
    ids=["launches are always slow", "the device was busy, and the queue may have been full"],
)
def test_a_long_first_launch_alone_is_no_loading(tmp_path: Path, later: float, idle: bool) -> None:
    build = Build()
    loading(build, later=later, idle=idle)
    found = diagnosed(build, tmp_path)
    assert "compilation_or_warmup" not in {f.cause for f in found.findings}


@pytest.mark.parametrize(("between", "calls"), [(False, 2), (True, 1)])
def test_a_first_call_goes_on_in_the_next_of_its_name(
    tmp_path: Path, between: bool, calls: int
) -> None:
    """A library frees nothing for 20 and for 30 ms, so that there is a context."""
    build = Build()
    build.kernel(20, 100, call=(5, 10), name="fill")
    build.api(200, 20_200, "cudaFree")
    if between:
        build.kernel(20_220, 20_240, call=(20_205, 20_208), name="k0")
    build.api(20_250, 50_250, "cudaFree")
    at = 50_260.0
    for k in range(40):
        build.kernel(at + 15, at + 300, call=(at, at + 10), name=f"k{k}")
        at += 310
        if k % 10 == 0:
            build.api(at - 5, at - 4, "cudaFree")
    by_cause = {f.cause: figures(f) for f in diagnosed(build, tmp_path).findings}
    assert by_cause["compilation_or_warmup"]["compilations"] == calls
    assert ("allocator_churn" in by_cause) is between


def test_a_single_step_does_not_tell_that_shapes_change(tmp_path: Path) -> None:
    build = Build()
    build.kernel(20, 100, call=(5, 10), name="fill")
    build.api(30_000, 30_100, "cuModuleLoadData", api="driver")
    at = 30_200.0
    for k in range(60):
        build.kernel(at + 15, at + 300, call=(at, at + 10), name=f"k{k}")
        at += 310
    (first,) = diagnosed(build, tmp_path).findings
    assert first.cause == "compilation_or_warmup"
    assert first.recommendations[0].startswith("warm up before measuring")
    assert "of 1 step" not in first.message


def test_a_first_allocation_in_mid_run_is_no_loading(tmp_path: Path) -> None:
    build = Build()
    for begin in untraced(build):
        build.api(begin + 200, begin + 7_900, "cudaMalloc")
    found = diagnosed(build, tmp_path)
    assert found.verdict == "allocator_churn"


def test_a_compiler_on_another_thread_counts_while_the_launching_one_is_silent(
    tmp_path: Path,
) -> None:
    build = Build()
    for begin in untraced(build):
        build.range(begin + 100, begin + 7_900, "FusionKernelRuntime::compileKernel", thread=777)
    assert diagnosed(build, tmp_path).verdict == "compilation_or_warmup"


def test_loading_that_the_tool_records_is_no_cost_of_the_tool(tmp_path: Path) -> None:
    build = Build()
    for begin in untraced(build):
        build.overhead(begin + 100, begin + 7_900, "Lazy Function Loading")
    assert diagnosed(build, tmp_path).verdict == "compilation_or_warmup"


def test_compiling_in_the_first_steps_is_warm_up(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        if i < 2:
            build.api(at + 90_000, at + 90_500, "cuModuleLoadData", api="driver")
            at += 91_000
        for k in range(30):
            build.kernel(at + 20, at + 169, call=(at, at + 10), name=f"k{k}")
            at += 150
        build.range(begin, at, f"step {i}")
    found = diagnosed(build, tmp_path)
    assert found.findings == []
    assert any("first 2 steps excluded as warm-up" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("range_name", "thread_name", "figure", "value"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", None, "times_workers", 3),
        ("dataload", "pt_data_pin", "times_workers", 3),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", None, "workers_needed", 2),
    ],
)
def test_how_many_workers_would_keep_up(
    tmp_path: Path, range_name: str, thread_name: str | None, figure: str, value: int
) -> None:
    """The batch takes 9 ms longer than the 6 ms that the device needs."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        build.range(at, at + 15_000, f"step {i}")
        build.range(at, at + 9_000, range_name)
        for k in range(2):
            begin = at + 9_010 + 2_995 * k
            build.kernel(begin, begin + 2_995, call=(at + 9_001 + 4 * k, at + 9_004 + 4 * k))
        at += 15_000
    if thread_name:
        build.rows["thread"] = [{"process_id": 100, "thread_id": 7, "name": thread_name}]
    found = diagnosed(build, tmp_path)
    assert found.verdict == "input_starvation"
    assert figures(found.findings[0])[figure] == value


def test_one_step_does_not_tell_the_pace_of_workers(tmp_path: Path) -> None:
    build = Build()
    build.range(0, 30_000, "train_step")
    build.range(0, 9_000, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    for k in range(70):
        begin = 9_010 + 299 * k
        build.kernel(begin, begin + 299, call=(9_001 + 4 * k, 9_004 + 4 * k))
    (first,) = diagnosed(build, tmp_path).findings
    assert first.cause == "input_starvation"
    assert "one step does not tell the pace of the workers" in first.message
    assert "times_workers" not in figures(first)


def test_a_graph_is_launched_by_one_call(tmp_path: Path) -> None:
    """Ten launches in 1 ms, 2 us each on the device, then a graph of 200 kernels that take 5 us."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for k in range(10):
            build.kernel(at + 8, at + 10, call=(at, at + 5), name=f"eager{k}")
            at += 100
        build.kernel(at + 8, at + 13, call=(at, at + 5), call_name="cudaGraphLaunch")
        graph = build.correlation
        for k in range(1, 200):
            build.kernel(at + 8 + 5 * k, at + 13 + 5 * k)
            build.rows["gpu_op"][-1]["correlation_id"] = graph
        at += 1_010
        build.range(begin, at, f"step {i}")
    first = diagnosed(build, tmp_path).findings[0]
    assert first.cause == "launch_bound"
    assert "in parts of the step" in first.message


@pytest.mark.parametrize("name", ["garbage collection, generation 2", ""])
def test_a_pause_that_begins_with_the_end_of_the_step_before(tmp_path: Path, name: str) -> None:
    """The device idles from the last 100 us of every fifth step on, the host from the next on."""
    build, at = Build(), 0.0
    for number in range(20):
        begin = at
        if number in (5, 10, 15):
            if name:
                build.range(at + 1, at + 30_000, name)
            at += 30_000
        for _ in range(10):
            build.kernel(at + 10, at + 990, call=(at, at + 5))
            at += 1_000
        at += 90
        build.range(begin, at, f"step {number}")
    first = diagnosed(build, tmp_path).findings[0]
    assert first.cause == "step_jitter"
    assert figures(first)["outlier_steps"] == 3
    if name:
        assert "Python collects garbage in them ('garbage collection, generation 2')" in (
            first.message
        )
        assert first.next_capture is None
        assert any("gc.freeze()" in advice for advice in first.recommendations)
    else:
        assert "nothing in the capture says why" in first.message
        assert first.next_capture is not None
        assert "--gc" in first.next_capture


def test_titles_of_several_take_their_verb() -> None:
    assert [costing(title) for title in ("Small kernels", "Step jitter")] == ["cost", "costs"]

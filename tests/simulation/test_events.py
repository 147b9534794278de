"""Events that own the host's time: checkpoint stalls, waits for the lock, compilation, noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.build import MAIN, PID, US, Build

from stepscope.activity import names as words
from stepscope.activity.host import apart, charge_attributed, cut, inside
from stepscope.breakdown.explain import Explanation, explain
from stepscope.gaps.gil import PATTERN, RECORDED, TIMED_OUT
from stepscope.gaps.profiler_overhead import SLOWEST_PACE, host_pace
from stepscope.gaps.stalls import NAMED, STALL_EVIDENCE, _rare
from stepscope.intervals import union

STEPS = 12
PERIOD = 20_000.0  # us
STATE = 1 << 20
_, READS, WRITES = range(len(STALL_EVIDENCE))


def explained(build: Build, folder: Path) -> Explanation:
    trace = build.trace(folder)
    (only,) = explain(trace.frame, trace.meta)
    segments = only.gaps.segments
    assert (segments["end_ns"] > segments["start_ns"]).all()
    assert (segments["start_ns"][1:] >= segments["end_ns"][:-1]).all()
    assert sum(only.idle_by_cause_ns.values()) == only.steady_total("idle_ns")
    return only


def step(build: Build, at: float, *, kernels: int = 40, named: int | None = None) -> float:
    """A step of 500 us kernels that are enqueued at once; returns when the device is done."""
    if named is not None:
        build.range(at, at + 19_000, f"step {named}")
    for k in range(kernels):
        begin = at + 20 + 450 * k
        build.kernel(begin, begin + 449, call=(at + 5 + 10 * k, at + 12 + 10 * k), name=f"k{k}")
    return at + 20 + 450 * kernels


def save(build: Build, at: float, *, copies: int = 20, write: float = 30_000) -> float:
    """Read ``copies`` tensors back, each with a blocking call of 500 us, then be silent."""
    for i in range(copies):
        begin = at + 500 * i
        build.copy(begin + 10, begin + 490, call=(begin, begin + 495), kind="DtoH", size=STATE,
                   src="device", dst="pageable")  # fmt: skip
    return at + 500 * copies + write


def saving(build: Build, *, every: int, named: bool, ranges: str = "", copies: int = 20) -> None:
    at = 0.0
    for i in range(STEPS):
        done = step(build, at, named=i if named else None)
        if i % every == every - 1:
            end = save(build, done, copies=copies)
            if ranges:
                build.range(done, end, ranges)
            at = end + 5
        else:
            at = done + 5


def test_a_state_that_is_read_back_in_few_steps_is_a_checkpoint(tmp_path: Path) -> None:
    build = Build()
    saving(build, every=4, named=False)
    e = explained(build, tmp_path)
    assert e.steps.source == "kernel_sequence"
    assert len(e.steps) == STEPS
    assert e.stalls.evidence.tolist() == [READS] * 3
    assert e.stalls.copies.tolist() == [20] * 3
    assert e.stalls.bytes.tolist() == [20 * STATE] * 3
    kinds = dict(zip(e.gpu.ops["id"], e.gpu.ops["kind"], strict=True))
    copy = e.gpu.ops.texts["kind"].index("memcpy")
    assert [kinds[i] for i in e.stalls.read_ids] == [copy] * 60
    assert e.stalls.copy_ns.tolist() == [20 * 480 * US] * 3
    # the last one's silence lies behind the last operation, where no step is known
    assert e.idle_by_cause_ns["checkpoint_stall"] == pytest.approx(2 * 30_000 * US, rel=0.05)
    assert e.idle_by_cause_ns.get("blocking_copy", 0) < 100 * US


def test_a_range_that_says_so_is_enough(tmp_path: Path) -> None:
    build = Build()
    saving(build, every=4, named=True, ranges="checkpoint", copies=1)
    e = explained(build, tmp_path)
    assert e.stalls.evidence.tolist() == [NAMED] * 3
    # the last one lies behind the last step's range
    assert e.idle_by_cause_ns["checkpoint_stall"] == pytest.approx(2 * 30_000 * US, rel=0.05)


def test_what_is_read_back_in_each_step_is_no_checkpoint(tmp_path: Path) -> None:
    build = Build()
    saving(build, every=1, named=False)
    e = explained(build, tmp_path)
    assert len(e.stalls) == 0
    assert "checkpoint_stall" not in e.idle_by_cause_ns


def test_one_large_result_is_no_checkpoint(tmp_path: Path) -> None:
    build = Build()
    saving(build, every=4, named=False, copies=1)
    assert len(explained(build, tmp_path).stalls) == 0


def test_one_large_copy_and_files_being_written_are_one(tmp_path: Path) -> None:
    build = Build()
    at = 0.0
    for i in range(STEPS):
        at = step(build, at) + 5
        if i % 4 == 3:
            end = save(build, at, copies=1)
            for k in range(10):
                begin = at + 600 + 2_900 * k
                build.api(begin, begin + 2_000, "write", api="osrt")
            at = end
    e = explained(build, tmp_path)
    # behind the last operation, where the last one is written, no step is known
    assert len(e.stalls) == 2
    assert set(e.stalls.evidence.tolist()) <= {READS, WRITES}


def serialised(build: Build, at: float, *, tensors: int = 4, each: float = 6_000) -> float:
    """Read a few large tensors back, and be silent for long after each: it is written."""
    for i in range(tensors):
        begin = at + each * i
        build.copy(begin + 10, begin + 490, call=(begin, begin + 495), kind="DtoH", size=STATE,
                   src="device", dst="pageable")  # fmt: skip
    return at + each * tensors


@pytest.mark.parametrize(("evaluates", "stalls"), [(False, 2), (True, 0)])
def test_few_large_tensors_that_are_written_are_a_state(
    tmp_path: Path, evaluates: bool, stalls: int
) -> None:
    """Those of a recurrent network. What an evaluation reads back has kernels before it."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = step(build, at) + 5
        if i % 5 == 3:
            at = step(build, at, kernels=20) + 5 if evaluates else at
            at = serialised(build, at)
        build.range(begin, at, f"step {i}")
    assert len(explained(build, tmp_path).stalls) == stalls


def test_saving_begins_before_the_first_tensor_is_read(tmp_path: Path) -> None:
    """An old file is cut off for 12 ms: silent, but for a call that neither launches nor waits."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        at = step(build, at) + 5
        if i % 4 == 1:
            build.api(at + 11_998, at + 11_999, "cudaStreamIsCapturing")
            at = save(build, at + 12_000)
        build.range(begin, at, f"step {i}")
    e = explained(build, tmp_path)
    assert e.stalls.evidence.tolist() == [READS] * 3
    # 12 ms before, 30 behind; the device still works on the step when the silence begins
    assert e.idle_by_cause_ns["checkpoint_stall"] == pytest.approx(3 * 42_000 * US, rel=0.02)


def test_what_began_before_the_window_and_lasts_into_it_is_rare_by_itself() -> None:
    """One has ended before the window begins at 100; another reads no more than all do."""
    start, until = np.array([20, 60, 80, 250]), np.array([90, 150, 120, 260])
    weight = np.array([50, 50, 4, 50])
    steps = np.array([100, 200, 300, 400])
    usual = np.array([110, 210, 310, 410])  # one unit is read in each step
    starts, weights = np.append(start, usual), np.append(weight, np.ones(4, np.int64))
    rare = _rare(starts, weights, steps, 100, 500, np.append(until, usual + 1))
    assert rare[:4].tolist() == [False, True, False, True]


def test_activation_checkpointing_is_none(tmp_path: Path) -> None:
    build = Build()
    for i in range(STEPS):
        at = i * PERIOD
        step(build, at, named=i)
        for k in range(4):
            build.range(at + 5 + 100 * k, at + 95 + 100 * k, "checkpoint")
    assert len(explained(build, tmp_path).stalls) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("checkpoint", True), ("save_checkpoint", True), ("torch.save", True), ("Save", True),
        ("ckpt 12", True), ("state_dict", True), ("save_model", True),
        ("CheckpointFunction", False), ("activation_checkpoint", False), ("load_checkpoint", False),
        ("_checkpoint_wrapped_module", False), ("save_for_backward", False), ("forward", False),
        ("dataload", False), ("save_loss", False),
    ],
)  # fmt: skip
def test_words_for_saving(text: str, message: bool) -> None:
    assert words.is_checkpoint_range(text) is message


# ---- the lock --------------------------------------------------------------------------------


def contended(build: Build, seed: int = 0, places: int = 30) -> int:
    """Launches with waits of 5 ms or several between, drawn by lot; returns how many waits."""
    draw = np.random.default_rng(seed)
    at, waits = 0.0, 0
    for i in range(6):
        begin = at
        for k in range(places):
            build.kernel(at + 20, at + 120, call=(at, at + 10), name=f"k{k}")
            turns = int(draw.integers(0, 4))
            waits += turns > 0
            at += 200 + turns * 5_060
        build.range(begin, at, f"step {i}")
    return waits


def test_pauses_of_switch_intervals_all_over_are_waits_for_the_lock(tmp_path: Path) -> None:
    build = Build()
    waits = contended(build)
    e = explained(build, tmp_path)
    assert e.gil.evidence == PATTERN
    assert len(e.gil.intervals[0]) == waits
    assert e.gil.on_interval > 0.9
    assert max(e.idle_by_cause_ns, key=e.idle_by_cause_ns.__getitem__) == "gil_contention"


def test_smeared_waits_that_every_step_has_elsewhere_are_too(tmp_path: Path) -> None:
    build, draw, at = Build(), np.random.default_rng(1), 0.0
    for i in range(6):
        begin = at
        for k in range(30):
            build.kernel(at + 20, at + 120, call=(at, at + 10), name=f"k{k}")
            at += 200 + (float(draw.uniform(5_000, 40_000)) if draw.random() < 0.5 else 0)
        build.range(begin, at, f"step {i}")
    e = explained(build, tmp_path)
    assert e.gil.evidence == PATTERN
    assert e.gil.on_interval < 0.25


@pytest.mark.parametrize("places", [1, 8])
def test_host_work_at_its_place_in_each_step_is_not(tmp_path: Path, places: int) -> None:
    """Also when it takes several switch intervals at many places: it is the same every time."""
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for k in range(30):
            build.kernel(at + 20, at + 120, call=(at, at + 10), name=f"k{k}")
            at += 200 + (6_800 + 900 * k if k < places else 0)
        build.range(begin, at, f"step {i}")
    e = explained(build, tmp_path)
    assert e.gil.evidence == -1
    assert max(e.idle_by_cause_ns, key=e.idle_by_cause_ns.__getitem__) == "host_compute"


def test_pauses_of_all_lengths_are_not(tmp_path: Path) -> None:
    build, draw, at = Build(), np.random.default_rng(2), 0.0
    for i in range(STEPS):
        begin = at
        for k in range(30):
            build.kernel(at + 20, at + 120, call=(at, at + 10), name=f"k{k}")
            at += 200 + float(draw.pareto(1.2)) * 500
        build.range(begin, at, f"step {i}")
    assert explained(build, tmp_path).gil.evidence == -1


def test_a_capture_that_recorded_the_lock_decides(tmp_path: Path) -> None:
    build = Build()
    contended(build)
    build.rows["gil"] = [
        {"process_id": PID, "thread_id": MAIN, "start_ns": 300 * US, "end_ns": 4_000 * US,
         "state": "waiting"},
        {"process_id": PID, "thread_id": MAIN + 7, "start_ns": 0, "end_ns": 9_000_000 * US,
         "state": "holding"},
    ]  # fmt: skip
    e = explained(build, tmp_path)
    assert e.gil.evidence == RECORDED
    assert [a.tolist() for a in e.gil.intervals] == [[300 * US], [4_000 * US]]


def test_waits_that_time_out_after_the_switch_interval(tmp_path: Path) -> None:
    build = Build()
    at = 0.0
    for i in range(STEPS):
        begin = at
        for k in range(10):
            build.kernel(at + 20, at + 120, call=(at, at + 10), name=f"k{k}")
            at += 200
            if k == i % 10:
                build.api(at + 10, at + 5_080, "pthread_cond_timedwait", api="osrt")
                build.api(at + 5_090, at + 6_000, "pthread_cond_timedwait", api="osrt")
                at += 6_100
        build.range(begin, at, f"step {i}")
    e = explained(build, tmp_path)
    assert e.gil.evidence == TIMED_OUT
    assert len(e.gil.intervals[0]) == STEPS


# ---- compilation -----------------------------------------------------------------------------


def untraced(build: Build, *, steps: int = STEPS, where: int = 20, every: int = 3) -> list[float]:
    """Steps with 8 ms of silence before operation ``where`` of every third; returns its begins."""
    at, found = 0.0, []
    for i in range(steps):
        begin = at
        for k in range(30):
            if k == where and i % every == every - 1:
                found.append(at)
                at += 8_000
            build.kernel(at + 20, at + 120, call=(at, at + 10), name=f"k{k}")
            at += 150
        build.range(begin, at, f"step {i}")
    return found


def test_a_silence_that_ends_with_loading_a_module_is_compilation(tmp_path: Path) -> None:
    build = Build()
    for begin in untraced(build):
        build.api(begin + 7_800, begin + 7_900, "cuModuleLoadData", api="driver")
    e = explained(build, tmp_path)
    assert e.idle_by_cause_ns["compilation_or_warmup"] == pytest.approx(4 * 7_900 * US, rel=0.05)


def test_a_silence_inside_an_operator_that_plans_is_compilation(tmp_path: Path) -> None:
    build = Build()
    build.rows["operator"] = [
        {"process_id": PID, "thread_id": MAIN, "start_ns": round((begin - 100) * US),
         "end_ns": round((begin + 8_100) * US), "name": "aten::_cudnn_attention_forward"}
        for begin in untraced(build)
    ]  # fmt: skip
    e = explained(build, tmp_path)
    assert e.idle_by_cause_ns["compilation_or_warmup"] > 4 * 7_500 * US


def test_a_silence_before_a_new_compiled_kernel_is_compilation(tmp_path: Path) -> None:
    build = Build()
    untraced(build)
    seen = 0
    for row in build.rows["gpu_op"]:
        if row["name"] == "k20":
            seen += 1
            row["name"] = f"triton_poi_fused_add_{seen // 3}"
    e = explained(build, tmp_path)
    assert e.idle_by_cause_ns["compilation_or_warmup"] > 3 * 7_500 * US


def test_a_silence_without_any_of_these_is_not(tmp_path: Path) -> None:
    build = Build()
    untraced(build)
    assert "compilation_or_warmup" not in explained(build, tmp_path).idle_by_cause_ns


def test_the_cache_lookup_of_dynamo_is_no_compilation() -> None:
    assert not words.COMPILE_RANGE.search("TorchDynamo Cache Lookup")
    assert not words.COMPILE_RANGE.search("Torch-Compiled Region: 0/0")
    assert words.COMPILE_RANGE.search("_compile.compile_inner (dynamo_timed)")


# ---- noise and pace --------------------------------------------------------------------------


@pytest.mark.parametrize(("recurs", "cause"), [(True, "host_compute"), (False, "launch_bound")])
def test_a_pause_that_does_not_recur_at_its_place_is_noise(
    tmp_path: Path, recurs: bool, cause: str
) -> None:
    build, at = Build(), 0.0
    for i in range(STEPS):
        begin = at
        for k in range(30):
            build.kernel(at + 20, at + 120, call=(at, at + 10), name=f"k{k}")
            at += 150 + (2_500 if k == (10 if recurs else (7 * i) % 29) else 0)
        build.range(begin, at, f"step {i}")
    e = explained(build, tmp_path)
    assert max(e.idle_by_cause_ns, key=e.idle_by_cause_ns.__getitem__) == cause
    assert e.idle_by_cause_ns.get("host_compute", 0) < 1_000 * US or recurs


@pytest.mark.parametrize(("length_ns", "pace"), [(600, 1.0), (2_300, 2.0), (99_000, SLOWEST_PACE)])
def test_views_tell_the_pace_of_the_host(tmp_path: Path, length_ns: int, pace: float) -> None:
    build = Build()
    step(build, 0)
    build.rows["operator"] = [
        {"process_id": PID, "thread_id": MAIN, "start_ns": 10_000 * i,
         "end_ns": 10_000 * i + length_ns, "name": "aten::view"}
        for i in range(40)
    ]  # fmt: skip
    trace = build.trace(tmp_path)
    (only,) = explain(trace.frame, trace.meta)
    assert host_pace(only.gpu, trace.frame) == pytest.approx(pace)


# ---- intervals that a cause owns -------------------------------------------------------------

_SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=8)


def _union(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([a for a, _ in spans], np.int64)
    return union(start, start + np.array([n for _, n in spans], np.int64))


@given(_SPANS, _SPANS, _SPANS)
def test_owned_time_goes_to_its_first_owner(
    gaps: list[tuple[int, int]], first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    start, end = _union(gaps)
    attributed = apart({"a": _union(first), "b": _union(second)})
    columns = {"start_ns": start, "end_ns": end, "cause": np.zeros(len(start), np.int64),
               "evidence": np.ones(len(start), np.int64)}  # fmt: skip
    done = charge_attributed(columns, [(1, attributed["a"]), (2, attributed["b"])])
    assert (done["start_ns"][1:] >= done["end_ns"][:-1]).all()
    got = {
        t: cause
        for a, b, cause in zip(done["start_ns"], done["end_ns"], done["cause"], strict=True)
        for t in range(int(a), int(b))
    }
    in_first = {t for a, n in first for t in range(a, a + n)}
    in_second = {t for a, n in second for t in range(a, a + n)}
    expected = {
        t: 1 if t in in_first else 2 if t in in_second else 0
        for a, n in gaps
        for t in range(a, a + n)
    }
    assert got == expected
    assert all(inside(attributed["a"], np.array([t]))[0] == (t in in_first) for t in range(80))


@given(_SPANS, st.lists(st.integers(0, 80), max_size=10))
def test_cutting_keeps_every_moment(spans: list[tuple[int, int]], edges: list[int]) -> None:
    start, end = _union(spans)
    at = np.unique(np.array(edges, np.int64))
    done = cut({"start_ns": start, "end_ns": end, "row": np.arange(len(start))}, at)
    assert (done["end_ns"] > done["start_ns"]).all()
    assert (done["end_ns"] - done["start_ns"]).sum() == (end - start).sum()
    for a, b in zip(done["start_ns"], done["end_ns"], strict=True):
        assert not ((at > a) & (at < b)).any()

"""What a step is: marks of engines, single marks, layers that are no steps, graphs, choices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.build import Build

from stepscope.activity import names as words
from stepscope.breakdown.explain import Explanation, explain
from stepscope.steps.model import StepChoice
from stepscope.trace.errors import UsageError


def explained(build: Build, folder: Path, choice: StepChoice | None = None) -> Explanation:
    trace = build.trace(folder)
    return explain(trace.frame, trace.meta, None, choice or StepChoice())[0]


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("step[DECODE bs=32]", True),
        ("execute_32_context_0(sq0sk0)_generation_32(sq32sk55086)", True),
        ("execute_context_0(0)_generation_16(16)", True),
        ("[Executor] _forward_step 12: 3 ctx reqs, 5 gen reqs", True),
        ("[pl][profile]run_training_batch", True),
        ("1F1B", True),
        ("model_inference", True),
        ("train_step", True),
        ("aten::linear, op_id = 7", False),
        ("FSDP::pre_forward (blocks.3._checkpoint_wrapped_module)", False),
        ("AddmmBackward0", False),
        ("## Call CompiledFxGraph fp5r5 ##", False),
        ("Optimizer.step#AdamW.step", False),
        ("DeepSpeedEngine.step", False),
        ("layer 3", False),
        ("TransformerBlock", False),
    ],
)
def test_names_of_iterations(name: str, mark: bool) -> None:
    assert words.is_step_range(name) is mark


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("step[DECODE bs=32]", "decode_step"),
        ("step[EXTEND bs=1 toks=512]", "engine_iteration"),
        ("execute_8_context_0(sq0sk0)_generation_8(sq8sk99)", "decode_step"),
        ("execute_8_context_2(sq9sk9)_generation_6(sq6sk99)", "engine_iteration"),
    ],
)
def test_kinds_of_engine_iterations(name: str, kind: str, tmp_path: Path) -> None:
    build = Build()
    build.range(0, 1_000, name)
    for k in range(10):
        build.kernel(100 * k + 20, 100 * k + 90, call=(100 * k, 100 * k + 5), name=f"k{k}")
    assert explained(build, tmp_path).steps.kind == kind


def test_iterations_of_an_engine_are_one_series_whatever_they_hold(tmp_path: Path) -> None:
    build = Build()
    for i, what in enumerate(["DECODE bs=8", "EXTEND bs=1 toks=9", "DECODE bs=9", "DECODE bs=9"]):
        at = 1_000 * i
        build.range(at, at + 950, f"step[{what}]")
        build.kernel(at + 20, at + 900, call=(at + 1, at + 5), name=f"k{i}")
    assert len(explained(build, tmp_path).steps) == 4


def marked_layers(last: str) -> Build:
    """A marked step of 10 ms: twelve layers of three kernels, of which the last is given."""
    build = Build()
    build.range(0, 10_000, "ProfilerStep#6")
    build.kernel(1_000, 1_100, call=(900, 905), name="embedding")
    for layer in range(12):
        for k, name in enumerate(["gemm", "flash_fwd", last]):
            at = 1_200 + 600 * layer + 200 * k
            build.kernel(at + 10, at + 190, call=(at, at + 5), name=name)
    return build


@pytest.mark.parametrize(("update", "kind"), [("FusedAdamMath", "layer"), ("", "training_step")])
def test_lists_of_tensors_that_are_copied_update_nothing(
    tmp_path: Path, update: str, kind: str
) -> None:
    """Each layer copies its parameters together, as FSDP does; the update at the end is named."""
    build = marked_layers(last="multi_tensor_apply_kernel<CopyFunctor>")
    if update:
        build.kernel(8_500, 8_600, call=(8_450, 8_455), name=f"multi_tensor<{update}>")
    (inner,) = explained(build, tmp_path).steps.inner
    assert (inner.kind, inner.count) == (kind, 12)


def test_a_single_mark_wins_over_repeating_layers(tmp_path: Path) -> None:
    build = marked_layers(last="norm")
    build.kernel(8_500, 8_600, call=(8_450, 8_455), name="lm_head")
    e = explained(build, tmp_path)
    assert (e.steps.source, len(e.steps)) == ("profiler_step", 1)
    assert (e.begin_ns, e.end_ns) == (0, 10_000_000)
    (inner,) = e.steps.inner
    assert (inner.kind, inner.count) == ("layer", 12)
    assert inner.median_ns == 600_000
    assert "one sample" in e.set_aside


def test_layers_that_run_on_after_the_mark_are_not_in_the_step(tmp_path: Path) -> None:
    """Four layers of 3 ms each are launched in a step of 10 ms: the device runs three in it."""
    build = Build()
    build.range(0, 10_000, "ProfilerStep#6")
    build.kernel(100, 400, call=(50, 55), name="embedding")
    for layer in range(4):
        for k, name in enumerate(["gemm", "flash_fwd", "norm"]):
            called = 100 + 300 * layer + 100 * k
            begin = 500 + 3_000 * layer + 1_000 * k
            build.kernel(begin, begin + 990, call=(called, called + 5), name=name)
    e = explained(build, tmp_path)
    assert (e.begin_ns, e.end_ns) == (0, 10_000_000)
    (inner,) = e.steps.inner
    assert (inner.kind, inner.count, inner.median_ns) == ("layer", 4, 3_000_000)
    assert inner.within == 3
    assert (
        "the only one launches 4 layers of 3.0 ms, of which the GPU runs 3 before the step ends"
    ) in e.steps.message


def test_the_first_launch_of_the_next_step_is_not_in_this_one(tmp_path: Path) -> None:
    """Steps of nine layers, the next of which begins with a layer, too."""
    build = Build()
    for step in range(6):
        build.range(5_000 * step, 5_000 * step + 4_999, f"step_{step}")
        for layer in range(9):
            at = 5_000 * step + 500 * layer
            for k, name in enumerate(["gemm", "flash_fwd", "norm"]):
                begin = at + 100 * k
                build.kernel(begin + 10, begin + 90, call=(begin, begin + 5), name=name)
    (inner,) = explained(build, tmp_path).steps.inner
    assert (inner.kind, inner.count, inner.within) == ("layer", 9, 9)


def test_a_mark_that_only_launches_lasts_as_long_as_its_work(tmp_path: Path) -> None:
    build = Build()
    build.range(0, 200, "execute_4_context_0(sq0)_generation_4(sq4)")
    for k in range(8):
        build.kernel(500 + 100 * k, 600 + 100 * k, call=(10 + 10 * k, 14 + 10 * k), name=f"k{k}")
    e = explained(build, tmp_path)
    assert (e.begin_ns, e.end_ns) == (500_000, 1_300_000)


@pytest.mark.parametrize(
    ("name", "queued_us", "end_us"),
    [("train_step", 0, 2_300), ("train_step", 300, 2_000), ("ProfilerStep#6", 0, 2_000)],
)
def test_the_device_ends_a_single_mark_whose_first_launch_it_did_not_keep_waiting(
    name: str, queued_us: int, end_us: int, tmp_path: Path
) -> None:
    """Eight kernels of 125 us end 300 us behind a mark of 1 ms; before it nothing is recorded."""
    build = Build()
    build.range(1_000, 2_000, name)
    for k in range(8):
        at = 1_300 + 125 * k
        call = 1_290 - queued_us + 60 * k
        build.kernel(at, at + 125, call=(call, call + 5), name=f"k{k}")
    e = explained(build, tmp_path)
    assert (e.begin_ns, e.end_ns) == (1_000_000, 1_000 * end_us)


@pytest.mark.parametrize(("last_call", "steps"), [(3_050, 1), (3_250, 2)])
def test_the_mark_that_the_profiler_begins_behind_the_last_step_is_none(
    last_call: int, steps: int, tmp_path: Path
) -> None:
    build = Build()
    build.range(1_000, 3_200, "ProfilerStep#1")
    build.range(3_200, 3_400, "ProfilerStep#2")
    for call in (1_100, 2_000, last_call):
        build.kernel(call + 10, call + 90, call=(call, call + 5), name=f"k{call}")
    e = explained(build, tmp_path)
    assert (e.steps.source, len(e.steps)) == ("profiler_step", steps)


def layers(build: Build, count: int, *, head: bool, tail: bool) -> None:
    at = 0.0
    names = [f"once{k}" for k in range(4)] if head else []
    names += ["gemm", "attn", "norm"] * count
    names += [f"last{k}" for k in range(4)] if tail else []
    for name in names:
        build.kernel(at + 10, at + 100, call=(at, at + 5), name=name)
        at += 110


@pytest.mark.parametrize(
    ("head", "tail", "source"),
    [(False, False, "kernel_sequence"), (False, True, "whole_capture"),
     (True, False, "whole_capture")],
)  # fmt: skip
def test_layers_have_a_beginning_or_an_end_that_iterations_lack(
    head: bool, tail: bool, source: str, tmp_path: Path
) -> None:
    build = Build()
    layers(build, 12, head=head, tail=tail)
    e = explained(build, tmp_path)
    assert e.steps.source == source
    if source == "whole_capture":
        (inner,) = e.steps.inner
        assert (inner.kind, inner.count) == ("layer", 12)


@pytest.mark.parametrize(
    ("before", "source"),
    [
        (["convolve_implicit_gemm", "upsample", "concat"], "whole_capture"),
        # drawing weights after an upload, and a first iteration with other kernels, lead to a loop
        (["uniform", "erfinv", "clamp"], "kernel_sequence"),
        (["wgrad_a", "wgrad_b", "wgrad_c", "gemm", "attn"], "kernel_sequence"),
    ],
)
def test_what_a_batch_goes_through_before_the_layers_says_that_they_are_layers(
    before: list[str], source: str, tmp_path: Path
) -> None:
    """One batch is uploaded, its patches are embedded, and layers follow."""
    build, at = Build(), 200.0
    build.copy(10, 100, call=(0, 105))
    for name in before + ["gemm", "attn", "norm"] * 12:
        build.kernel(at + 10, at + 100, call=(at, at + 5), name=name)
        at += 110
    assert explained(build, tmp_path).steps.source == source


@pytest.mark.parametrize(
    ("name", "source"),
    [("forward pass", "whole_capture"), ("Forward", "whole_capture"), ("loop", "kernel_sequence")],
)
def test_what_repeats_in_one_forward_pass_is_no_iteration(
    name: str, source: str, tmp_path: Path
) -> None:
    build = Build()
    layers(build, 12, head=False, tail=False)
    build.range(0, 36 * 110, name)
    assert explained(build, tmp_path).steps.source == source


def test_ranges_with_the_number_of_a_layer_say_that_layers_repeat(tmp_path: Path) -> None:
    build = Build()
    for layer in range(10):
        at = 1_000.0 * layer
        build.range(at, at + 900, f"FSDP::pre_forward (blocks.{layer}._fsdp), op_id = {layer}")
        build.copy(at + 10, at + 12, call=(at + 1, at + 5), size=8)
        for k in range(4):
            start = at + 200 * (k + 1)
            build.kernel(start, start + 150, call=(start - 50, start - 45), name=f"k{k}")
    e = explained(build, tmp_path)
    assert e.steps.source == "whole_capture"
    assert e.steps.inner[0].kind == "layer"


def test_runs_of_layers_parted_by_the_ends_of_the_model_are_iterations(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for _ in range(4):
        for name in [*(["gemm", "attn", "norm"] * 6), "head", "embedding"]:
            build.kernel(at + 10, at + 100, call=(at, at + 5), name=name)
            at += 110
    e = explained(build, tmp_path)
    assert (e.steps.source, len(e.steps)) == ("kernel_sequence", 4)
    assert e.step_ns == pytest.approx(20 * 110_000, rel=0.05)


def test_an_operator_that_runs_once_says_that_there_is_one_pass(tmp_path: Path) -> None:
    """Each layer waits for its router, as iterations wait for their loss."""
    build = Build()
    build.operator(0, 50, "aten::embedding")
    for layer in range(10):
        at = 100 + 1_000.0 * layer
        for k in range(4):
            start = at + 200 * k
            build.kernel(start + 20, start + 150, call=(start, start + 5), name=f"k{k}")
        build.copy(at + 820, at + 822, call=(at + 810, at + 830), kind="DtoH", size=8)
    assert explained(build, tmp_path).steps.source == "whole_capture"


def test_each_launch_of_a_whole_graph_is_a_step(tmp_path: Path) -> None:
    build = Build()
    for i in range(12):
        call = (1_000 * i + 20, 1_000 * i + 30)
        build._op("graph", 1_000 * i + 50, 1_000 * i + 990, call, "[CUDA graph 2]", 7, 0, 100,
                  "cudaGraphLaunch", graph_id=2)  # fmt: skip
    e = explained(build, tmp_path)
    assert (e.steps.source, e.steps.kind, len(e.steps)) == ("graph_replay", "graph_replay", 12)
    assert np.median(e.steady_durations_ns) == pytest.approx(1e6, rel=0.05)


def test_coverage_says_what_lies_outside(tmp_path: Path) -> None:
    build = Build()
    build.kernel(0, 3_000, call=(0, 5), name="init")
    for i in range(5):
        at = 10_000 + 1_000 * i
        build.range(at, at + 1_000, f"step_{i}")
        build.kernel(at + 100, at + 900, call=(at + 1, at + 5), name="work")
    found = explained(build, tmp_path).coverage
    assert found.gpu == pytest.approx(4_000 / 7_000)
    assert found.time == pytest.approx(4_900 / 14_900)
    assert (found.before_ns, found.after_ns, found.work_outside_ns) == (10_000_000, 0, 3_000_000)
    assert found.low


@pytest.mark.parametrize(
    ("choice", "steps", "source"),
    [
        (StepChoice(mark="inner"), 8, "user"),
        (StepChoice(mark="^outer_"), 4, "user"),
        (StepChoice(kernel="first"), 8, "user"),
        (StepChoice(mark="none"), 1, "whole_capture"),
    ],
)
def test_the_user_overrules(choice: StepChoice, steps: int, source: str, tmp_path: Path) -> None:
    build = Build()
    for i in range(8):
        at = 1_000 * i
        if i % 2 == 0:
            build.range(at, at + 1_990, f"outer_{i // 2}")
        build.range(at + 5, at + 990, "inner")
        build.kernel(at + 20, at + 400, call=(at + 6, at + 9), name="first")
        build.kernel(at + 420, at + 900, call=(at + 10, at + 14), name="second")
    e = explained(build, tmp_path, choice)
    assert (len(e.steps), e.steps.source) == (steps, source)


@pytest.mark.parametrize(
    ("choice", "output"),
    [
        (StepChoice(mark="nothing"), "ranges of the capture: 'train_step'"),
        (StepChoice(mark="("), "no regular expression"),
        (StepChoice(kernel="nothing"), "kernels of the capture: 'gemm'"),
        (StepChoice(mark="a", kernel="b"), "give one of them"),
    ],
)
def test_a_choice_that_finds_nothing_offers_what_there_is(
    choice: StepChoice, output: str, tmp_path: Path
) -> None:
    build = Build()
    for i in range(4):
        build.range(1_000 * i, 1_000 * i + 900, "train_step")
        build.kernel(1_000 * i + 20, 1_000 * i + 400, call=(1_000 * i + 6, 1_000 * i + 9))
    with pytest.raises(UsageError, match=output):
        explained(build, tmp_path, choice)


@pytest.mark.parametrize(("gradient", "kind"), [("dgrad", "inference"), ("wgrad", "training")])
def test_a_transposed_convolution_takes_the_kernel_that_a_gradient_takes(
    gradient: str, kind: str, tmp_path: Path
) -> None:
    build = Build()
    for k in range(24):
        at = 100.0 * k
        build.operator(at, at + 20, "aten::convolution")
        name = f"sm80_xmma_{gradient}_implicit_gemm" if k % 4 == 0 else "fprop"
        build.kernel(at + 30, at + 90, call=(at + 5, at + 10), name=name)
    assert explained(build, tmp_path).workload.kind == kind


@pytest.mark.parametrize(
    ("behind", "kind"), [("gelu", "forward"), ("gelu_backward", "training_step")]
)
def test_a_graph_that_is_kept_makes_no_training_step_without_a_backward_pass(
    behind: str, kind: str, tmp_path: Path
) -> None:
    build = Build()
    for i in range(4):
        at = 1_000.0 * i
        build.range(at, at + 900, f"ProfilerStep#{i}")
        for k, name in enumerate(["gemm", "norm", behind]):
            begin = at + 100 * (k + 1)
            build.operator(begin, begin + 20, "aten::linear", sequence_number=10 * i + k)
            build.kernel(begin + 30, begin + 90, call=(begin + 5, begin + 10), name=name)
    assert explained(build, tmp_path).steps.kind == kind


def numbered(build: Build, at: float, name: str, kernels: int) -> float:
    """A range that launches so many kernels of 90 us; its end."""
    for k in range(kernels):
        begin = at + 10 + 100 * k
        build.kernel(begin + 5, begin + 95, call=(begin, begin + 4), name=f"{name[:5]}{k}")
    end = at + 20 + 100 * kernels
    build.range(at, end, name)
    return end


def test_numbered_parts_of_which_one_does_the_work_are_no_steps(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for part, kernels in enumerate((0, 40, 2)):
        at = numbered(build, at, f"masks 0 {part}", kernels)
    assert len(explained(build, tmp_path).steps) == 1


def test_numbers_that_return_with_work_of_their_own_are_parts_of_an_iteration(
    tmp_path: Path,
) -> None:
    """Six times generate 0, 1 and 2, which launch 2, 4 and 3 kernels."""
    build, at = Build(), 0.0
    for _ in range(6):
        for part, kernels in enumerate((2, 4, 3)):
            at = numbered(build, at, f"generate {part}", kernels)
    steps = explained(build, tmp_path).steps
    assert len(steps) == 6
    assert steps.begin_ns[1] == 960_000  # 3 * 20 us and 9 kernels of 100 us


def test_numbers_that_count_batches_may_return_in_each_epoch(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for _ in range(3):
        for batch in range(4):
            at = numbered(build, at, f"batch {batch}", 3)
    assert len(explained(build, tmp_path).steps) == 12


def test_ranges_with_one_number_all_along_are_a_series_without_the_others(tmp_path: Path) -> None:
    build, at = Build(), 0.0
    for number in (0, 0, 0, 0, 0, 0, 1, 2):
        at = numbered(build, at, f"masks 0 1 {number}", 1 if number else 6)
    steps = explained(build, tmp_path).steps
    assert (len(steps), steps.label) == (6, "masks 0 1 0")


@pytest.mark.parametrize(("around", "steps"), [(0, 5), (40, 1)])
def test_a_single_profiler_step_may_lie_around_a_loop_that_updates_parameters(
    around: int, steps: int, tmp_path: Path
) -> None:
    """Five updates with all that leads to each; or of five layers, in a pass with other work."""
    build, at = Build(), 100.0
    for k in range(around):
        build.kernel(at + 10, at + 90, call=(at, at + 5), name=f"other{k}")
        at += 100
    for _ in range(5):
        for name in ("forward", "loss", "backward"):
            build.kernel(at + 10, at + 90, call=(at, at + 5), name=name)
            at += 100
        build.range(at, at + 95, "Optimizer.step#Adam.step")
        build.kernel(at + 10, at + 90, call=(at, at + 5), name="adam")
        at += 100
    build.range(0, at, "ProfilerStep#2")
    found = explained(build, tmp_path).steps
    assert (len(found), found.source == "profiler_step") == (steps, steps == 1)


@pytest.mark.parametrize(
    ("end", "source"),
    [("embedding_backward_kernel", "whole_capture"), ("other", "kernel_sequence")],
)
def test_a_kernel_at_the_end_of_a_model_says_that_there_is_one_pass(
    end: str, source: str, tmp_path: Path
) -> None:
    build = Build()
    layers(build, 12, head=False, tail=False)
    build.kernel(36 * 110 + 10, 36 * 110 + 100, call=(36 * 110, 36 * 110 + 5), name=end)
    assert explained(build, tmp_path).steps.source == source


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Optimizer.zero_grad#Adam.zero_grad", "forward"),
        ("zero_grad", "forward"),
        ("Optimizer.step#Adam.step", "training_step"),
        ("gradient_tape/model/dense/MatMul:MatMul", "training_step"),
    ],
)
def test_clearing_gradients_is_no_training_step(tmp_path: Path, name: str, kind: str) -> None:
    """Who clears gradients trains, but whether these steps go back is another matter."""
    build = Build()
    for i in range(4):
        at = 10_000 * i
        build.range(at, at + 9_900, f"ProfilerStep#{i}")
        build.range(at + 5, at + 100, name)
        build.kernel(at + 200, at + 9_800, call=(at + 150, at + 160))
    e = explained(build, tmp_path)
    assert e.steps.kind == kind
    assert e.workload.kind == "training"

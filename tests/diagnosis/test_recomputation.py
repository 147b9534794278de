"""Forward passes that are computed again: by operators and by kernels, and what is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.diagnosis.test_kernel_causes import BF16, NORM, Steps, elementwise
from tests.support.build import AUTOGRAD, MAIN, PID

from stepscope.diagnosis.captures import MEMORY
from stepscope.diagnosis.result import Finding

Work = list[tuple[str, float]]
STEPS = 6
LAYERS = 3
FLASH = "flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(Flash_fwd_params)"
FLASH_BACKWARD = "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64> >(int)"
NORM_BACKWARD = "void at::native::layer_norm_grad_input_kernel_vectorized<float, float>(int)"
GELU, GELU_BACKWARD = elementwise("gelu"), elementwise("gelu_backward", 3)
ADD = elementwise("add", 3)
TO_INPUT, TO_WEIGHT = BF16.replace("TNN", "NNT"), BF16.replace("TNN", "NTN")
PRODUCT = [(TO_INPUT, 100.0), (TO_WEIGHT, 100.0)]

AGAIN: Work = [
    *((NORM, 20.0), (BF16, 100.0), (FLASH, 80.0), (BF16, 100.0), (ADD, 20.0)),
    *((NORM, 20.0), (BF16, 100.0), (GELU, 20.0)),
]
"""What of a layer is computed again: its last product is not needed for a gradient. 460 us."""
FORWARD: Work = [*AGAIN, (BF16, 100.0), (ADD, 20.0)]
BACKWARD: Work = [
    *(*PRODUCT, (GELU_BACKWARD, 20.0), *PRODUCT, (NORM_BACKWARD, 20.0), *PRODUCT),
    *((FLASH_BACKWARD, 200.0), *PRODUCT, (NORM_BACKWARD, 20.0), (ADD, 20.0)),
]
AGAIN_NS = 460e3


class Training(Steps):
    """Steps whose backward pass another thread launches, with the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = 0

    def launches(self, work: Work, thread: int = AUTOGRAD, every: float = 2.0) -> None:
        for kernel, length in work:
            self.launch(kernel, length, thread=thread, every=every)

    @contextmanager
    def operator(
        self, name: str, *, recorded: bool = False, thread: int = AUTOGRAD
    ) -> Iterator[None]:
        """An operator around what is launched meanwhile; recorded ones have a number."""
        self.recorded += recorded
        more = {"sequence_number": self.recorded} if recorded else {}
        self.host += 0.2
        begin = self.host
        yield
        self.host += 0.2
        self.build.operator(begin, self.host, name, thread=thread, **more)

    @contextmanager
    def node(self, name: str) -> Iterator[None]:
        """A node of the backward pass as the engine evaluates it."""
        with self.operator(f"autograd::engine::evaluate_function: {name}"), self.operator(name):
            yield

    def operators(self, work: Work, *, thread: int = AUTOGRAD, recorded: bool = True) -> None:
        """Forward operators, one a kernel."""
        for kernel, length in work:
            with self.operator("aten::op", recorded=recorded, thread=thread):
                self.launch(kernel, length, thread=thread)


def lever(training: Training, folder: Path) -> Finding | None:
    """The lever, if it is named; all that is diagnosed can be recomputed."""
    diagnosis, job = training.diagnose(folder)
    result = job.verify(msgspec.json.encode(diagnosis))
    assert result.verified, result.differences
    return next((one for one in diagnosis.levers if one.cause == "recomputation"), None)


def steps(do: Callable[[Training], object]) -> Training:
    training = Training()
    for number in range(STEPS):
        begin = training.host
        do(training)
        training.build.range(begin, training.host, f"step_{number}")
    return training


def value(found: Finding, figure: str) -> float:
    return next(e.value for e in found.evidence if e.figure == figure)


def checkpointed(training: Training, again: Work = AGAIN, every: float = 2.0) -> None:
    training.launches(FORWARD * LAYERS, MAIN, every)
    for _ in range(LAYERS):
        training.launches(again, AUTOGRAD, every)
        training.launches(BACKWARD, AUTOGRAD, every)


def test_by_kernels_layers_are_computed_again(tmp_path: Path) -> None:
    found = lever(steps(checkpointed), tmp_path)
    assert found is not None
    assert value(found, "kernels_per_step") == LAYERS * len(AGAIN)
    assert value(found, "kernels_ns_per_step") == LAYERS * AGAIN_NS
    assert value(found, "step_ns") - found.predicted_step_ns == pytest.approx(
        LAYERS * AGAIN_NS, rel=0.01
    )
    # the rest stays where the results of GEMMs and attention are kept: 380 us of a layer go
    least = value(found, "step_ns") - found.prediction_high_ns
    assert least <= LAYERS * 380e3 * 1.01
    assert value(found, "share_of_forward") == pytest.approx(460 / 580)
    assert "as the order of the kernels tells" in found.message
    assert "what the activations take this capture does not tell" in found.message
    assert found.next_capture == MEMORY


def test_launches_that_go_free_the_host(tmp_path: Path) -> None:
    """Every launch takes the host longer than any kernel takes the device."""
    training = steps(lambda one: checkpointed(one, every=250.0))
    found = lever(training, tmp_path)
    assert found is not None
    gone, launches = LAYERS * len(AGAIN), LAYERS * len([*FORWARD, *AGAIN, *BACKWARD])
    step = value(found, "step_ns")
    assert found.predicted_step_ns == pytest.approx(step * (1 - gone / launches), rel=0.05)


def test_memory_sets_between_go_along(tmp_path: Path) -> None:
    def do(training: Training) -> None:
        training.launches(FORWARD * LAYERS, MAIN)
        for _ in range(LAYERS):
            for place, (kernel, length) in enumerate(AGAIN):
                if place == 3:
                    begin, call = training.device, (training.host, training.host + 0.5)
                    training.build._op("memset", begin, begin + 1.0, call, "[CUDA memset]", 7, 0,
                                       AUTOGRAD, "cudaMemsetAsync", bytes=4096)  # fmt: skip
                    training.host, training.device = training.host + 2, training.device + 1
                training.launch(kernel, length, thread=AUTOGRAD)
            training.launches(BACKWARD)

    found = lever(steps(do), tmp_path)
    assert found is not None
    assert value(found, "kernels_per_step") == LAYERS * (len(AGAIN) + 1)
    assert value(found, "kernels_ns_per_step") == LAYERS * (AGAIN_NS + 1e3)


def plain(training: Training) -> None:
    training.launches(FORWARD * LAYERS, MAIN)
    training.launches(BACKWARD * LAYERS)


def micro_batches(training: Training) -> None:
    """The forward pass of a micro-batch follows the backward pass of another one."""
    training.launches(FORWARD * LAYERS, MAIN)
    for _ in range(3):
        training.launches(FORWARD * LAYERS, MAIN)
        training.launches(BACKWARD * LAYERS)
    training.launches(BACKWARD * LAYERS)


def teacher(training: Training) -> None:
    """Another thread passes the same layers forward, and computes no gradient."""
    training.launches(FORWARD * LAYERS, MAIN)
    training.launches(FORWARD * LAYERS, 102)
    training.launches(BACKWARD * LAYERS)


def transposed_convolutions(training: Training) -> None:
    """Their gradients are convolutions, with the same casts and transposes around them."""
    there = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float>(T1)"
    back = "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float>(T1)"
    conv = "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
    cast = "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel>"
    work = [*((cast, 9.0), (cast, 9.0), (there, 9.0), (there, 9.0), (conv, 99.0), (back, 9.0))]
    for _ in range(LAYERS):
        training.launches([*work, (GELU, 9.0)], MAIN)
    for _ in range(LAYERS):
        training.launches([(GELU_BACKWARD, 9.0), *work, *PRODUCT])


def scaled_products(training: Training) -> None:
    """A product, times a factor, again and again: gradients of frozen weights are the same."""
    training.launches([("matmul_kernel", 50.0), (elementwise("mul"), 9.0)] * 9, MAIN)
    training.launches([(elementwise("mul"), 9.0), ("matmul_kernel", 50.0)] * 9)
    training.launches(PRODUCT * 9)


def short(training: Training) -> None:
    """Five kernels alike are not enough."""
    checkpointed(training, AGAIN[:5])


@pytest.mark.parametrize(
    "do", [plain, micro_batches, teacher, transposed_convolutions, scaled_products, short]
)
def test_by_kernels_nothing_is_computed_again(
    do: Callable[[Training], None], tmp_path: Path
) -> None:
    assert lever(steps(do), tmp_path) is None


PART: Work = [(NORM, 20.0), (BF16, 100.0), (GELU, 20.0)]
"""A part of a model whose last product is not computed again, 140 us."""


def passed(training: Training) -> None:
    training.operators([*PART, (BF16, 100.0)] * LAYERS, thread=MAIN)


def gradient(training: Training) -> None:
    with training.operator("aten::mm"):
        training.launches(PRODUCT)


def inside_of_a_node(training: Training, again: Work = PART) -> None:
    """``use_reentrant=False``: when the first node asks for what it had saved."""
    passed(training)
    for _ in range(LAYERS):
        with training.node("AddmmBackward0"):
            training.operators(again)
            gradient(training)
        with training.node("GeluBackward0"):
            training.operators([(GELU_BACKWARD, 20.0)], recorded=False)


def by_a_node_of_its_own(training: Training, again: Work = PART) -> None:
    """``use_reentrant=True``: the forward pass, then the nodes of what was recorded of it."""
    passed(training)
    for _ in range(LAYERS):
        with training.node("CheckpointFunctionBackward"):
            training.operators(again)
            with training.node("AddmmBackward0"):
                gradient(training)


@pytest.mark.parametrize("do", [inside_of_a_node, by_a_node_of_its_own])
def test_by_operators_however_short(do: Callable[[Training], None], tmp_path: Path) -> None:
    found = lever(steps(do), tmp_path)
    assert found is not None
    assert value(found, "kernels_per_step") == LAYERS * 3
    assert value(found, "kernels_ns_per_step") == LAYERS * 140e3
    assert value(found, "share_of_forward") == pytest.approx(140 / 240)
    assert "order of the kernels" not in found.message


def test_of_selective_checkpointing_the_rest_is_seen(tmp_path: Path) -> None:
    """The result of the GEMM is kept: its operator runs again and launches nothing."""

    def do(training: Training) -> None:
        inside_of_a_node(training, [PART[0], PART[2]])

    found = lever(steps(do), tmp_path)
    assert found is not None
    assert value(found, "kernels_ns_per_step") == LAYERS * 40e3


def test_collectives_stay(tmp_path: Path) -> None:
    collective = ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 30.0)
    found = lever(steps(lambda one: inside_of_a_node(one, [*PART, collective])), tmp_path)
    assert found is not None
    assert value(found, "kernels_ns_per_step") == LAYERS * 140e3


def derived_again(training: Training) -> None:
    """``create_graph``: all that a node computes is recorded, though the kernels are alike."""
    work = [(elementwise("mul"), 50.0), (elementwise("mul"), 50.0)]
    training.operators([*work, (BF16, 100.0)] * LAYERS, thread=MAIN)
    for _ in range(LAYERS):
        with training.node("MulBackward0"):
            training.operators(work)


def by_hand(training: Training) -> None:
    """The backward of an ``autograd.Function`` calls operators of the forward pass."""
    passed(training)
    for _ in range(LAYERS):
        with training.node("MineBackward"):
            training.operators(PART, recorded=False)
            gradient(training)


def function_in_a_function(training: Training) -> None:
    """Its backward applies it once more; a function has a number where nothing is recorded."""
    work = [(elementwise("flip"), 50.0)]
    with training.operator("Permuted", recorded=True, thread=MAIN):
        training.launches(work * LAYERS, MAIN)
    for _ in range(LAYERS):
        with training.node("PermutedBackward"):
            with training.operator("Permuted", recorded=True):
                training.launches(work)
            training.operators([(ADD, 20.0), *PRODUCT], recorded=False)


def solved_anew(training: Training) -> None:
    """An implicit layer records another computation than the forward pass."""
    passed(training)
    for _ in range(LAYERS):
        with training.node("ImplicitBackward"):
            training.operators([(TO_INPUT, 100.0), (elementwise("tanh"), 20.0)])
            with training.node("TanhBackward0"):
                gradient(training)


@pytest.mark.parametrize("do", [derived_again, by_hand, function_in_a_function, solved_anew])
def test_by_operators_nothing_is_computed_again(
    do: Callable[[Training], None], tmp_path: Path
) -> None:
    assert lever(steps(do), tmp_path) is None


MB = 1_000_000


def allocating(training: Training) -> None:
    """Each part allocates 30 MB for what is computed again, of which it releases 10 at once."""
    passed(training)
    for _ in range(LAYERS):
        with training.node("AddmmBackward0"):
            # released before: of another part
            for size, work in ((-50, PART[:1]), (10, []), (20, PART[1:2]), (-10, PART[2:])):
                training.build._add(
                    "memory_event", process_id=PID, thread_id=AUTOGRAD, kind="cache", device=0,
                    time_ns=round(training.host * 1e3), bytes=size * MB,
                    total_allocated_bytes=0, total_reserved_bytes=900 * MB,
                )  # fmt: skip
                training.host += 0.1
                training.operators(work)
            gradient(training)


@pytest.mark.parametrize(
    ("whole", "told"),
    [
        (None, "what the device has free this capture does not tell"),
        (960 * MB, "of the device's 960.0 MB PyTorch reserves 900.0 MB; they seem to fit"),
        (959 * MB, "of the device's 959.0 MB PyTorch reserves 900.0 MB; they may not all fit"),
    ],
)
def test_memory_says_whether_the_activations_fit(
    whole: int | None, told: str, tmp_path: Path
) -> None:
    training = steps(allocating)
    training.build.rows["device"][0]["memory_bytes"] = whole
    found = lever(training, tmp_path)
    assert found is not None
    assert value(found, "kept_bytes") == LAYERS * 20 * MB
    assert f", which take at most 60.0 MB; {told}" in found.message
    assert found.next_capture is None


def test_samples_of_nvml_say_what_is_in_use(tmp_path: Path) -> None:
    training = steps(checkpointed)
    training.build.rows["device"][0]["memory_bytes"] = 80_000 * MB
    for time, size in ((1, 30_000), (2, 31_000)):
        training.build._add(
            "metric_sample", device=3, metric="memory_used_bytes", time_ns=time,
            value=float(size * MB),
        )  # fmt: skip
    found = lever(training, tmp_path)
    assert found is not None
    assert value(found, "used_bytes") == 31_000 * MB
    assert "of the device's 80.0 GB at most 31.0 GB are in use" in found.message
    assert found.next_capture == MEMORY

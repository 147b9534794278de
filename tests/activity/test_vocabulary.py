"""Names as they occur in real programs, and names that only look alike."""

from collections.abc import Callable

import pytest

from stepscope.activity import names as words
from stepscope.activity.communication import is_communication
from stepscope.kernels.categories import classify


@pytest.mark.parametrize(
    "name",
    [
        "dataload",
        "data_loading",
        "DataLoader",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "get_batch",
        "next_batch 17",
        "fetch",
        "data",
        "[input]",
        "tokenize",
        "collate_fn",
        "prefetch",
        "data_prefetcher",
        "prefetch_next_batch",
        "data_time",
        "load data",
    ],
)
def test_input(name: str) -> None:
    assert words.is_input_range(name.replace("load data", "load_data"))


@pytest.mark.parametrize(
    "name",
    [
        "input_layernorm",
        "input_embedding",
        "DistributedDataParallel.forward",
        "FullyShardedDataParallel._prefetch",
        "aten::data",
        "step_1",
        "forward",
        "h2d",
        "prefetch_layer_3",
        "prefetch_h2d_w1",
        "prefetch_experts",
        "metadata",
    ],
)
def test_not_input(name: str) -> None:
    assert not words.is_input_range(name)


@pytest.mark.parametrize(
    "name",
    ["step_1", "train_step", "Iteration 7/100", "iter", "batch[3]", "run_training_batch",
     "global_step=12", "training step", "ProfilerStep#4", "batch_idx 5"],
)  # fmt: skip
def test_step(name: str) -> None:
    assert words.is_step_range(name) or words.PROFILER_STEP.match(name)


@pytest.mark.parametrize(
    "name",
    ["optimizer_step", "Optimizer.step#AdamW.step", "batch_norm", "lr_scheduler.step", "stepwise",
     "micro_batch 2", "forward_step", "get_batch"],
)  # fmt: skip
def test_part_of_a_step(name: str) -> None:
    assert not words.is_step_range(name)


def test_ranges_that_mark_steps_say_nothing_about_a_part() -> None:
    assert words.marks_steps("step_3", "step")
    assert words.marks_steps("it 4", "it")
    assert words.marks_steps("epoch 1", "")
    assert not words.marks_steps("stepper_motor", "step")
    assert not words.marks_steps("optimizer", "step")


@pytest.mark.parametrize(
    "name",
    [
        "torch/_dynamo/convert_frame.py(1036): _compile",
        "torch/_dynamo/symbolic_convert.py(3119): run",
        "torch/_inductor/compile_fx.py(1044): fx_codegen_and_compile",
        "torch/_inductor/compile_fx.py(700): _compile_fx_inner",
        "torch/_inductor/graph.py(2020): compile_to_module",
        "torch/_inductor/codecache.py(3000): load_by_key_path",
        "torch/_inductor/runtime/triton_heuristics.py(311): precompile",
        "torch/_functorch/aot_autograd.py(580): create_aot_dispatcher_function",
        "torch/_functorch/aot_autograd.py(1000): aot_module_simplified",
        "triton/compiler/compiler.py(226): compile",
        "triton/compiler/code_generator.py(1300): visit_Call",
        "triton/runtime/autotuner.py(150): _bench",
    ],
)
def test_a_compiler_at_work(name: str) -> None:
    assert words.COMPILE_FUNCTION.search(name)


@pytest.mark.parametrize(
    "name",
    [
        "torch/_functorch/aot_autograd.py(1126): forward",
        "torch/_functorch/aot_autograd.py(900): returned_function",
        "torch/_functorch/_aot_autograd/runtime_wrappers.py(300): runtime_wrapper",
        "torch/_inductor/compile_fx.py(1500): run",
        "torch/_inductor/codecache.py(1400): __call__",
        "torch/_inductor/output_code.py(460): __call__",
        "torch/_inductor/runtime/triton_heuristics.py(1200): run",
        "triton/compiler/compiler.py(487): launch_metadata",
        "triton/compiler/compiler.py(444): _init_handles",
        "triton/runtime/jit.py(600): run",
        "torch/_dynamo/eval_frame.py(700): compile_wrapper",
        "torch/_dynamo/convert_frame.py(1500): __call__",
    ],
)
def test_compiled_code_that_runs(name: str) -> None:
    assert not words.COMPILE_FUNCTION.search(name)


@pytest.mark.parametrize(
    "name",
    ["adam_cuda_kernel", "FusedAdamMathFunctor", "multi_tensor_adamw", "LAMBStage1Functor",
     "lion_update", "ApplyMomentum", "FusedSgdMathFunctor", "sgd_kernel", "RMSProp_step"],
)  # fmt: skip
def test_updates_of_parameters(name: str) -> None:
    assert words.OPTIMIZER_NAME.search(name)


@pytest.mark.parametrize(
    "name",
    ["at::native::neg_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const",
     "[lambda(float) (instance 1)]", "fast_hadamard_transform_kernel", "count_millions",
     "multi_tensor_apply_kernel<CopyFunctor>", "LambdaKernel"],
)  # fmt: skip
def test_no_updates_of_parameters(name: str) -> None:
    assert not words.OPTIMIZER_NAME.search(name)


@pytest.mark.parametrize(
    "name",
    ["torch/utils/data/dataloader.py(730): __next__", "datasets/iterable_dataset.py(2): __iter__",
     "transformers/models/clip/image_processing_clip.py(210): preprocess",
     "transformers/models/whisper/feature_extraction_whisper.py(100): __call__",
     "transformers/models/llava/processing_llava.py(90): __call__",
     "transformers/pipelines/video_classification.py(129): preprocess", "train.py(5): get_batch",
     "/app/data.py(17): collate_fn", "train.py(9): tokenize", "PIL/Image.py(2200): resize"],
)  # fmt: skip
def test_functions_of_the_input(name: str) -> None:
    assert words.INPUT_FUNCTION.search(name)


@pytest.mark.parametrize(
    "name",
    ["transformers/models/detr/image_processing_detr.py(9): post_process_object_detection",
     "transformers/models/bert/tokenization_bert.py(9): batch_decode", "train.py(5): log_batch",
     "transformers/models/clip/modeling_clip.py(1): forward", "metrics.py(3): update"],
)  # fmt: skip
def test_functions_that_are_no_input(name: str) -> None:
    assert not words.INPUT_FUNCTION.search(name)


@pytest.mark.parametrize(
    ("judge", "word"),
    [
        (words.is_step_range, " train_step"), (words.is_input_range, " dataloader"),
        (words.is_checkpoint_range, " save_checkpoint"), (words.is_compile_range, " compile"),
        (words.holds_a_step, " train_step"), (is_communication, " ncclDevKernel_AllReduce"),
        (lambda name: classify(name).category == "matmul", "_gemm_"),
    ],
)  # fmt: skip
def test_only_the_beginning_of_a_name_is_judged(judge: Callable[[str], bool], word: str) -> None:
    """Names are untrusted: a pattern may take time by the square of what it looks at."""
    assert judge(word.strip())
    assert not judge("q" * 5000 + word)

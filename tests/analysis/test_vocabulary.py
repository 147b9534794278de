"""Names as they occur in real programs, and names that only look alike."""

import pytest

from stepscope.analysis import vocabulary as words


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

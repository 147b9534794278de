"""Correlation of GPU operations with the calls that enqueued them."""

import numpy as np

from stepscope.activity.device import launching_calls
from stepscope.trace.frame import Frame


def frame(**columns: list[int]) -> Frame:
    return Frame({name: np.array(data, np.int64) for name, data in columns.items()})


def test_correlation_is_within_a_process() -> None:
    gpu = frame(process_id=[1, 2, 1, 1], correlation_id=[7, 7, 8, 99])
    api = frame(process_id=[2, 1, 1, 1], correlation_id=[7, 7, 8, -1])
    assert launching_calls(gpu, api).tolist() == [1, 0, 2, -1]


def test_the_earliest_call_with_an_id_counts() -> None:
    gpu = frame(process_id=[1], correlation_id=[5])
    api = frame(process_id=[1, 1], correlation_id=[5, 5])
    assert launching_calls(gpu, api).tolist() == [0]


def test_sparse_ids_give_the_same_answer_as_dense_ones() -> None:
    rng = np.random.default_rng(1)
    ids = rng.permutation(10**12 + np.arange(0, 5000, 5))
    api = frame(process_id=[1] * 1000, correlation_id=ids.tolist())
    gpu = frame(process_id=[1] * 1001, correlation_id=[*ids[::-1].tolist(), 3])
    assert launching_calls(gpu, api).tolist() == [*range(999, -1, -1), -1]


def test_no_calls() -> None:
    gpu = frame(process_id=[1], correlation_id=[5])
    empty = frame(process_id=[], correlation_id=[])
    assert launching_calls(gpu, empty).tolist() == [-1]

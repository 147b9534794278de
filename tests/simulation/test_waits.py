"""What host calls and operations wait for, against looking at every operation for every call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.support.build import Build

from stepscope.activity.device import GpuTimeline, Reader, gpus
from stepscope.simulation.waits import (
    enqueue_order,
    host_waits,
    operation_waits,
    recorded_events,
)

WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMalloc")


def random_gpu(tmp_path: Path, seed: int, streams: int = 5) -> GpuTimeline:
    """Kernels on several streams with a call of some kind after every few of them."""
    random = np.random.default_rng(seed)
    b = Build()
    free = dict.fromkeys(range(streams), 0.0)
    host = 10.0
    for _ in range(120):
        stream = int(random.integers(streams))
        begin = max(free[stream], host + 6)
        end = free[stream] = begin + float(random.integers(5, 300))
        b.kernel(begin, end, call=(host, host + 4), stream=stream)
        host += 5
        if random.random() < 0.3:
            until = max(free.values()) if random.random() < 0.7 else host + 60
            b.api(host, max(until, host) + 8, WAITS[random.integers(len(WAITS))])
            host = max(until, host) + 10
    (gpu,) = gpus(b.trace(tmp_path).frame)
    return gpu


def test_waits_are_those_that_looking_at_everything_finds(tmp_path: Path):
    for seed in range(6):
        (tmp_path / str(seed)).mkdir()
        gpu = random_gpu(tmp_path / str(seed), seed)
        order = enqueue_order(gpu)
        begin, end = order.begin_ns, gpu.ops["end_ns"][order.ops]
        events = recorded_events(gpu, _empty(tmp_path / f"e{seed}"), order)
        waits = host_waits(gpu, order, events, 0, 1 << 60)
        api = gpu.host.api
        passed: set[int] = set()
        seen = dict(zip(waits.call.tolist(), waits.targets, strict=True))
        assert seen
        for call in range(len(api)):
            name = api.text("name", call)
            if name not in WAITS:
                continue
            began, ended = int(api["start_ns"][call]), int(api["end_ns"][call])
            last = [
                max(p for p in range(len(begin)) if order.stream[p] == s and begin[p] < began)
                for s in range(len(order.streams))
                if any(order.stream[p] == s and begin[p] < began for p in range(len(begin)))
            ]
            done = [p for p in last if end[p] <= ended]
            if name == "cudaDeviceSynchronize":
                expected = set(done) - passed
                passed |= expected
            elif name == "cudaMalloc":
                latest = max((int(end[p]) for p in last), default=0)
                waited = began < latest <= ended and ended - latest <= max(
                    50_000, (ended - began) // 2
                )
                expected = set(last) - passed if waited and ended - began >= 50_000 else set()
                passed |= expected
            else:
                latest_one = max(done, key=lambda p: (int(end[p]), p), default=None)
                expected = set() if latest_one is None else {latest_one}
                if expected and name.startswith("cudaEvent") and end[latest_one] <= began:
                    expected = set()
            assert set(seen.get(call, ())) == expected, (seed, name, call)


def test_a_device_wait_names_each_operation_once(tmp_path: Path):
    b = Build()
    for k in range(400):
        at = 100.0 * k
        b.kernel(at + 6, at + 30, call=(at, at + 4), stream=k)
        b.api(at + 5, at + 40, "cudaDeviceSynchronize")
    (gpu,) = gpus(b.trace(tmp_path).frame)
    order = enqueue_order(gpu)
    events = recorded_events(gpu, _empty(tmp_path / "e"), order)
    waits = host_waits(gpu, order, events, 0, 1 << 60)
    assert waits.targets == [(k,) for k in range(400)]  # not the 400 streams for each of them


def test_operations_of_many_streams_wait_for_those_given_lately(tmp_path: Path):
    b = Build()
    for k in range(300):
        at = 100.0 * k
        b.kernel(at + 6, at + 30, call=(at, at + 4), stream=k % 100)
        b.api(at + 40, at + 41, "cudaStreamWaitEvent")
    (gpu,) = gpus(b.trace(tmp_path).frame)
    order = enqueue_order(gpu)
    waiting, inferred = operation_waits(
        gpu, order, recorded_events(gpu, _empty(tmp_path / "e"), order)
    )
    assert set(waiting) == set(range(1, 300)) == set(inferred)
    assert all(k - 1 in waiting[k] for k in range(1, 300))
    assert max(map(len, waiting.values())) <= 16


def test_without_calls_a_late_operation_waits_for_the_stream_that_worked_until_then(
    tmp_path: Path,
):
    """Three all-reduces beside six products; one launching call more, and nothing is inferred."""
    for call in (None, (1_300.0, 1_301.0)):
        b = Build()
        for k in range(6):
            b.kernel(200.0 * k, 200.0 * k + 198, stream=7)
        for k in range(3):
            b.kernel(400.0 * k + 205, 400.0 * k + 260, stream=14, name="nccl")
        b.kernel(1_310, 1_320, call=call, stream=7)
        folder = tmp_path / str(call is None)
        folder.mkdir()
        (gpu,) = gpus(b.trace(folder).frame)
        order = enqueue_order(gpu)
        events = recorded_events(gpu, _empty(tmp_path / f"e{call is None}"), order)
        waiting, _ = operation_waits(gpu, order, events)
        start, end = (gpu.ops[c][order.ops] // 1_000 for c in ("start_ns", "end_ns"))
        seen = [(int(start[k]), int(end[one])) for k, of in waiting.items() for one in of]
        # the first of a stream waits for nothing that is seen
        assert seen == ([(605, 598), (1_005, 998)] if call is None else [])


def test_a_graph_launch_waits_for_the_graph_that_ran_when_it_returned(tmp_path: Path):
    b = Build()
    for k in range(5):
        at = 400.0 * k
        call = (max(at - 390, 1.0), at + 5.0)
        b.kernel(at + 10, at + 400, call=call, call_name="cudaGraphLaunch")
    (gpu,) = gpus(b.trace(tmp_path).frame)
    order = enqueue_order(gpu)
    events = recorded_events(gpu, _empty(tmp_path / "e"), order)
    waits = host_waits(gpu, order, events, 0, 1 << 60)
    # each returned while the graph before it ran: 5 us after its end
    assert waits.targets == [(k - 1,) for k in range(1, 5)]


def _empty(folder: Path) -> Reader:
    """A reader of a trace without synchronisations and events."""
    folder.mkdir()
    b = Build()
    b.kernel(0, 1, call=(0, 1))
    return b.trace(folder).frame

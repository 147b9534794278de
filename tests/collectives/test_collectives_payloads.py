"""Message sizes and communicators from the payloads of NCCL's ranges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.support.ranks import ALL_REDUCE, Op, participant

from stepscope.collectives.calls import Participant
from stepscope.collectives.instances import payload_parts
from stepscope.collectives.match import match
from stepscope.trace.frame import Frame

US = 1000
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)"


def payload(size: int, communicator: int = 7) -> str:
    return json.dumps({"NCCL communicator ID": communicator, "Message size [bytes]": size})


def annotated(
    rank: int,
    ops: list[Op],
    payloads: Sequence[str | None],
    *,
    world_size: int | None = 2,
    domain: str = "NCCL",
    late: bool = False,
) -> Participant:
    """A rank whose k-th kernel is enqueued inside a range with the k-th payload."""
    bare = participant(rank, ops, world_size=world_size)
    n = len(ops)
    starts = np.array([op.start - 50 * US for op in ops], np.int64)
    texts = list(dict.fromkeys(p for p in payloads if p is not None))
    ranges = Frame(
        {
            "process_id": np.full(n, 100 + rank),
            "thread_id": np.full(n, 1),
            "start_ns": starts,
            "end_ns": starts + 20 * US,
            "domain": np.zeros(n, np.int32),
            "payload": np.array([-1 if p is None else texts.index(p) for p in payloads], np.int32),
        },
        {"domain": [domain], "payload": texts},
    )
    api = Frame(
        {"thread_id": np.full(n, 1), "start_ns": starts + (30 if late else 10) * US},
    )
    read = bare.read

    def reader(table: str, *columns: str) -> Frame:
        return ranges if table == "range" else read(table, *columns)

    gpu = replace(bare.gpu, call=np.arange(n), host=replace(bare.gpu.host, api=api))
    return replace(bare, gpu=gpu, read=reader)


def sizes(found: Any) -> list[int]:
    return found.instances.bytes.tolist()


OPS = [Op(100 * US, 150 * US), Op(300 * US, 330 * US, name=GATHER)]


def test_sizes_and_communicator_by_hand() -> None:
    """An all-gather's payload states one rank's part: the message is that of both."""
    answer = [payload(4096), payload(1000)]
    found = match([annotated(rank, OPS, answer) for rank in (0, 1)])
    assert found is not None
    assert sizes(found) == [4096, 2000]
    assert found.instances.size.tolist() == [2, 2]
    assert [channel.ranks for channel in found.channels] == [(0, 1)]


def test_without_all_ranks_parts_stay_unknown() -> None:
    found = match(
        [annotated(rank, OPS, [payload(4096), payload(9)], world_size=4) for rank in (0, 1)]
    )
    assert found is not None
    assert sizes(found) == [4096, -1]


def test_two_communicators_are_told_apart() -> None:
    ops = [Op((100 + 100 * i) * US, (150 + 100 * i) * US, name=ALL_REDUCE) for i in range(4)]
    answer = [payload(8, communicator=1 + i % 2) for i in range(4)]
    found = match([annotated(rank, ops, answer) for rank in (0, 1)])
    assert found is not None
    assert len(found.channels) == 2


def test_what_is_not_stated_stays_unknown() -> None:
    for bad in ("", "[1]", "12", "{", json.dumps({"Message size [bytes]": "many"}), None):
        found = match([annotated(rank, OPS, [bad, bad]) for rank in (0, 1)])
        assert found is not None
        assert sizes(found) == [-1, -1], bad
    answer = [payload(8), payload(8)]
    for other in ({"domain": "mine"}, {"late": True}):
        found = match([annotated(rank, OPS, answer, **other) for rank in (0, 1)])  # type: ignore[arg-type]
        assert found is not None
        assert sizes(found) == [-1, -1], other


def test_what_the_framework_says_comes_first() -> None:
    output = {
        "name": "allreduce",
        "dtype": "Float",
        "in_elements": 100,
        "out_elements": 100,
        "group_ranks": "[0, 1]",
        "group_size": 2,
    }
    ops = [Op(100 * US, 150 * US, output=output), Op(300 * US, 330 * US)]
    found = match([annotated(rank, ops, [payload(1), payload(64)]) for rank in (0, 1)])
    assert found is not None
    assert sorted(sizes(found)) == [64, 400]


def test_what_nccl_states_of_sends_and_receives() -> None:
    """Sends and receives belong to the next kernel that their thread launches."""
    bare = participant(0, [Op(100 * US, 150 * US), Op(300 * US, 330 * US)])
    calls = [  # begin in us, name, bytes, peer
        (10, "ncclSend", 700, 0), (11, "ncclRecv", 700, 0), (12, "ncclSend", 100, 1),
        (13, "ncclRecv", 300, 1), (14, "ncclGroupEnd", 1, 1), (60, "ncclSend", 5, 0),
        (61, "ncclSend", 6, 1), (62, "ncclSend", 6, 1), (90, "ncclSend", 9, 1),
    ]  # fmt: skip
    texts = [
        json.dumps({"NCCL communicator ID": 1, "Message size [bytes]": size, "Peer rank": peer})
        for _, _, size, peer in calls
    ]
    names = ["ncclSend", "ncclRecv", "ncclGroupEnd"]
    n = len(calls)
    ranges = Frame(
        {
            "process_id": np.full(n, 100),
            "thread_id": np.full(n, 1),
            "start_ns": np.array([at * US for at, *_ in calls]),
            "name": np.array([names.index(name) for _, name, *_ in calls], np.int32),
            "payload": np.arange(n, dtype=np.int32),
        },
        {"name": names, "payload": texts},
    )
    api = Frame({"thread_id": np.full(2, 1), "start_ns": np.array([20 * US, 70 * US])})
    gpu = replace(bare.gpu, call=np.arange(2), host=replace(bare.gpu.host, api=api))
    device = replace(bare, gpu=gpu, read=lambda *_: ranges)
    assert payload_parts(device, np.arange(2)) == {
        0: ({0: 700, 1: 100}, {0: 700, 1: 300}),
        1: ({0: 5, 1: 12}, {}),  # the last send has no kernel in the capture
    }
    none = replace(bare, read=lambda *_: ranges.take(np.arange(0)))
    assert payload_parts(none, np.arange(2)) == {}

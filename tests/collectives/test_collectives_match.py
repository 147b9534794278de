"""Matching collectives of several ranks and their clocks: by hand, and against known truth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.ranks import ALL_REDUCE, Op, collective_times, participant

from stepscope.collectives import kinds
from stepscope.collectives.clocks import Line
from stepscope.collectives.job import Collectives
from stepscope.collectives.match import Matched, match

US = 1000
MS = 1_000_000


def instances_of(matched: Matched, device: int) -> list[int]:
    return matched.ranks[device].instance.tolist()


def test_waiting_and_transfer_by_hand() -> None:
    """Rank 1 begins 30 us after rank 0; both end together 20 us later."""
    found = match(
        [
            participant(0, [Op(100 * US, 150 * US), Op(300 * US, 330 * US)]),
            participant(1, [Op(130 * US, 150 * US), Op(290 * US, 330 * US)]),
        ]
    )
    assert found is not None
    first, second = found.ranks
    assert first.waiting_ns.tolist() == [30 * US, 0]
    assert first.transfer_ns.tolist() == [20 * US, 30 * US]
    assert second.waiting_ns.tolist() == [0, 10 * US]
    assert second.transfer_ns.tolist() == [20 * US, 30 * US]
    assert first.instance.tolist() == second.instance.tolist()
    assert found.instances.last.tolist() == [1, 0]
    assert found.offsets_ns == [0, 0]
    assert (found.impossible, found.warnings) == (0, [])


def test_nothing_to_match() -> None:
    assert match([participant(0, [Op(0, 10, name="gemm")]), participant(1, [])]) is None


def test_a_single_rank_is_matched_with_nobody() -> None:
    found = match([participant(3, [Op(0, 50 * US), Op(100 * US, 900 * US)], world_size=8)])
    assert found is not None
    assert found.instances.members.tolist() == [1, 1]
    assert found.instances.size.tolist() == [8, 8]
    assert found.missing_ranks == [0, 1, 2, 4, 5, 6, 7]


def test_one_operation_without_a_counterpart_is_one() -> None:
    both = [Op(k * 100 * US, k * 100 * US + 50 * US) for k in range(40)]
    found = match([participant(0, both), participant(1, both[:-1])])
    assert found is not None
    (text,) = [line for line in found.warnings if "counterpart" in line]
    assert text.startswith(
        "1 of 79 communication kernels has no counterpart on another rank (on rank 0): captures"
    )


def test_a_capture_that_begins_later_is_not_matched_by_index() -> None:
    starts, ends = collective_times(60, 2, seed=3)
    late = 7
    found = match(
        [
            participant(0, [Op(s, e) for s, e in zip(starts[0], ends[0], strict=True)]),
            participant(
                1, [Op(s, e) for s, e in zip(starts[1][late:], ends[1][late:], strict=True)]
            ),
        ]
    )
    assert found is not None
    assert found.ranks[0].op.tolist() == list(range(late, 60))
    assert instances_of(found, 0) == instances_of(found, 1)
    assert (found.ranks[0].unmatched, found.ranks[1].unmatched) == (late, 0)
    assert "no counterpart" in found.warnings[0]


def test_a_rank_that_waited_for_long_notices_late_that_the_others_came() -> None:
    """Eight all-reduces; in three barriers rank 1 waits 150 ms and ends 0.1 ms after rank 0."""
    own: tuple[list[Op], list[Op]] = ([], [])
    for at in range(0, 8 * 300 * MS, 300 * MS):
        for ops in own:
            ops.append(Op(at, at + 200 * US))
        if at % (900 * MS) == 0:
            own[0].append(Op(at + 160 * MS, at + 160 * MS + 114 * US, grid=1))
            own[1].append(Op(at + 10 * MS, at + 160 * MS + 214 * US, grid=1))
    found = match([participant(0, own[0]), participant(1, own[1])])
    assert found is not None
    assert instances_of(found, 0) == instances_of(found, 1) == list(range(11))
    assert found.ranks[1].waiting_ns[1] == 150 * MS


def test_neighbours_are_not_taken_for_one_where_both_were_lost() -> None:
    """Each rank lost another one of two all-reduces that follow each other within 0.3 ms."""
    own: tuple[list[Op], list[Op]] = ([], [])
    for at in range(0, 8 * 300 * MS, 300 * MS):
        for rank, ops in enumerate(own):
            ops.append(Op(at, at + 200 * US))
            if at:
                first = at + 10 * MS + (255 * US if rank else 0)
                ops.append(Op(first, first + (245 * US if rank else 250 * US), grid=1))
    found = match([participant(0, own[0]), participant(1, own[1])])
    assert found is not None
    assert [rank.unmatched for rank in found.ranks] == [7, 7]


def test_operations_closer_than_their_ends_agree_are_matched_in_order() -> None:
    """Back-to-back collectives of 12 us whose ends differ by a constant 15 us between the ranks."""
    at = np.concatenate([step * 5 * MS + np.arange(20) * 12 * US for step in range(6)])
    draw = np.random.default_rng(1)
    at = at + np.repeat(draw.integers(0, MS, 6), 20)
    found = match(
        [
            participant(0, [Op(t, t + 11 * US) for t in at.tolist()]),
            participant(1, [Op(t + 5 * US, t + 26 * US) for t in at.tolist()]),
        ]
    )
    assert found is not None
    assert found.ranks[0].op.tolist() == found.ranks[1].op.tolist() == list(range(120))
    assert instances_of(found, 0) == instances_of(found, 1)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    offset_ms=st.floats(-1500, 1500),
    drift_ppm=st.floats(-80, 80),
    lost=st.floats(0, 0.2),
    cut=st.integers(0, 40),
)
def test_offset_drift_and_losses_are_recovered(
    seed: int, offset_ms: float, drift_ppm: float, lost: float, cut: int
) -> None:
    """Three ranks on machines whose wall clocks are wrong, with records missing anywhere."""
    n = 240
    starts, ends = collective_times(n, 3, seed)
    draw = np.random.default_rng(seed + 1)
    kept = [np.flatnonzero(draw.random(n) >= lost) for _ in range(3)]
    kept[2] = kept[2][kept[2] >= cut]
    offset, drift = offset_ms * MS, drift_ppm * 1e-6

    def skewed(time: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return np.rint(time * (1 + drift) + offset)

    people = [
        participant(
            rank,
            [Op(int(starts[rank][i]), int(ends[rank][i])) for i in kept[rank]],
            clock=skewed if rank == 2 else (lambda time: time),
            machine=f"host{rank}",
        )
        for rank in range(3)
    ]
    found = match(people)
    assert found is not None
    truth: dict[int, set[int]] = {}
    wrong = matched = 0
    for rank, ops in enumerate(found.ranks):
        for row, instance in zip(ops.op.tolist(), ops.instance.tolist(), strict=True):
            truth.setdefault(instance, set()).add(int(kept[rank][row]))
            matched += 1
    wrong = sum(len(which) > 1 for which in truth.values())
    common = sum(sum(i in set(k.tolist()) for k in kept) > 1 for i in range(n))
    assert wrong == 0
    assert len(truth) >= 0.97 * common
    # true times are recovered but for how far the ends of one collective may lie apart
    at = found.ranks[2].op
    recovered = found.ranks[2].end_ns
    error = np.abs(recovered - ends[2][kept[2][at]])
    assert np.median(error) < 30 * US


@given(seed=st.integers(0, 50))
@settings(max_examples=15, deadline=None)
def test_equal_clocks_stay_untouched(seed: int) -> None:
    starts, ends = collective_times(100, 4, seed, jitter_ns=20_000)
    found = match(
        [
            participant(r, [Op(s, e) for s, e in zip(starts[r], ends[r], strict=True)])
            for r in range(4)
        ]
    )
    assert found is not None
    assert found.offsets_ns == [0, 0, 0, 0]
    assert not any(rank.clock.drift for rank in found.ranks)
    assert all(len(rank.op) == 100 for rank in found.ranks)


def test_unknown_wall_clocks_are_found_from_the_ends() -> None:
    starts, ends = collective_times(80, 2, 5)
    found = match(
        [
            participant(0, [Op(*t) for t in zip(starts[0], ends[0], strict=True)], epoch_ns=None),
            participant(
                1,
                [Op(*t) for t in zip(starts[1][11:], ends[1][11:], strict=True)],
                clock=lambda time: time - 123_456_789,
                epoch_ns=None,
            ),
        ]
    )
    assert found is not None
    assert found.ranks[1].offset_ns == pytest.approx(123_456_789, abs=5 * US)
    assert found.ranks[0].op.tolist() == list(range(11, 80))
    assert any("the clock of rank 1 was set" in line for line in found.warnings)


def test_tensor_and_data_parallel_groups_without_names() -> None:
    """Ranks 0,1 and 2,3 reduce activations often; 0,2 and 1,3 reduce gradients once a step."""
    draw = np.random.default_rng(2)
    ops: list[list[Op]] = [[] for _ in range(4)]
    at = 0
    for _ in range(10):
        at += int(draw.integers(3 * MS, 5 * MS))
        ready = at
        for pair in ((0, 1), (2, 3)):
            begin = at + int(draw.integers(0, 300 * US))
            for _ in range(16):
                begin += int(draw.integers(150 * US, 250 * US))
                for rank in pair:
                    ops[rank].append(Op(begin + int(draw.integers(0, 9_000)), begin + 40 * US))
            ready = max(ready, begin + 100 * US)
        for pair in ((0, 2), (1, 3)):
            end = ready + int(draw.integers(600 * US, 950 * US))
            for rank in pair:
                ops[rank].append(Op(ready + int(draw.integers(0, 5_000)), end, stream=30, grid=32))
        at = ready + MS
    found = match([participant(rank, own) for rank, own in enumerate(ops)])
    assert found is not None
    assert sorted(channel.ranks for channel in found.channels) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert all(rank.unmatched == 0 for rank in found.ranks)


def test_sends_and_receives_are_matched_in_pairs() -> None:
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)"
    draw = np.random.default_rng(4)
    ops: list[list[Op]] = [[] for _ in range(3)]
    at = 0
    for _ in range(30):
        at += int(draw.integers(2 * MS, 3 * MS))
        for left, stream in ((0, 40), (1, 41)):
            begin = at + left * int(draw.integers(500 * US, 700 * US))
            ops[left].append(Op(begin, begin + 80 * US, name=name, stream=stream))
            ops[left + 1].append(Op(begin - 30 * US, begin + 81 * US, name=name, stream=stream))
    found = match([participant(rank, own) for rank, own in enumerate(ops)])
    assert found is not None
    assert sorted(channel.ranks for channel in found.channels) == [(0, 1), (1, 2)]
    assert all(channel.point_to_point for channel in found.channels)
    assert all(rank.unmatched == 0 for rank in found.ranks)


def test_one_stream_holds_messages_to_several_neighbours() -> None:
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)"
    draw = np.random.default_rng(5)
    ops: list[list[Op]] = [[] for _ in range(4)]
    at = 0
    for _ in range(40):
        at += int(draw.integers(2 * MS, 3 * MS))
        for left in range(3):
            end = at + left * 600 * US + int(draw.integers(0, 200 * US))
            for rank in (left, left + 1):
                early = int(draw.integers(80 * US, 300 * US))
                ops[rank].append(Op(end - early, end + rank * US, name=name, stream=40))
    found = match([participant(rank, own) for rank, own in enumerate(ops)])
    assert found is not None
    assert sorted(channel.ranks for channel in found.channels) == [(0, 1), (1, 2), (2, 3)]
    assert all(rank.unmatched == 0 for rank in found.ranks)


def test_a_rank_whose_ends_scatter_stays_in_its_group() -> None:
    """Members of an uneven all-to-all do not end together; they still wait for one another."""
    starts, ends = collective_times(60, 4, 11, jitter_ns=2_000)
    ends[1] += np.random.default_rng(3).integers(0, 400 * US, ends.shape[1])
    people = [
        participant(rank, [Op(*t) for t in zip(starts[rank], ends[rank], strict=True)])
        for rank in range(4)
    ]
    found = match(people)
    assert found is not None
    assert [channel.ranks for channel in found.channels] == [(0, 1, 2, 3)]
    assert all(rank.unmatched == 0 for rank in found.ranks)


def test_sequence_numbers_win() -> None:
    """The framework's numbers pair operations whose ends lie nowhere near each other."""

    def output(number: int) -> dict[str, object]:
        return {
            "name": "broadcast", "dtype": "Float", "in_elements": 256, "out_elements": 256,
            "group_name": "0", "group_ranks": "[0, 1]", "group_size": 2, "sequence": number,
        }  # fmt: skip

    people = [
        participant(
            rank, [Op(t, t + 10 * US, output=output(k + first)) for k, t in enumerate(times)]
        )
        for rank, first, times in (
            (0, 0, [0, 50 * MS, 100 * MS]),
            (1, 1, [70 * MS, 120 * MS, 170 * MS]),
        )
    ]
    found = match(people)
    assert found is not None
    assert found.ranks[0].op.tolist() == [1, 2]
    assert found.ranks[1].op.tolist() == [0, 1]
    assert found.instances.bytes.tolist() == [1024, 1024]
    assert found.channels[0].declared


def test_a_missing_member_is_named() -> None:
    starts, ends = collective_times(40, 3, 6)
    people = [
        participant(rank, [Op(*t) for t in zip(starts[i], ends[i], strict=True)], world_size=3)
        for i, rank in ((0, 0), (2, 2))
    ]
    found = match(people)
    assert found is not None
    assert found.missing_ranks == [1]
    assert set(found.instances.size.tolist()) == {3}
    assert any(line.startswith("rank 1 is not there") for line in found.warnings)


def test_lines_convert_there_and_back() -> None:
    line = Line(5_000_000.25, 3e-5, 1_000_000_000)
    time = np.arange(0, 10**11, 10**9 + 7)
    assert np.abs(line.back(line.to(time)) - time).max() <= 1
    assert np.abs(line.reversed().to(line.to(time)) - time).max() <= 2
    other = Line(-777.0, -1e-5, 42)
    assert np.abs(line.then(other).to(time) - other.to(line.to(time))).max() <= 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (ALL_REDUCE, "all_reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)", "all_gather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)", "send_recv"),
        ("void cross_device_reduce_1stage<__half, 4>(...)", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("alltoall_base", "all_to_all"),
        ("send", "send_recv"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage)", "unknown"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
    ],
)
def test_kinds_by_name(name: str, kind: str) -> None:
    assert kinds.KINDS[kinds.kind_of(name)] == kind


def test_bus_bandwidth_factors_of_nccl_tests() -> None:
    names = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv", "all_to_all"]
    factor = kinds.bus_factor(np.array([kinds.CODE[n] for n in names]), np.full(6, 8))
    assert factor.tolist() == [1.75, 0.875, 0.875, 1.0, 1.0, 0.875]


@pytest.mark.parametrize(("skipped", "ahead"), [(0, 0), (1, 1), (3, 3)])
def test_steps_of_a_capture_that_begins_later_have_other_numbers(skipped: int, ahead: int) -> None:
    """Four collectives a step of 5 ms; the recording of rank 1 begins so many steps later."""
    starts, ends = collective_times(60, 2, seed=3)
    per_step = 4
    sides = []
    for rank, first in ((0, 0), (1, skipped)):
        times = list(zip(starts[rank], ends[rank], strict=True))[first * per_step :]
        bounds = [start for start, _ in times[::per_step]] + [times[-1][1]]
        explained = SimpleNamespace(bounds_ns=np.array(bounds) - 1)
        sides.append((participant(rank, [Op(s, e) for s, e in times]), explained))
    participants = [one for one, _ in sides]
    for one, explained in sides:
        explained.gpu = one.gpu
    matched = match(participants)
    assert matched is not None
    job = Collectives(participants, [cast("Any", explained) for _, explained in sides], matched)
    assert job.steps_ahead == [0, ahead]

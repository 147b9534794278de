"""Steps side by side: what is drawn is what the accounting and the diagnosis say, exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.build import US, Build

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.timeline.classes import CLASSES, CODE
from stepscope.timeline.stepview.grid import MOST_CELLS, NOTHING, Picture, cells
from stepscope.timeline.stepview.partition import IDLE, KINDS, Partition
from stepscope.timeline.stepview.steps import AlignedSteps, DeviceSteps
from stepscope.trace.errors import InputError, UsageError

KEYS = list(CLASSES)


def bytes_of(text: str, kind: str = "<f8") -> Any:
    import base64

    return np.frombuffer(base64.b64decode(text), kind)


def steps_of(folder: Path, lengths: list[float]) -> Job:
    """Steps of the given lengths, us: the GPU works from 10 to 30 and from 40 to 50 in each."""
    b = Build()
    at = 0.0
    for i, length in enumerate(lengths):
        b.range(at, at + length, f"step {i}")
        b.range(at + 2, at + 6, "forward")
        b.kernel(at + 10, at + 30, call=(at + 3, at + 5), name="gemm")
        b.range(at + 31, at + 39, "backward")
        b.kernel(at + 40, at + 50, call=(at + 33, at + 35), name="gemm_backward")
        at += length
    return Job([b.trace(folder).folder])


@pytest.fixture(scope="module")
def bundled() -> Job:
    return Job([bundled_capture()])


@pytest.fixture(scope="module")
def device(bundled: Job) -> DeviceSteps:
    return bundled.views.aligned.of(0)


def test_pieces_are_disjoint_and_lie_in_one_step_each(device: DeviceSteps) -> None:
    pieces, bounds = device.pieces, device.explanation.bounds_ns
    assert (pieces.end > pieces.start).all()
    assert (pieces.start[1:] >= pieces.end[:-1]).all()
    assert (pieces.start >= bounds[pieces.step]).all()
    assert (pieces.end <= bounds[pieces.step + 1]).all()


def test_pieces_sum_to_the_step_table_and_to_the_gaps_of_the_diagnosis(
    bundled: Job, device: DeviceSteps
) -> None:
    pieces = device.pieces
    length = pieces.end - pieces.start
    table = bundled.steps.to_pylist()
    for kind, column in KINDS.items():
        mine = pieces.kind == CODE[kind]
        sums = np.bincount(pieces.step[mine], weights=length[mine], minlength=len(table))
        assert sums.astype(int).tolist() == [row[column] for row in table]
    answer = bundled.query(
        """SELECT s.step, g.cause,
        sum(least(g.end_ns, s.end_ns) - greatest(g.start_ns, s.start_ns))::BIGINT AS ns
        FROM idle_gap g JOIN step s ON g.start_ns < s.end_ns AND g.end_ns > s.start_ns
        GROUP BY ALL HAVING ns > 0"""
    ).to_pylist()
    assert len(answer) > 12
    by_cause = device.idle_by_cause()
    for row in answer:
        assert by_cause[row["cause"]][row["step"]] == row["ns"]
    assert sum(int(ns.sum()) for ns in by_cause.values()) == sum(row["ns"] for row in answer)


def test_figures_are_those_of_the_job(bundled: Job, device: DeviceSteps) -> None:
    found = bundled.views.aligned.figures(0, "start")
    table = bundled.steps.to_pylist()
    assert found["count"] == len(table)
    assert bytes_of(found["begin"]).tolist() == [row["start_ns"] for row in table]
    assert bytes_of(found["end"]).tolist() == [row["end_ns"] for row in table]
    assert bytes_of(found["columns"]["compute_ns"]).tolist() == [r["compute_ns"] for r in table]
    steady = sorted((row["wall_ns"], row["step"]) for row in table if row["steady"])
    assert found["median"] == steady[(len(steady) - 1) // 2][1]
    assert found["titles"] == ["Rank 0 · GPU 0"]
    assert "dataload" in found["ranges"]
    assert found["missing"] == 0


def test_odd_steps_are_those_of_the_table_with_its_largest_parts(tmp_path: Path) -> None:
    job = steps_of(tmp_path, [100, 100, 100, 400, 100, 100, 100, 100])
    rows = job.query(
        "SELECT step, normal_step, step_excess_ns, name, excess_ns FROM step_outlier "
        "ORDER BY step, excess_ns DESC"
    ).to_pylist()
    (odd,) = job.views.aligned.of(0).outliers()
    assert odd["step"] == rows[0]["step"] == 3
    assert odd["normal"] == rows[0]["normal_step"]
    assert odd["excess_ns"] == rows[0]["step_excess_ns"] == 300 * US
    assert odd["message"].startswith(f"idle by {rows[0]['name'].replace('_', ' ')} +0.30 ms")


def test_steps_without_jitter_have_no_odd_ones(tmp_path: Path) -> None:
    assert steps_of(tmp_path, [100.0] * 6).views.aligned.of(0).outliers() == []


def test_orders(tmp_path: Path) -> None:
    device = steps_of(tmp_path, [100, 130, 110, 130, 100, 100]).views.aligned.of(0)
    lengths = device.explanation.durations_ns
    assert device.sorted("index").tolist() == [0, 1, 2, 3, 4, 5]
    by_length = device.sorted("duration").tolist()
    assert by_length == sorted(range(6), key=lambda i: (-lengths[i], i))
    with pytest.raises(UsageError, match="cannot be sorted by"):
        device.sorted("name")


def test_alignments(tmp_path: Path) -> None:
    device = steps_of(tmp_path, [100, 120, 110, 100, 100]).views.aligned.of(0)
    host = np.array([0, 100, 220, 330, 430]) * US
    assert device.zero("start").at_ns.tolist() == device.explanation.bounds_ns[:-1].tolist()
    assert device.zero("kernel").at_ns.tolist() == (host + 10 * US).tolist()
    names = [known.name for known in device.ranges]
    assert names == ["forward", "backward"]
    assert device.zero("range:0").at_ns.tolist() == (host + 10 * US).tolist()
    assert device.zero("range:1").at_ns.tolist() == (host + 40 * US).tolist()
    for wrong in ("range:2", "range:", "range:-1", "range:1e3", "end", "range:²"):
        with pytest.raises(UsageError, match="cannot be aligned"):
            device.zero(wrong)


def test_steps_without_the_range_begin_at_their_start(tmp_path: Path) -> None:
    b = Build()
    for i in range(5):
        at = 100.0 * i
        b.range(at, at + 100, f"step {i}")
        if i != 2:
            b.range(at + 20, at + 30, "late")
        b.kernel(at + 10, at + 15, call=(at + 1, at + 2))
        b.kernel(at + 40, at + 50, call=(at + 22, at + 25))
    device = Job([b.trace(tmp_path).folder]).views.aligned.of(0)
    zero = device.zero("range:0")
    begin = device.explanation.bounds_ns[:-1]
    assert zero.found.tolist() == [True, True, False, True, True]
    assert zero.at_ns[2] == begin[2]
    assert (zero.at_ns - begin)[[0, 1, 3, 4]].tolist() == [40 * US] * 4
    assert device.figures("range:0")["missing"] == 1


def test_phases_and_families_colour_the_same_time(device: DeviceSteps) -> None:
    pieces = device.pieces
    for colouring in ("category", "phase"):
        codes = pieces.codes(colouring)
        assert (IDLE[codes] == IDLE[pieces.kind]).all()
    assert pieces.has_phases
    busy = pieces.op >= 0
    phases = {KEYS[code] for code in np.unique(pieces.phase[busy]).tolist()}
    assert {"phase_forward", "phase_backward", "phase_optimizer"} <= phases
    copies = KEYS.index("copy_htod")
    assert (pieces.category == copies).sum() > 0


def test_unknown_phases_are_not_guessed(tmp_path: Path) -> None:
    b = Build()
    for i in range(5):
        b.range(100.0 * i, 100.0 * i + 95, f"step {i}")
        b.kernel(100.0 * i + 10, 100.0 * i + 20, call=(100.0 * i + 1, 100.0 * i + 2))
    pieces = Job([b.trace(tmp_path).folder]).views.aligned.of(0).pieces
    assert not pieces.has_phases
    assert {KEYS[c] for c in pieces.phase[pieces.op >= 0].tolist()} == {"phase_none"}


PIECES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 30), st.integers(0, 2)),
    max_size=30,
)
CODES = np.array([CODE["busy_compute"], CODE["busy_copy"], CODE["idle_host_sync"]], np.uint8)


@settings(max_examples=150, deadline=None)
@given(
    rows=PIECES,
    zero=st.lists(st.integers(-10, 10), min_size=4, max_size=4),
    begin=st.integers(-20, 20),
    bucket=st.integers(1, 12),
    columns=st.integers(1, 12),
    group=st.integers(1, 5),
    steps=st.permutations([0, 1, 2, 3]),
    shown=st.integers(1, 4),
)
def test_cells_are_what_counting_every_nanosecond_gives(
    rows: list[tuple[int, int, int, int]],
    zero: list[int],
    begin: int,
    bucket: int,
    columns: int,
    group: int,
    steps: list[int],
    shown: int,
) -> None:
    taken: dict[tuple[int, int], int] = {}  # (step, time) -> kind: disjoint as pieces are
    for of_step, begins, length, of_kind in rows:
        for at in range(begins, begins + length):
            taken.setdefault((of_step, at), of_kind)
    each = sorted(taken)
    start = np.array([at for _, at in each], np.int64)
    step = np.array([s for s, _ in each], np.int64)
    kind = np.array([taken[key] for key in each], np.int64)
    # neighbours of a kind become one piece
    first = np.ones(len(each), bool)
    first[1:] = (np.diff(step) != 0) | (np.diff(start) != 1) | (np.diff(kind) != 0)
    head = np.flatnonzero(first)
    last = np.append(head[1:], len(each)) - 1 if each else head
    nothing: Any = None
    pieces = Partition(
        start[head], start[last] + 1, step[head], kind[head], CODES[kind[head]], nothing
    )
    picture = Picture(np.array(steps[:shown]), group, begin, bucket, columns)
    found = cells(pieces, pieces.kind, np.array(zero, np.int64), picture)
    for row in range(picture.rows):
        mine = steps[:shown][row * group : (row + 1) * group]
        for column in range(columns):
            counts = np.zeros(3, int)
            for s in mine:
                for at in range(begin + column * bucket, begin + (column + 1) * bucket):
                    k = taken.get((s, at + zero[s]))
                    if k is not None:
                        counts[k] += 1
            cell = row * columns + column
            full = bucket * len(mine)
            assert found.busy[cell] == -(-int(counts[:2].sum()) * 255 // full)
            assert found.idle[cell] == -(-int(counts[2]) * 255 // full)
            assert (found.idle_code[cell] == CODES[2]) == (counts[2] > 0)
            if counts[:2].any():
                best = counts[:2].max()
                assert counts[CODES.tolist().index(found.busy_code[cell])] == best
            else:
                assert found.busy_code[cell] == NOTHING


@pytest.mark.parametrize(
    ("group", "begin", "bucket", "columns"),
    [
        (0, 0, 1, 1),
        (1, 0, 0, 5),
        (1, 0, 1, 0),
        (1, 0, 1, MOST_CELLS + 1),
        (1, 0, 1 << 70, 8),
        (1, -(1 << 70), 1, 8),
        (1 << 70, 0, 1, 8),
    ],
)
def test_impossible_pictures_are_refused(
    device: DeviceSteps, group: int, begin: int, bucket: int, columns: int
) -> None:
    with pytest.raises(UsageError, match=r"impossible|too large"):
        device.picture("start", "index", "kind", slice(0, 12), group, (begin, bucket, columns))


def test_a_picture_behind_the_last_step_is_empty(device: DeviceSteps) -> None:
    picture, found = device.picture("start", "index", "kind", slice(50, 60), 1, (0, 10, 5))
    assert (picture.rows, len(found.busy)) == (0, 0)


def test_a_picture_as_bytes(bundled: Job) -> None:
    aligned: AlignedSteps = bundled.views.aligned
    data = aligned.picture(
        0, align="start", sort="duration", colour="kind", rows=slice(0, 5), group=2,
        columns=(0, 1_000_000, 40), phases=True,
    )  # fmt: skip
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    assert header == {
        "rows": 3, "columns": 40, "group": 2, "begin": 0, "bucket": 1_000_000,
        "arrays": ["busy", "busy_code", "idle", "idle_code", "phase"],
    }  # fmt: skip
    assert len(data) == 4 + length + 5 * 3 * 40


def test_what_is_packed_for_a_page_is_the_same(bundled: Job, device: DeviceSteps) -> None:
    found: Any = bundled.views.packed_steps()
    (one,) = found["devices"]
    assert bytes_of(one["start"]).tolist() == device.pieces.start.tolist()
    assert bytes_of(one["codes"]["phase"], "u1").tolist() == device.pieces.phase.tolist()
    assert bytes_of(one["zero"]["kernel"]["at"]).tolist() == device.zero("kernel").at_ns.tolist()


def test_too_many_pieces_are_not_packed(bundled: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.timeline.stepview.steps.MOST_PACKED", 100)
    assert bundled.views.packed_steps() is None


def test_a_capture_without_steps_is_one_row(tmp_path: Path) -> None:
    b = Build()
    b.kernel(10, 20, call=(1, 2))
    b.kernel(40, 50, call=(30, 31))
    job = Job([b.trace(tmp_path).folder])
    found = job.views.aligned.figures(0, "start")
    assert (found["count"], found["found"], found["ranges"]) == (1, "whole_capture", [])
    assert "no repeating step" in found["message"]


def test_a_capture_without_gpu_work_says_so(tmp_path: Path) -> None:
    b = Build()
    b.range(0, 10, "step 0")
    job = Job([b.trace(tmp_path).folder])
    with pytest.raises(InputError, match="holds no GPU work; capture with CUDA tracing"):
        job.views.aligned  # noqa: B018


def test_an_unknown_device_is_refused(bundled: Job) -> None:
    for number in (-1, 1):
        with pytest.raises(UsageError, match="there is no device"):
            bundled.views.aligned.figures(number, "start")


@pytest.mark.parametrize("group", [1, 2, 5])
@pytest.mark.parametrize("sort", ["index", "duration"])
def test_a_picture_in_parts_is_the_same(
    device: DeviceSteps, monkeypatch: pytest.MonkeyPatch, group: int, sort: str
) -> None:
    def picture() -> list[list[int]]:
        asked = ("start", sort, "category", slice(1, 12), group, (-1000, 1 << 17, 200))
        found = device.picture(*asked)[1]
        return [
            part.tolist() for part in (found.busy, found.busy_code, found.idle, found.idle_code)
        ]

    whole = picture()
    monkeypatch.setattr("stepscope.timeline.stepview.grid.MOST_PIECES", 700)
    assert len(device.pieces) > 2000
    assert picture() == whole

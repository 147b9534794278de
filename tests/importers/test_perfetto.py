"""Traces of Perfetto: our own exports come back whole, those of others as far as they tell."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import pytest
from tests.support.captures import DATA, unpack, written_job
from tests.support.captures import query_rows as rows
from tests.support.perfetto import BEGIN, END, INSTANT, event, packet, slice_, timeline, track
from tests.support.protobuf import field

from stepscope.api import Job
from stepscope.cache.store import Cache
from stepscope.trace.errors import InputError

CAPTURES = [DATA / "nsys" / "cnn_small.sqlite.xz", DATA / "kineto" / "cnn_small.json.gz"]


opened = partial(written_job, name="run.pftrace")


WORK = "SELECT kind, device, stream, start_ns, end_ns FROM gpu_op ORDER BY ALL"
CALLS = "SELECT thread_id, start_ns, end_ns, name FROM api_call ORDER BY ALL"
RANGES = (
    "SELECT thread_id, start_ns, end_ns, name FROM range "
    "WHERE kind IN ('pushpop', 'startend', 'annotation') ORDER BY ALL"
)
LINKS = (
    "SELECT g.start_ns, min(a.start_ns) FROM gpu_op g JOIN api_call a USING (correlation_id) "
    "GROUP BY ALL ORDER BY ALL"
)
HOST = "SELECT thread_id, start_ns, end_ns, name FROM operator ORDER BY ALL"


@pytest.mark.parametrize("packed", CAPTURES, ids=lambda path: path.name)
def test_an_export_comes_back(packed: Path, tmp_path: Path) -> None:
    original = Job([unpack(packed)], cache=Cache(tmp_path / "first"))
    again = opened(b"".join(original.views.exported("perfetto")), tmp_path)
    for sql in (WORK, CALLS, RANGES, HOST):
        assert rows(again, sql) == rows(original, sql), sql
    # an arrow leads from a call to the first operation that it enqueued
    theirs = dict(rows(again, LINKS))
    ours = dict(rows(original, LINKS))
    assert theirs.items() <= ours.items()
    assert set(theirs.values()) == set(ours.values())
    assert again.traces[0].meta.problems == []
    before, after = original.diagnose().accounting[0], again.diagnose().accounting[0]
    for what in ("wall_ns", "compute_ns", "exposed_copy_ns", "memset_ns", "idle_ns"):
        assert getattr(after, what) == getattr(before, what), what


def test_tracks_of_another_tool_are_known_by_their_names(tmp_path: Path) -> None:
    job = opened(timeline(steps=6), tmp_path)
    assert rows(job, "SELECT name, short_name, count(*), sum(end_ns - start_ns)::INT FROM gpu_op "
                "GROUP BY ALL") == [("void gemm<float>(float*)", "gemm", 6, 5_700_000)]  # fmt: skip
    assert rows(job, "SELECT process_id, thread_id, name, count(*) FROM api_call GROUP BY ALL") == [
        (50, 51, "cudaLaunchKernel", 6)
    ]
    assert len(rows(job, LINKS)) == 6
    diagnosis = job.diagnose()
    assert diagnosis.trace.steps == 6
    assert diagnosis.step_ns.median == 1_000_000


def test_names_by_number_begin_anew_with_their_writer(tmp_path: Path) -> None:
    """The same number is another text after a writer has cleared its state, and for another one."""

    def named(iid: int, text: str, sequence: int, *, clear: bool) -> bytes:
        held = field(12, field(2, field(1, iid) + field(2, text)))
        return packet(held + (field(13, 1) if clear else b""), sequence)

    def work(at: int, iid: int, sequence: int) -> bytes:
        begin = field(9, BEGIN) + field(11, 2) + field(10, iid)
        end = field(9, END) + field(11, 2)
        return packet(field(8, at) + field(11, begin), sequence) + packet(
            field(8, at + 5) + field(11, end), sequence
        )

    data = track(1, "GPU 0") + track(2, "Stream 7", 1)
    data += named(1, "first", 1, clear=True) + work(10, 1, 1)
    data += named(1, "other", 2, clear=True) + work(20, 1, 2) + work(30, 1, 1)
    data += named(1, "second", 1, clear=True) + work(40, 1, 1)
    found = rows(opened(data, tmp_path), "SELECT name FROM gpu_op ORDER BY start_ns")
    assert found == [("first",), ("other",), ("first",), ("second",)]


def test_loose_ends_and_open_slices_are_counted(tmp_path: Path) -> None:
    data = track(1, "GPU 0") + track(2, "Stream 7", 1) + track(3, "main", 0, (1, 1))
    data += event(END, 5, 2) + event(END, 6, 2) + slice_(2, 10, 20, "k")
    data += event(BEGIN, 30, 3, "outer") + slice_(3, 40, 50, "inner") + event(INSTANT, 60, 3, "x")
    job = opened(data, tmp_path)
    assert rows(job, "SELECT name, start_ns, end_ns FROM gpu_op") == [("k", 10, 20)]
    assert rows(job, "SELECT name, start_ns, end_ns, closed FROM range ORDER BY start_ns") == [
        ("outer", 30, 50, False), ("inner", 40, 50, True),
    ]  # fmt: skip
    problems = {p.id: p.count for p in job.traces[0].meta.problems}
    assert problems == {"malformed_event": 2, "unclosed_range": 1, "unread_events": 1}


def test_several_ranks_are_refused(tmp_path: Path) -> None:
    data = b"".join(
        track(10 * r + 1, f"Rank {r} · GPU 0") + track(10 * r + 2, "Stream 7", 10 * r + 1)
        + slice_(10 * r + 2, 5, 9, "k")
        for r in range(2)
    )  # fmt: skip
    with pytest.raises(InputError, match="holds 2 ranks on one timeline"):
        opened(data, tmp_path)


def test_clocks_of_writers_are_refused(tmp_path: Path) -> None:
    local = packet(field(8, 5) + field(58, 64) + field(11, field(9, BEGIN) + field(11, 2)))
    data = track(1, "GPU 0") + track(2, "Stream 7", 1) + slice_(2, 5, 9, "k") + local
    with pytest.raises(InputError, match="clocks of its writers"):
        opened(data, tmp_path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_a_cut_trace_is_refused(share: float, tmp_path: Path) -> None:
    data = timeline()
    with pytest.raises(InputError, match="damaged or not whole"):
        opened(data[: int(len(data) * share)], tmp_path)


def test_packed_ones_hold_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    data = timeline()
    assert rows(opened(gzip.compress(data), first, name="x.pftrace.gz"), WORK) == rows(
        opened(data, second), WORK
    )

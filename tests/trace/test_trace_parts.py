"""Frames, text, the assembly of jobs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.errors import UsageError
from stepscope.trace.frame import NULL, Frame, distinct, from_arrow
from stepscope.trace.job import assemble
from stepscope.trace.meta import Meta
from stepscope.trace.one_job import rank_in_name, refuse_ranks_as_runs
from stepscope.trace.store import write_meta
from stepscope.trace.text import clean_dictionary, without_controls
from stepscope.trace.trace import Trace

TEXT = pa.dictionary(pa.int32(), pa.string())


@pytest.fixture
def frame() -> Frame:
    return from_arrow(
        pa.table(
            {
                "number": pa.array([1, None, 3], pa.int64()),
                "small": pa.array([None, 2, 3], pa.int32()),
                "flag": pa.array([True, None, False]),
                "share": pa.array([0.5, None, 1.0]),
                "name": pa.array(["gemm", None, "relu"]).dictionary_encode(),
                "nothing": pa.nulls(3, TEXT),
            }
        )
    )


def test_nulls(frame: Frame) -> None:
    assert frame["number"].tolist() == [1, NULL, 3]
    assert frame["small"].tolist() == [NULL, 2, 3]
    assert frame["flag"].tolist() == [True, False, False]
    assert frame["share"][0] == 0.5
    assert np.isnan(frame["share"][1])
    assert [frame.text("name", row) for row in range(3)] == ["gemm", "", "relu"]
    assert frame.text("nothing", 0) == ""
    assert len(frame) == 3
    assert "name" in frame
    assert "colour" not in frame


def test_equals_and_matches(frame: Frame) -> None:
    assert frame.equals("name", "gemm").tolist() == [True, False, False]
    assert frame.equals("name", "relu", "gemm", "other").tolist() == [True, False, True]
    assert frame.equals("name", "other").tolist() == [False] * 3
    assert frame.equals("name").tolist() == [False] * 3
    assert frame.equals("nothing", "").tolist() == [False] * 3
    assert frame.matches("name", re.compile("e")).tolist() == [True, False, True]
    assert frame.matches("name", re.compile("^ge")).tolist() == [True, False, False]
    assert frame.matches("name", re.compile("")).tolist() == [
        True,
        False,
        True,
    ]  # null matches nothing
    assert frame.matches("nothing", re.compile(".*")).tolist() == [False] * 3


def test_take_and_slice(frame: Frame) -> None:
    assert frame.take(np.array([2, 0]))["number"].tolist() == [3, 1]
    assert frame.take(np.array([False, True, True]))["number"].tolist() == [NULL, 3]
    assert frame.take(np.array([True] * 3)) is frame
    assert frame.slice(1, 3).text("name", 1) == "relu"
    assert len(Frame({})) == 0


@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "c", ""])), max_size=8),
        max_size=5,
    )
)
def test_chunks_with_dictionaries_of_their_own(chunks: list[list[str | None]]) -> None:
    arrays = [pa.array(chunk, pa.string()).dictionary_encode() for chunk in chunks]
    arrays = [array.cast(TEXT) for array in arrays]
    frame = from_arrow(pa.table({"name": pa.chunked_array(arrays, TEXT)}))
    flat = [text for chunk in chunks for text in chunk]
    assert [frame.text("name", row) for row in range(len(frame))] == [t or "" for t in flat]
    assert frame.equals("name", "a").tolist() == [text == "a" for text in flat]
    assert frame.matches("name", re.compile("a|b")).tolist() == [
        text in ("a", "b") for text in flat
    ]


@given(st.lists(st.integers(-3, 3)))
def test_distinct(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@given(st.text())
def test_without_controls(text: str) -> None:
    clean = without_controls(text)
    assert len(clean) == len(text)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in clean)
    assert without_controls(clean) == clean
    clean.encode()


def test_lone_surrogates_are_replaced() -> None:
    assert "\ud800" not in without_controls("a\ud800b")
    without_controls("a\ud800b").encode()


@given(st.lists(st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=5))))
def test_clean_dictionary(texts: list[str | None]) -> None:
    cleaned, changed = clean_dictionary(pa.array(texts, pa.string()))
    wanted = [None if text is None else without_controls(text) for text in texts]
    assert cleaned.to_pylist() == wanted
    assert len(changed) == sum(a != b for a, b in zip(texts, wanted, strict=True))


# ---- jobs ----------------------------------------------------------------------------------------


def traces(tmp_path: Path, *rank_traces: tuple[str, int | None, int | None]) -> list[Trace]:
    made = []
    for number, (name, rank, world) in enumerate(rank_traces):
        folder = tmp_path / f"{number}.stepscope"
        folder.mkdir(parents=True)
        source = "environment RANK" if rank is not None else ""
        write_meta(folder, Meta(rank=rank, world_size=world, rank_source=source))
        made.append(Trace(folder, tmp_path / name))
    return made


def ranks(job: Any) -> list[tuple[str, int]]:
    return [(rank_trace.trace.path.name, rank_trace.rank) for rank_trace in job.rank_traces]


def test_a_single_trace(tmp_path: Path) -> None:
    job = assemble(traces(tmp_path, ("rank3.sqlite", None, None)))
    assert ranks(job) == [("rank3.sqlite", 0)]
    assert job.warnings == []
    (tmp_path / "more").mkdir()
    (trace,) = traces(tmp_path / "more", ("a", 5, 8))
    assert [rank_trace.rank for rank_trace in assemble([trace]).rank_traces] == [5]


def test_ranks_from_metadata(tmp_path: Path) -> None:
    job = assemble(traces(tmp_path, ("rank0", 2, 3), ("rank1", 0, 3), ("rank2", 1, 3)))
    assert ranks(job) == [("rank1", 0), ("rank2", 1), ("rank0", 2)]
    (warning,) = job.warnings
    assert "environment RANK" in warning
    assert [rank_trace.trace.path.name for rank_trace in job.rank_traces] == [
        "rank1",
        "rank2",
        "rank0",
    ]


def test_ranks_from_names(tmp_path: Path) -> None:
    given_names = [("run.rank10.json", None, None), ("run.rank2.json", None, None)]
    job = assemble(traces(tmp_path, *given_names))
    assert ranks(job) == [("run.rank2.json", 2), ("run.rank10.json", 10)]
    (warning,) = job.warnings
    assert "file names" in warning


def test_ranks_by_order(tmp_path: Path) -> None:
    job = assemble(traces(tmp_path, ("b", None, None), ("rank0", None, None)))
    assert ranks(job) == [("b", 0), ("rank0", 1)]
    assert "not every trace says its rank" in job.warnings[0]


def test_ranks_that_file_names_claim_twice(tmp_path: Path) -> None:
    job = assemble(traces(tmp_path, ("node1.gpu0", None, 2), ("node2.gpu0", None, 2)))
    assert ranks(job) == [("node1.gpu0", 0), ("node2.gpu0", 1)]
    assert "claim the same rank" in job.warnings[0]


@pytest.mark.parametrize(
    ("rank_traces", "message"),
    [
        ([("a", 1, 2), ("b", 1, 2)], r"/a and \S*/b are both of rank 1"),
        ([("a", 0, 2), ("b", 1, 4)], "/a is of a job of 2 ranks, .*/b of one of 4 ranks"),
        ([("a", 0, 2), ("b", 1, 2), ("c", None, None)], "3 captures, and .* of a job of 2 ranks"),
        ([("a", 0, 1), ("b", None, 1)], "2 captures, and .* of a job of 1 rank;"),
    ],
)
def test_what_cannot_be_one_job_is_refused(
    tmp_path: Path, rank_traces: list[tuple[str, int | None, int | None]], message: str
) -> None:
    made = traces(tmp_path, *rank_traces)
    with pytest.raises(UsageError, match=f"not the ranks of one job: .*{message}"):
        assemble(made)
    assert len(assemble(made, apart=True).rank_traces) == len(rank_traces)


def timed(tmp_path: Path, *rank_traces: tuple[str, int | None, float, float]) -> list[Trace]:
    """Traces with a rank of a world of 8, begin and length, s."""
    made = traces(tmp_path, *((name, rank, 8) for name, rank, _, _ in rank_traces))
    for trace, (_, _, begin, length) in zip(made, rank_traces, strict=True):
        trace.meta.origin_epoch_ns = round(1.79e18 + (begin - 2) * 1e9)
        trace.meta.window_start_ns = 2 * 10**9
        trace.meta.window_end_ns = round((2 + length) * 1e9)
    return made


def test_captures_of_another_moment_are_refused_where_they_claim_no_ranks(tmp_path: Path) -> None:
    made = timed(tmp_path, ("a", None, 0, 5), ("b", None, 14, 5))
    assert len(assemble(made).rank_traces) == 2  # clocks of machines may differ by some seconds
    made = timed(tmp_path / "x", ("a", None, 0, 5), ("b", None, 16, 5), ("c", None, 7, 5))
    with pytest.raises(UsageError, match=r"/b began 11 s after \S*/a had ended; .*NAME.rank0"):
        assemble(made)
    # every rank claims another number: the clocks may be wrong by any time
    by_meta = timed(tmp_path / "y", ("a", 0, 0, 5), ("b", 1, 7200, 5))
    by_name = timed(tmp_path / "z", ("a.rank0", None, 0, 5), ("a.rank1", None, 7200, 5))
    output = " ".join(assemble(by_meta).warnings)
    assert "b began 120 minutes after a had ended" in output
    assert [number for made in (by_meta, by_name) for _, number in ranks(assemble(made))] == [
        *(0, 1),
        *(0, 1),
    ]


def test_ranks_given_as_runs_are_refused(tmp_path: Path) -> None:
    job = timed(tmp_path, *((f"t{i}", i, 0.1 * i, 5) for i in range(8)))
    with pytest.raises(UsageError, match=r"ranks of one job \(ranks 0, 1, 2, 3, 4, 5, 6, 7, capt"):
        refuse_ranks_as_runs([[trace] for trace in job])
    with pytest.raises(UsageError, match=r"/t2 and \S*/t5 are ranks of one job"):
        refuse_ranks_as_runs([[job[2]], [job[5]]])
    refuse_ranks_as_runs([job[:4], job[4:]])  # these are folders: each is a run
    refuse_ranks_as_runs([[job[0]], [job[0]]])  # the same rank of both runs
    later = timed(tmp_path / "later", ("t1", 1, 60, 5))
    refuse_ranks_as_runs([[job[0]], later])  # another moment, so another run
    unknown = traces(tmp_path / "unknown", ("rank0", None, None), ("rank1", None, None))
    refuse_ranks_as_runs([[trace] for trace in unknown])
    alone = timed(tmp_path / "alone", ("a", None, 0, 5), ("b", None, 0, 5))
    refuse_ranks_as_runs([[trace] for trace in alone])  # two programs at once


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    job = assemble(traces(tmp_path, ("a", 0, 16), ("b", 3, 16)))
    assert job.warnings[1].startswith("14 of 16 ranks are missing: 1, 2, 4, 5")
    assert job.warnings[1].endswith(", ...")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.sqlite", 3),
        ("run.rank12.json.gz", 12),
        ("RANK_07.json", 7),
        ("trace-r4.json", 4),
        ("r4", 4),
        ("worker-2.pt.trace.json", 2),
        ("node1_gpu3.nsys-rep", 3),
        ("rank3_gpu1.json", 3),
        ("gpu0.rank5.json", 5),
        ("server12_4711.1712345678.pt.trace.json", None),
        ("trainer4.json", None),
        ("year2026.json", None),
        ("rank20260101123000.json", None),
        ("report1.nsys-rep", None),
        ("r.json", None),
        ("", None),
    ],
)
def test_rank_in_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_chunks_that_share_a_dictionary_are_not_unified_again() -> None:
    from stepscope.trace.frame import _share_dictionary

    words = pa.array(["b", "a", "c"])
    chunks = [
        pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), words)
        for codes in ([0, 2], [], [None, 1])
    ]
    other = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["a"]))
    part = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), words.slice(1))
    assert _share_dictionary(chunks)
    assert not _share_dictionary([*chunks, other])
    assert not _share_dictionary([*chunks, part])
    for held, wanted in (
        (chunks, ["b", "c", None, "a"]),
        ([*chunks, other], ["b", "c", None, "a", "a"]),
        ([*chunks, part], ["b", "c", None, "a", "a", "c"]),
    ):
        frame = from_arrow(pa.table({"name": pa.chunked_array(held)}))
        texts = [frame.text("name", row) or None for row in range(len(frame))]
        assert texts == wanted
        assert frame.equals("name", "a", "c").tolist() == [t in ("a", "c") for t in wanted]
        assert frame.that("name", lambda t: t == "b").tolist() == [t == "b" for t in wanted]

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

from stepscope.trace.frame import NULL, Frame, distinct, from_arrow
from stepscope.trace.job import assemble, rank_in_name
from stepscope.trace.meta import Meta
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


def traces(tmp_path: Path, *members: tuple[str, int | None, int | None]) -> list[Trace]:
    made = []
    for number, (name, rank, world) in enumerate(members):
        folder = tmp_path / f"{number}.stepscope"
        folder.mkdir()
        source = "environment RANK" if rank is not None else ""
        write_meta(folder, Meta(rank=rank, world_size=world, rank_source=source))
        made.append(Trace(folder, tmp_path / name))
    return made


def ranks(job: Any) -> list[tuple[str, int]]:
    return [(member.trace.path.name, member.rank) for member in job.members]


def test_a_single_trace(tmp_path: Path) -> None:
    job = assemble(traces(tmp_path, ("rank3.sqlite", None, None)))
    assert ranks(job) == [("rank3.sqlite", 0)]
    assert job.remarks == []
    (tmp_path / "more").mkdir()
    (trace,) = traces(tmp_path / "more", ("a", 5, 8))
    assert [member.rank for member in assemble([trace]).members] == [5]


def test_ranks_from_metadata(tmp_path: Path) -> None:
    job = assemble(traces(tmp_path, ("rank0", 2, 3), ("rank1", 0, 3), ("rank2", 1, 3)))
    assert ranks(job) == [("rank1", 0), ("rank2", 1), ("rank0", 2)]
    (remark,) = job.remarks
    assert "environment RANK" in remark
    assert [trace.path.name for trace in job.traces] == ["rank1", "rank2", "rank0"]


def test_ranks_from_names(tmp_path: Path) -> None:
    given_names = [("run.rank10.json", None, None), ("run.rank2.json", None, None)]
    job = assemble(traces(tmp_path, *given_names))
    assert ranks(job) == [("run.rank2.json", 2), ("run.rank10.json", 10)]
    (remark,) = job.remarks
    assert "file names" in remark


def test_ranks_by_order(tmp_path: Path) -> None:
    job = assemble(traces(tmp_path, ("b", None, None), ("rank0", None, None)))
    assert ranks(job) == [("b", 0), ("rank0", 1)]
    assert "not every trace says its rank" in job.remarks[0]


def test_ranks_claimed_twice(tmp_path: Path) -> None:
    job = assemble(traces(tmp_path, ("a", 1, 2), ("b", 1, 2)))
    assert ranks(job) == [("a", 0), ("b", 1)]
    assert "claim the same rank" in job.remarks[0]


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    job = assemble(traces(tmp_path, ("a", 0, 16), ("b", 3, 16)))
    assert job.remarks[1].startswith("14 of 16 ranks are missing: 1, 2, 4, 5")
    assert job.remarks[1].endswith(", ...")


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

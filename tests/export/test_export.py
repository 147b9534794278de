"""Exports: every slice arrives in the other format, nested, with its arrow and its time."""

from __future__ import annotations

import gzip
import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import Stepscope
from tests.support.build import Build

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.export.perfetto import _packets, message, number, varint
from stepscope.export.pieces import _crossing, begins_and_ends
from stepscope.timeline.classes import CODE
from stepscope.timeline.track import slices

Fields = list[tuple[int, Any]]


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a protocol-buffer message, by number; content of nested ones as bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        field, wire = key >> 3, key & 7
        if wire == 0:
            yield field, number()
        elif wire == 1:
            yield field, data[at : at + 8]
            at += 8
        else:
            assert wire == 2
            length = number()
            yield field, data[at : at + length]
            at += length


def job(tmp_path: Path) -> Job:
    b = Build()
    b.range(0, 100, "step")
    b.range(10, 40, "inner")
    b.kernel(20, 30, call=(11, 12), name="first")
    b.kernel(28, 36, call=(13, 14), name="overlaps")
    b.kernel(36, 36, call=(15, 16), name="instant")
    b._add(
        "memory_event",
        process_id=100,
        time_ns=5000,
        kind="cache",
        device=0,
        bytes=10,
        total_allocated_bytes=4096,
    )
    return Job([b.trace(tmp_path).folder])


def test_perfetto_by_its_field_numbers(tmp_path: Path) -> None:
    data = b"".join(job(tmp_path).views.exported("perfetto"))
    tracks: dict[int, dict[int, Any]] = {}
    names: dict[int, str] = {}
    events: list[tuple[int, dict[int, Any]]] = []
    for field, packet in fields(data):
        assert field == 1
        answer = dict(fields(packet))
        assert answer[10] == 1
        if 60 in answer:
            track = dict(fields(answer[60]))
            tracks[track[1]] = track
        if 12 in answer:
            for _, entry in fields(answer[12]):
                name = dict(fields(entry))
                names[name[1]] = name[2].decode()
        if 11 in answer:
            events.append((answer[8], dict(fields(answer[11]))))
    titles = {uuid: track[2].decode() for uuid, track in tracks.items()}
    assert {"Stream 7", "Stream 7 (overlapping 1)", "Ranges", "Memory allocated"} <= set(
        titles.values()
    )
    assert all(track[5] in tracks for track in tracks.values() if 5 in track)
    stream = [(at, e) for at, e in events if titles[e[11]].startswith("Stream 7")]
    begun = {names[e[10]]: at for at, e in stream if e[9] == 1}
    assert begun == {"first": 20_000, "overlaps": 28_000, "instant": 36_000}
    open_: dict[int, int] = {}
    for at, event in events:  # in the order of the file, every track nests
        if event[9] in (1, 2):
            open_[event[11]] = open_.get(event[11], 0) + (1 if event[9] == 1 else -1)
            assert open_[event[11]] >= 0, at
    assert set(open_.values()) == {0}
    leaving = [struct.unpack("<Q", e[47])[0] for _, e in events if 47 in e]
    arriving = [struct.unpack("<Q", e[48])[0] for _, e in events if 48 in e]
    assert sorted(leaving) == sorted(arriving)
    assert len(leaving) == 3
    (sample,) = [(at, e) for at, e in events if e[9] == 4]
    assert (sample[0], struct.unpack("<d", sample[1][44])[0]) == (5000, 4096.0)


def test_numbers_of_any_size() -> None:
    assert varint(0) == b"\0"
    assert varint(300) == b"\xac\x02"
    assert varint(-1) == b"\xff" * 9 + b"\x01"


def test_chrome_holds_every_slice_exactly(tmp_path: Path) -> None:
    found = json.loads(b"".join(job(tmp_path).views.exported("chrome")))["traceEvents"]
    kinds = Counter(event["ph"] for event in found)
    assert kinds["s"] == kinds["f"] == 3
    assert kinds["C"] == 1
    kernels = {e["name"]: e for e in found if e["ph"] == "X" and e["cat"].startswith("kernel_")}
    assert (kernels["first"]["ts"], kernels["first"]["dur"]) == (20.0, 10.0)
    named = {e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert {"Ranges", "CUDA API", "Stream 7"} <= named
    starts = {e["id"]: e for e in found if e["ph"] == "s"}
    for end in (e for e in found if e["ph"] == "f"):
        assert starts[end["id"]]["ts"] < end["ts"]
    assert kernels["overlaps"]["tid"] != kernels["first"]["tid"]


def nests(events: list[dict[str, Any]]) -> None:
    stack: list[int] = []
    at = -1
    for event in events:
        assert event["at"] >= at
        at = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert stack.pop() == event["frame"]
    assert stack == []


def test_speedscope_nests_on_a_real_capture(tmp_path: Path, reader: Stepscope) -> None:
    target = tmp_path / "out.json.gz"
    reader("export", "-t", "speedscope", bundled_capture(), "-o", target)
    found = json.loads(gzip.decompress(target.read_bytes()))
    frames = found["shared"]["frames"]
    assert len(found["profiles"]) >= 6
    for profile in found["profiles"]:
        nests(profile["events"])
        assert all(0 <= e["frame"] < len(frames) for e in profile["events"])
        assert profile["startValue"] == profile["events"][0]["at"]
    kernels = Job([bundled_capture()]).query("SELECT count(*) AS n FROM gpu_op").to_pydict()
    (stream,) = [p for p in found["profiles"] if p["name"].endswith("Stream 7")]
    assert len(stream["events"]) == 2 * kernels["n"][0]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_lanes_nest_whatever_overlaps(rows: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in rows], np.int64)
    end = start + np.array([n for _, n in rows], np.int64)
    zero = np.zeros(len(rows), np.int64)
    made = slices(
        start, end, zero, np.full(len(rows), CODE["memset"], np.uint8), np.arange(len(rows))
    )
    left = np.arange(len(made))
    for _ in range(len(rows) + 1):
        odd = _crossing(made, left)
        lane = left[~odd]
        time, begins, row = begins_and_ends(made, lane)
        nests(
            [
                {"type": "O" if b else "C", "frame": int(r), "at": int(t)}
                for t, b, r in zip(time, begins, row, strict=True)
            ]
        )
        left = left[odd]
        if not len(left):
            break
    assert not len(left)


def naive_crossing(rows: list[tuple[int, int]]) -> list[bool]:
    """Each slice against those that are open, one by one."""
    odd, open_ = [], []
    for begin, stop in rows:
        while open_ and open_[-1] <= begin:
            open_.pop()
        odd.append(bool(open_ and stop > open_[-1]))
        if not odd[-1]:
            open_.append(stop)
    return odd


many = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 25)), max_size=80)


@given(many, st.booleans())
def test_crossing_slices_are_those_of_a_loop(rows: list[tuple[int, int]], flat: bool) -> None:
    """Groups, chains and nests alike; ``flat`` leaves none inside another, as on most streams."""
    found = sorted(((s, s + n) for s, n in rows), key=lambda r: (r[0], -r[1]))
    if flat:
        kept: list[tuple[int, int]] = []
        for begin, stop in found:
            if not kept or (stop > kept[-1][1] and begin > kept[-1][0]):
                kept.append((begin, stop))
        found = kept
    table = np.array(found, np.int64).reshape(-1, 2)
    zero = np.zeros(len(table), np.int64)
    made = slices(table[:, 0], table[:, 1], zero, zero.astype(np.uint8), np.arange(len(table)))
    assert _crossing(made, np.arange(len(made))).tolist() == naive_crossing(found)


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**40), 2**62),
            st.booleans(),
            st.integers(1, 2**32),
            st.integers(-1, 2**40),
        ),
        min_size=1,
    ),
    st.integers(1, 2**20),
)
def test_packets_made_together_are_those_made_one_by_one(
    events: list[tuple[int, bool, int, int]], uuid: int
) -> None:
    time, begins, name, arrow = (np.array(column) for column in zip(*events, strict=True))
    expected = b""
    for at, starts, text, flow in events:
        event = number(9, 1 if starts else 2) + number(11, uuid)
        if starts:
            event += number(10, text)
            if flow >= 0:
                event += varint(47 << 3 | 1) + struct.pack("<Q", flow + 1)
        packet = number(8, at) + message(11, event) + number(13, 2) + number(10, 1)
        expected += message(1, packet)
    assert _packets(uuid, time, begins, name, arrow, True) == expected


def test_files_are_not_overwritten(tmp_path: Path, reader: Stepscope) -> None:
    target = tmp_path / "out.json"
    target.write_text("mine")
    arguments = ("export", "-t", "chrome", bundled_capture(), "-o", target)
    assert "--force" in reader(*arguments, expect=2).stderr
    assert target.read_text() == "mine"
    reader(*arguments, "--force")
    assert json.loads(target.read_text())["traceEvents"]
    done = reader(*arguments[:-1], tmp_path / "no" / "out.json", expect=2)
    assert "cannot write" in done.stderr


@pytest.mark.parametrize("kind", ["perfetto", "chrome", "speedscope"])
def test_odd_characters_survive(tmp_path: Path, kind: str) -> None:
    b = Build()
    b.range(1, 2, 'quote " \\ \x00 \u2028 </script> 🔥')
    data = b"".join(Job([b.trace(tmp_path).folder]).views.exported(kind))
    if kind == "perfetto":
        assert "</script> 🔥".encode() in data
    else:
        assert "🔥" in json.dumps(json.loads(data), ensure_ascii=False)

"""Damaged and foreign input: one sentence, never a part passed off as the whole."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cache.store import Cache
from stepscope.importers.common.stream import open_text
from stepscope.importers.kineto import IMPORTER
from stepscope.importers.kineto.about import parse_header
from stepscope.importers.kineto.pieces import EventReader
from stepscope.importers.registry import detect, load
from stepscope.trace.errors import InputError
from stepscope.trace.trace import Trace

DATA = Path(__file__).parent / "kineto_data"


def opened(data: bytes, tmp_path: Path) -> Trace:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    return load(path, Cache(tmp_path / "cache"))


def problems(trace: Trace) -> dict[str, int]:
    return {problem.id: problem.count for problem in trace.meta.problems}


def event(name: str = "aten::add", ts: str = "5.000", dur: str = "1.000", extra: str = "") -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 1, "tid": 2,\n'
        f'    "ts": {ts}, "dur": {dur}{extra}\n  }}'
    )


def trace_of(*events: str) -> bytes:
    header = '{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  "traceEvents": [\n'
    return (header + ",\n".join(events) + '\n  ],\n  "traceName": "t"\n}').encode(
        "utf-8", "surrogateescape"
    )


GOOD = [event(f"op{i}", f"{i}.000") for i in range(1, 6)]


def names(trace: Trace) -> list[str]:
    found: list[str] = trace.arrow("operator", ["name"])["name"].to_pylist()
    return found


@pytest.fixture(scope="module")
def text() -> bytes:
    with open_text(DATA / "cpu_only.json.gz") as read:
        return b"".join(iter(read, b""))


@given(st.data())
def test_a_file_cut_anywhere_is_refused(text: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(text.rstrip()) - 1))
    part = text[:cut]
    pieces = iter([part[i : i + 50_000] for i in range(0, len(part), 50_000)])
    reader = EventReader(lambda: next(pieces, b""), Path("t.json"))

    def read_all() -> None:
        for _ in reader:
            pass
        parse_header(reader.header, reader.trailer, Path("t.json"))

    with pytest.raises(InputError, match=r"t\.json ends in the middle"):
        read_all()


@pytest.mark.parametrize("keep", [0.999, 0.7, 0.3])
@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_compressed_file_cut_short_is_refused(pack: Any, keep: float, tmp_path: Path) -> None:
    names = (hashlib.sha512(str(i).encode()).hexdigest() for i in range(10_000))
    packed = pack(trace_of(*(event(name) for name in names)))
    with pytest.raises(InputError, match="ends in the middle"):
        opened(packed[: int(len(packed) * keep)], tmp_path)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_damaged_compressed_data_is_refused(pack: Any, tmp_path: Path) -> None:
    import os

    packed = bytearray(
        pack(trace_of(*GOOD, event("x", extra=f', "y": "{os.urandom(9000).hex()}"')))
    )
    packed[len(packed) // 2] ^= 0xFF
    packed[-3] ^= 0xFF
    with pytest.raises(InputError, match=r"not a whole|ends in the middle|not a capture"):
        opened(bytes(packed), tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"[1, 2]",
        b'{"schemaVersion": 2, "mediaType": "application/json", "layers": [{"size": 1}]}',
        b"not json at all",
        b"\x1f\x8b\x08garbage",
        b"\x28\xb5\x2f\xfdgarbage",
        gzip.compress(b"hello", mtime=0),
        b'<html>"traceEvents": []</html>',
    ],
)
def test_what_is_no_trace_is_not_recognised(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(data)
    assert IMPORTER.sniff(path, data[:65536]) == 0
    with pytest.raises(InputError) as error:
        load(path, Cache(tmp_path / "cache"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b'{"schemaVersion": 1, "deviceProperties": [], "x": 1}',
            "without an array of traceEvents",
        ),
        (b'{"deviceProperties": [{"traceEvents": [{"ph": "X"}]}]}', "no list of traceEvents"),
        (b'{"schemaVersion": 1, "traceEvents": []}', "no operator"),
        (b'{"schemaVersion": 1, "traceEvents": [ ], "a": {}}', "no operator"),
        (b'{"schemaVersion": 1, "traceEvents": {"ph": "X"}}', "traceEvents are no array"),
        (b'{"deviceProperties": [], "traceEvents": null}', "traceEvents are no array"),
        (b'{"traceEvents":[3]}', "none of its traceEvents can be read .* the first is 3;"),
        (b'{"traceEvents": [ "a", [1, "b"]] }', 'none of its traceEvents .* first is "a";'),
        (b'{"traceEvents": [3', "ends in the middle"),
        (b'{"traceEvents": [{"ph": "B", "ts": 1}, {"ph": "E", "ts": 2}]}', "of another tool"),
        (trace_of(event("a", '"soon"'), event("b", "1e30")), "no event with a time: in 2, ts or"),
        (trace_of(event("a", "NaN"), event("b", dur="Infinity")), "no event with a time: in 2,"),
        (trace_of(event("a", dur="-1")), "nothing can be used: 1 events ended before they began"),
        (trace_of(*GOOD) + b"{", "goes on after the end"),
        (trace_of(*GOOD) * 2, "goes on after the end"),
        (trace_of(*GOOD) + bytes(9), "goes on after the end"),
        (trace_of(*GOOD)[:-1] + b', "traceEvents": [1]}', "a second list of traceEvents"),
        (trace_of(*GOOD).decode().encode("utf-16"), "text in UTF-16 or UTF-32, .*iconv"),
        (trace_of(*GOOD).decode().encode("utf-16-be"), "text in UTF-16 or UTF-32"),
        (trace_of(*GOOD).decode().encode("utf-32"), "text in UTF-16 or UTF-32"),
        (b"[" + GOOD[0].encode() + b"] trailing", "goes on after the end"),
    ],
)
def test_json_that_is_no_whole_trace(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as error:
        load(path, Cache(tmp_path / "cache"))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) in (["cache", "file.json"], ["file.json"])


def test_a_bad_value_costs_only_itself(tmp_path: Path) -> None:
    extra = (
        ', "args": {"External id": "12", "Sequence number": 1.5, "block": "x", '
        '"est. achieved occupancy %": -Infinity, "occ": NaN, "bw": -inf}'
    )
    trace = opened(trace_of(GOOD[0], event("odd", "2.5", extra=extra), *GOOD[2:]), tmp_path)
    assert names(trace) == ["op1", "odd", "op3", "op4", "op5"]
    assert trace.arrow("operator").to_pylist()[1]["external_id"] == 12
    assert problems(trace) == {"bad_value": 2, "invalid_number": 3}


def test_texts_that_json_forbids(tmp_path: Path) -> None:
    odd = [
        event("raw\ttab\nline\x00nul", "1"),
        event("bytes \udcff\udcfe", "2"),
        event(r"C:\path\qux", "3"),
        event(r"surrogate \ud800", "4"),
        event('say "hi", then', "5"),
        event("nested }, { gap", "6"),
        event("x" * 100_000, "7"),
    ]
    trace = opened(trace_of(*odd, GOOD[4]), tmp_path)
    found = names(trace)
    assert found[0] == "raw�tab�line�nul"
    assert found[1] == "bytes ��"
    assert found[2] == r"C:\path\qux"
    assert found[3] == "surrogate �"
    assert sorted(found[4:]) == ["nested }, { gap", "op5", 'say "hi", then', "x" * 100_000]
    assert problems(trace) == {"invalid_text": 5}


def test_times_that_are_none(tmp_path: Path) -> None:
    bad = [
        event("nan", "NaN"),
        event("endless", "1.0", "Infinity"),
        event("null", "null"),
        event("huge", "1e300"),
        '  {\n    "ph": "X", "cat": "cpu_op", "name": "none", "pid": 1, "tid": 2, "dur": 1\n  }',
        event("no duration").replace(', "dur": 1.000', ""),
    ]
    trace = opened(trace_of(*bad, *GOOD), tmp_path)
    assert names(trace) == ["op1", "op2", "op3", "op4", "op5"]
    assert problems(trace)["not_a_number"] == len(bad)


def test_times_as_text_and_events_out_of_order(tmp_path: Path) -> None:
    trace = opened(trace_of(event("late", '"9.5"', '"2"'), *GOOD), tmp_path)
    assert names(trace) == ["op1", "op2", "op3", "op4", "op5", "late"]
    last = trace.arrow("operator").to_pylist()[-1]
    assert (last["start_ns"], last["end_ns"] - last["start_ns"]) == (8500, 2000)


def test_duplicated_keys_and_missing_places(tmp_path: Path) -> None:
    double = event("first").replace('"pid": 1', '"name": "second", "pid": null')
    trace = opened(trace_of(double, *GOOD), tmp_path)
    assert "second" in names(trace)
    assert set(trace.arrow("operator")["process_id"].to_pylist()) == {1}


def test_negative_durations_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = opened(trace_of(event("back", "3.0", "-1.0"), *GOOD), tmp_path)
    assert problems(trace) == {"negative_duration": 1}
    assert len(names(trace)) == 5


@pytest.mark.parametrize(
    "bad", ['  {\n    "ph": "X", oops\n  }', "  {}}}", "3", "-1e3", "null", '"a}, {"', '[1, "]"]']
)
@pytest.mark.parametrize("at", [0, 2, 5])
def test_a_malformed_event_is_left_out_and_counted(bad: str, at: int, tmp_path: Path) -> None:
    events = [*GOOD[:at], bad, *GOOD[at:]]
    trace = opened(trace_of(*events), tmp_path)
    assert names(trace) == ["op1", "op2", "op3", "op4", "op5"]
    assert problems(trace) == {"malformed_event": 1}


def test_many_malformed_events_among_many_pieces(tmp_path: Path) -> None:
    events = [event(f"op{i}", f"{i}.000") for i in range(20_000)]
    for i in range(500, 20_000, 2000):
        events[i] = f'  {{\n    "ph": "X", oops {i}\n  }}'
    trace = opened(trace_of(*events), tmp_path)
    assert problems(trace) == {"malformed_event": 10}
    assert trace.rows("operator") == 19_990


def test_undecodable_arguments_do_not_cost_the_event(tmp_path: Path) -> None:
    bad = event("kept", "2.5", extra=', "args": {"a": 5 6, "External id": 3}')
    trace = opened(trace_of(*GOOD, bad), tmp_path)
    assert "kept" in names(trace)
    assert problems(trace) == {"bad_value": 1}


def test_an_endless_header_is_refused(tmp_path: Path) -> None:
    reader = EventReader(lambda: b'{"deviceProperties": "' + b"x" * (1 << 24), tmp_path)
    with pytest.raises(InputError, match="no traceEvents in its first"):
        next(iter(reader))


def test_importing_the_package_is_light() -> None:
    import subprocess
    import sys

    code = (
        "import sys, stepscope.importers.kineto; "
        "print([m for m in sys.modules if m.split('.')[0] in ('pyarrow', 'duckdb')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_input_is_neither_changed_nor_neighboured(tmp_path: Path) -> None:
    before = trace_of(*GOOD)
    folder = tmp_path / "input"
    folder.mkdir()
    path = folder / "trace.json"
    path.write_bytes(before)
    path.chmod(0o400)
    load(path, Cache(tmp_path / "cache"))
    assert path.read_bytes() == before
    assert [p.name for p in folder.iterdir()] == ["trace.json"]
    assert detect(path) is IMPORTER
    assert json.loads(before)["traceName"] == "t"


def _odd_json(name: str) -> bytes:
    """A trace whose one odd value stands where ``ODD`` stood."""
    values = {
        "huge": b"9" * 400,
        "beyond int64": b"1" + b"0" * 20,
        "beyond doubles": b"1e400",
        "signals": b'"sNaN"',
        "no UTF-8": b'"\xff\xfe"',
        "deep": b"[" * 20_000 + b"]" * 20_000,
        "int32": b"2147483648",
    }
    return values[name]


_PLACES = {
    "name of a process": b'{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": ODD}},',
    "labels": b'{"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": ODD}},',
    "time": b'{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 1, "tid": 2, "ts": ODD, "dur": 1},',
    "length": b'{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 1, "tid": 2, "ts": 2, '
    b'"dur": ODD},',
    "exact time": b'{"ph": "X", "cat": "cpu_op", "name": "y", "pid": 1, "tid": 2, '
    b'"ts": 1700000000000000.123, "dur": 1},\n'
    b'{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 1, "tid": 2, "ts": ODD, "dur": 1},',
}


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize(
    "odd", ["huge", "beyond int64", "beyond doubles", "signals", "no UTF-8", "deep"]
)
def test_odd_values_cost_only_themselves(place: str, odd: str, tmp_path: Path) -> None:
    event = _PLACES[place].replace(b"ODD", _odd_json(odd))
    text = trace_of(*GOOD).replace(b"[\n", b"[\n" + event, 1)
    trace = opened(text, tmp_path)
    assert set(names(trace)) - {"y"} == {"op1", "op2", "op3", "op4", "op5"}
    assert problems(trace) or (odd == "signals" and b'"M"' in event)  # a name like any other


@pytest.mark.parametrize("odd", ["huge", "beyond int64", "beyond doubles", "no UTF-8", "int32"])
@pytest.mark.parametrize("field", ["id", "numSms", "totalGlobalMem", "rank", "world_size", "base"])
def test_odd_values_of_the_header(field: str, odd: str, tmp_path: Path) -> None:
    header = {
        "rank": b'"distributedInfo": {"rank": ODD},',
        "world_size": b'"distributedInfo": {"world_size": ODD},',
        "base": b'"baseTimeNanoseconds": ODD,',
    }.get(field, b'"deviceProperties": [{"id": 0, "' + field.encode() + b'": ODD}],')
    text = trace_of(*GOOD).replace(
        b'"deviceProperties": [],', header.replace(b"ODD", _odd_json(odd))
    )
    assert len(names(opened(text, tmp_path))) == 5


def test_a_header_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    text = trace_of(*GOOD).replace(b'"deviceProperties": []', b'"x": ' + _odd_json("deep"))
    with pytest.raises(InputError, match="nested too deeply"):
        opened(text, tmp_path)

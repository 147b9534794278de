"""Rules about streams and repeated copies on small traces made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.build import PID, Build
from tests.support.captures import DATA, unpack

from stepscope.cache.store import Cache
from stepscope.importers.registry import load
from stepscope.reports.registry import rules
from stepscope.reports.report import Outcome, answer, parse
from stepscope.reports.source import Source
from stepscope.trace.trace import Trace


def outcome(trace: Trace, name: str) -> Outcome:
    return answer(parse(name, rules()), Source(trace))


def rows(trace: Trace, name: str) -> list[dict[str, Any]]:
    found = outcome(trace, name)
    assert found.table is not None, found.missing
    listed: list[dict[str, Any]] = found.table.to_pylist()
    return listed


def streams(made: Build, *known: tuple[int, str | None, int | None]) -> None:
    for stream, flag, priority in known:
        made._add("stream", process_id=PID, stream=stream, flag=flag, priority=priority)


def two_streams(*, second: int = 13, event: bool = False) -> Build:
    """A long kernel in stream 7, and one in a second stream that begins right after it."""
    made = Build()
    made.kernel(10, 300, call=(1, 5), name="long", stream=7)
    if event:
        made.api(6, 7, "cudaStreamWaitEvent")
    made.kernel(302, 400, call=(20, 25), name="short", stream=second)
    return made


DEFAULT_STREAM = "default_stream_serialization"
PRIORITY = "stream_priority_inversion"


def test_a_blocking_stream_waits_for_the_default_stream(tmp_path: Path) -> None:
    made = two_streams()
    streams(made, (7, "null", None), (13, "default", None))
    (found,) = rows(made.trace(tmp_path), DEFAULT_STREAM)
    assert (found["Total Wait"], found["Instances"]) == (280_000, 1)  # from 20 us to 300 us
    assert (found["Stream ID"], found["Waited For"]) == (13, 7)
    assert (found["Operation"], found["Held By"]) == ("short", "long")


def test_the_default_stream_waits_for_a_blocking_stream(tmp_path: Path) -> None:
    made = two_streams()
    streams(made, (7, "default", None), (13, "null", None))
    (found,) = rows(made.trace(tmp_path), DEFAULT_STREAM)
    assert (found["Stream ID"], found["Waited For"], found["Max Wait"]) == (13, 7, 280_000)


@pytest.mark.parametrize("flags", [("null", "non_blocking"), ("default", "default")])
def test_streams_that_the_default_stream_does_not_order(
    tmp_path: Path, flags: tuple[str, str]
) -> None:
    made = two_streams()
    streams(made, (7, flags[0], None), (13, flags[1], None))
    assert rows(made.trace(tmp_path), DEFAULT_STREAM) == []


def test_waiting_for_an_event_is_on_purpose(tmp_path: Path) -> None:
    made = two_streams(event=True)
    streams(made, (7, "null", 0), (13, "default", -5))
    trace = made.trace(tmp_path)
    assert rows(trace, DEFAULT_STREAM) == rows(trace, PRIORITY) == []


def test_only_work_that_was_ready_waits(tmp_path: Path) -> None:
    made = Build()
    made.kernel(10, 300, call=(1, 5), name="long", stream=7)
    made.kernel(302, 400, call=(295, 297), name="late", stream=13)  # enqueued 5 us before
    made.kernel(420, 800, call=(298, 299), name="next", stream=7)
    made.kernel(900, 950, call=(400, 405), name="pause", stream=13)  # 100 us after the other
    streams(made, (7, "null", 0), (13, "default", -5))
    trace = made.trace(tmp_path)
    assert rows(trace, PRIORITY) == []
    # the second kernel of the default stream did wait for the blocking stream
    (found,) = rows(trace, DEFAULT_STREAM)
    assert (found["Operation"], found["Held By"], found["Total Wait"]) == ("next", "late", 100_000)


def test_a_high_priority_kernel_waits_for_a_low_priority_one(tmp_path: Path) -> None:
    made = two_streams()
    streams(made, (7, "non_blocking", 0), (13, "non_blocking", -5))
    trace = made.trace(tmp_path)
    (found,) = rows(trace, PRIORITY)
    assert (found["Total Wait"], found["Held By"], found["Waited For"]) == (280_000, "long", 7)
    assert rows(trace, f"{PRIORITY}:us=281") == []
    assert rows(trace, DEFAULT_STREAM) == []


@pytest.mark.parametrize("priorities", [(-5, 0), (0, 0), (0, None)])
def test_equal_lower_and_unknown_priorities(
    tmp_path: Path, priorities: tuple[int, int | None]
) -> None:
    made = two_streams()
    streams(made, (7, "default", priorities[0]), (13, "default", priorities[1]))
    assert rows(made.trace(tmp_path), PRIORITY) == []


def test_captures_without_flags_and_priorities_say_so(tmp_path: Path) -> None:
    trace = two_streams().trace(tmp_path)
    assert "flags of its streams" in outcome(trace, DEFAULT_STREAM).missing
    assert "priorities of its streams" in outcome(trace, PRIORITY).missing


def uploads(tmp_path: Path, times: int, size: int = 1 << 20) -> Trace:
    made = Build()
    for step in range(10):
        at = step * 1000.0
        made.range(at, at + 990, f"step_{step}")
        for number in range(times):
            begin = at + 10 + 100 * number
            made.copy(begin + 5, begin + 25, call=(begin, begin + 30), size=size)
            made.kernel(begin + 40, begin + 90, call=(begin + 31, begin + 35))
        made.kernel(at + 900, at + 980, call=(at + 880, at + 890), name="adam")
    return made.trace(tmp_path)


def test_repeated_uploads(tmp_path: Path) -> None:
    trace = uploads(tmp_path, 5)
    (found,) = rows(trace, "repeated_copies")
    assert (found["Copies a Step"], found["Bytes"]) == (5.0, 1 << 20)
    assert (found["API Name"], found["NVTX Range"]) == ("cudaMemcpyAsync", "step_#")
    assert found["Total Time"] == 20_000 * found["Count"]
    assert found["Total"] == found["Count"] << 20
    assert 8 < found["Time"] < 12  # 5 x 20 us of some 1000 us
    assert rows(trace, "repeated_copies:times=6") == []
    assert rows(trace, "repeated_copies:share=50") == []


def test_a_few_or_small_uploads_are_no_repetition(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    (tmp_path / "small").mkdir()
    assert rows(uploads(tmp_path / "few", 3), "repeated_copies") == []
    assert rows(uploads(tmp_path / "small", 5, 1000), "repeated_copies") == []


def test_communication_and_rare_kernels_are_no_small_grids(tmp_path: Path) -> None:
    made = Build()
    made._add("device", process_id=PID, device=0, sm_count=132)
    shape = {"grid_x": 8, "grid_y": 1, "grid_z": 1}
    for number, name in enumerate(["ncclDevKernel_AllReduce", "gemm", "norm", "norm"]):
        made.kernel(number * 1000, number * 1000 + (900 if number < 2 else 10), name=name)
        made.rows["gpu_op"][-1].update(shape | ({"grid_x": 132} if name == "gemm" else {}))
    trace = made.trace(tmp_path)
    assert rows(trace, "small_grids") == []
    assert [row["Name"] for row in rows(trace, "small_grids:share=1")] == ["norm"]


def test_the_bundled_captures(tmp_path: Path) -> None:
    found: dict[str, set[str]] = {DEFAULT_STREAM: set(), PRIORITY: set(), "repeated_copies": set()}
    for packed in sorted(DATA.glob("*/*")):
        source = Source(load(unpack(packed), Cache()))
        for name, fires in found.items():
            table = answer(parse(name, rules()), source).table
            if table is not None and table.num_rows:
                fires.add(packed.name)
    # in it every layer uploads the same mask; nothing else does, and no capture has the others
    uploads_masks = {"gpt_pageable.sqlite.xz"}
    assert found == {DEFAULT_STREAM: set(), PRIORITY: set(), "repeated_copies": uploads_masks}

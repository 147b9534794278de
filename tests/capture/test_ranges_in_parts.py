"""NVTX events are read in parts: the ranges are those of all events at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture.test_raw_files import block

from stepscope.importers.registry import convert
from stepscope.importers.stepscope import layout, ranges
from stepscope.trace.errors import InputError
from stepscope.trace.trace import Trace

SHORT, LONG = 20, 50  # bytes of payload: one row, and two
events = st.lists(
    st.tuples(
        st.integers(0, 1),  # thread
        st.sampled_from(["push", "pop", "start", "end", "mark", "short", "long"]),
        st.integers(0, 2),  # domain, or number of the start/end range
        st.booleans(),  # whether a new chunk begins
    ),
    max_size=25,
)


def chunks_of(steps: list[tuple[int, str, int, bool]]) -> list[tuple[int, np.ndarray]]:
    """(thread, rows) of the chunks that threads fill, in the order in which they were begun."""
    chunks: list[tuple[int, list[np.ndarray]]] = []
    current: dict[int, int] = {}
    started: list[int] = []

    def add(thread: int, row: np.ndarray, fresh: bool) -> None:
        if fresh or thread not in current:
            current[thread] = len(chunks)
            chunks.append((thread, []))
        chunks[current[thread]][1].append(row)

    for time, (thread, what, number, fresh) in enumerate(steps, 1):
        row = np.zeros(1, layout.ROWS[layout.NVTX])
        row["time"], row["name"] = 10 * time, 1 + number
        ops = {"pop": layout.POP, "start": layout.BEGIN, "end": layout.FINISH, "mark": layout.MARK}
        row["op"] = ops.get(what, layout.PUSH)
        if what == "start":  # numbers are never used again
            row["id"] = 100 + time
            started.append(100 + time)
        elif what == "end":
            row["id"] = started.pop(number % len(started)) if started else 99
        else:
            row["domain"] = number
        add(thread, row, fresh)
        if what in ("short", "long"):
            left = total = SHORT if what == "short" else LONG
            while left > 0:
                part = np.zeros(1, layout.BYTES_ROW)
                part["op"], part["total"], part["used"] = layout.BYTES, total, min(left, 32)
                part["schema"], part["bytes"] = 5, bytes([time]) * 32
                left -= 32
                # a payload may go on in the thread's next chunk
                add(thread, part.view(layout.ROWS[layout.NVTX]), fresh and left <= 0)
    return [(thread, np.concatenate(rows)) for thread, rows in chunks]


def rows_of(folder: Path, name: str, size: int) -> list[dict[str, Any]]:
    before = ranges.PART_ROWS
    ranges.PART_ROWS = size
    try:
        convert(folder / "p7-1.raw", folder / name)
    finally:
        ranges.PART_ROWS = before
    trace = Trace(folder / name)
    rows = trace.arrow("range").to_pylist() if trace.rows("range") else []
    problems = [(p.id, p.count) for p in trace.meta.problems]
    found = [{k: v for k, v in row.items() if k != "id"} for row in rows]
    return [*sorted(found, key=lambda row: sorted(map(str, row.items()))), {"problems": problems}]


@given(events)
@settings(deadline=None, max_examples=40)
def test_in_parts_and_at_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    blocks = [block(layout.META, b'{"type":"process","pid":7,"born_ns":1,"format":1}')]
    for sequence, (thread, rows) in enumerate(chunks_of(steps), 2):
        blocks.append(
            block(layout.NVTX, rows.tobytes(), len(rows), thread=7 + thread, sequence=sequence)
        )
    (folder / "p7-1.raw").write_bytes(b"".join(blocks))
    try:
        whole = rows_of(folder, "whole.stepscope", 1 << 18)
    except InputError:
        return  # no ranges at all
    for size in (1, 4):
        assert rows_of(folder, f"parts{size}.stepscope", size) == whole
    payloads = [row["payload"] for row in whole[:-1] if row["payload"]]
    wanted = [what for _, what, _, _ in steps if what in ("short", "long")]
    assert len(payloads) == len(wanted)
    for payload in payloads:
        text = payload.removeprefix('{"bytes":"').removesuffix('"}')
        assert len({text[at : at + 2] for at in range(0, len(text), 2)}) == 1  # of one event

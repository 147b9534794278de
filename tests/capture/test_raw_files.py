"""The raw format: declared twice alike, read after any damage, ranges matched as NVTX defines."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.conftest import Program
from tests.support.raw import block

from stepscope.capture import rawfiles
from stepscope.capture.collector.build import SOURCES
from stepscope.importers.registry import convert, detect
from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.ranges import _pushpop
from stepscope.importers.stepscope.raw import Files, read_raw
from stepscope.trace.errors import InputError
from stepscope.trace.problems import ProblemLog
from stepscope.trace.trace import Trace

FORMAT = (SOURCES / "format.h").read_text(encoding="utf-8")
ROW_OF = {
    layout.NVTX: "NvtxRow",
    layout.KERNEL: "KernelRow",
    layout.COPY: "CopyRow",
    layout.SET: "SetRow",
    layout.API: "ApiRow",
    layout.SYNC: "SyncRow",
    layout.OVERHEAD: "OverheadRow",
    layout.GRAPH: "GraphRow",
    layout.EVENT: "EventRow",
    layout.MEMORY: "MemoryRow",
    layout.STREAM: "StreamRow",
    layout.API_NAME: "ApiNameRow",
    layout.CLOCK: "ClockRow",
    layout.STATE: "StateRow",
}
C_TYPES = {"uint64_t": 8, "uint32_t": 4, "int32_t": 4, "uint16_t": 2, "uint8_t": 1}


def fields_in_c(name: str) -> list[tuple[str, int]]:
    """(field, bytes) of a struct of format.h, in order."""
    body = re.search(rf"struct {name} {{(.*?)\n}};", FORMAT, re.DOTALL)
    assert body, name
    found = []
    for kind, names in re.findall(r"^\s*(\w+_t) ([^;]+);", body[1], re.MULTILINE):
        for entry in names.split(","):
            match = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", entry.strip())
            assert match, entry
            found.append((match[1], C_TYPES[kind] * int(match[2] or 1)))
    return found


@pytest.mark.parametrize("kind", ROW_OF)
def test_rows_are_declared_alike_in_c_and_python(kind: int) -> None:
    ours = layout.ROWS[kind]
    assert ours.names
    assert fields_in_c(ROW_OF[kind]) == [(n, ours[n].itemsize) for n in ours.names]
    stated = re.search(rf"sizeof\({ROW_OF[kind]}\) == (\d+)", FORMAT)
    assert stated
    assert ours.itemsize == int(stated[1])


def test_headers_and_numbers_are_declared_alike() -> None:
    for name, ours in (("BlockHeader", layout.HEADER), ("ChunkHeader", layout.CHUNK)):
        assert ours.names
        assert [size for _, size in fields_in_c(name)] == [ours[n].itemsize for n in ours.names]
    kinds = dict(re.findall(r"  k(\w+) = (\d+),  +// (?:JSON|\w+Row|\{)", FORMAT))
    assert len(kinds) == 16
    for name, number in kinds.items():
        assert getattr(layout, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()) == int(number)
    assert f"0x{layout.BLOCK_MAGIC:08x}" in FORMAT
    assert f"0x{layout.CHUNK_MAGIC:08x}" in FORMAT
    assert struct.calcsize("<IHHIIIIQQ") == layout.HEADER.itemsize


# --- damage ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file: two kernels, one thread's ranges."""
    kernels = np.zeros(2, layout.ROWS[layout.KERNEL])
    kernels["start"], kernels["end"], kernels["correlation"] = (10, 30), (20, 40), (1, 2)
    kernels["name"] = 1
    events = np.zeros(2, layout.ROWS[layout.NVTX])
    events["time"], events["op"], events["name"] = (5, 45), (layout.PUSH, layout.POP), (1, 0)
    text = struct.pack("<II", 1, 4) + b"name" + bytes(4)
    return b"".join(
        (
            block(layout.META, b'{"type":"process","pid":7,"born_ns":1,"format":1}'),
            block(layout.STRINGS, text, sequence=1),
            block(layout.KERNEL, kernels.tobytes(), rows=2),
            block(layout.NVTX, events.tobytes(), rows=2, thread=9, sequence=2),
            block(layout.META, b'{"type":"end","time_ns":50}'),
        )
    )


def test_a_cut_file_is_read_up_to_its_last_whole_block(whole: bytes, tmp_path: Path) -> None:
    seen = set()
    for cut in range(0, len(whole) + 1, 3):
        (tmp_path / "p7-1.raw").write_bytes(whole[:cut])
        problems = ProblemLog()
        raw = read_raw(Files(tmp_path), "p7-1", problems)
        seen.add((len(raw.meta), len(raw.of(layout.KERNEL)), len(raw.nvtx)))
        assert {p.id for p in problems.problems()} <= {"torn_end"}
    assert seen == {(0, 0, 0), (1, 0, 0), (1, 2, 0), (1, 2, 1)} | (
        {(2, 2, 1)} if len(whole) % 3 == 0 else set()
    )


@given(data=st.data())
def test_any_damage_is_survived_and_said(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda v: v != whole[at]))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "p7-1.raw").write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
    problems = ProblemLog()
    raw = read_raw(Files(folder), "p7-1", problems)
    assert len(raw.of(layout.KERNEL)) in (0, 2)
    assert {problem.id for problem in problems.problems()} & {"damaged_block", "torn_end"}
    rawfiles.recorded(folder)


def test_a_block_of_the_first_format_is_read(whole: bytes, tmp_path: Path) -> None:
    kernels = np.zeros(2, layout.ROWS[layout.KERNEL])
    kernels["start"], kernels["end"] = (10, 30), (20, 40)
    (tmp_path / "p7-1.raw").write_bytes(
        block(layout.META, b'{"type":"process","pid":7,"format":1}', magic=layout.BLOCK_MAGIC_1)
        + block(layout.KERNEL, kernels.tobytes(), rows=2, magic=layout.BLOCK_MAGIC_1)
    )
    importer = detect(tmp_path)
    assert importer is not None
    problems = ProblemLog()
    raw = read_raw(Files(tmp_path), "p7-1", problems)
    assert raw.of(layout.KERNEL)["end"].tolist() == [20, 40]
    assert problems.problems() == []


def test_an_older_magic_number_does_not_spare_the_header_its_check(
    whole: bytes, tmp_path: Path
) -> None:
    old = layout.BLOCK_MAGIC_1.to_bytes(4, "little")
    (tmp_path / "p7-1.raw").write_bytes(old + whole[4:])
    problems = ProblemLog()
    raw = read_raw(Files(tmp_path), "p7-1", problems)
    assert [problem.id for problem in problems.problems()] == ["damaged_block"]
    assert raw.one("process") == {}


def test_a_file_alone_is_a_capture(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "p7-1.raw"
    path.write_bytes(whole)
    importer = detect(path)
    assert importer
    assert importer.name == "stepscope"
    convert(path, tmp_path / "t.stepscope")
    trace = Trace(tmp_path / "t.stepscope")
    assert trace.rows("gpu_op") == 2
    assert trace.arrow("range", ["name", "start_ns", "end_ns"]).to_pylist() == [
        {"name": "name", "start_ns": 4, "end_ns": 44}
    ]
    path.write_bytes(whole[:20])
    with pytest.raises(InputError, match="holds no whole record"):
        convert(path, tmp_path / "t.stepscope")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p1-1.raw").write_bytes(block(layout.META, b'{"type":"process","format":9}'))
    with pytest.raises(InputError, match="update Stepscope"):
        convert(tmp_path, tmp_path / "t.stepscope")


def test_a_pool_and_its_written_chunks_are_one(program: Program) -> None:
    """A chunk may stand in the file and in the pool: it is read once."""
    trace = program.trace(
        """
        for i in range(3000): push("a"); pop()
        time.sleep(0.3)
        for i in range(100): push("b"); pop()
        os.kill(os.getpid(), 9)
        """,
        exit_code=128 + 9,
    )
    assert trace.rows("range") == 3100


def test_ranks_and_workers_are_grouped() -> None:
    def one(process: int, parent: int, rank: int | None = None, work: int = 0):  # type: ignore[no-untyped-def]
        return rawfiles.Recorded(f"p{process}", process, parent, rank, work=work)

    found = rawfiles.group(
        [one(10, 1, 0, 5), one(11, 10), one(12, 11), one(20, 1, 3, 5), one(21, 20, 3), one(5, 1)]
    )
    names = {name: {r.process for r in members} for name, members in found.items()}
    assert names == {"rank0": {10, 11, 12, 5}, "rank3": {20, 21}}
    # without ranks: processes with GPU work, in order of their ids
    found = rawfiles.group([one(30, 1, work=1), one(25, 1, work=1), one(31, 30)])
    names = {name: {r.process for r in members} for name, members in found.items()}
    assert names == {"rank0": {25}, "rank1": {30, 31}}
    assert rawfiles.group([one(1, 0)]).keys() == {"rank0"}


# --- ranges ---------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from([layout.PUSH, layout.POP]), st.integers(1, 2), st.integers(0, 2)),
        max_size=60,
    )
)
def test_pushes_find_their_pops(events: list[tuple[int, int, int]]) -> None:
    """Against a stack for each thread and domain."""
    rows = np.zeros(len(events), layout.ROWS[layout.NVTX])
    rows["op"] = [op for op, _, _ in events]
    rows["domain"] = [domain for _, _, domain in events]
    thread = np.array([thread for _, thread, _ in events], np.int64)
    stacks: dict[tuple[int, int], list[int]] = {}
    expected = {}
    for row, (op, t, domain) in enumerate(events):
        stack = stacks.setdefault((t, domain), [])
        if op == layout.PUSH:
            stack.append(row)
            expected[row] = -1
        elif stack:
            expected[stack.pop()] = row
    opens, closes = _pushpop(rows, thread)
    assert dict(zip(opens.tolist(), closes.tolist(), strict=True)) == expected


def test_a_million_kernels_take_seconds(tmp_path: Path) -> None:
    import time

    n = 1_000_000
    kernels = np.zeros(n, layout.ROWS[layout.KERNEL])
    kernels["start"] = np.arange(1, n + 1) * 1000
    kernels["end"] = kernels["start"] + 900
    kernels["correlation"] = np.arange(1, n + 1)
    calls = np.zeros(n, layout.ROWS[layout.API])
    calls["start"], calls["end"] = kernels["start"], kernels["start"] + 10
    calls["correlation"], calls["thread"], calls["call"] = kernels["correlation"], 7, 211
    parts = [block(layout.META, b'{"type":"process","pid":7,"born_ns":1,"format":1}')]
    for at in range(0, n, 5000):
        parts.append(block(layout.KERNEL, kernels[at : at + 5000].tobytes(), rows=5000))
        parts.append(block(layout.API, calls[at : at + 5000].tobytes(), rows=5000))
    (tmp_path / "p7-1.raw").write_bytes(b"".join(parts))
    begin = time.process_time()
    convert(tmp_path / "p7-1.raw", tmp_path / "t.stepscope")
    assert time.process_time() - begin < 30
    assert Trace(tmp_path / "t.stepscope").rows("gpu_op") == n

"""Profiles of JAX: every table against what was written, and real ones against a naive reader."""

from __future__ import annotations

import gzip
import struct
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.captures import query_rows as rows
from tests.support.captures import written_job
from tests.support.xspace import Event, plane, training

from stepscope.api import Job
from stepscope.cache.store import Cache
from stepscope.importers.xplane.hlo import Instruction, Program
from stepscope.trace.errors import InputError

opened = partial(written_job, name="host.xplane.pb")


def test_every_table_is_as_it_was_written(tmp_path: Path) -> None:
    job = opened(training(steps=5, host_ns=0), tmp_path)
    meta = job.traces[0].meta
    assert meta.source == "xplane"
    assert meta.hostname == "node7"
    assert meta.origin_epoch_ns == 1_790_000_000_000_000_000
    assert meta.window_end_ns == 500_000_000
    assert meta.problems == []
    kernels = rows(
        job,
        "SELECT name, start_ns, end_ns - start_ns, grid_x, grid_y, block_x, registers, "
        "static_shared_bytes, dynamic_shared_bytes, graph_id, context, stream, correlation_id "
        "FROM gpu_op WHERE kind = 'kernel' ORDER BY start_ns LIMIT 1",
    )
    assert kernels == [
        ("loop_add_fusion_2", 1_300_500, 740_000, 64, 2, 256, 32, 16, 1024, 3, 1, 14, 1)
    ]
    assert rows(
        job,
        "SELECT name, copy_kind, bytes, src_memory, dst_memory, count(*) FROM gpu_op "
        "WHERE kind <> 'kernel' GROUP BY ALL ORDER BY name",
    ) == [
        ("[CUDA memcpy Host-to-Device]", "HtoD", 4096, "pinned", "device", 5),
        ("[CUDA memset]", None, 64, "device", None, 5),
    ]
    assert rows(job, "SELECT name, api, count(*) FROM api_call GROUP BY ALL ORDER BY 1") == [
        ("cuGraphLaunch", "driver", 5),
        ("cuMemcpyHtoDAsync", "driver", 5),
    ]
    assert rows(job, "SELECT name, count(*) FROM operator GROUP BY ALL") == [
        ("command_buffer_1", 5)
    ]
    # the inner one of each pair is the same call
    assert rows(job, "SELECT count(*) FROM range WHERE name = 'PjitFunction(train_step)'") == [(5,)]
    assert rows(job, "SELECT name FROM range WHERE name LIKE 'train step%' ORDER BY start_ns") == [
        (f"train step {n}",) for n in range(5)
    ]
    assert rows(
        job, "SELECT bytes, device, total_allocated_bytes, address FROM memory_event LIMIT 1"
    ) == [(512, 0, 512, 0)]
    assert rows(job, "SELECT name, count(*) FROM overhead GROUP BY ALL") == [("BUFFER_FLUSH", 5)]
    assert rows(job, "SELECT name, sm_count, clock_hz, compute_major FROM device") == [
        ("NVIDIA H200", 132, 1_980_000_000, 9)
    ]


def test_kernels_of_a_command_buffer_lead_to_their_lines(tmp_path: Path) -> None:
    job = opened(training(steps=3), tmp_path)
    assert rows(
        job,
        "SELECT g.name AS kernel, r.name, r.payload, count(*) FROM range r JOIN gpu_op g "
        "ON g.start_ns = r.start_ns AND g.stream = r.stream WHERE domain = 'hlo' "
        "GROUP BY ALL ORDER BY ALL",
    ) == [
        # a library's kernel, and one that shares the code of another, are known by their place
        ("gemm_library", "jit(train_step)/jvp()/dot_general", "custom-call.9 model.py:25", 3),
        ("loop_add_fusion_2", "jit(train_step)/add", "loop_add_fusion.3 model.py:28", 3),
        ("loop_add_fusion_2", "jit(train_step)/jvp()/add", "loop_add_fusion.2 model.py:21", 3),
        (
            "wrapped_convert",
            "jit(train_step)/convert_element_type",
            "wrapped_convert model.py:30",
            3,
        ),
    ]


def test_kernels_that_do_not_fit_the_program_are_told_nothing_by_place() -> None:
    """Names of the program's own kernels still tell; a library's do not."""
    made = [Instruction(f"loop_fusion.{n}", "fusion", "", f"a.py:{n}") for n in range(9)]
    program = Program(schedule=[*made, Instruction("custom-call", "custom-call", "", "a.py:9")])
    for instruction in program.schedule:
        program.add(instruction)
    assert program.in_order(["ampere_gemm"] * 6) == [None] * 6
    assert program.in_order(["loop_fusion_0"] * 9 + ["ampere_gemm"]) == program.schedule
    assert program.instruction("loop_fusion_4", "command_buffer") == made[4]
    assert program.instruction("ampere_gemm", "command_buffer") is None


def test_what_a_profile_lacks_comes_with_how_to_get_it(tmp_path: Path) -> None:
    meta = opened(training(steps=3), tmp_path).traces[0].meta
    lacking = {item.table: item.flag for item in meta.missing}
    assert "python_function" in lacking
    assert "python_tracer_level" in lacking["python_function"]
    assert not {"gpu_op", "api_call", "range"} & set(lacking)


def test_host_work_between_steps_is_the_cause(tmp_path: Path) -> None:
    diagnosis = opened(training(steps=8, host_ns=9_000_000), tmp_path).diagnose()
    assert diagnosis.verdict in ("host_compute", "input_starvation")
    assert "load() data.py:7" in str(diagnosis.findings[0].where)
    assert diagnosis.step_ns.median == pytest.approx(12_020_000, rel=0.01)


def test_a_busy_gpu_is_healthy(tmp_path: Path) -> None:
    diagnosis = opened(training(steps=8), tmp_path).diagnose()
    assert diagnosis.verdict == "gpu_bound_healthy"
    assert diagnosis.trace.steps == 8


@pytest.mark.parametrize("pack", [gzip.compress])
def test_packed_ones_hold_the_same(pack: Any, tmp_path: Path) -> None:
    data = training(steps=4)
    plain, packed = tmp_path / "a", tmp_path / "b"
    plain.mkdir()
    packed.mkdir()
    sql = "SELECT count(*), sum(end_ns - start_ns), min(start_ns) FROM gpu_op"
    assert rows(opened(data, plain), sql) == rows(opened(pack(data), packed, name="h.pb.gz"), sql)


def test_a_log_folder_is_a_job_of_its_hosts(tmp_path: Path) -> None:
    folder = tmp_path / "log" / "plugins" / "profile" / "2026_11_22"
    folder.mkdir(parents=True)
    (folder / "a.xplane.pb").write_bytes(training(steps=4))
    (folder / "b.xplane.pb").write_bytes(training(steps=4))
    job = Job([tmp_path / "log"], cache=Cache(tmp_path / "cache"))
    assert len(job.traces) == 2
    other = folder.with_name("2026_11_23")
    other.mkdir()
    (other / "a.xplane.pb").write_bytes(training(steps=4))
    with pytest.raises(InputError, match=r"profiles of 2 times; name one of them, as \S+_23$"):
        Job([tmp_path / "log"], cache=Cache(tmp_path / "cache"))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_cut_profile_is_refused(share: float, tmp_path: Path) -> None:
    data = training(steps=4)
    with pytest.raises(InputError, match="damaged or not whole") as raised:
        opened(data[: int(len(data) * share)], tmp_path)
    assert "\n" not in str(raised.value)


def test_numbers_of_events_without_names_are_shown(tmp_path: Path) -> None:
    unnamed = plane("/device:GPU:0", {"Stream #1(Kernel)": [Event("", 0, 10)]})
    assert rows(opened(unnamed, tmp_path), "SELECT name FROM gpu_op") == [("[event 1]",)]


# A naive reader: object by object, in plain Python.


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _walk(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif kind == 1:
            yield key >> 3, struct.unpack("<d", data[at : at + 8])[0]
            at += 8
        else:
            size, at = _varint(data, at)
            yield key >> 3, data[at : at + size]
            at += size


def naive_work(data: bytes) -> dict[tuple[str, str, str], list[int]]:
    """Number and picoseconds of the events of each name on each stream of each device."""
    found: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for number, space in _walk(data):
        if number != 1:
            continue
        parts = list(_walk(space))
        title = next(value for n, value in parts if n == 2).decode()
        if not title.startswith("/device:GPU"):
            continue
        names = {}
        for n, value in parts:
            if n == 4:
                entry = dict(_walk(value))
                names[entry[1]] = dict(_walk(entry[2])).get(2, b"").decode()
        for n, value in parts:
            if n != 3:
                continue
            line = list(_walk(value))
            stream = next(v for k, v in line if k == 2).decode()
            for k, v in line:
                if k == 4:
                    event = dict(_walk(v))
                    work = found[title, stream, names[event[1]]]
                    work[0] += 1
                    work[1] += event.get(3, 0)
    return found


@pytest.mark.parametrize(
    "name",
    [
        "h200-2/jax_healthy.xplane.pb.gz",
        "h200-2/jax_starved.xplane.pb.gz",
        "public/formats/jax_conv.mi300.xplane.pb",
    ],
)
def test_real_profiles_hold_what_a_naive_reader_finds(
    name: str, shared_data: Path, tmp_path: Path
) -> None:
    path = shared_data.parent / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    data = path.read_bytes()
    naive = naive_work(gzip.decompress(data) if name.endswith(".gz") else data)
    job = Job([path], cache=Cache(tmp_path))
    found = {
        (f"/device:GPU:{device}", stream, text): (count, total)
        for device, stream, text, count, total in rows(
            job,
            "SELECT device, stream, name, count(*), sum(end_ns - start_ns)::BIGINT FROM gpu_op "
            "WHERE kind = 'kernel' GROUP BY ALL",
        )
    }
    expected = {
        (device, int(line.split("#")[1].split("(")[0]), text): work
        for (device, line, text), work in naive.items()
        if not text.startswith("Mem")
    }
    assert {key: count for key, (count, _) in found.items()} == {
        key: count for key, (count, _) in expected.items()
    }
    for key, (count, total_ns) in found.items():
        assert abs(total_ns * 1000 - expected[key][1]) <= 1000 * count


@pytest.mark.parametrize(
    ("name", "verdict", "step_ns"),
    [("jax_healthy", "gpu_bound_healthy", 8_100_000), ("jax_starved", "host_compute", 44_900_000)],
)
def test_the_planted_causes_are_found(
    name: str, verdict: str, step_ns: int, shared_data: Path, tmp_path: Path
) -> None:
    path = shared_data.parent / "h200-2" / f"{name}.xplane.pb.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    diagnosis = Job([path], cache=Cache(tmp_path)).diagnose()
    assert diagnosis.verdict == verdict
    assert diagnosis.step_ns.median == pytest.approx(step_ns, rel=0.08)
    if verdict == "host_compute":
        assert "train2.py:38" in str(diagnosis.findings[0].where)
        assert diagnosis.findings[0].predicted_step_ns == pytest.approx(8_000_000, rel=0.1)


def test_every_kernel_of_a_real_command_buffer_has_its_line(
    shared_data: Path, tmp_path: Path
) -> None:
    """The program's schedule and the kernels are told by different parts of the profile."""
    path = shared_data.parent / "h200-2" / "jax_healthy.xplane.pb.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    job = Job([path], cache=Cache(tmp_path))
    known = (
        "SELECT g.name, r.payload FROM range r JOIN gpu_op g ON g.start_ns = r.start_ns "
        "AND g.stream = r.stream WHERE domain = 'hlo' AND g.kind = 'kernel'"
    )
    found = rows(job, known)
    assert len(found) == 3024
    for kernel, payload in found:
        instruction = payload.split(" ")[0]
        assert instruction != "command_buffer_1"
        # a fusion's kernel has the name of its own kind of fusion; a library's is a custom call
        stem = instruction.split(".")[0].replace("-", "_")
        assert kernel.startswith(stem) or (stem == "custom_call" and kernel.startswith("nvjet"))
    assert sum("train2.py:" in payload for _, payload in found) > 0.8 * len(found)


def test_operators_by_source_are_the_lines_that_kernels_were_compiled_from(tmp_path: Path) -> None:
    job = opened(training(steps=6), tmp_path)
    found = rows(job, "SELECT source, count(*) FROM kernel_category WHERE steady GROUP BY ALL")
    steady = rows(job, "SELECT count(*) FROM step WHERE steady")[0][0]
    lines = {source: count for source, count in found if source is not None}
    assert lines == {f"model.py:{line}": steady for line in (21, 25, 28, 30)}


def test_copies_of_an_amd_gpu_are_no_kernels(tmp_path: Path) -> None:
    """ROCm's tracer names them after what moves, and their stream after its own kind of copy."""
    names = ("CopyDeviceToDevice", "CopyHostToDevice", "CopyDeviceToHost2D", "FillBuffer", "gemm")
    events = [Event(name, 10_000 * n, 5_000, {"correlation_id": n}) for n, name in enumerate(names)]
    lines = {"Stream #8(MemcpyOther)": events}
    data = plane("/device:GPU:0", lines, {"device_vendor": "AMD"}, timestamp_ns=500)
    found = rows(
        opened(data, tmp_path), "SELECT kind, copy_kind, name FROM gpu_op ORDER BY start_ns"
    )
    assert found == [
        ("memcpy", "DtoD", "[CUDA memcpy Device-to-Device]"),
        ("memcpy", "HtoD", "[CUDA memcpy Host-to-Device]"),
        ("memcpy", "DtoH", "[CUDA memcpy Device-to-Host]"),
        ("memset", None, "[CUDA memset]"),
        ("kernel", None, "gemm"),
    ]

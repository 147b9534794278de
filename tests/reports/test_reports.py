"""Reports and rules on small traces made by hand, their arguments, and user reports."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.build import Build
from tests.support.captures import DATA, unpack

from stepscope.cache.store import Cache
from stepscope.importers.registry import load
from stepscope.render.report_format import parse_format
from stepscope.render.report_text import render
from stepscope.reports.arrays import round_half_away
from stepscope.reports.registry import DEFAULT, reports, rules
from stepscope.reports.report import answer, parse
from stepscope.reports.source import Source, range_scope
from stepscope.reports.user import user_reports
from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.problems import Problem
from stepscope.trace.scope import Scope, parse_time, time_scope
from stepscope.trace.store import read_meta, write_meta
from stepscope.trace.trace import Trace


def rows(trace: Trace, name: str, scope: Scope | None = None) -> list[dict[str, Any]]:
    known = rules() if name.partition(":")[0] in rules() else reports()
    outcome = answer(parse(name, known), Source(trace, scope))
    assert outcome.table is not None, outcome.missing
    found: list[dict[str, Any]] = outcome.table.to_pylist()
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    made = Build()
    made.range(0, 100, "step")
    made.range(10, 60, "forward")
    made.kernel(20, 30, call=(11, 13), name="gemm")
    made.kernel(30, 36, call=(14, 15), name="relu")
    made.kernel(70, 80, call=(65, 75), name="gemm")
    made.kernel(200, 204, name="gemm")
    made.copy(40, 45, call=(20, 50), size=3000, src="pageable", call_name="cudaMemcpy")
    made.api(90, 99, "cudaStreamSynchronize")
    return made.trace(tmp_path)


KERNELS = {
    "Name": ["gemm", "relu"], "Instances": [3, 1], "Total Time": [24_000, 6000],
    "Avg": [8000.0, 6000.0], "Med": [10_000.0, 6000.0], "Min": [4000, 6000],
    "Max": [10_000, 6000], "StdDev": [3464.1, 0.0], "Time": [80.0, 20.0],
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("cuda_gpu_kern_sum", KERNELS),
        (
            "cuda_gpu_kern_sum:nvtx-name",  # the innermost range
            {"Name": ["forward/gemm", "step/gemm", "forward/relu", "gemm"],
             "Instances": [1, 1, 1, 1]},
        ),
        (
            "cuda_kern_exec_trace",  # one that starts before its call returns has no queue
            {"Queue Dur": [7000, 15_000, None], "Total Dur": [19_000, 22_000, 15_000]},
        ),
        (
            "cuda_kern_exec_sum",  # longest mean total first
            {"Kernel Name": ["relu", "gemm"], "Count": [1, 2], "QCount": [1, 1],
             "QAvg": [15_000.0, 7000.0], "QStdDev": [0.0, 0.0], "TAvg": [22_000.0, 17_000.0]},
        ),
        (
            "nvtx_kern_sum",  # kernels count in every enclosing range
            {"NVTX Range": [None, "forward", "forward", "step", "step"],
             "Kernel Name": ["gemm", "gemm", "relu", "gemm", "relu"],
             "Kern Inst": [1, 1, 1, 2, 1]},
        ),
        (
            "nvtx_gpu_proj_trace",  # a projection spans the work of a range
            {"Name": ["step", "forward"], "Projected Start": [20_000, 20_000],
             "Projected Duration": [60_000, 25_000], "NumGPUOps": [4, 3], "NumChild": [1, 0],
             "ParentId": [None, 0], "RangeId": [0, 1]},
        ),
        (
            "nvtx_pushpop_trace",
            {"Name": ["step", "forward"], "DurChild": [50_000, 0], "DurNonChild": [50_000, 50_000],
             "NumChild": [1, 0], "Lvl": [0, 1], "NameTree": ["step", "--forward"]},
        ),
        ("cuda_api_sync", {"Duration": [9000]}),
        ("cuda_memcpy_sync", {}),  # small host-to-device copies do not matter
        ("cuda_memcpy_async", {}),
        ("gpu_gaps:gap=0", {"Duration": [120_000, 25_000, 4000]}),  # of any stream
        ("gpu_gaps:gap=0:rows=1", {"Duration": [120_000]}),
    ],
)  # fmt: skip
def test_rows_of_a_trace_made_by_hand(
    trace: Trace, asked: str, expected: dict[str, list[Any]]
) -> None:
    found = rows(trace, asked)
    assert {name: [row[name] for row in found] for name in expected} == expected
    assert bool(found) == bool(expected)


def test_window_keeps_what_touches_it_unclipped(trace: Trace) -> None:
    (gemm, relu) = rows(trace, "cuda_gpu_kern_sum", Scope(25_000, 31_000))
    assert (gemm["Total Time"], relu["Total Time"]) == (10_000, 6000)
    # a joined report needs the call inside, too
    assert rows(trace, "cuda_kern_exec_trace", Scope(25_000, 31_000)) == []


def test_filter_by_range(trace: Trace) -> None:
    scope = range_scope(trace, "forward/0")
    assert scope is not None
    assert (scope.start_ns, scope.end_ns, scope.thread_id) == (10_000, 60_000, None)
    assert range_scope(trace, "forward/1") is None
    assert range_scope(trace, "forward@lib") is None


def test_use_is_a_sum_over_streams(tmp_path: Path) -> None:
    made = Build()
    made.kernel(0.001, 100, stream=1)
    made.kernel(50, 100, stream=2)
    made.kernel(190, 200)
    found = rows(made.trace(tmp_path), "gpu_time_util:chunks=2:threshold=60")
    assert [r["In-Use"] for r in found] == [10.0]


def test_missing_data_names_the_option(trace: Trace) -> None:
    for name in ("osrt_sum", "mpi_event_trace", "um_sum", "openacc_sum", "network_congestion"):
        outcome = answer(parse(name, reports()), Source(trace))
        assert outcome.table is None
        assert "nsys profile" in outcome.missing
        assert "\n" not in outcome.missing


def test_every_report_answers_or_says_why(trace: Trace, tmp_path: Path) -> None:
    empty = Build()
    empty.api(0, 1, "cudaMalloc")
    (tmp_path / "second").mkdir()
    for some in (trace, empty.trace(tmp_path / "second")):
        source = Source(some)
        for known in (reports(), rules()):
            for name, report in known.items():
                outcome = answer(parse(name, known), source)
                assert bool(outcome.missing) == (outcome.table is None)
                if outcome.table is not None:
                    assert outcome.table.column_names == [c.label for c in report.columns]
                    for format_ in ("column", "table", "csv", "tsv", "json", "hdoc", "htable"):
                        text = render(outcome.table, parse_format(format_))
                        if format_ == "json":
                            assert len(json.loads(text)) == outcome.table.num_rows


def test_all_reports_are_documented() -> None:
    assert set(DEFAULT) <= reports().keys()
    aliases = [alias for report in reports().values() for alias in report.aliases]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & reports().keys()
    for report in (*reports().values(), *rules().values()):
        assert report.doc.endswith(".")
        assert len(report.doc) > 30
    for rule in rules().values():
        assert rule.advice
        assert rule.none_found


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("cuda_gpu_kern_sun", "did you mean 'cuda_gpu_kern_sum'"),
        ("cuda_gpu_kern_sum:bas", "did you mean 'base'"),
        ("cuda_api_sum:base", "takes no arguments"),
        ("cuda_gpu_kern_sum:base:mangled", "not both"),
        ("cuda_gpu_kern_sum:base=1", "takes no value"),
        ("um_sum:rows=many", "needs a whole number"),
        ("um_sum:rows=-2", "at least -1"),
    ],
)
def test_wrong_requests_say_what_is_near(asked: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(asked, reports())


def test_old_names_are_aliases() -> None:
    assert parse("gpukernsum:base", reports()).report.name == "cuda_gpu_kern_sum"
    assert parse("unifiedmemory:rows=3", reports()).values == {"rows": 3}


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1s2ms3us4ns", 1_002_003_004),
        ("2ns5us2", 5004),
        ("2.5ms", 2_500_000),
        ("1e3us", 1_000_000),
        ("-1ms", -1_000_000),
        ("1m", 60_000_000_000),
    ],
)
def test_times(text: str, ns: int) -> None:
    assert parse_time(text) == ns


@pytest.mark.parametrize("text", ["", "/", "5", "2ms/1ms", "x/1ms", "1parsec/"])
def test_wrong_windows(text: str) -> None:
    with pytest.raises(UsageError):
        time_scope(text)


def test_rounding_goes_away_from_zero_on_the_decimal() -> None:
    values = np.array([0.05, 0.15, 2.25, 44081.85, 62741.45, -0.25, 1.04, 0.0])
    assert round_half_away(values).tolist() == [0.1, 0.2, 2.3, 44081.9, 62741.5, -0.3, 1.0, 0.0]


LENGTHS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 40)), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(LENGTHS)
def test_statistics_by_name(pairs: list[tuple[int, int]]) -> None:
    import statistics as plain

    with tempfile.TemporaryDirectory() as folder:
        made = Build()
        for key, length_ns in pairs:
            made.kernel(0, 0, name=f"kernel {key}")
            made.rows["gpu_op"][-1]["end_ns"] = length_ns
        found = rows(made.trace(Path(folder)), "cuda_gpu_kern_sum")
    whole = sum(length for _, length in pairs)
    by_key = {f"kernel {key}": [n for k, n in pairs if k == key] for key, _ in pairs}
    assert {row["Name"] for row in found} == by_key.keys()
    totals = [row["Total Time"] for row in found]
    assert totals == sorted(totals, reverse=True)
    for row in found:
        mine = by_key[row["Name"]]
        assert (row["Total Time"], row["Instances"]) == (sum(mine), len(mine))
        assert (row["Min"], row["Max"]) == (min(mine), max(mine))
        assert row["Avg"] == round_half_away(np.array([sum(mine) / len(mine)]))[0]
        assert row["Med"] == plain.median(mine)
        deviation = plain.stdev(mine) if len(mine) > 1 else 0.0
        assert row["StdDev"] == pytest.approx(deviation, rel=1e-9, abs=0.051)
        share = None if not whole else round_half_away(np.array([sum(mine) * 100.0 / whole]))[0]
        assert row["Time"] == share


SQL = """-- title: Long kernels
-- unit: length_ns=dur
SELECT name, end_ns - start_ns AS length_ns FROM gpu_op ORDER BY length_ns DESC, id LIMIT 1
"""
PYTHON = """
from stepscope.reports import Column, Report

def run(source, arguments):
    kernels = source.kernels()
    return [kernels["start_ns"], kernels.duration]

REPORTS = [Report("mine", "Mine", "Starts.", (Column("Start", "ts"), Column("Length", "dur")), run)]
"""


def test_a_file_in_a_folder_becomes_a_report(trace: Trace, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "long_kernels.sql").write_text(SQL)
    (folder / "mine.py").write_text(PYTHON)
    known = user_reports([folder])
    table = answer(parse("long_kernels", known), Source(trace)).table
    assert table is not None
    assert render(table, parse_format("csv:time=us")) == "name,length_ns (us)\ngemm,10.000\n"
    mine = answer(parse("mine", known), Source(trace)).table
    assert mine is not None
    assert mine.num_rows == 4


def test_own_sql_sees_the_rows_that_a_filter_leaves(trace: Trace, tmp_path: Path) -> None:
    statements = {
        "kernels": "SELECT count(*) AS n, min(rank) AS rank FROM gpu_op WHERE kind = 'kernel'",
        "calls": "SELECT count(*) AS n, 0 AS rank FROM api_call JOIN range USING (process_id)",
        "none": "SELECT count(*) AS n, 0 AS rank FROM mpi_event",
    }
    for name, sql in statements.items():
        (tmp_path / f"{name}.sql").write_text(sql)
    known = user_reports([tmp_path])

    def counted(name: str, scope: Scope) -> int:
        table = answer(parse(name, known), Source(trace, scope)).table
        assert table is not None
        (row,) = table.to_pylist()
        assert row["rank"] == 0
        found: int = row["n"]
        return found

    forward = range_scope(trace, "forward")
    assert forward is not None
    assert [counted("kernels", scope) for scope in (Scope(), forward)] == [4, 2]
    calls = sum(row["Num Calls"] for row in rows(trace, "cuda_api_sum", forward))
    assert counted("calls", forward) == calls * 2  # both ranges overlap the window
    assert counted("none", forward) == 0


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT star_ns FROM gpu_op", "did you mean 'start_ns'"),
        ("SELECT * FROM gpu_ops", "did you mean 'gpu_op'"),
    ],
)
def test_wrong_names_in_sql_say_what_is_near(
    trace: Trace, tmp_path: Path, sql: str, message: str
) -> None:
    (tmp_path / "wrong.sql").write_text(sql)
    with pytest.raises(UsageError, match=message):
        answer(parse("wrong", user_reports([tmp_path])), Source(trace))


def test_errors_of_own_reports_are_one_line(trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PYTHON.replace("kernels.duration]", "1 / 0]"))
    with pytest.raises(UsageError, match=r"mine.py failed: ZeroDivisionError"):
        answer(parse("mine", user_reports([tmp_path])), Source(trace))
    (tmp_path / "mine.py").write_text(PYTHON.replace(", kernels.duration]", "]"))
    with pytest.raises(UsageError, match="2 columns of equal length"):
        answer(parse("mine", user_reports([tmp_path])), Source(trace))


def test_hexadecimal_numbers_stay_text() -> None:
    import pyarrow as pa

    fields = [pa.field("guid", pa.int64(), metadata={"unit": "hex"})]
    table = pa.table([pa.array([0x98039E03, -1])], schema=pa.schema(fields))
    assert json.loads(render(table, parse_format("json"))) == [
        {"guid": "98039e03"},
        {"guid": "ffffffffffffffff"},
    ]
    assert render(table, parse_format("csv")).split() == ["guid", "98039e03", "ffffffffffffffff"]


def test_files_that_are_no_reports(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        user_reports([tmp_path])
    (tmp_path / "broken.py").write_text("REPORTS = 5")
    with pytest.raises(InputError, match="must set REPORTS"):
        user_reports([tmp_path])
    with pytest.raises(InputError, match="not a folder"):
        user_reports([tmp_path / "missing"])


def test_rows_of_reports_in_python_equal_those_of_frames(trace: Trace) -> None:
    source, part = Source(trace), Source(trace, Scope(25_000, 66_000))
    for table in ("gpu_op", "api_call", "range", "sync"):
        for name in trace.arrow(table).column_names:
            frame, alone = trace.frame(table, name), source.rows(table)
            assert np.array_equal(alone[name], frame[name])
            if name in frame.texts:
                assert alone.texts(name) == frame.texts[name]
        both = trace.frame(table, "start_ns", "end_ns")
        assert np.array_equal(source.rows(table).duration, both["end_ns"] - both["start_ns"])
        starts = part.rows(table)["start_ns"]
        touched = (both["start_ns"] < 66_000) & (both["end_ns"] >= 25_000)
        assert starts.tolist() == both["start_ns"][touched].tolist()


@pytest.mark.parametrize("what", ["cut", "rows", "types", "bytes"])
def test_a_damaged_table_is_one_sentence(trace: Trace, what: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = trace.folder / "gpu_op.parquet"
    if what == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif what == "bytes":
        raw = bytearray(path.read_bytes())
        raw[4 : len(raw) // 2] = bytes(len(raw) // 2 - 4)
        path.write_bytes(raw)
    else:
        table = pq.read_table(path)
        if what == "types":
            at = table.column_names.index("start_ns")
            table = table.set_column(at, "start_ns", table["start_ns"].cast(pa.string()))
        pq.write_table(table.slice(0, 2) if what == "rows" else table, path)
    with pytest.raises(InputError, match=r"gpu_op\.parquet is damaged"):
        answer(parse("cuda_gpu_trace", reports()), Source(trace))


def test_long_tables_are_read_on_several_cores(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    path = trace.folder / "gpu_op.parquet"
    stored = pq.read_table(path)
    names = ("cuda_gpu_trace", "cuda_gpu_kern_sum:base", "cuda_gpu_mem_size_sum", "gpu_gaps:gap=0")
    expected = [rows(trace, name) for name in names]
    monkeypatch.setattr("stepscope.sql.files.MANY_ROWS", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    for size in (1, 2, 100):
        pq.write_table(stored, path, row_group_size=size)
        write_meta(trace.folder, read_meta(trace.folder))
        assert [rows(Trace(trace.folder), name) for name in names] == expected, size


def test_a_statement_that_fails_late_is_one_sentence(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.sql.files.MANY_ROWS", 1)
    late = "SELECT CASE WHEN range > 300000 THEN error('late') END FROM range(400000)"
    for coded in (False, True):
        with pytest.raises(UsageError, match="cannot be evaluated"):
            Source(trace).table(late, coded=coded)


def test_pageable_copies_that_nothing_hides(tmp_path: Path) -> None:
    made = Build()
    made.kernel(0, 10)
    made.copy(2, 8, src="pageable", stream=1)
    made.copy(20, 40, src="pageable")
    made.copy(50, 90, src="pinned")
    made.kernel(36, 60)
    trace = made.trace(tmp_path)
    assert rows(trace, "pageable_copy_exposed") == []
    (copy,) = rows(trace, "pageable_copy_exposed:overlap=20")
    assert (copy["Duration"], copy["Overlap"]) == (20_000, 20.0)


def test_storms_of_tiny_kernels(tmp_path: Path) -> None:
    made = Build()
    for number in range(30):
        made.kernel(number * 10, number * 10 + 2)
    made.kernel(400, 500)
    for number in range(5):
        made.kernel(600 + number * 10, 602 + number * 10)
    (storm,) = rows(made.trace(tmp_path), "tiny_kernels:count=20")
    assert (storm["Kernels"], storm["Start"], storm["Duration"]) == (30, 0, 292_000)
    assert storm["Busy"] == 20.5


def test_grids_smaller_than_the_gpu(tmp_path: Path) -> None:
    made = Build()
    for blocks, name in ((4, "few"), (90, "most"), (400, "many")):
        made.kernel(blocks, blocks + 1, name=name)
        made.rows["gpu_op"][-1] |= {"grid_x": blocks, "grid_y": 1, "grid_z": 1}
    made.rows["device"] = [{"process_id": 100, "device": 0, "sm_count": 100}]
    trace = made.trace(tmp_path)
    (small,) = rows(trace, "small_grids")
    assert (small["Name"], small["Blocks"], small["SMs"], small["Time"]) == ("few", 4, 100, 33.3)
    assert [r["Name"] for r in rows(trace, "small_grids:filled=100")] == ["few", "most"]


def training(calls: dict[int, str]) -> Build:
    made = Build()
    for step in range(12):
        begin = step * 1000
        made.range(begin, begin + 950, f"step_{step}")
        for number in range(5):
            at = begin + 50 + number * 150
            made.kernel(at + 10, at + 140, call=(at, at + 5))
        if step in calls:
            made.api(begin + 900, begin + 940, calls[step])
    return made


def test_allocation_and_module_loading_in_the_step(tmp_path: Path) -> None:
    trace = training({5: "cudaMalloc", 6: "cudaMalloc", 8: "cuModuleLoadData"}).trace(tmp_path)
    assert rows(trace, "allocation_in_step") == rows(trace, "module_loading_in_step") == []
    (allocation,) = rows(trace, "allocation_in_step:share=0")  # 80 us of some 12 ms
    assert (allocation["API Name"], allocation["Num Calls"]) == ("cudaMalloc", 2)
    assert allocation["Total Time"] == 80_000
    (module,) = rows(trace, "module_loading_in_step:share=0")
    assert module["API Name"] == "cuModuleLoadData"
    (tmp_path / "often").mkdir()
    often = training(dict.fromkeys(range(12), "cudaFree")).trace(tmp_path / "often")
    (release,) = rows(often, "allocation_in_step")
    assert (release["Calls a Step"], release["Avg"]) == (1.0, 40_000.0)


def test_capture_quality(tmp_path: Path) -> None:
    made = training({})
    assert not any(r["Check"] == "too short" for r in rows(made.trace(tmp_path), "capture_quality"))
    (tmp_path / "other").mkdir()
    made.rows["overhead"] = [{"start_ns": 1_000_000, "end_ns": 9_000_000, "name": "flush"}]
    found = rows(made.trace(tmp_path / "other"), "capture_quality:steps=100")
    assert {"too short", "profiler overhead"} <= {r["Check"] for r in found}


def test_missing_launches_make_a_capture_doubtful(tmp_path: Path) -> None:
    lost = Problem("unresolved_correlation", "notice", 3, ["gpu_op"], "no call", "record it")
    for name, count, doubtful in (("few", 300, False), ("many", 299, True)):
        made = Build()
        for at in range(count):
            made.kernel(10 * at + 5, 10 * at + 9, call=(10 * at, 10 * at + 2))
        (tmp_path / name).mkdir()
        trace = made.trace(tmp_path / name)
        trace.meta.problems.append(lost)
        found = {r["Check"]: r["Value"] for r in rows(trace, "capture_quality")}
        assert found.get("launches missing") == ("1.0 %" if doubtful else None)


def test_only_much_warm_up_makes_a_capture_doubtful(tmp_path: Path) -> None:
    for name, length, doubtful in (("short", 2000, False), ("long", 20_000, True)):
        made = Build()
        made.range(0, length - 50, "step_0")
        made.kernel(10, length - 60, call=(1, 5))
        for step in range(11):
            at = length + step * 1000
            made.range(at, at + 950, f"step_{step + 1}")
            made.kernel(at + 10, at + 900, call=(at + 1, at + 5))
        (tmp_path / name).mkdir()
        found = {row["Check"] for row in rows(made.trace(tmp_path / name), "capture_quality")}
        assert ("warm-up included" in found) == doubtful


KINETO = Path(__file__).parents[1] / "importers" / "kineto_data" / "ddp_rank2.json.zst"


KINETO_CAPTURES = [KINETO, *(DATA / f"kineto/{name}.json.gz" for name in ("cnn_disk", "gpt_graph"))]
"""With communication, with copies and a loader, with CUDA graphs."""


@pytest.mark.parametrize("path", KINETO_CAPTURES, ids=lambda path: path.name.partition(".")[0])
def test_every_report_answers_on_kineto_or_says_what_would(path: Path) -> None:
    everything_about(load(path, Cache()), in_parts=path == KINETO)


@pytest.mark.parametrize("name", ["gpt_graph", "cnn_small", "gpt1024_pageable_h2d"])
def test_every_report_answers_on_nsys_or_says_what_would(name: str, tmp_path: Path) -> None:
    trace = load(unpack(DATA / "nsys" / f"{name}.sqlite.xz"), Cache())
    missing = everything_about(trace, in_parts=name == "cnn_small")
    if name == "gpt_graph":
        assert "--cuda-graph-trace=node" in missing["tiny_kernels"]


SHOWN = 100


def everything_about(trace: Trace, *, in_parts: bool) -> dict[str, str]:
    """Every report and rule on the trace; also on a part of it and on a window without events."""
    middle = trace.meta.window_end_ns // 2
    missing: dict[str, str] = {}
    parts = (Scope(middle, middle + 10_000_000), Scope(1, 2)) if in_parts else ()
    for scope in (Scope(), *parts):
        source = Source(trace, scope)  # as ``stats`` does: one for all reports
        for known in (reports(), rules()):
            for name in known:
                outcome = answer(parse(name, known), source)
                if outcome.table is None:
                    assert re.search(r"capture with (nsys|torch)", outcome.missing), name
                    assert outcome.missing.startswith(trace.path.name)
                    missing[name] = outcome.missing
                    continue
                assert name not in missing  # a filter leaves out rows, not kinds of data
                shown = outcome.table.slice(0, SHOWN)  # rows are alike, columns are not
                for format_ in ("csv", "json", "column"):
                    assert render(shown, parse_format(format_))
    return missing


def test_a_kineto_trace_answers_wherever_the_data_exists() -> None:
    trace = load(KINETO, Cache())
    answered, source = set(), Source(trace)
    for known in (reports(), rules()):
        for name in known:
            outcome = answer(parse(name, known), source)
            assert bool(outcome.missing) == (outcome.table is None)
            if outcome.table is not None and outcome.table.num_rows:
                answered.add(name)
    wanted = {"cuda_gpu_kern_sum", "cuda_api_sum", "cuda_gpu_mem_time_sum", "cuda_kern_exec_sum"}
    assert wanted | {"nvtx_sum", "nvtx_kern_sum", "nvtx_gpu_proj_sum", "nccl_sum"} <= answered
    work = trace.frame("gpu_op", "kind", "start_ns", "end_ns")
    kernels = work.take(work.equals("kind", "kernel"))
    total = int((kernels["end_ns"] - kernels["start_ns"]).sum())
    assert sum(row["Total Time"] for row in rows(trace, "cuda_gpu_kern_sum")) == total
    calls = {row["Name"] for row in rows(trace, "cuda_api_sum")}
    assert "cudaLaunchKernel" in calls
    ops = {row["Operation"] for row in rows(trace, "cuda_gpu_mem_time_sum")}
    assert ops <= {"[CUDA memset]", "[CUDA memcpy Host-to-Device]", "[CUDA memcpy Device-to-Host]",
                   "[CUDA memcpy Device-to-Device]"}  # fmt: skip

"""``stepscope operators`` against torch's own tables, and against a naive model of them.

``tests/data/key_averages`` holds traces with what ``key_averages()`` said when they were recorded
(``benchmarks/captures/key_averages.py``).
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope, is_one_line
from tests.support.build import AUTOGRAD, Build
from tests.support.captures import DATA, unpack

from stepscope.operators.averages import operator_averages
from stepscope.operators.scope import Source
from stepscope.trace.errors import UsageError

TABLES = DATA.parent / "key_averages"
RECORDED = sorted(
    path.name.removesuffix(".table.json.gz") for path in TABLES.glob("*.table.json.gz")
)

Cells = dict[tuple[bool, str, str], tuple[int, ...]]


def ns(microseconds: float) -> int:
    return round(microseconds * 1e3)


def of_torch(rows: list[dict[str, Any]], by_shape: bool) -> Cells:
    found: Cells = {}
    for row in rows:
        if row["device_type"] != "CPU":
            continue
        shapes = json.dumps(row["shapes"] or [], separators=(",", ":")) if by_shape else ""
        found[row["annotation"], row["key"], shapes] = (
            row["count"],
            ns(row["self_cpu_time_total"]),
            ns(row["cpu_time_total"]),
            ns(row["self_device_time_total"]),
            ns(row["device_time_total"]),
            row["self_cpu_memory_usage"],
            row["cpu_memory_usage"],
            row["self_device_memory_usage"],
            row["device_memory_usage"],
        )
    return found


def of_stepscope(document: dict[str, Any], *, memory: bool = True) -> Cells:
    columns = ["calls", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns"]
    if memory:
        columns += ["self_cpu_memory_bytes", "cpu_memory_bytes"]
        columns += ["self_device_memory_bytes", "device_memory_bytes"]
    return {
        (row["kind"] == "annotation", row["name"], row["shapes"]): tuple(
            row[column] or 0 for column in columns
        )
        for row in document["operators"]
        if row["kind"] not in ("python", "unlinked")
    }


@pytest.mark.parametrize("by", ["name", "shape"])
@pytest.mark.parametrize("name", RECORDED)
def test_every_cell_is_that_of_torch(reader: Stepscope, name: str, by: str) -> None:
    with gzip.open(TABLES / f"{name}.table.json.gz") as stream:
        table = json.load(stream)
    # the tables of the CPU are of PyTorch 2.14, which counts Python functions as events
    python = ["--python"] if table["torch"].startswith("2.14") else []
    path = TABLES / f"{name}.json.gz"
    document: dict[str, Any] = reader.json("operators", path, "--by", by, *python)
    assert document["schema"] == "stepscope.operators/2"
    expected = of_torch(table[f"by_{by}"], by == "shape")
    assert len(expected) > 20
    assert of_stepscope(document) == expected
    flops = {
        (row["key"], str(row["shapes"] or [])): row["flops"]
        for row in table["by_shape"]
        if row["flops"]
    }
    if by == "shape" and flops:
        mine = {
            (row["name"], str(json.loads(row["shapes"]))): row["flop"]
            for row in document["operators"]
            if row["kind"] == "operator"
        }
        assert {key: mine[key] for key in flops} == flops


@dataclass
class Naive:
    """One event, as torch's post-processing has it."""

    name: str
    kind: str
    start: int
    end: int
    thread: object
    own_device: int = 0
    children: list[Naive] = field(default_factory=list)
    parent: Naive | None = None

    def device(self) -> int:
        return self.own_device + sum(child.device() for child in self.children)


def naive_table(path: Path) -> Cells:
    """Torch's rules, event by event, from the JSON itself."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as stream:
        raw = json.load(stream)["traceEvents"]
    spans = [e for e in raw if e.get("ph") == "X"]
    base = min(e["ts"] for e in spans)

    def made(event: dict[str, Any], kind: str) -> Naive:
        start = round((event["ts"] - base) * 1e3)
        name = "ProfilerStep*" if event["name"].startswith("ProfilerStep#") else event["name"]
        return Naive(name, kind, start, start + round(event["dur"] * 1e3),
                     (event["pid"], event["tid"]))  # fmt: skip

    hidden = {"aten::is_leaf", "aten::output_nr", "aten::_version"}
    kinds = {"cpu_op": "operator", "user_annotation": "annotation"}
    events: list[Naive] = []
    by_id: dict[int, Naive] = {}
    for e in spans:
        kind = kinds.get(e.get("cat", ""))
        if kind is None or e["name"] in hidden:
            continue
        one = made(e, kind)
        events.append(one)
        if kind == "operator":
            by_id[e["args"]["External id"]] = one
    for e in spans:
        category = e.get("cat", "")
        target = by_id.get(e.get("args", {}).get("External id", -1))
        if category in ("cuda_runtime", "cuda_driver"):
            one = made(e, "call")
            one.thread = target.thread if target is not None else one.thread
            events.append(one)
        elif category in ("kernel", "gpu_memcpy", "gpu_memset") and target is not None:
            target.own_device += round(e["dur"] * 1e3)
    threads = defaultdict(list)
    for one in events:
        threads[one.thread].append(one)
    for mine in threads.values():
        open_: list[Naive] = []
        for one in sorted(mine, key=lambda e: (e.start, -e.end)):
            while open_ and (one.start >= open_[-1].end or one.end > open_[-1].end):
                open_.pop()
            if open_:
                one.parent = open_[-1]
                open_[-1].children.append(one)
            open_.append(one)
    kept = []
    for one in sorted(events, key=lambda e: (e.start, -e.end)):
        up = one.parent
        if up is not None and up.name == one.name and len(up.children) == 1:
            up.children, up.own_device = one.children, up.own_device + one.own_device
            for child in one.children:
                child.parent = up
        else:
            kept.append(one)
    found: Cells = {}
    for one in kept:
        key = (one.kind == "annotation", one.name, "")
        length = one.end - one.start
        own = length - sum(child.end - child.start for child in one.children)
        values = (1, own, length, one.own_device, one.device())
        before = found.get(key, (0,) * len(values))
        found[key] = tuple(a + b for a, b in zip(before, values, strict=True))
    return found


@pytest.mark.parametrize(
    "capture",
    ["gpt1024_unfused_attention.json.xz", "cnn_small.json.gz", "gpt_graph.json.gz",
     "lstm_tiny.json.gz"],
)  # fmt: skip
def test_a_naive_model_finds_the_same_on_a_gpu(reader: Stepscope, capture: str) -> None:
    path = DATA / "kineto" / capture
    path = unpack(path) if path.suffix == ".xz" else path
    document: dict[str, Any] = reader.json("operators", path, "--by", "name")
    expected = naive_table(path)
    mine = of_stepscope(document, memory=False)
    assert mine.keys() == expected.keys()
    for key, cells in mine.items():
        # times since 1970 in microseconds are rounded by the naive model, not by the importer
        assert cells[0] == expected[key][0]
        assert cells[1:] == pytest.approx(expected[key][1:], abs=600 * cells[0], rel=1e-3)


def test_self_times_add_up_to_all_that_was_recorded(reader: Stepscope) -> None:
    path = unpack(DATA / "kineto/gpt1024_unfused_attention.json.xz")
    total = reader.json("query", path, "SELECT sum(end_ns - start_ns)::BIGINT FROM gpu_op")
    for by in ("name", "shape", "range", "category"):
        document: dict[str, Any] = reader.json("operators", path, "--by", by)
        rows = document["operators"]
        assert sum(row["self_device_ns"] for row in rows) == total["rows"][0][0]
        assert sum(row["self_cpu_ns"] for row in rows) == document["self_cpu_ns"]
        assert sum(row["self_device_share"] for row in rows) == pytest.approx(1)
        # and so do the kernels under them
        assert sum(kernel["time_ns"] for kernel in document["kernels"]) == total["rows"][0][0]


def test_the_steady_steps_only(reader: Stepscope) -> None:
    path = unpack(DATA / "kineto/gpt1024_unfused_attention.json.xz")
    document: dict[str, Any] = reader.json("operators", path, "--steady")
    steps = [row["calls"] for row in document["operators"] if row["name"].startswith("step_")]
    assert document["scope"] == "steady"
    assert document["steps"] >= 2
    assert sum(steps) == document["steps"]


def test_a_backward_pass_counts_in_the_row_of_its_operator(reader: Stepscope) -> None:
    path = unpack(DATA / "kineto/gpt1024_unfused_attention.json.xz")
    alone: dict[str, Any] = reader.json("operators", path)
    joined: dict[str, Any] = reader.json("operators", path, "--join")
    before = {row["name"]: row for row in alone["operators"]}
    after = {row["name"]: row for row in joined["operators"]}
    assert "SoftmaxBackward0" in before
    assert "SoftmaxBackward0" not in after
    softmax = after["aten::_softmax"]
    assert softmax["backward_device_ns"] == before["SoftmaxBackward0"]["device_ns"]
    # an operator's total holds the backward pass of what it calls
    assert after["aten::softmax"]["backward_device_ns"] >= softmax["backward_device_ns"]
    device = sum(row["self_device_ns"] for row in joined["operators"])
    assert device < sum(row["self_device_ns"] for row in alone["operators"])


def build_nested(folder: Path) -> Any:
    """Forward and backward under autograd's NVTX ranges, which tell numbers and no links."""
    build = Build()
    build.range(0, 100, "step")
    build.operator(10, 40, "aten::linear", sequence_number=5, input_shapes="[[8,4],[2,4],[2]]")
    build.operator(12, 38, "aten::addmm", sequence_number=5,
                   input_shapes="[[2],[8,4],[4,2],[],[]]")  # fmt: skip
    build.kernel(50, 57, call=(20, 30), name=BF16)
    build.kernel(60, 61, call=(45, 48), name="mystery")
    build.operator(60, 90, "AddmmBackward0", sequence_number=5, thread=AUTOGRAD)
    build.operator(65, 80, "aten::mm", thread=AUTOGRAD, input_shapes="[[8,2],[2,4]]")
    build.kernel(90, 99, call=(70, 75), name=BF16, thread=AUTOGRAD)
    build.kernel(100, 102, call=(95, 96), thread=AUTOGRAD, name="alone")
    return build.trace(folder)


BF16 = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"


def test_without_links_time_on_the_thread_tells(tmp_path: Path) -> None:
    trace = build_nested(tmp_path)
    found = operator_averages([Source(trace.frame)], [], kernels=True)
    rows = {row.name: row for row in found.operators}
    linear, addmm = rows["aten::linear"], rows["aten::addmm"]
    assert (linear.cpu_ns, linear.self_cpu_ns) == (30_000, 4_000)
    assert (addmm.cpu_ns, addmm.self_cpu_ns) == (26_000, 16_000)  # less the call inside
    assert (linear.self_device_ns, linear.device_ns, addmm.self_device_ns) == (0, 7_000, 7_000)
    assert linear.flop == addmm.flop == 2 * 8 * 4 * 2
    assert addmm.tensor_core_share == 1.0
    assert rows["step"].self_device_ns == 1_000  # launched in it, by no operator
    assert rows["(no operator)"].self_device_ns == 2_000
    assert rows["cudaLaunchKernel"].device_ns == 0
    joined = operator_averages([Source(trace.frame)], [], join=True)
    rows = {row.name: row for row in joined.operators}
    assert rows["aten::linear"].backward_device_ns == 9_000
    assert rows["aten::linear"].backward_cpu_ns == 30_000
    assert "AddmmBackward0" not in rows
    assert "aten::mm" not in rows


def test_the_main_thread_s_range_holds_the_backward_pass(tmp_path: Path) -> None:
    found = operator_averages([Source(build_nested(tmp_path).frame)], [], "range")
    (row,) = found.operators
    assert (row.name, row.self_device_ns, row.kernels) == ("step", 19_000, 4)


def test_events_that_overlap_without_nesting_are_said(tmp_path: Path) -> None:
    build = Build()
    build.operator(0, 100, "aten::outer")
    build.operator(10, 80, "aten::a")
    build.operator(20, 99, "aten::b")
    found = operator_averages([Source(build.trace(tmp_path).frame)], [])
    rows = {row.name: row.self_cpu_ns for row in found.operators}
    assert rows == {"aten::outer": 100_000 - 70_000 - 79_000, "aten::a": 70_000, "aten::b": 79_000}
    assert "overlap" in found.warnings[0]


def test_unknown_columns_and_groupings_are_refused(tmp_path: Path, reader: Stepscope) -> None:
    trace = build_nested(tmp_path)
    with pytest.raises(UsageError, match="cannot group by 'names'"):
        operator_averages([Source(trace.frame)], [], "names")
    answer = reader("operators", TABLES / "recurrent.cpu.json.gz", "--sort", "speed", expect=2)
    assert "cannot sort by 'speed'; choose calls, self_cpu_ns" in is_one_line(answer.stderr)


def test_people_get_milliseconds_and_are_told_what_is_missing(reader: Stepscope) -> None:
    path = TABLES / "recurrent.cpu.json.gz"
    text = reader("operators", path, "--limit", "3", "--sort", "calls").stdout
    assert "nothing ran on a GPU" in text
    assert "more rows (--limit 0" in text
    assert "GPU total" not in text
    assert "no Python stacks are recorded" in reader("operators", path, "--by", "module").stdout
    assert "no input shapes" in reader("operators", path, "--by", "shape").stdout
    markdown = reader("operators", path, "--format", "markdown", "--limit", "2").stdout
    assert markdown.count("\n|") >= 3


def test_kernels_without_any_event_of_the_host_belong_to_no_operator(tmp_path: Path) -> None:
    build = Build()
    for i in range(5):
        build.kernel(100 * i, 100 * i + 40, name="gemm")
    found = operator_averages([Source(build.trace(tmp_path).frame)], [])
    assert [(row.name, row.kernels) for row in found.operators] == [("(no operator)", 5)]

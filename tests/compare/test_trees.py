"""``compare --by tree`` and ``--by name``: two runs written by hand, and one real pair."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope
from tests.support.captures import DATA

from stepscope.compare.trees import Node, merge

STEPS = 8
Call = tuple[str, int, int, "list[Call]"]
"""Name, length on the host in us, length of the kernel that it launches itself, children."""


def trace(path: Path, calls: list[Call]) -> Path:
    """A Kineto trace whose steps are these calls one after the other."""
    events: list[dict[str, Any]] = []
    clock, gpu, correlation = 0, 0, 0

    def call(one: Call) -> None:
        nonlocal clock, gpu, correlation
        name, host, kernel, children = one
        begin = clock
        clock += 1
        if kernel:
            correlation += 1
            events.append(
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                 "ts": clock, "dur": 2, "args": {"correlation": correlation}}
            )  # fmt: skip
            gpu = max(gpu, clock + 3)
            events.append(
                {"ph": "X", "cat": "kernel", "name": f"k_{name}", "pid": 0, "tid": 7, "ts": gpu,
                 "dur": kernel, "args": {"device": 0, "stream": 7, "correlation": correlation}}
            )  # fmt: skip
            gpu += kernel
            clock += 4
        for child in children:
            call(child)
        clock = max(clock + 1, begin + host)
        events.append(
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": begin,
             "dur": clock - begin, "args": {"External id": len(events)}}
        )  # fmt: skip
        clock += 1

    for step in range(STEPS):
        begin = clock
        for one in calls:
            call(one)
        clock = max(clock, gpu) + 20
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1,
             "tid": 1, "ts": begin, "dur": clock - begin, "args": {}}
        )  # fmt: skip
        clock += 1
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    return path


ATTENTION: list[Call] = [
    ("aten::bmm", 40, 60, []), ("aten::softmax", 30, 30, []), ("aten::bmm", 40, 60, [])
]  # fmt: skip
BEFORE: list[Call] = [
    ("attention", 200, 0, ATTENTION),
    ("mlp", 100, 0, [("aten::linear", 50, 80, []), ("aten::gelu", 20, 10, [])]),
]
AFTER: list[Call] = [
    ("attention", 120, 0, [("aten::flash", 60, 90, [])]),
    # the same, below a wrapper that is new
    (
        "mlp",
        110,
        0,
        [("compiled", 90, 0, [("aten::linear", 50, 80, [])]), ("aten::gelu", 20, 10, [])],
    ),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("trees")
    return trace(folder / "before.json", BEFORE), trace(folder / "after.json", AFTER)


def test_the_trees_part_where_the_programs_do(runs: tuple[Path, Path], reader: Stepscope) -> None:
    document = reader.json("compare", *runs, "--by", "tree")
    assert document["schema"] == "stepscope.compare-tree/1"
    nodes = {" > ".join(node["path"][1:]): node for node in document["nodes"]}
    attention = nodes["attention"]
    assert (attention["relation"], attention["parted"]) == ("both", True)
    assert (attention["gpu_before_ns"], attention["gpu_after_ns"]) == (150_000, 90_000)
    assert (attention["calls_before"], attention["calls_after"]) == (1, 1)
    assert nodes["attention > aten::bmm"]["relation"] == "before"
    assert nodes["attention > aten::bmm"]["calls_before"] == 2
    assert nodes["attention > aten::bmm"]["gpu_before_ns"] == 120_000
    assert nodes["attention > aten::flash"]["relation"] == "after"
    linear = nodes["mlp > aten::linear"]
    assert linear["relation"] == "moved"
    assert (linear["gpu_before_ns"], linear["gpu_after_ns"]) == (80_000, 80_000)
    # what moved out of the wrapper is not the wrapper's any more
    assert nodes["mlp > compiled"]["relation"] == "after"
    assert nodes["mlp > compiled"]["gpu_after_ns"] == 0
    assert nodes["mlp > aten::gelu"]["relation"] == "both"
    assert nodes[""]["gpu_before_ns"] == 240_000
    assert nodes[""]["gpu_after_ns"] == 180_000
    text = reader("compare", *runs, "--by", "tree").stdout
    assert "-     aten::softmax" in text
    assert "+     aten::flash" in text
    assert "~     aten::linear" in text
    assert "aten::flash" in reader("compare", *runs, "--by", "tree", "-f", "markdown").stdout


def test_by_name(runs: tuple[Path, Path], reader: Stepscope) -> None:
    rows = csv.DictReader(io.StringIO(reader("compare", *runs, "--by", "name", "-f", "csv").stdout))
    found = {row["name"]: row for row in rows}
    assert float(found["aten::bmm"]["calls_before"]) == 2
    assert found["aten::bmm"]["relation"] == "before"
    assert found["aten::linear"]["relation"] == "both"
    assert (
        found["aten::linear"]["gpu_before_ns"] == found["aten::linear"]["gpu_after_ns"] == "80000"
    )


def test_a_real_run_with_itself(reader: Stepscope) -> None:
    capture = DATA / "kineto" / "lstm_tiny.json.gz"
    nodes = reader.json("compare", capture, capture, "--by", "tree")["nodes"]
    assert {node["relation"] for node in nodes} == {"both"}
    assert all(node["gpu_before_ns"] == node["gpu_after_ns"] for node in nodes)
    # calls by name, from the file itself: every step does the same
    raw = json.loads(gzip.decompress(capture.read_bytes()))["traceEvents"]
    output = Counter(e["name"] for e in raw if e.get("cat") == "cpu_op")
    names = reader.json("compare", capture, capture, "--by", "name")["nodes"]
    calls = {node["path"][0]: node["calls_before"] for node in names}
    for name in ("aten::lstm_cell", "aten::linear", "aten::sigmoid_"):
        if name in output:
            assert calls[name] == output[name] / 10
    assert output["aten::lstm_cell"]


def test_refusals(runs: tuple[Path, Path], tmp_path: Path) -> None:
    fresh = Stepscope(tmp_path / "cache")
    assert "two runs" in fresh.refuses("compare", runs[0], "--by", "tree")
    assert "html" in fresh.refuses("compare", *runs, "--by", "tree", "-f", "html")
    assert "--by tree" in fresh.refuses("compare", *runs, "-f", "csv")
    # one of them holds kernels and launches alone
    document = json.loads(runs[1].read_text())
    kept = [one for one in document["traceEvents"] if one.get("cat") in ("cuda_runtime", "kernel")]
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(document | {"traceEvents": kept}))
    said = fresh("compare", runs[0], bare, "--by", "tree", expect=2).stderr
    assert "neither operators nor annotations are recorded after" in said
    assert "--ops" in said
    assert "recorded before" in fresh("compare", bare, runs[0], "--by", "name", expect=2).stderr
    assert "Neither run" in fresh("compare", bare, bare, "--by", "tree").stdout


def test_deep_trees_merge() -> None:
    def chain(depth: int) -> Node:
        node = Node("leaf", 1, 1, 1)
        for level in range(depth):
            node = Node(f"n{level}", 1, 1, 1, {node.name: node})
        return node

    assert len(merge(chain(190), chain(190))) == 191

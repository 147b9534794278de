"""What a diagnosis says does not hang on names, a cut, a few lost links or a clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import variants
from tests.support.captures import DATA, unpack
from tests.support.variants import Tables

from stepscope.api import Job
from stepscope.diagnosis.result import Diagnosis

CAUSE = {entry["file"]: entry["cause"] for entry in json.loads((DATA / "truth.json").read_text())}
KINDS: dict[str, Callable[[Tables], Tables]] = {
    "a host twice as slow": lambda t: variants.paced(t, idle=2.0),
    "a device twice as fast": lambda t: variants.paced(t, busy=0.5),
    "other names": variants.renamed,
    "no annotations": variants.bare,
    "lost links": lambda t: variants.unlinked(t, 0.05),
    "begun in mid-step": lambda t: variants.part(t, 0.13, 1.0),
    "two processes": variants.two_processes,
    "the device's clock ahead": lambda t: variants.clocks_apart(t, 20_000),
    "the device's clock behind": lambda t: variants.clocks_apart(t, -20_000),
    "a clock that wavers": lambda t: variants.clocks_apart(t, 0, 20_000),
}


def whole(diagnosis: Diagnosis) -> None:
    for gpu in diagnosis.accounting:
        busy = gpu.compute_ns + gpu.exposed_communication_ns + gpu.exposed_copy_ns
        assert busy + gpu.memset_ns + gpu.idle_ns == gpu.wall_ns
        assert sum(gpu.idle_by_cause_ns.values()) == gpu.idle_ns
        assert gpu.idle_by_cause_ns["unexplained"] <= 0.02 * gpu.wall_ns


SOME = ("no annotations", "lost links", "begun in mid-step", "the device's clock ahead")


@pytest.mark.parametrize(
    ("file", "kinds"),
    [
        ("kineto/cnn_disk.json.gz", SOME[:2]),
        ("nsys/gpt_graph.sqlite.xz", tuple(KINDS)),
        ("nsys/cnn_small.sqlite.xz", SOME[1:]),
    ],
)
def test_the_verdict_stays(file: str, kinds: tuple[str, ...], tmp_path: Path) -> None:
    trace = Job([unpack(DATA / file)]).ranks[0].trace
    tables = variants.tables_of(trace)
    for number, kind in enumerate(kinds):
        changed = KINDS[kind](dict(tables))
        path = variants.written(changed, trace, tmp_path / f"{number}.stepscope")
        found = Job([path]).diagnose()
        assert found.verdict == CAUSE[file], kind
        whole(found)


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("kineto/gpt_graph.json.gz", (0.0, 1 / 3)),
        ("nsys/gpt_graph.sqlite.xz", (2 / 3, 1.0)),
        ("nsys/cnn_small.sqlite.xz", (2 / 3, 1.0)),
    ],
)
def test_a_third_of_a_run_keeps_it_or_says_why_not(
    file: str, part: tuple[float, float], tmp_path: Path
) -> None:
    """Three steps are left: in so few, a pause that recurs cannot be told from noise."""
    trace = Job([unpack(DATA / file)]).ranks[0].trace
    tables = variants.part(variants.tables_of(trace), *part)
    found = Job([variants.written(tables, trace, tmp_path / "part.stepscope")]).diagnose()
    assert found.verdict in (CAUSE[file], "insufficient_data", "host_compute")
    whole(found)

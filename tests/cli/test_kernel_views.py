"""``stepscope kernels`` and ``stepscope operators`` on bundled captures."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from tests.cli.command import Stepscope
from tests.support.captures import DATA, unpack

from stepscope.api import Job


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(DATA / "nsys/gpt1024_healthy.sqlite.xz")


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packed = DATA / "kineto/gpt1024_unfused_attention.json.xz"
    return unpack(packed)


def test_kernels_sum_to_all_device_time(reader: Stepscope, healthy: Path) -> None:
    table = rows(reader("kernels", healthy, "--format", "csv").stdout)
    times = [int(row["time_ns"]) for row in table]
    assert times == sorted(times, reverse=True)
    total = rows(
        reader(
            "query",
            healthy,
            "SELECT sum(end_ns - start_ns)::BIGINT AS ns, count(*) AS n FROM gpu_op "
            "WHERE start_ns >= (SELECT min(start_ns) FROM step WHERE steady) "
            "AND start_ns < (SELECT max(end_ns) FROM step WHERE steady)",
            "--format",
            "csv",
        ).stdout
    )[0]
    assert sum(times) == int(total["ns"])
    assert sum(int(row["calls"]) for row in table) == int(total["n"])
    categories = {row["category"] for row in table}
    assert {"matmul", "attention", "elementwise", "normalisation", "optimizer"} <= categories
    assert "other" not in categories


def test_operators_have_forward_and_backward(reader: Stepscope, attention: Path) -> None:
    table = rows(reader("operators", attention, "--format", "csv").stdout)
    by_name = {row["name"]: row for row in table}
    assert int(by_name["AddmmBackward0"]["device_ns"]) > int(by_name["aten::addmm"]["device_ns"])
    assert int(by_name["SoftmaxBackward0"]["calls"]) == int(by_name["aten::_softmax"]["calls"])


def test_without_operators_ranges_answer(reader: Stepscope, healthy: Path) -> None:
    table = rows(reader("operators", healthy, "--format", "csv").stdout)
    names = [row["name"] for row in table]
    assert names[:3] == ["backward", "forward", "optimizer"]


@pytest.mark.parametrize("by", ["operator", "inner", "range", "module", "source", "category"])
def test_every_grouping_keeps_the_time(attention: Path, by: str) -> None:
    job = Job(attention)
    total = sum(job.kernels.column("time_ns").to_pylist())
    assert sum(job.operators(by).column("time_ns").to_pylist()) == total

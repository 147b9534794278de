"""Real captures end to end: planted cause, exact accounting, with and without annotations."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.command import Stepscope
from tests.support.captures import (
    BUNDLED,
    DATA,
    of_each_cause,
    ranks_of,
    unpack,
    without_annotations,
)

from stepscope.api import Job

PARTS = ("compute", "exposed_communication", "exposed_copy", "memset", "idle")
UNEXPLAINED = 0.05
SHARED = Path(__file__).parents[3] / "shared" / "data" / "h200"


@dataclass(frozen=True)
class Truth:
    """A bundled capture; ``cause`` is None where several causes are real."""

    path: Path
    cause: str | None
    steps: int

    def __str__(self) -> str:
        return f"{self.path.parent.name}-{self.path.name.split('.')[0]}"


TRUTH = [
    *(
        Truth(DATA / row["file"], row["cause"], row["steps"])
        for row in json.loads((DATA / "truth.json").read_text())
    ),
    Truth(BUNDLED, "input_starvation", 12),
]
PLANTED = [truth for truth in TRUTH if truth.cause]
CHOSEN = [truth for truth in PLANTED if truth.path in {DATA / file for file in of_each_cause()}]


def test_every_bundled_capture_is_in_the_table() -> None:
    # steps of JAX are one operation each, so nothing can be told of them without annotations, as is
    # done with those of the table; test_jax_captures has them
    bundled = {*DATA.glob("*/*.xz"), *DATA.glob("*/*.gz"), BUNDLED} - {*DATA.glob("jax/*")}
    assert {truth.path for truth in TRUTH} == bundled


@pytest.fixture(scope="module")
def diagnose() -> Callable[..., dict[str, Any]]:
    """The JSON document of some captures, made once."""

    @cache
    def run(*paths: Path) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(Job(paths).diagnose()))
        return found

    return run


def accounts_exactly(document: dict[str, Any], *, bounded: bool = True) -> None:
    for gpu in document["accounting"]:
        assert all(isinstance(gpu[f"{part}_ns"], int) for part in PARTS)
        assert gpu["wall_ns"] == sum(gpu[f"{part}_ns"] for part in PARTS)
        assert all(gpu[f"{part}_ns"] >= 0 for part in PARTS)
        causes = gpu["idle_by_cause_ns"]
        assert all(ns >= 0 for ns in causes.values())
        assert sum(causes.values()) == gpu["idle_ns"]
        if bounded:
            assert causes["unexplained"] < UNEXPLAINED * gpu["wall_ns"]


def mean_step_ns(document: dict[str, Any]) -> float:
    first, last = document["trace"]["steady_steps"]
    return float(document["accounting"][0]["wall_ns"] / (last - first + 1))


@pytest.mark.parametrize("truth", TRUTH, ids=str)
def test_the_accounting_is_exact(truth: Truth, diagnose: Any) -> None:
    document = diagnose(unpack(truth.path))
    accounts_exactly(document)
    assert document["trace"]["steps"] == truth.steps


@pytest.mark.parametrize("truth", PLANTED, ids=str)
def test_the_planted_cause_is_named(truth: Truth, diagnose: Any) -> None:
    document = diagnose(unpack(truth.path))
    assert document["verdict"] == truth.cause, document["findings"]


@pytest.mark.parametrize("truth", CHOSEN, ids=str)
def test_the_same_without_annotations(truth: Truth, diagnose: Any) -> None:
    capture = unpack(truth.path)
    marked = diagnose(capture)
    bare = diagnose(without_annotations(capture))
    accounts_exactly(bare)
    assert abs(bare["trace"]["steps"] - marked["trace"]["steps"]) <= 1
    # a run of two speeds has its median anywhere between them, one that stops its mean
    median, mean = (
        [length(document) for document in (bare, marked)]
        for length in (lambda d: d["step_ns"]["median"], mean_step_ns)
    )
    assert min(abs(a / b - 1) for a, b in (median, mean)) < 0.03
    assert bare["verdict"] == truth.cause


def test_both_sources_agree(diagnose: Any) -> None:
    """The same program captured by both tools gets the same verdict."""
    verdicts: dict[str, set[str]] = {}
    for truth in PLANTED:
        name = truth.path.name.split(".")[0]
        verdicts.setdefault(name, set()).add(diagnose(unpack(truth.path))["verdict"])
    assert [name for name, found in verdicts.items() if len(found) > 1] == []


def test_the_demo(stepscope: Stepscope) -> None:
    document = stepscope.json("demo")
    assert document["verdict"] == "input_starvation"
    assert document["trace"]["steps"] == 12
    accounts_exactly(document)
    assert "Input starvation" in stepscope("demo").stdout
    assert stepscope("demo", "--format", "markdown").stdout.startswith("### Input starvation")


# ---- the captures beside the repository ----------------------------------------------------------

H200 = {
    "healthy": {"gpu_bound_healthy"},
    "starved_main": {"input_starvation"},
    "sync_item": {"host_sync"},
    "pageable_h2d": {"blocking_copy"},
    "launch_bound": {"launch_bound"},
    "host_compute": {"host_compute"},
}


@pytest.mark.parametrize("name", H200)
def test_h200_under_nsys(name: str, diagnose: Any, unpacked: Callable[[str], Path]) -> None:
    document = diagnose(unpacked(name))
    accounts_exactly(document)
    assert document["verdict"] in H200[name]


def test_h200_with_the_os_runtime(diagnose: Any, unpacked: Callable[[str], Path]) -> None:
    document = diagnose(unpacked("healthy_osrt"))
    accounts_exactly(document)
    assert document["verdict"] == "gpu_bound_healthy"


@pytest.mark.parametrize("name", H200)
def test_h200_under_torch(name: str, diagnose: Any, shared_data: Path) -> None:
    document = diagnose(shared_data / "kineto" / f"{name}.json.gz")
    accounts_exactly(document)
    # its capture recorded Python stacks, which cost it a third of its time
    more = {"profiler_overhead"} if name == "healthy" else set()
    assert document["verdict"] in H200[name] | more


@pytest.mark.parametrize("source", ["nsys", "kineto"])
@pytest.mark.parametrize("job", ["ddp_healthy", "ddp_straggler"])
def test_h200_ranks(job: str, source: str, diagnose: Any) -> None:
    """A folder of ranks is one job."""
    document = diagnose(ranks_of(job, source))
    accounts_exactly(document, bounded=False)
    assert document["trace"]["ranks"] == 4
    assert [gpu["rank"] for gpu in document["accounting"]] == [0, 1, 2, 3]
    lengths = [gpu["wall_ns"] for gpu in document["accounting"]]
    assert max(lengths) < 1.2 * statistics.median(lengths)
    if job == "ddp_straggler":
        first = document["findings"][0]
        assert (first["cause"], first["ranks"]) == ("straggler", [2])
        assert first["root_cause"] == "input_starvation"
        assert first["where"]["range"] == "dataload"


def test_every_shared_capture_is_used() -> None:
    if not SHARED.is_dir():
        pytest.skip("needs the captures of ../shared/data/h200, which are not here")
    names = {path.name.split(".json")[0] for path in (SHARED / "kineto").iterdir()}
    ranks = {f"ddp_{kind}.rank{i}" for kind in ("healthy", "straggler") for i in range(4)}
    assert names == H200.keys() | ranks

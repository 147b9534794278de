"""The figures of recipes are those of the real ``nsys recipe`` (2023.4), on real captures."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.jobs.recipe_cases import CASES, Case, captures_of

from stepscope.api.recipes import Engine, run_recipe
from stepscope.jobs.recipes.recipe import find

ORACLE = Path(__file__).parents[1] / "data" / "oracle" / "recipes.tar.xz"
ROWS = list[tuple[Any, ...]]

STATS = ("Total Time", "Num Calls", "Avg", "Q1", "Med", "Q3", "Min", "Max", "StdDev")
DESCRIBED = ("Sum", "Count", "Mean", "Q1", "Median", "Q3", "Min", "Max", "Std")
OURS = ("total", "instances", "mean", "q1", "median", "q3", "min", "max", "std")
PACE = {"pace_start": "start_ns", "pace_end": "end_ns", "pace_duration": "duration_ns",
        "pace_delta": "delta_ns", "pace_duration_accum": "duration_accum_ns"}  # fmt: skip


@cache
def oracle() -> dict[str, list[dict[str, str]]]:
    with tarfile.open(ORACLE) as tar:
        return {
            entry.name.removesuffix(".csv"): list(
                csv.DictReader(io.TextIOWrapper(tar.extractfile(entry), "utf-8"))  # type: ignore[arg-type]
            )
            for entry in tar.getmembers()
        }


def number(text: Any) -> Any:
    """Numbers are compared as such; an empty cell is none."""
    if text is None or text == "":
        return None
    try:
        return float(text)
    except ValueError:
        return text


def picked(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> ROWS:
    """Some columns; of two names with a bar between them the one that is there."""
    found = []
    for row in rows:
        names = [next(n for n in column.split("|") if n in row) for column in columns]
        found.append(tuple(number(row[name]) for name in names))
    return found


def same(ours: ROWS, real: ROWS, *, deviations: bool = False) -> None:
    """The same rows in whatever order; the real tool prints one decimal.

    It computes deviations over several ranks from means and deviations that it has rounded.
    """
    assert len(ours) == len(real)
    key = lambda row: [(v is None, isinstance(v, str), v) for v in row]  # noqa: E731
    for mine, theirs in zip(sorted(ours, key=key), sorted(real, key=key), strict=True):
        assert len(mine) == len(theirs)
        for place, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if isinstance(b, float) and isinstance(a, float):
                relative = 1e-3 if deviations and place == len(mine) - 1 else 2e-7
                assert a == pytest.approx(b, abs=0.051, rel=relative), (mine, theirs)
            else:
                assert a == b, (mine, theirs)


def compare(case: Case, folder: Path) -> None:
    real = {
        name.partition("/")[2]: rows
        for name, rows in oracle().items()
        if name.partition("/")[0] == case.id
    }
    ours = {path.stem: pq.read_table(path).to_pylist() for path in folder.glob("*.parquet")}
    rank_of = {r["File"]: i for i, r in enumerate(real.get("files", []))}
    if not real:  # the tool found nothing, and neither do we
        assert not ours["analysis"]
    elif "pace_start" in real:
        pace = ours["pace"]
        first = real["pace_start"]
        for table, column in PACE.items():
            # the tool's first delta is the first start itself: ours is none
            wanted = [
                (float(rank), float(i), float(value))
                for i, row in enumerate(real[table])
                for rank, value in row.items()
                if value and rank.isdigit() and not (table == "pace_delta" and i == 0)
            ]
            same(picked([r for r in pace if r[column] is not None],
                        ["rank", "iteration", column]), wanted)  # fmt: skip
        assert len(first) == max(r["iteration"] for r in pace) + 1
    elif "all_stats" in real:
        unit = "bytes" if case.recipe == "cuda_gpu_mem_size_sum" else "ns"
        mine = ["name", *(o if o == "instances" else f"{o}_{unit}" for o in OURS)]
        described = "Text" in real["all_stats"][0]
        names = DESCRIBED if described else STATS
        names = tuple(
            {"Num Calls": "Num Calls|Instances|Count", "Total Time": "Total Time|Total"}.get(n, n)
            for n in names
        )
        same(picked(ours["rank_stats"], ["rank", *mine]),
             [(float(rank_of[r["File"]]) if "File" in r and described else _rank(r), *rest)
              for r, rest in zip(real["rank_stats"],
                                 picked(real["rank_stats"], ["Text|Name|Operation", *names]),
                                 strict=True)])  # fmt: skip
        # where the tool describes, its deviation over all ranks is the mean of theirs; ours is
        # that of all values together
        last = -1 if described else None
        approximate = [
            f"{n}|{n} (approx)" if n in ("Q1", "Median", "Q3", "Std") else n for n in names
        ]
        same(picked(ours["all_stats"], mine[:last]),
             picked(real["all_stats"], ["Text|Name|Operation", *approximate[:last]]),
             deviations=not described)  # fmt: skip
    else:
        _listing(case, ours["analysis"], real.get("analysis") or real["trace"])


def _rank(row: dict[str, str]) -> float:
    return float(row["File"].rpartition("rank")[2] or 0) if "rank" in row["File"] else 0.0


def _listing(case: Case, ours: list[dict[str, Any]], real: list[dict[str, str]]) -> None:
    from stepscope.jobs.recipes.listings import column_name
    from stepscope.reports.registry import reports, rules

    if case.recipe.endswith("_map"):
        mine = {
            "Kernel": "kernel_percent",
            "All": "all_percent",
            "NCCL": "nccl_percent",
            "Compute": "compute_percent",
        }
        columns = [name for name in mine if name in real[0]]
        wanted = [
            (_rank(row), *rest)
            for row, rest in zip(real, picked(real, ["Duration", "PID", "Device ID", *columns]),
                                 strict=True)
        ]  # fmt: skip
        keys = ["rank", "start_ns", "process_id", "device"]
        same(picked(ours, [*keys, *(mine[name] for name in columns)]), wanted)
        return
    report = {**reports(), **rules()}[case.recipe]
    both = {c.label: column_name(c.label, c.unit) for c in report.columns if c.label in real[0]}
    assert len(both) >= len(report.columns) - 1, sorted(set(real[0]) - set(both))
    same(
        picked(ours, ["rank", *both.values()]),
        [(_rank(row), *rest) for row, rest in zip(real, picked(real, list(both)), strict=True)],
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_figures_are_those_of_the_real_tool(case: Case, tmp_path: Path) -> None:
    known = {option.name for option in find(case.recipe).options}
    assert set(case.settings) <= known
    run_recipe(
        case.recipe,
        captures_of(case),
        tmp_path / "result",
        options=case.settings,
        engine=Engine(jobs=1),
        page=False,
    )
    compare(case, tmp_path / "result")

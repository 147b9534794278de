"""Recipes as users run them: what is written, what is left out, what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.command import Stepscope, is_one_line
from tests.jobs.recipe_cases import Case, captures_of
from tests.support.captures import DATA, unpack
from tests.support.s3 import s3_server

from stepscope.api.recipes import Engine, run_recipe
from stepscope.jobs.recipes.recipe import Recipe, find, recipes
from stepscope.render.recipe_page import column_title

PAIR = Case("cuda_gpu_kern_sum")
NSYS = {
    *("cuda_api_sum", "cuda_api_sync", "cuda_gpu_kern_sum", "cuda_gpu_kern_hist"),
    *("cuda_gpu_kern_pace", "cuda_gpu_mem_size_sum", "cuda_gpu_mem_time_sum"),
    *("cuda_gpu_time_util_map", "cuda_memcpy_async", "cuda_memcpy_sync", "cuda_memset_sync"),
    *("diff", "gpu_gaps", "gpu_metric_util_map", "gpu_metric_util_sum", "gpu_time_util"),
    *("mpi_sum", "mpi_gpu_time_util_map", "nccl_sum", "nccl_gpu_proj_sum"),
    *("nccl_gpu_overlap_trace", "nccl_gpu_time_util_map", "network_sum", "nvlink_sum", "nvtx_sum"),
    *("nvtx_pace", "nvtx_cpu_topdown", "nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace"),
    *("nvtx_gpu_proj_pace", "osrt_sum", "storage_util_map", "ucx_gpu_time_util_map"),
}
OWN = """
from stepscope.jobs.recipes import Figure, Option, Output, Recipe
RECIPE = Recipe("mine", "Mine", "Kernels.", "SELECT count(*) FROM gpu_op WHERE id >= {least}",
    (Output("found", "One rank.", {"rank": "rank", "kernels": "how many"},
            "SELECT rank, kernels FROM part ORDER BY rank"),), columns=("kernels",),
    figures=(Figure("all", "kernels", "count", "SELECT sum(kernels) FROM found"),),
    options=(Option("least", "least id", 0),))
"""


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def refused(reader: Stepscope, *words: str | Path) -> str:
    """The one line that a command ends with."""
    done = reader(*words, expect=2)
    assert done.stdout == ""
    return is_one_line(done.stderr)


def figures(folder: Path) -> dict[str, Any]:
    return {
        f["name"]: f["value"] for f in json.loads((folder / "recipe.json").read_text())["figures"]
    }


def test_the_recipes_of_nsys_are_there_and_all_are_described() -> None:
    known = recipes()
    own = {"straggler_map", "step_pace", "comm_matrix", "pipeline_bubbles", "imbalance"}
    assert set(known) == NSYS | own | {"memory_by_rank"}
    for recipe in known.values():
        assert recipe.doc.endswith(".")
        for output in recipe.tables:
            assert all(output.columns.values()), (recipe.name, output.name)
            assert set(output.keys) <= set(output.columns)
        tables = {output.name: output for output in recipe.tables}
        for chart in recipe.charts:
            drawn = {chart.value, chart.x, chart.y, chart.group} - {""}
            assert drawn <= set(tables[chart.table].columns), (recipe.name, chart.title)


def test_a_result_is_tables_a_page_and_what_it_says_of_itself(
    reader: Stepscope, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    done = reader("recipe", "straggler_map", *captures_of(PAIR), "-o", folder, "-j", "1")
    found = table(folder, "rank_stats")
    assert "rank that is latest" in done.stdout
    assert str(folder / "index.html") in done.stdout
    # rank 1 was given more work: what the labelled pair is for
    assert (found[0]["rank"], found[0]["reason"]) == (1, "compute")
    result = json.loads((folder / "recipe.json").read_text())
    assert result["schema"] == "stepscope.recipe/1"
    assert result["complete"]
    assert [i["rank"] for i in result["inputs"]] == [0, 1]
    assert {f for t in result["tables"] for f in t["files"]} < {p.name for p in folder.iterdir()}
    assert not (folder / ".partial").exists()
    lines = (folder / "rank_stats.csv").read_text().splitlines()
    assert lines[0].split(",")[:2] == ["rank", "capture"]
    assert len(lines) == 1 + len(found)
    page = (folder / "index.html").read_text()
    assert page.count("plotly.js v") == 1
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    assert "default-src 'none'" in page
    message = refused(reader, "recipe", "straggler_map", *captures_of(PAIR), "-o", folder)
    assert "holds a result; --force replaces it" in message


def test_one_broken_capture_is_left_out_and_said(reader: Stepscope, tmp_path: Path) -> None:
    jobs = tmp_path / "job"
    jobs.mkdir()
    good = jobs / "good.rank0.sqlite"
    shutil.copy(unpack(DATA / "nsys" / "cnn_small.sqlite.xz"), good)
    broken = jobs / "broken.rank1.sqlite"
    broken.write_bytes(good.read_bytes()[:20_000])
    command = ("recipe", "cuda_gpu_kern_sum", jobs, tmp_path / "gone.sqlite", "--no-page")
    folder = tmp_path / "out"
    done = reader(*command, "-o", folder, "-j", "1", expect=1)
    assert "2 captures could not be read and are NOT in the result" in done.stdout
    result = json.loads((folder / "recipe.json").read_text())
    states = {Path(i["path"]).name: i["state"] for i in result["inputs"]}
    assert states == {broken.name: "failed", good.name: "done", "gone.sqlite": "failed"}
    assert not result["complete"]
    assert "broken.rank1.sqlite" in refused(reader, *command, "--strict", "-o", tmp_path / "no")
    # it goes on where it was: the broken one is repaired, the other is not asked again
    kept = list((folder / ".partial").iterdir())
    assert len(kept) == 1
    shutil.copy(good, broken)
    shutil.copy(good, tmp_path / "gone.sqlite")
    reader(*command, "-o", folder, "-j", "1")
    assert len({r["rank"] for r in table(folder, "rank_stats")}) == 3
    assert not (folder / ".partial").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no_such"], "there is no recipe 'no_such'"),
        (["nvtx_sums"], "did you mean 'nvtx_sum'?"),
        (["nvtx_pace", "CAPTURE"], "nvtx_pace needs name"),
        (["gpu_gaps", "CAPTURE", "--set", "gap=long"], "gap needs a whole number"),
        (["gpu_gaps", "CAPTURE", "--set", "gap=-1"], "gap must be at least 0"),
        (["gpu_gaps", "CAPTURE", "--set", "gaps=1"], "did you mean 'gap'?"),
        (["mpi_sum", "CAPTURE"], "holds no MPI events; to have it, capture with nsys profile -t"),
        (["storage_util_map", "CAPTURE"], "nsys profile --storage-metrics"),
        (["nvtx_sum", "/no/such.sqlite"], "/no/such.sqlite does not exist"),
        (["nvtx_sum", "CAPTURE", "CAPTURE"], "is given twice"),
        (["diff", "CAPTURE"], "diff compares two results"),
        (["nvtx_sum", "what://is/this"], "what://is/this"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    reader: Stepscope, tmp_path: Path, words: list[str], told: str
) -> None:
    capture = str(unpack(DATA / "nsys" / "cnn_small.sqlite.xz"))
    words = [capture if word == "CAPTURE" else word for word in words]
    assert told in refused(reader, "recipe", *words, "-o", tmp_path / "out", "-j", "1")
    assert not (tmp_path / "out" / "recipe.json").exists()


def test_two_results_are_compared_row_by_row(reader: Stepscope, tmp_path: Path) -> None:
    captures = captures_of(PAIR)
    for name, paths in (("a", captures[:1]), ("b", captures[1:])):
        run_recipe("cuda_gpu_kern_sum", paths, tmp_path / name, engine=Engine(1), page=False)
    reader("recipe", "diff", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "d", "--no-page")
    sides = [{r["name"]: r for r in table(tmp_path / side, "all_stats")} for side in "ab"]
    for row in table(tmp_path / "d", "all_stats"):
        first, second = (side.get(row["name"]) for side in sides)
        if row["only_in"] is None:
            assert row["total_ns"] == first["total_ns"] - second["total_ns"]
        else:
            assert (first is None, second is None) == (
                row["only_in"] == "second",
                row["only_in"] == "first",
            )
    message = refused(
        reader, "recipe", "diff", tmp_path / "a", tmp_path / "c", "-o", tmp_path / "e"
    )
    assert "name the folder that stepscope recipe -o wrote" in message


def test_a_recipe_of_the_user_is_one_file(reader: Stepscope, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    capture = unpack(DATA / "nsys" / "cnn_small.sqlite.xz")
    command = ("recipe", "--file", file, capture, "--no-page", "-j", "1", "-o")
    reader(*command, tmp_path / "all")
    reader(*command, tmp_path / "few", "--set", "least=100")
    whole = figures(tmp_path / "all")["all"]
    assert whole > figures(tmp_path / "few")["all"] == whole - 100
    assert "least  least id (default 0)" in reader("recipe", "--list", "--file", file).stdout
    for text, told in (
        ("x = 1", "must set RECIPE"),
        ("1 / 0", "ZeroDivisionError"),
        (OWN.replace("FROM gpu_op", "FROM no_table"), "no_table"),
        (OWN.replace('"SELECT count(*) FROM gpu_op WHERE id >= {least}"', "lambda c, v: 1 / 0"),
         "recipe mine of"),
    ):  # fmt: skip
        file.write_text(text)
        assert told in refused(reader, *command, tmp_path / "no")


def test_a_page_reads_well_and_is_drawn(reader: Stepscope, tmp_path: Path) -> None:
    """In a browser, where there is one: titles, a chart of each that is declared, no complaint."""
    from tests.server.browser import browsing, launched

    folder = tmp_path / "out"
    reader("recipe", "cuda_gpu_kern_sum", *captures_of(PAIR), "-o", folder, "-j", "1")
    with launched() as browser, browsing(browser) as page:
        page.goto((folder / "index.html").as_uri())
        page.wait_for_selector(".js-plotly-plot")
        assert page.title() == page.inner_text("h1") == find("cuda_gpu_kern_sum").title
        heads = page.locator("th")
        assert heads.all_inner_texts()[:4] == ["Name", "Time (%)", "Total", "Instances"]
        assert heads.nth(2).get_attribute("title") == "sum, ns"
        charts = page.locator(".js-plotly-plot")
        assert charts.count() == len(find("cuda_gpu_kern_sum").charts)
        assert all(charts.nth(k).locator(".main-svg").count() for k in range(charts.count()))
        assert page.errors == []


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("total_ns", "Total"),
        ("time_percent", "Time (%)"),
        ("late_share", "Late (%)"),
        ("q1_bytes", "1st quartile"),
        ("process_id", "Process ID"),
        ("num_gpuops", "Number of GPU operations"),
        ("exposed_communication_ns", "Exposed communication"),
    ],
)
def test_columns_have_titles_that_a_person_reads(name: str, title: str) -> None:
    assert column_title(name) == title


def test_no_two_columns_of_a_table_have_one_title() -> None:
    for recipe in recipes().values():
        for output in recipe.tables:
            titles = [column_title(name) for name in output.columns]
            assert len(set(titles)) == len(titles), (recipe.name, output.name)


def test_texts_of_traces_stay_texts_on_the_page(tmp_path: Path) -> None:
    from stepscope.jobs.recipes.recipe import Chart, Output
    from stepscope.jobs.recipes.result import RecipeResult
    from stepscope.render.recipe_page import recipe_page

    bad = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[0m"
    rows = pa.table({"name": [bad, "b"], "rank": [0, 1], "total_ns": [5, 7]})
    result = RecipeResult("s", "v", "r", bad, bad, {}, [], True, [], [], "", [bad])
    charts = [
        (Chart("bar", "t", bad, "total_ns", y="name", unit="ns"), rows),
        (Chart("heat", "t", bad, "total_ns", x="rank", y="name", group="name"), rows),
        (Chart("line", "t", bad, "total_ns", x="rank", group="name"), rows),
    ]
    page = recipe_page(result, charts, Output("t", bad, {}, ""), rows)
    assert "alert(1)</script>" not in page
    assert "<img src=x" not in page
    assert "\x1b" not in page


def test_a_thousand_ranks_are_drawn_in_little_room(tmp_path: Path) -> None:
    from stepscope.jobs.recipes.recipe import Chart
    from stepscope.render import recipe_page

    ranks = [r for r in range(1024) for _ in range(20)]
    rows = pa.table(
        {"rank": ranks, "step": list(range(20)) * 1024, "late_ns": [r * 1000 for r in ranks]}
    )
    heat = Chart("heat", "t", "h", "late_ns", x="step", y="rank", unit="ns", middle=True)
    _, _, drawn = recipe_page._drawing(heat, rows) or pytest.fail("nothing drawn")
    assert (len(drawn["data"][0]["z"]), len(drawn["data"][0]["z"][0])) == (1024, 20)
    assert drawn["layout"]["height"] <= 900
    line = Chart("line", "t", "l", "late_ns", x="step", group="rank", unit="ns")
    _, note, drawn = recipe_page._drawing(line, rows) or pytest.fail("nothing drawn")
    assert [t["name"] for t in drawn["data"]] == ["least", "10 %", "90 %", "median", "most"]
    assert "1,024 ranks as a band" in note
    bars = Chart("bar", "t", "b", "late_ns", y="rank", unit="ns")
    _, note, drawn = recipe_page._drawing(bars, rows) or pytest.fail("nothing drawn")
    assert len(drawn["data"][0]["y"]) == 25 * 20
    assert note == "the largest 25 of 1,024 ranks"
    same = rows.set_column(2, "late_share", pa.array([0.25] * rows.num_rows))
    bars = Chart("bar", "t", "b", "late_share", y="rank")
    _, _, drawn = recipe_page._drawing(bars, same) or pytest.fail("nothing drawn")
    assert drawn["layout"]["yaxis"]["ticktext"][:3] == ["rank 0", "rank 1", "rank 2"]
    assert (drawn["layout"]["xaxis"]["title"]["text"], drawn["data"][0]["x"][0]) == ("%", 25.0)
    points = Chart("line", "t", "p", "late_share", x="rank")
    _, _, drawn = recipe_page._drawing(points, same) or pytest.fail("nothing drawn")
    assert drawn["data"][0]["mode"] == "markers"  # ranks are no course of time


def test_captures_come_from_an_s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(monkeypatch) as fs:
        fs.mkdir("traces")
        for path in captures_of(PAIR):
            fs.put(str(path), f"traces/run/{path.name}")
        fs.pipe("traces/run/broken.rank2.sqlite", b"SQLite format 3\x00 and no more")
        away = run_recipe(
            PAIR.recipe, ["s3://traces/run/*.sqlite"], tmp_path / "a", engine=Engine(1), page=False
        )
    here = run_recipe(PAIR.recipe, captures_of(PAIR), tmp_path / "b", engine=Engine(1), page=False)
    assert [i.rank for i in away.inputs] == [None, 0, 1]
    assert (away.complete, here.complete) == (False, True)
    assert table(tmp_path / "a", "all_stats") == table(tmp_path / "b", "all_stats")


def test_merged_rows_are_those_of_all_captures(tmp_path: Path) -> None:
    """A recipe that merges keeps no row of a single capture; the figures stay the same."""
    from dataclasses import replace

    recipe: Recipe = recipes()["cuda_gpu_kern_hist"]
    whole = run_recipe(recipe, captures_of(PAIR), tmp_path / "a", engine=Engine(1), page=False)
    merge = (
        "SELECT bin, sum(kernels)::BIGINT AS kernels, sum(total_ns)::BIGINT AS total_ns "
        "FROM part GROUP BY bin"
    )
    merged = run_recipe(
        replace(recipe, merge=merge, tables=recipe.tables[:1], charts=()),
        captures_of(PAIR), tmp_path / "b", engine=Engine(1), page=False,
    )  # fmt: skip
    assert whole.figures == merged.figures
    assert table(tmp_path / "a", "histogram") == table(tmp_path / "b", "histogram")

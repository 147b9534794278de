"""A job of digests in the browser: from the heat map to a rank, and to its timeline."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope, is_one_line
from tests.server.browser import browsing, load, settle
from tests.server.served import Served, serving
from tests.server.test_browser import HOSTILE, is_harmless
from tests.server.test_panels import NOTE, post
from tests.support.captures import unpack
from tests.support.digest_jobs import Plant, Shape, made

from stepscope.api.digest_files import SUFFIX, read_digests, write_digests
from stepscope.api.digest_making import digest_captures
from stepscope.api.job_page import JobPage, shows_a_job
from stepscope.jobs.digest import Digest
from stepscope.trace.errors import InputError, UsageError

DATA = Path(__file__).parents[1] / "data"
LEFT_PX, AXIS_PX = 150, 24


def family() -> list[Digest]:
    paths = sorted((DATA / "digests").glob(f"healthy_four.*{SUFFIX}"))
    return [digest for path in paths for digest in read_digests(path, whole=True)]


def make_job(folder: Path, ranks: int, plant: Plant) -> Path:
    """A folder with the digests of a job."""
    for digest in made(family(), Shape(ranks, "ddp"), 1, plant):
        write_digests([digest], folder / f"rank{digest.rank:04d}{SUFFIX}")
    return folder


@pytest.fixture(scope="module")
def captures() -> list[Path]:
    return [unpack(DATA / "ranks" / f"ddp_imbalance.rank{r}.sqlite.xz") for r in (0, 1)]


@pytest.fixture(scope="module")
def folder(captures: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digests of two ranks, and the capture of the second."""
    found: Path = tmp_path_factory.mktemp("job")
    digest_captures([str(path) for path in captures], found, {})
    shutil.copy(captures[1], found)
    return found


@pytest.fixture(scope="module")
def served_job(folder: Path) -> Iterator[Served]:
    with serving(folder) as found:
        yield found


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    plant = Plant("slow_gpu", 100, 0.2)
    with serving(make_job(tmp_path_factory.mktemp("many"), 128, plant)) as found:
        yield found


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    with browsing(browser) as found:
        yield found
        assert found.errors == []


class ShownJob:
    """The heat map, and what is read off it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        load(page, address, "canvas.heatmap")

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)
        settle(self.page)

    def text(self, label: str) -> str:
        return str(self.page.locator(f"section[aria-label='{label}']").inner_text())

    def link(self) -> dict[str, str]:
        settle(self.page)
        return dict(re.findall(r"[#&](\w+)=([^&]*)", self.page.url))

    def place(self, row: int, column: int, rows: int, columns: int) -> tuple[float, float]:
        """Middle of a cell where all rows fit."""
        box = self.page.locator("canvas.heatmap").bounding_box()
        wide = min(90, (box["width"] - LEFT_PX - 128) / columns)
        high = min(44, (box["height"] - AXIS_PX - 2) / rows)
        x = box["x"] + LEFT_PX + (column + 0.5) * wide
        return x, box["y"] + AXIS_PX + (row + 0.5) * high


def answer(served: Served, path: str) -> Any:
    return json.loads(served.get(f"api/{path}").body)


# --- answers -------------------------------------------------------------------------------------


def test_the_answers_agree_with_the_diagnosis(served_job: Served, folder: Path) -> None:
    assert answer(served_job, "layout")["job"] == {"paths": [str(folder)], "ranks": 2}
    found = answer(served_job, "jobdiagnosis")
    shown = found["diagnosis"]
    assert "heat_map" not in shown
    assert found["here"] == [1]
    assert [row["rank"] for row in shown["ranks"]] == [0, 1]
    for value in found["grid"]["values"]:
        cells = answer(served_job, f"jobcells?value={value['key']}")["cells"]
        assert [len(row) for row in cells] == [len(found["grid"]["steps"])] * 2
    rank = answer(served_job, "jobrank?row=1")
    assert rank["capture"]["timeline"] == "rank/1/"
    assert rank["evidence"]
    assert rank["phases"]
    assert answer(served_job, "jobrank?row=0")["capture"]["timeline"] == ""


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("api/jobcells?value=nothing", 400, "no value 'nothing'"),
        ("api/jobcells", 400, "no value ''"),
        ("api/jobrank?row=2", 400, "no rank at position 2"),
        ("api/jobrank?row=-1", 400, "no rank at position -1"),
        ("api/jobrank?row=x", 400, "no whole number"),
        ("rank/0/api/layout", 410, "is not here"),
        ("rank/7/api/layout", 400, "no rank at position 7"),
    ],
)
def test_wrong_questions_are_refused(
    served_job: Served, path: str, status: int, message: str
) -> None:
    found = served_job.get(path)
    assert found.status == status
    assert message in json.loads(found.body)["error"]


def test_the_timeline_of_a_rank_is_the_usual_page(served_job: Served) -> None:
    assert b"<div id" in served_job.get("rank/1/").body
    assert served_job.get("rank/1/app.js").status == 200
    layout = answer_of_rank(served_job, "layout")
    assert layout["above"] == "../../#rank=1"
    assert len(layout["members"]) == 1
    steps = answer(served_job, "jobrank?row=1")["steps"]
    tracks = [track for track in layout["tracks"] if track["table"] == "step"]
    assert tracks
    assert layout["begin"] <= steps[0]["begin_ns"] < steps[-1]["end_ns"] <= layout["end"]
    assert served_job.get("rank/1/api/note", method="POST").status == 403
    assert served_job.get("rank/x/api/note", method="POST").status == 405


def test_notes_of_a_rank_are_kept_beside_its_capture(
    served_job: Served, folder: Path, captures: list[Path]
) -> None:
    assert post(served_job, NOTE, below="rank/1/").status == 200
    assert answer_of_rank(served_job, "notes")["notes"][0]["text"] == NOTE["text"]
    kept = folder / f"{captures[1].name}.notes.json"
    assert kept.exists()
    kept.unlink()
    assert post(served_job, NOTE, below="rank/1/", origin="http://evil.example").status == 403
    for below in ("", "rank/", "rank/1/api/../", "rank//"):
        assert post(served_job, NOTE, below=below).status in (404, 405), below


def answer_of_rank(served: Served, path: str) -> Any:
    return json.loads(served.get(f"rank/1/api/{path}").body)


# --- which captures are opened -------------------------------------------------------------------


def test_a_path_of_a_digest_outside_of_what_was_given_is_not_opened(
    captures: list[Path], tmp_path: Path
) -> None:
    made_of = tmp_path / "digests"
    digest_captures([str(captures[0])], made_of, {})
    assert captures[0].exists()
    assert JobPage([made_of]).reachable() == []
    page = JobPage([made_of, captures[0].parent / captures[0].name])
    assert page.reachable() == [0]
    assert page.ranks == 1


def test_a_digest_that_leads_out_of_the_folder_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret.sqlite").write_bytes(b"not given")
    digest = family()[0]
    for name in ("../secret.sqlite", str(tmp_path / "secret.sqlite"), "..", "", "\0", "x" * 5000):
        changed = replace(digest, facts={**digest.facts, "capture": name})
        write_digests([changed], tmp_path / "digests" / f"one{SUFFIX}")
        assert JobPage([tmp_path / "digests"]).reachable() == []


def test_captures_of_one_name_are_told_apart_by_their_folders(
    captures: list[Path], tmp_path: Path
) -> None:
    digests = [digest for path in captures for digest in read_of(path, tmp_path)]
    for number, digest in enumerate(digests):
        place = tmp_path / "job" / f"node{number}"
        place.mkdir(parents=True)
        shutil.copy(captures[number], place / "run.sqlite")
        facts = {**digest.facts, "capture": f"/scratch/node{number}/run.sqlite"}
        write_digests([replace(digest, facts=facts)], place / f"run{SUFFIX}")
    page = JobPage([tmp_path / "job"])
    assert page.reachable() == [0, 1]
    assert [page.open(row).ranks[0].rank for row in (0, 1)] == [0, 1]


def read_of(capture: Path, folder: Path) -> list[Digest]:
    files, _ = digest_captures([str(capture)], folder / "made", {})
    return [digest for file in files for digest in read_digests(file, whole=True)]


def test_another_capture_of_the_same_name_is_refused(captures: list[Path], tmp_path: Path) -> None:
    digest_captures([str(captures[0])], tmp_path, {})
    shutil.copy(captures[1], tmp_path / captures[0].name)
    page = JobPage([tmp_path])
    assert page.reachable() == [0]
    with pytest.raises(InputError, match="another capture than the digest of rank 0"):
        page.open(0)


def test_captures_without_a_digest_are_summarised_on_the_way(
    captures: list[Path], tmp_path: Path
) -> None:
    digest_captures([str(captures[0])], tmp_path, {})
    page = JobPage([tmp_path, *captures])
    assert page.ranks == 2
    assert page.reachable() == [0, 1]
    assert page.rank(1).evidence


def test_what_is_shown_as_a_job(captures: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(captures[0], run)
    assert not shows_a_job([run])
    digest_captures([str(captures[0])], run / "digests", {})
    assert not shows_a_job([run])  # as it was recorded: the captures count
    assert shows_a_job([run / "digests", run])
    assert shows_a_job([run / "digests" / f"{captures[0].name}{SUFFIX}"])
    assert not shows_a_job([captures[0], tmp_path / "nothing", tmp_path / ("x" * 5000), "\0"])
    shutil.copy(captures[0], run / "digests")
    assert shows_a_job([run / "digests"])


def test_records_of_a_flight_recorder_have_no_timeline(tmp_path: Path) -> None:
    dump = {"version": "2.5", "rank": 0, "world_size": 2, "pg_config": {}, "entries": []}
    (tmp_path / "trace_0.json").write_text(json.dumps(dump))
    with pytest.raises(UsageError, match="stepscope job PATH says what they tell"):
        JobPage([tmp_path / "trace_0.json"])


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--static", "{new}"], "stepscope job DIGESTS --format html > job.html"),
        (["{folder}", "--compare"], "these are digests: leave --compare out"),
    ],
)
def test_what_digests_have_not_is_said_in_one_line(
    reader: Stepscope, folder: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    words = [word.format(new=tmp_path / "page.html", folder=folder) for word in more]
    output = reader.ends("ui", str(folder), *words)
    assert output.returncode == 2
    assert is_one_line(output.stderr)
    assert message in output.stderr


def test_a_topology_is_about_digests(
    reader: Stepscope, folder: Path, captures: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "cluster.json").write_text("no JSON")
    for path, message in ((captures[0], "is about digests"), (folder, "is no JSON")):
        output = reader.ends("ui", str(path), "--topology", str(tmp_path / "cluster.json"))
        assert output.returncode == 2
        assert is_one_line(output.stderr)
        assert message in output.stderr


def test_damaged_digests_end_it(reader: Stepscope, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}{SUFFIX}").write_bytes(b"PAR1 and no more")
    output = reader.ends("ui", str(tmp_path), "--no-browser")
    assert output.returncode == 2
    assert is_one_line(output.stderr)
    assert "none of 2 inputs could be used" in output.stderr


# --- the page ------------------------------------------------------------------------------------


def test_a_cell_leads_to_the_rank_and_to_its_timeline_at_the_step(
    page: Any, served_job: Served
) -> None:
    shown = ShownJob(page, served_job.address)
    assert "2 ranks on 1 node" in shown.text("Verdict")
    assert "Findings" in shown.text("Findings")
    assert "data parallel" in shown.text("Communicators")
    steps = answer(served_job, "jobdiagnosis")["grid"]["steps"]
    x, y = shown.place(1, 2, 2, len(steps))
    page.mouse.move(x, y)
    settle(page)
    tip = page.locator(".tip").inner_text()
    assert re.match(rf"rank 1.*, step {steps[2]}: needs beyond its peers [+−][\d.]+ .?s", tip)
    page.mouse.click(x, y)
    settle(page)
    assert shown.link() == {"rank": "1", "step": str(steps[2])}
    assert shown.text("Rank").startswith("‹ The job (Esc)")
    assert "step time" in shown.text("Budget")
    assert "slowest step" in shown.text("Evidence")
    page.locator("section[aria-label=Timeline] a").click()
    page.wait_for_selector("canvas.rows")
    page.wait_for_selector("[aria-label=Findings]")
    settle(page)
    own = answer(served_job, "jobrank?row=1")["steps"][2]
    assert shown.link()["range"] == f"{own['begin_ns']}-{own['end_ns']}"
    assert "Range of" in page.locator("aside").inner_text()
    begin, end = map(int, shown.link()["t"].split("-"))
    assert begin <= own["begin_ns"] < own["end_ns"] <= end
    page.locator("header a").click()
    page.wait_for_selector("canvas.heatmap")
    settle(page)
    assert shown.link() == {"rank": "1"}


def test_a_capture_that_is_elsewhere_is_named_with_its_command(
    page: Any, served_job: Served, captures: list[Path]
) -> None:
    shown = ShownJob(page, served_job.address + "#rank=0")
    told = shown.text("Timeline")
    assert f"Fetch {captures[0]}" in told
    assert f"stepscope ui {captures[0].name}" in told
    shown.press("t")
    assert "the capture of rank 0 is not here" in page.locator("footer").inner_text()
    assert page.locator("canvas.heatmap").count() == 1


def test_keys_and_the_link_of_a_large_job(page: Any, many: Served) -> None:
    shown = ShownJob(page, many.address)
    assert "rank 100" in shown.text("Verdict")
    shown.press("g")  # the late rank; its node opens
    assert shown.link()["rank"] == "100"
    assert "Rank 100" in shown.text("Rank")
    shown.press("ArrowRight")
    shown.press("ArrowDown")
    assert shown.link()["rank"] == "101"
    shown.press("Escape")
    assert shown.link()["panel"] == "job"
    shown.press("Enter")
    assert "Rank 101" in shown.text("Rank")
    for key in ("c", "o", "r", "+"):
        shown.press(key)
    link = shown.link()
    assert link["value"] == "wall"
    assert link["sort"] == "most"
    assert link["rows"] == "ranks"
    assert float(link["px"]) > 5
    shown.press("End")
    assert page.evaluate("document.querySelector('.scroll').scrollTop") > 0
    shown.press("0")
    link = shown.link()
    picture = page.locator("canvas.heatmap").screenshot()
    shown = ShownJob(page, page.url)
    assert shown.link() == link
    assert page.locator("canvas.heatmap").screenshot() == picture
    shown.press("l")
    assert page.locator("canvas.heatmap").screenshot() != picture
    shown.press("l")
    shown.press("?")
    assert "open the rank's timeline" in page.locator("dialog").inner_text()
    page.locator("dialog button").click()


def test_a_finding_leads_to_its_rank(page: Any, many: Served) -> None:
    shown = ShownJob(page, many.address)
    page.locator("button.finding").first.click()
    settle(page)
    assert "Rank 100" in shown.text("Rank")
    assert "Its full capture is not here" in shown.text("Timeline")
    page.get_by_text("‹ The job (Esc)").click()
    settle(page)
    row = page.locator("section[aria-label='Captures to fetch'] tr").nth(2)
    rank = row.locator("button").inner_text()
    row.locator("button").click()
    settle(page)
    assert rank.capitalize() in shown.text("Rank")


@pytest.mark.parametrize("width", [800, 1100])
def test_a_narrow_window_shows_all(page: Any, many: Served, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 600})
    try:
        ShownJob(page, many.address + "#rank=100&step=4")
        wide = page.evaluate("document.documentElement.scrollWidth")
        aside = page.evaluate(
            "((a) => a.scrollWidth - a.clientWidth)(document.querySelector('aside'))"
        )
        assert (wide, aside) == (width, 0)
    finally:
        page.set_viewport_size({"width": 1500, "height": 850})


def test_texts_of_hostile_digests_are_only_text(browser: Any, tmp_path: Path) -> None:
    for rank, digest in enumerate(made(family(), Shape(8, "ddp"), 1, Plant("slow_gpu", 3, 0.3))):
        name = HOSTILE[rank]
        facts = {**digest.facts, "hostname": name, "capture": name, "device_name": HOSTILE[0]}
        lists = {**digest.lists, "findings": {**digest.lists["findings"]}}
        lists["evidence"] = {
            key: [name] * 2 if key in ("what", "sql") else [1, 2]
            for key in digest.lists["evidence"]
        }
        lists["phases"] = {key: [name] if key == "phase" else [1] for key in digest.lists["phases"]}
        changed = Digest({**facts, "rank": rank}, lists)
        write_digests([changed], tmp_path / f"rank{rank}{SUFFIX}")
    with serving(tmp_path) as served, browsing(browser) as page:
        shown = ShownJob(page, served.address)
        is_harmless(page)
        for rank in range(8):
            shown = ShownJob(page, f"{served.address}#rank={rank}&step=2")
            assert f"Rank {rank}" in shown.text("Rank")
            box = page.locator("canvas.heatmap").bounding_box()
            page.mouse.move(box["x"] + 60, box["y"] + 60)
            settle(page)
            is_harmless(page)
        assert page.errors == []

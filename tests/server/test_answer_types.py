"""Answers have the shape that is declared: mypy sees neither into columns nor into stored facts."""

from __future__ import annotations

import json
from threading import Event
from typing import Any

import msgspec
import pytest
from tests.support.captures import DATA, unpack

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.api.runs import Pair
from stepscope.compare.step_rows import StepPicture
from stepscope.server.answers import Compared, Diagnosed, Layout, PairLayout
from stepscope.server.app import PageHandlers
from stepscope.server.pair import PairHandlers
from stepscope.timeline import answers
from stepscope.trace.notes import NotesAnswer


def is_of(answer: bytes, kind: Any) -> bool:
    """Whether an answer is of a type, and holds nothing more."""
    read = msgspec.json.decode(answer, type=kind)
    return bool(json.loads(msgspec.json.encode(read)) == json.loads(answer))


@pytest.fixture(scope="module")
def page() -> PageHandlers:
    return PageHandlers(Job([bundled_capture()]))


def test_answers_about_a_run(page: PageHandlers) -> None:
    layout = json.loads(page.layout({}))
    window = {name: str(layout[name]) for name in ("begin", "end")}
    assert is_of(page.layout({}), Layout)
    assert is_of(page.diagnosis({}), Diagnosed)
    assert is_of(page.statistics(window), answers.Statistics)
    assert is_of(page.search({"text": "gemm"}, Event()), answers.Hits)
    assert is_of(page.steps.steps({}), answers.StepsAnswer)
    assert is_of(page.panels.table(window), answers.TableAnswer)
    assert is_of(page.panels.instances({"group": "0"}), answers.Instances)
    assert is_of(page.panels.flame(window), answers.FlameOfWindow)
    assert is_of(page.panels.notes({}), NotesAnswer)
    slices = [track["id"] for track in layout["tracks"] if track["kind"] == "slices"]
    for track in slices:
        assert is_of(page.row({"track": str(track), "row": "0"}), answers.Details)
    grid = page.steps.grid(
        {"first": "0", "count": "4", "begin": "0", "bucket": "1000", "columns": "9", "phases": "1"}
    )
    tile = page.tile(
        {"tracks": "0,1", "begin": window["begin"], "bucket": "1000", "columns": "9"}, Event()
    )
    for packed, header in ((grid, answers.GridHeader), (tile, answers.TileHeader)):
        assert is_of(packed[4 : 4 + int.from_bytes(packed[:4], "little")], header)


def test_answers_about_two_runs() -> None:
    names = ("gpt1024_sync_item", "gpt1024_healthy")
    pair = PairHandlers(Pair(*(str(unpack(DATA / "nsys" / f"{n}.sqlite.xz")) for n in names)))
    assert is_of(pair.layout({}), PairLayout)
    assert is_of(pair.comparison({}), Compared)
    assert is_of(pair.step({"side": "before", "step": "2"}), StepPicture)

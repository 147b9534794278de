"""Pages made from templates: whatever stands in a text, none of it becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from stepscope.render import html
from stepscope.render.text import plural

EVIL = "</title><script>alert(1)</script>\x1b[31m\u202e\"'><img src=x onerror=alert(1)>"
SAFE = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "ul", "li", "link", "g",
        "table", "thead", "tbody", "tr", "th", "td", "svg", "pattern", "rect", "path", "text",
        "line", "circle", "polyline", "span", "b", "a", "code"}  # fmt: skip
RECIPE = "recipe.html"  # holds scripts of ours; tests/jobs/test_recipes.py tries it
COUNTS = {"ranks": 1, "nodes": 1, "steps": 1, "world_size": 2}
PAGES = {
    "job.html": {
        "title": EVIL, "time": str, "percent": str, "size": str, "plural": plural,
        "found": {
            "job": {**COUNTS, "skipped": [{"path": EVIL, "reason": EVIL}]},
            "step_ns": {"mean": 1, "median": 1, "p95": 1}, "all_repaired_step_ns": 1,
            "stuck": [{"message": EVIL}],
            "findings": [{"message": EVIL, "predicted_step_ns": EVIL, "prediction_low_ns": 1,
                          "prediction_high_ns": 1, "score": 1.0, "threshold": 1.0,
                          "recommendations": [EVIL]}],
            "fetch": [{"rank": 1, "hostname": EVIL, "why": EVIL, "step": 1, "capture": EVIL}],
            "communicators": [{"name": EVIL, "use": EVIL, "members": 1, "size": 2, "operations": 1,
                               "transfer_ns": 1, "skew_ns": 1, "last_rank": 1, "last_share": 1}],
            "warnings": [EVIL], "ranks": [{"rank": 1}],
            "collective_logs": {
                "findings": [{"message": EVIL, "recommendations": [EVIL]}], "cannot_tell": [EVIL],
                "rows": [{"name": EVIL, "ranks": 1, "size": 1, "operation": EVIL, "bytes": 1,
                          "matched": 1, "transfer_ns": 1, "waiting_ns": 1, "bus_gbs": 1.0,
                          "bus_low_gbs": 1.0, "bus_high_gbs": 1.0, "last": EVIL,
                          "last_share": 1}]},
        },
        "heat": {"width": 9, "height": 9, "left": 1, "wide": 1, "tall": 1,
                 "labels": [{"y": 1, "text": EVIL}],
                 "cells": [{"x": 1, "y": 1, "opacity": 1, "rank": 1, "tip": EVIL}]},
        "ranks": [{"rank": 1, "hostname": EVIL, "late": True, "need_ns": 1, "compute_ns": 1,
                   "waiting_ns": 1, "transfer_ns": 1, "idle_ns": 1, "kernel_rate": 1.0,
                   "joined_last": 1, "score": None, "capture": EVIL}],
    },
    "report.html": {"title": EVIL, "sections": [
        {"title": EVIL, "facts": [EVIL], "missing": [EVIL], "tables": [
            {"title": EVIL, "head": [EVIL], "rows": [[EVIL]], "numeric": [True], "rest": [EVIL]}]}
    ]},
    "report_table.html": {"bare": False, "title": EVIL, "css": EVIL, "heading": EVIL,
                          "head": [EVIL], "rows": [[EVIL]]},
    "history.html": {"title": EVIL, "low": 1.0, "high": 2.0, "width": 9, "height": 9, "edge": 1,
                     "dots": [("1", "2", EVIL)], "marks": ["1"], "notes": [EVIL]},
    "ncu.html": {"title": EVIL, "drawing": "", "notes": [EVIL], "pairs": [
        {"name": EVIL, "renaming": [EVIL], "was": EVIL, "now": "", "rows": [[EVIL] * 4]}]},
    "roofline.html": {"title": EVIL, "drawing": ""},
    "compare.html": {"title": EVIL, "facts": [EVIL], "width": 9, "kinds": [(EVIL, "#fff")],
                     "causes": [(EVIL, "#fff")], "sections": [(EVIL, [EVIL], [[EVIL]])],
                     "notes": [EVIL], "picture": {
                         "height": 9, "headings": [(1, EVIL)], "shapes": [("M0", "#fff", EVIL)],
                         "marks": [(1.0, 2, "3", EVIL, EVIL)]}},
}  # fmt: skip


class Tags(HTMLParser):
    """The elements of a page, and the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_every_template_is_tried() -> None:
    folder = Path(html.__file__).with_name("templates")
    assert {path.name for path in folder.iterdir()} == {*PAGES, RECIPE, "base.html", "parts.html"}


@pytest.mark.parametrize("name", PAGES)
def test_no_text_becomes_markup(name: str) -> None:
    page = html.page(name, **PAGES[name])
    made = Tags(page)
    assert made.found <= SAFE
    assert "title" in made.found
    assert not {"onerror", "src"} & made.attributes
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page


def test_what_a_template_names_must_be_given() -> None:
    with pytest.raises(Exception, match="undefined"):
        html.page("roofline.html", title="t")

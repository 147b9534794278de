"""Pages made from templates: whatever stands in a text, none of it becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from stepscope.render import html

EVIL = "</title><script>alert(1)</script>\x1b[31m\u202e\"'><img src=x onerror=alert(1)>"
SAFE = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "ul", "li", "link", "g",
        "table", "thead", "tbody", "tr", "th", "td", "svg", "pattern", "rect", "path", "text",
        "line", "circle", "polyline", "span"}  # fmt: skip
PAGES = {
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
    assert {path.name for path in folder.iterdir()} == {*PAGES, "base.html", "parts.html"}


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

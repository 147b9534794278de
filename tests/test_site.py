"""The documentation as a site: it is built without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.docs.site import navigation

ROOT = Path(__file__).parents[1]
REFERENCE = re.compile(
    r"""\s(?:action|data|href|poster|src|srcset)=["']?([^"'\s>]+)"""
    r"""|(?:url\(|@import\s+|fetch\()["']?([^"')\s]+)"""
)


def outside(html: str) -> set[str]:
    """References of a page that leave the site."""
    found = {match[1] or match[2] for match in REFERENCE.finditer(html)}
    return {r for r in found if re.match(r"[a-z][a-z+.-]*:|//", r, re.IGNORECASE)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr  # a broken link or anchor is named here
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    found = {page.name: leaving for page in pages if (leaving := outside(page.read_text("utf-8")))}
    assert found == {}
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import\s+)[\"']?(https?:)?//", sheet.read_text("utf-8"))
    # the theme would fetch a library for such drawings
    assert not any('class="mermaid"' in page.read_text("utf-8") for page in pages)


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    docs = ROOT / "docs"
    home = (site / "index.html").read_text("utf-8")
    for page in docs.rglob("*.md"):
        target = page.relative_to(docs).with_suffix(".html").as_posix()
        assert (site / target).is_file()
        assert f'href="{target}"' in home, f"{target} is not in the navigation"


def test_references_that_leave_are_found() -> None:
    assert outside('<script src="//cdn.x/a.js"></script><a href="b.html#c">b</a>') == {
        "//cdn.x/a.js"
    }
    assert outside('<style>@import "https://fonts.x/a"; b{c:url(data:d)}</style>') == {
        "https://fonts.x/a",
        "data:d",
    }


def test_the_navigation_follows_the_index() -> None:
    index = (
        "# T\n\n[a](a.md)\n\n## B\n\n- [b](g/b.md): [a](a.md)\n\n### C\n\n[c](c.md), [b](g/b.md)\n"
    )
    assert navigation(index) == ["a.md", {"B": ["g/b.md", {"C": ["c.md"]}]}]

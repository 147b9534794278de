"""``python3 dev.py docs``: write the generated documentation, or check that it is current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tools.docs.knowledge_pages import GLOSSARY, glossary_page
from tools.docs.man_page import PATH as MAN_PAGE
from tools.docs.man_page import man_page
from tools.docs.notebook import PATH as NOTEBOOK
from tools.docs.notebook import executed_notebook
from tools.docs.page_types import PATH, page_types
from tools.docs.reference import ENVIRONMENT, PAGES
from tools.docs.snippets import demo_image, filled, words

REPOSITORY = Path(__file__).parents[2]
IMAGE = "docs/images/demo.svg"


def main(arguments: Sequence[str]) -> int:
    """Write or check; returns the exit code: 1 when something is stale, 2 on bad use."""
    parser = argparse.ArgumentParser(prog="python3 dev.py docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when stale")
    parser.add_argument(
        "--root", type=Path, default=REPOSITORY, help="the repository (default: this one)"
    )
    options = parser.parse_args(arguments)
    root: Path = options.root
    if not (root / "README.md").is_file() or not (root / "docs").is_dir():
        print(f"{root} is no repository of Stepscope; name it with --root", file=sys.stderr)
        return 2
    stale = list(stale_files(root, drawing=not options.check))
    for path, text in stale:
        print(f"{'stale' if options.check else 'written'}: {path.relative_to(root)}")
        if not options.check:
            _write(path, text)
    if options.check and stale:
        print("run python3 dev.py docs", file=sys.stderr)
    return int(options.check and bool(stale))


def stale_files(root: Path, *, drawing: bool = False) -> Iterator[tuple[Path, str | None]]:
    """Files that differ from what would be generated, with that text; None where none belongs.

    Args:
        root: the repository.
        drawing: whether an image that says the same, but is drawn differently, counts as well;
            how it is drawn depends on the library's version.
    """
    reference = root / "docs" / "reference"
    for name, text in _pages().items():
        if _read(reference / name) != text:
            yield reference / name, text
    for path in sorted(reference.glob("*")):
        if path.name not in PAGES:
            yield path, None
    single = {PATH: page_types(), GLOSSARY: glossary_page(), MAN_PAGE: man_page(ENVIRONMENT)}
    for path, text in ((root / name, text) for name, text in single.items()):
        if _read(path) != text:
            yield path, text
    for path in pages_by_hand(root):
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            yield path, after
    notebook = _read(root / NOTEBOOK)
    if notebook and (made := executed_notebook(notebook)) != notebook:
        yield root / NOTEBOOK, made
    image = demo_image()
    before = _read(root / IMAGE)
    if words(before) != words(image) or (drawing and before != image):
        yield root / IMAGE, image


@cache
def _pages() -> dict[str, str]:
    """The generated pages by name; nothing but the package decides what they are."""
    return {name: make() for name, make in PAGES.items()}


def pages_by_hand(root: Path) -> list[Path]:
    """The README and the pages of ``docs`` that are not generated."""
    pages = sorted((root / "docs").rglob("*.md"))
    by_hand = (p for p in pages if p.parent.name != "reference" and p != root / GLOSSARY)
    return [root / "README.md", *by_hand]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Snapshot tests: what a row of a table gives, as text, stands in a file beside the test.

``pytest --snapshots`` writes the files instead of comparing; ``git diff`` then shows what changed.
A test takes the fixture ``snapshot`` and calls it with a text and a name. Figures are written so
that another machine, or another order of the same sum, gives the same text (``short``).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path

Snapshot = Callable[[str, str], None]
FOLDER = "snapshots"
MOST_LINES = 40


def compared(test: Path, *, write: bool) -> Snapshot:
    """The fixture's function for the tests of a file."""

    def check(text: str, name: str) -> None:
        path = test.parent / FOLDER / name
        text = text.rstrip("\n") + "\n"
        if write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"no snapshot {path.name} yet: run this test with --snapshots"
        stored = path.read_text(encoding="utf-8")
        if text != stored:
            lines = difflib.unified_diff(
                stored.splitlines(), text.splitlines(), "stored", "now", lineterm="", n=1
            )
            shown = "\n".join(line for line, _ in zip(lines, range(MOST_LINES), strict=False))
            raise AssertionError(f"{path.name} differs; --snapshots accepts it:\n{shown}")

    return check


def left_over(test: str, names: Iterable[str]) -> set[str]:
    """Snapshots beside a test that no row of its table has any more."""
    return {path.name for path in (Path(test).parent / FOLDER).glob("*")} - set(names)


def short(value: object) -> str:
    """A figure to three significant digits; integers, which are exact, as they are."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)

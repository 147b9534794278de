"""What callers of the Python interface may give: one thing, or several of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar, overload

T = TypeVar("T")


@overload
def listed(given: str) -> list[str]: ...
@overload
def listed(given: Path) -> list[Path]: ...
@overload
def listed(given: Iterable[T]) -> list[T]: ...


def listed(given: object) -> object:
    """``["path"]`` for ``"path"`` or a ``Path``, else the elements.

    A text is a sequence of its characters, so that without this each of them would be taken for
    a path of its own.
    """
    if isinstance(given, str | Path):
        return [given]
    assert isinstance(given, Iterable)
    return list(given)

"""What long work tells of itself to whoever watches: the command line, where a person sits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

Watcher = Callable[[str | None], None]
"""Receives what is in work, in words; None when that work has ended."""

_watchers: list[Watcher] = []
_stack: list[str] = []


def watch(watcher: Watcher | None) -> None:
    """Tell one watcher of what the main thread works at; None ends that."""
    _watchers[:] = [watcher] if watcher is not None else []
    _stack.clear()


def each(items: Sequence[T], doing: str, name: Callable[[T], str]) -> Iterator[T]:
    """Iterate over work, telling which item of how many is in work.

    Args:
        items: what is worked at, one after the other.
        doing: what is done to them, as in ``Reading``.
        name: an item's name.
    """
    if not _watchers or threading.current_thread() is not threading.main_thread():
        yield from items
        return
    depth = len(_stack)
    try:
        for number, item in enumerate(items, 1):
            of = f" ({number} of {len(items)})" if len(items) > 1 else ""
            _stack[depth:] = [f"{doing} {name(item)}{of}"]
            _tell()
            yield item
    finally:
        del _stack[depth:]
        _tell()


def _tell() -> None:
    for watcher in _watchers:
        watcher(", ".join(_stack) or None)

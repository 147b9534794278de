"""Named ranges and steps."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from stepscope.annotate import listeners

Function = TypeVar("Function", bound=Callable[..., Any])


class _State:
    """What this process knows of listeners and steps."""

    def __init__(self) -> None:
        self.number = -1
        self.forget()

    def forget(self) -> None:
        """Begin again, as in a forked child; steps are counted on."""
        self.known = False
        self.push: listeners.Push | None = None
        self.pop: listeners.Pop | None = None
        self.open: AbstractContextManager[Any] | None = None
        self.watchers: list[Callable[[int], None]] = []

    def look(self) -> None:
        """Find the tool that reads ranges; torch may be imported later, so ask until there is."""
        if (library := listeners.collector()) is not None:
            self.push, self.pop, self.known = library.push, library.pop, True
        elif (pair := listeners.nvtx()) is not None:
            (self.push, self.pop), self.known = pair, True
        elif not any(os.environ.get(name) for name in listeners._NVTX_VARIABLES):
            self.known = True


_state = _State()
_modules = sys.modules
_HOOK = "_stepscope_hook"
"""The recorder's hook, where it is in this program: it marks no steps beside ours."""
_MOST_NAMES = 1000
_nothings: dict[str, _Nothing] = {}
"""Ranges that nobody listens to, by name: making one again would cost more than all the rest."""


class _Nothing:
    """A range that nobody listens to."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, function: Function) -> Function:
        return _around(self.name, function)


class _Range(_Nothing):
    """A range that a tool hears of."""

    __slots__ = ("_inner",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._inner: Any = None

    def __enter__(self) -> None:
        if (record := listeners.torch_profiler()) is not None:
            self._inner = record(self.name)
            self._inner.__enter__()
        if _state.push is not None:
            _state.push(self.name)

    def __exit__(self, *problem: object) -> None:
        if _state.pop is not None:
            _state.pop()
        if self._inner is not None:
            self._inner.__exit__(*(problem or (None, None, None)))
            self._inner = None


def range(name: str) -> _Nothing:
    """A named range: ``with stepscope.range("dataload"):``, or ``@stepscope.range("dataload")``.

    Names such as ``dataload``, ``forward``, ``backward``, ``optimizer`` and ``checkpoint`` tell a
    diagnosis what the time is spent on.

    Args:
        name: what the program does meanwhile.
    """
    if not _state.known:
        _state.look()
    if _state.push is None and ("torch" not in _modules or listeners.torch_profiler() is None):
        return _nothings.get(name) or _nothing(name)
    return _Range(name)


def _nothing(name: str) -> _Nothing:
    found = _Nothing(name)
    if len(_nothings) < _MOST_NAMES:
        _nothings[name] = found
    return found


def _around(name: str, function: Function) -> Function:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        with range(name):  # asked at each call: tools come and go
            return function(*arguments, **named)

    return wrapped  # type: ignore[return-value]


def step() -> int:
    """Mark the boundary of a step: call it once in each iteration, always at the same place.

    Ends the range of the step before and begins the next one, ``step_0``, ``step_1`` and so on.

    Returns:
        The number of the step that begins.
    """
    end_steps()
    _state.number += 1
    hook: Any = _modules.get(_HOOK)
    if hook is not None:
        hook.program_marks_steps = True
    for watcher in _state.watchers:
        watcher(_state.number)
    _state.open = range(f"step_{_state.number}")
    _state.open.__enter__()
    return _state.number


def end_steps() -> None:
    """End the last step's range, after the loop; without it the range ends with the capture."""
    if _state.open is not None:
        _state.open.__exit__(None, None, None)
        _state.open = None


def watch_steps(watcher: Callable[[int], None]) -> None:
    """Call a function with each step's number before the step begins."""
    _state.watchers.append(watcher)


def unwatch_steps(watcher: Callable[[int], None]) -> None:
    """Call it no more."""
    if watcher in _state.watchers:
        _state.watchers.remove(watcher)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_state.forget)

"""Pickles of plain data, read by a machine of our own: nothing is imported, called or built.

Only operations that make numbers, texts, truth values, None, lists, tuples and dicts are known; any
other refuses the file. Depth and memo are bounded.
"""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any, Final

from stepscope.trace.errors import InputError

_MARK: Final = object()
_DEEPEST: Final = 32
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES: Final = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "BINFLOAT", "FLOAT",
     "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINSTRING", "SHORT_BINSTRING",
     "STRING"}
)  # fmt: skip
_PUTS: Final = frozenset({"BINPUT", "LONG_BINPUT", "PUT"})
_GETS: Final = frozenset({"BINGET", "LONG_BINGET", "GET"})
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _RefusedError(Exception):
    """The pickle holds something else than plain data."""


def plain(data: bytes, path: Path) -> Any:
    """What a pickle of plain data holds; tuples become lists, so that nothing is hashed but texts.

    Raises:
        InputError: it is damaged, or holds anything else.
    """
    try:
        return _run(data)
    except _RefusedError as error:
        raise InputError(
            f"{path} holds {error}, which no dump of plain data does; it was not read further"
        ) from error
    except Exception as error:  # the module raises many kinds for damaged data
        raise InputError(f"{path} is a damaged pickle: {type(error).__name__}: {error}") from error


def _run(data: bytes) -> Any:  # noqa: PLR0912 (a case an operation)
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    depth: dict[int, int] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name in _TUPLES:
            count = _TUPLES[name]
            items = stack[len(stack) - count :]
            if len(items) < count or _MARK in items:
                raise _RefusedError("a tuple without its items")
            del stack[len(stack) - count :]
            stack.append(_nested(items, depth))
        elif name in ("TUPLE", "LIST"):
            stack.append(_nested(_since_mark(stack), depth))
        elif name == "DICT":
            stack.append(_filled({}, _since_mark(stack), depth))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else _since_mark(stack)
            target = stack[-1]
            if not isinstance(target, list):
                raise _RefusedError("items for what is no list")
            target += items
            _nested(target, depth)
        elif name in ("SETITEM", "SETITEMS"):
            if name == "SETITEM":
                value = stack.pop()
                items = [stack.pop(), value]
            else:
                items = _since_mark(stack)
            _filled(stack[-1], items, depth)
        elif name in _PUTS:
            memo[_number(argument)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in _GETS:
            stack.append(memo[_number(argument)])
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise _RefusedError(f"the operation {name}")
    raise _RefusedError("no end")


def _number(argument: Any) -> int:
    return int(argument)


def _since_mark(stack: list[Any]) -> list[Any]:
    items: list[Any] = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]


def _nested(items: list[Any], depth: dict[int, int]) -> list[Any]:
    inside = max((depth.get(id(item), 0) for item in items), default=0) + 1
    if inside > _DEEPEST:
        raise _RefusedError("data that is nested too deep")
    depth[id(items)] = max(depth.get(id(items), 0), inside)
    return items


def _filled(target: Any, items: list[Any], depth: dict[int, int]) -> dict[Any, Any]:
    if not isinstance(target, dict) or len(items) % 2:
        raise _RefusedError("items for what is no dict")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | int):
            raise _RefusedError("a dict whose keys are no texts")
        target[key] = value
    inside = max((depth.get(id(item), 0) for item in items), default=0) + 1
    if inside > _DEEPEST:
        raise _RefusedError("data that is nested too deep")
    depth[id(target)] = max(depth.get(id(target), 0), inside)
    return target

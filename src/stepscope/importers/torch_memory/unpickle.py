"""Pickles of plain data, read without running anything in them.

A pickle is a program for a stack machine. Some of its operations import and call what the file
names; others make a small file take any memory or crash the interpreter: a memo index of four
thousand million, tuples nested a hundred thousand deep and then hashed. So all operations are
looked at first. Those allowed make dicts, lists, texts, numbers, truth values, None and flat tuples
of numbers, and refer to what was made before; any other refuses the file. What passes is then built
by the standard library's unpickler, which is not given a way to import.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from pathlib import Path
from typing import Any, Final, NoReturn

from stepscope.trace.errors import InputError

_FIXED_INTEGER: Final = (
    rb"(?:K.|M..|J.{4}|\x8a(?:\x00|\x01.|\x02.{2}|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}"
    rb"|\x08.{8}|\x09.{9}))"
)
_TUPLE: Final = rb"(?:\)|%(i)s\x85|%(i)s%(i)s\x86|%(i)s%(i)s%(i)s\x87|\((?:%(i)s){0,16}t)" % {
    b"i": _FIXED_INTEGER
}
_PLAIN: Final = re.compile(
    rb"(?:%(tuple)s|h.|j.{4}|\x94|%(int)s|[(}\]uesa]|N|\x88|\x89|G.{8}|\x95.{8}|q.){1,4096}+"
    % {b"tuple": _TUPLE, b"int": _FIXED_INTEGER},
    re.DOTALL,
)
"""Operations of a fixed length, many at a time."""
_TEXT_SIZES: Final = {0x8C: "<B", 0x58: "<I", 0x8D: "<Q"}
_MEMO_PUT: Final = 0x72
_STOP: Final = 0x2E
_LONGEST_TEXT: Final = 1 << 20
_BYTES_A_CONTAINER: Final = 6
_FEW_CONTAINERS: Final = 1_000_000
_CALLS: Final = frozenset(b"cRbio\x81\x82\x83\x84\x92\x93PQ")
"""Operations that import, call, or set the state of objects."""


class _Unpickler(pickle.Unpickler):
    """Imports nothing and refers to nothing outside."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside")


def unpickled(data: bytes, path: Path) -> Any:
    """What a pickle holds, where that is plain data.

    Args:
        data: the file.
        path: its name, for messages.

    Raises:
        InputError: it is damaged, or holds anything else.
    """
    _examine(data, path)
    containers = data.count(b"}") + data.count(b"]")  # some of these bytes are parts of numbers
    if containers > len(data) // _BYTES_A_CONTAINER + _FEW_CONTAINERS:
        raise InputError(
            f"{path} holds {containers:,} lists and dicts in {len(data):,} bytes, which no memory "
            "snapshot does; dump the snapshot again"
        )
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # the unpickler raises whatever a wrong operation meets
        raise InputError(
            f"{path} is a damaged pickle ({type(error).__name__}); dump the snapshot again"
        ) from error


def _examine(data: bytes, path: Path) -> None:
    """Refuse everything but operations that make plain data."""
    at, puts = 2, 0
    while at < len(data):
        run = _PLAIN.match(data, at)
        if run is not None:
            at = run.end()
            continue
        code = data[at]
        if code == _STOP:
            return
        if code == _MEMO_PUT and at + 5 <= len(data):
            (index,) = struct.unpack_from("<I", data, at + 1)
            puts += 1
            if index > puts + 0x100:
                raise InputError(
                    f"{path} is no memory snapshot: its pickle asks for a memo of {index:,} "
                    "entries; dump the snapshot again"
                )
            at += 5
        elif code in _TEXT_SIZES:
            at = _after_text(data, at, path)
        else:
            raise InputError(_refused(code, at, path))
    raise InputError(f"{path} ends within its pickle, cut short; dump or copy the snapshot again")


def _after_text(data: bytes, at: int, path: Path) -> int:
    """Where the text at a position ends."""
    layout = _TEXT_SIZES[data[at]]
    begin = at + 1 + struct.calcsize(layout)
    if begin <= len(data):
        (length,) = struct.unpack_from(layout, data, at + 1)
        if length > _LONGEST_TEXT and begin + length <= len(data):
            raise InputError(
                f"{path} is no memory snapshot: it holds a text of {length:,} bytes; dump the "
                "snapshot again"
            )
        if begin + length <= len(data):
            return int(begin + length)
    raise InputError(f"{path} ends within a text, cut short; dump or copy the snapshot again")


def _refused(code: int, at: int, path: Path) -> str:
    if code in _CALLS:
        return (
            f"{path} is a pickle that would run code when loaded (operation {code:#04x} at byte "
            f"{at:,}); memory snapshots hold plain data only, and nothing of it was run"
        )
    return (
        f"{path} is no memory snapshot: its pickle holds operation {code:#04x} at byte {at:,}, "
        "which plain data does not need, or is cut short there; dump the snapshot again"
    )

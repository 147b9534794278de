"""Protocol buffers by column: the fields of many messages at once, in numpy, from a mapped file.

The library of Google refuses messages of more than 2 GiB and makes an object of every event. Here
a file is mapped; the few messages that hold everything (a plane, a line, a packet sequence) are
walked field by field (:func:`walk`), which touches only their heads, and the many small ones are
decoded in step: the first field of all of them, then the second, and so on (:func:`fields`).
Memory is bounded by what one call is given.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.importers.common.stream import is_packed, open_text
from stepscope.intervals.distinct import with_first_and_inverse
from stepscope.trace.errors import InputError
from stepscope.trace.frame import BoolArray, IntArray

Bytes = npt.NDArray[np.uint8]
Unsigned = npt.NDArray[np.uint64]

VARINT: Final = 0
FIXED64: Final = 1
TEXT: Final = 2
FIXED32: Final = 5
_LONGEST_VARINT: Final = 10
_SHORT: Final = 8


class DamageError(Exception):
    """Bytes that are no protocol buffer, or not a whole one."""


@contextmanager
def mapped(path: Path, scratch: Path) -> Iterator[mmap.mmap]:
    """A file's bytes, unpacked into an unnamed file where it is packed.

    Args:
        path: the file, plain, gzip or zstd.
        scratch: folder for what is unpacked.

    Raises:
        InputError: it cannot be read, is empty, or is not whole.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
            if not head:
                raise InputError(f"{path} is empty; the capture did not finish, make it again")
            if not is_packed(head):
                # closed when the last array over it goes: closing it sooner would raise
                yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                return
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its rights") from error
    with tempfile.TemporaryFile(dir=scratch) as unpacked:
        with open_text(path) as read:
            while piece := read():
                unpacked.write(piece)
        unpacked.flush()
        if not unpacked.tell():
            raise InputError(f"{path} holds nothing; the capture did not finish, make it again")
        yield mmap.mmap(unpacked.fileno(), 0, access=mmap.ACCESS_READ)


def walk(data: mmap.mmap | bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of one message: number, begin and end of the content, value of a number.

    Args:
        data: the bytes.
        begin: where the message begins.
        end: where it ends.

    Raises:
        DamageError: it is none, or cut short.
    """
    at = begin
    while at < end:
        key, at = varint(data, at, end)
        kind = key & 7
        if not key >> 3:
            raise DamageError("a field without a number")
        if kind == TEXT:
            length, at = varint(data, at, end)
            if length > end - at:
                raise DamageError("a field that is longer than what holds it")
            yield key >> 3, at, at + length, 0
            at += length
        elif kind == VARINT:
            start = at
            value, at = varint(data, at, end)
            yield key >> 3, start, at, value
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if size > end - at:
                raise DamageError("a number that is cut short")
            yield key >> 3, at, at + size, int.from_bytes(data[at : at + size], "little")
            at += size
        else:
            raise DamageError("a field of an unknown kind")


def varint(data: mmap.mmap | bytes, at: int, end: int) -> tuple[int, int]:
    """A number and where it ends.

    Raises:
        DamageError: it does not end in time.
    """
    value = shift = 0
    while at < end and shift < 7 * _LONGEST_VARINT:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DamageError("a number that does not end")


def places(
    data: mmap.mmap | bytes, begin: int, end: int, number: int, most: int
) -> Iterator[tuple[IntArray, IntArray]]:
    """Begins and ends of the messages in one repeated field, ``most`` at a time.

    Raises:
        DamageError: what holds them is no message.
    """
    begins: list[int] = []
    ends: list[int] = []
    key = number << 3 | TEXT
    at = begin
    while at < end:
        # the fields that are sought stand one behind the other, by the million
        if data[at] == key and at + 2 < end and (data[at + 1] < 0x80 or data[at + 2] < 0x80):
            # one byte says how long it is, or two
            if (size := data[at + 1]) < 0x80:
                start = at + 2
            else:
                start, size = at + 3, size & 0x7F | data[at + 2] << 7
            at = start + size
            if at > end:
                raise DamageError("a field that is longer than what holds it")
        else:
            found, start, at, _ = next(walk(data, at, end))
            if found != number:
                continue
        begins.append(start)
        ends.append(at)
        if len(begins) == most:
            yield np.array(begins, np.int64), np.array(ends, np.int64)
            begins, ends = [], []
    if begins:
        yield np.array(begins, np.int64), np.array(ends, np.int64)


def others(
    data: mmap.mmap | bytes, begin: int, end: int, number: int
) -> Iterator[tuple[int, int, int, int]]:
    """The fields of one message but those of a repeated one that fills it, as :func:`walk`.

    Raises:
        DamageError: it is none, or cut short.
    """
    key = number << 3 | TEXT
    at = begin
    while at < end:
        if data[at] == key and at + 2 < end and (data[at + 1] < 0x80 or data[at + 2] < 0x80):
            size = data[at + 1]
            at += 2 + size if size < 0x80 else 3 + (size & 0x7F | data[at + 2] << 7)
            if at > end:
                raise DamageError("a field that is longer than what holds it")
            continue
        found = next(walk(data, at, end))
        at = found[2]
        if found[0] != number:
            yield found


@dataclass(frozen=True)
class Fields:
    """Fields of many messages: the first ones of all, then the second ones, and so on.

    Attributes:
        message: which message each belongs to.
        number: its number.
        value: a number's bits; 0 for text.
        begin: where its content begins.
        end: where its content ends.
    """

    message: IntArray
    number: IntArray
    value: Unsigned
    begin: IntArray
    end: IntArray

    def take(self, rows: BoolArray | IntArray) -> Fields:
        """Some of them."""
        return Fields(
            self.message[rows],
            self.number[rows],
            self.value[rows],
            self.begin[rows],
            self.end[rows],
        )

    def of(self, number: int) -> Fields:
        """Those of one number."""
        return self.take(self.number == number)

    def numbers(self, number: int, messages: int, missing: int) -> IntArray:
        """The last value of a field in each of so many messages."""
        found = np.full(messages, missing, np.int64)
        mine = self.number == number
        found[self.message[mine]] = self.value[mine].astype(np.int64)
        return found


def fields(data: Bytes, begin: IntArray, end: IntArray) -> Fields:
    """The fields of many messages.

    Args:
        data: the file's bytes.
        begin: where each message begins.
        end: where it ends.

    Raises:
        DamageError: one of them is no message.
    """
    rows = np.flatnonzero(begin < end)
    at = begin[rows].copy()
    limit = end[rows]
    found: list[tuple[IntArray, IntArray, Unsigned, IntArray, IntArray]] = []
    while len(rows):
        key, at = _varints(data, at, limit)
        kind = (key & np.uint64(7)).astype(np.int64)
        number = (key >> np.uint64(3)).astype(np.int64)
        if (number <= 0).any():
            raise DamageError("a field without a number")
        start = at.copy()
        value = np.zeros(len(rows), np.uint64)
        counted = (kind == VARINT) | (kind == TEXT)
        if counted.any():
            value[counted], at[counted] = _varints(data, at[counted], limit[counted])
        text = kind == TEXT
        if (value[text] > (limit - at)[text].astype(np.uint64)).any():
            raise DamageError("a field that is longer than what holds it")
        start[text] = at[text]
        at[text] += value[text].astype(np.int64)
        value[text] = 0
        for fixed, size in ((FIXED64, 8), (FIXED32, 4)):
            mine = np.flatnonzero(kind == fixed)
            if len(mine):
                if (at[mine] + size > limit[mine]).any():
                    raise DamageError("a number that is cut short")
                for byte in range(size):
                    value[mine] |= data[at[mine] + byte].astype(np.uint64) << np.uint64(8 * byte)
                at[mine] += size
        if not (counted | (kind == FIXED64) | (kind == FIXED32)).all():
            raise DamageError("a field of an unknown kind")
        found.append((rows, number, value, start, at.copy()))
        going = at < limit
        rows, at, limit = rows[going], at[going], limit[going]
    if not found:
        none = np.empty(0, np.int64)
        return Fields(none, none, np.empty(0, np.uint64), none, none)
    return Fields(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _varints(data: Bytes, at: IntArray, limit: IntArray) -> tuple[Unsigned, IntArray]:
    """A number at each place, and where it ends."""
    value = np.zeros(len(at), np.uint64)
    after = at.copy()
    going = np.arange(len(at))
    for byte in range(_LONGEST_VARINT):
        places_ = after[going]
        if (places_ >= limit[going]).any():
            raise DamageError("a number that does not end")
        read = data[places_]
        value[going] |= (read & 0x7F).astype(np.uint64) << np.uint64(7 * byte)
        after[going] += 1
        going = going[read >= 0x80]
        if not len(going):
            return value, after
    raise DamageError("a number that does not end")


def distinct_texts(
    data: mmap.mmap, array: Bytes, begin: IntArray, end: IntArray
) -> tuple[list[bytes], IntArray]:
    """The distinct contents of text fields, and which of them each one is.

    Args:
        data: the file.
        array: the same for numpy.
        begin: where each begins.
        end: where it ends.
    """
    size = end - begin
    known: dict[bytes, int] = {}
    found = np.empty(len(begin), np.int64)
    short = size < _SHORT
    rows = np.flatnonzero(short)
    if len(rows):
        # as one number each: its bytes and, above them, its length
        keys = size[rows].astype(np.uint64) << np.uint64(8 * (_SHORT - 1))
        for byte in range(int(size[rows].max())):
            inside = rows[size[rows] > byte]
            at = np.flatnonzero(size[rows] > byte)
            keys[at] |= array[begin[inside] + byte].astype(np.uint64) << np.uint64(8 * byte)
        _, first, inverse = with_first_and_inverse(keys.view(np.int64))
        texts = texts_at(data, begin[rows[first]], end[rows[first]])
        codes = np.array([known.setdefault(text, len(known)) for text in texts], np.int64)
        found[rows] = codes[inverse]
    rows = np.flatnonzero(~short)
    for row, text in zip(rows.tolist(), texts_at(data, begin[rows], end[rows]), strict=True):
        found[row] = known.setdefault(text, len(known))
    return list(known), found


def texts_at(data: mmap.mmap, begin: IntArray, end: IntArray) -> list[bytes]:
    """The content of text fields."""
    return [data[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]

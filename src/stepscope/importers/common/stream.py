"""The text of a file in pieces: plain, gzip or zstd, whole or an error."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO

from stepscope.importers.base import HEAD_BYTES
from stepscope.trace.errors import InputError

PIECE_BYTES = 256 * 1024
"""How much text is parsed at once: small enough that text and objects stay in the CPU's cache,
which halves the time of parsing compared with pieces of some megabytes."""

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

Read = Callable[[], bytes]
"""Gives the next piece of text, empty at the end."""


def truncated(path: Path) -> InputError:
    """The error for a file that stops in the middle."""
    return InputError(
        f"{path} ends in the middle of the trace, so the capture or a copy did not finish; "
        "export it again, or copy it again"
    )


def first_bytes(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The first bytes of a file as they are.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its rights") from error


@contextmanager
def open_text(path: Path) -> Iterator[Read]:
    """Open a trace file, decompressing on the way.

    Yields:
        A function that gives the next piece, about ``PIECE_BYTES`` long, and empty bytes at the
        end. It raises InputError when the file cannot be read, is damaged or cut short.
    """
    with _input_errors(path):
        file = path.open("rb")
    with file:
        with _input_errors(path):
            magic = file.read(4)
            file.seek(0)
        if magic.startswith(_GZIP_MAGIC):
            pieces = _gzip_pieces(path, file)
        elif magic == _ZSTD_MAGIC:
            pieces = _zstd_pieces(path, file)
        else:
            pieces = iter(lambda: file.read(PIECE_BYTES), b"")

        def read() -> bytes:
            with _input_errors(path):
                return next(pieces, b"")

        yield read


@contextmanager
def _input_errors(path: Path) -> Iterator[None]:
    """Turn failures of reading and decompressing into InputError."""
    try:
        yield
    except zlib.error as error:
        raise InputError(
            f"{path} is not a whole gzip file ({error}); copy or export it again"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot read {path}: {reason}; check the file") from error


def text_head(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The first decompressed bytes of a file: ``size`` or more, less where it is damaged."""
    pieces: list[bytes] = []
    length = 0
    with suppress(InputError), open_text(path) as read:
        while length < size and (piece := read()):
            pieces.append(piece)
            length += len(piece)
    return b"".join(pieces)


def is_packed(head: bytes) -> bool:
    """Whether a file that begins so is packed in a way that is read: gzip or zstd."""
    return head.startswith((_GZIP_MAGIC, _ZSTD_MAGIC))


@lru_cache(maxsize=1)
def unpacked_head(path: Path, head: bytes) -> bytes:
    """The beginning of a file's content, for ``sniff``: unpacked once for all importers.

    Args:
        path: the file.
        head: its first bytes.
    """
    return text_head(path) if is_packed(head) else head


def _gzip_pieces(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """Decompress all members of a gzip file; zero padding after the last one is allowed."""
    member = zlib.decompressobj(wbits=31)
    waiting = file.read(PIECE_BYTES)
    while waiting:
        piece = member.decompress(waiting, PIECE_BYTES)
        if piece:
            yield piece
        if member.eof:
            waiting = member.unused_data.lstrip(b"\0") or file.read(PIECE_BYTES).lstrip(b"\0")
            if waiting:
                member = zlib.decompressobj(wbits=31)
        else:
            waiting = member.unconsumed_tail or file.read(PIECE_BYTES)
    while not member.eof and (piece := member.decompress(member.unconsumed_tail, PIECE_BYTES)):
        yield piece  # output that the last input bytes still hold
    if not member.eof:
        raise truncated(path)


def _zstd_pieces(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
    while True:
        try:
            piece = stream.read(PIECE_BYTES)
        except OSError as error:
            if "truncated" in str(error).lower():
                raise truncated(path) from error
            raise InputError(
                f"{path} is not a whole zstd file ({error}); copy or export it again"
            ) from error
        if not piece:
            return
        yield piece

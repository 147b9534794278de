"""What a capture holds, told by a digest that is computed once a version of its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from stepscope.trace.errors import InputError

_MOST_REMEMBERED = 1000


Stamp = tuple[int, ...]
"""What the file system tells of a file's content, to notice changes: device, inode, size, times."""


def _stamp(path: Path) -> Stamp:
    try:
        s = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check the path") from error
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


class Input:
    """A capture as it was when it was first looked at.

    Args:
        path: a file, or a folder of files.

    Raises:
        InputError: it cannot be examined.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamps = self._now()

    def _now(self) -> dict[str, Stamp]:
        """Stamps of the file, or of all files below the folder, by relative name."""
        if not self.path.is_dir():
            return {self.path.name: _stamp(self.path)}
        files = sorted(file for file in self.path.rglob("*") if file.is_file())
        return {str(file.relative_to(self.path)): _stamp(file) for file in files}

    def is_unchanged(self) -> bool:
        """Whether it is still as it was."""
        try:
            return self._now() == self._stamps
        except InputError:
            return False

    def digest(self, memo: Path, write: Callable[[Path, bytes], None]) -> str:
        """BLAKE2b over names and contents.

        Args:
            memo: where digests are remembered by stamp, so that opening again costs no reading.
            write: puts a content in place there.

        Raises:
            InputError: a file cannot be read.
        """
        # ascii(): a file name need not be valid Unicode
        named = {ascii(name): stamp for name, stamp in self._stamps.items()}
        key = msgspec.json.encode([ascii(str(self.path.resolve())), named]).decode()
        known: dict[str, str] = {}
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            known = msgspec.json.decode(memo.read_bytes(), type=dict[str, str])
        if key in known:
            return known[key]
        digest = hashlib.blake2b(digest_size=20)
        for name in self._stamps:
            file = self.path / name if self.path.is_dir() else self.path
            digest.update(os.fsencode(name if self.path.is_dir() else "") + b"\0")
            try:
                with file.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "blake2b").digest())
            except OSError as error:
                raise InputError(
                    f"cannot read {file}: {error.strerror}; check its rights"
                ) from error
        if self.is_unchanged():
            latest = dict(list(known.items())[-_MOST_REMEMBERED:]) | {key: digest.hexdigest()}
            with suppress(OSError):
                write(memo, msgspec.json.encode(latest))
        return digest.hexdigest()

    def read_by(self, read: Callable[[], None]) -> None:
        """Read it, and make sure that it stayed as it was.

        Raises:
            InputError: it changed, which also explains why it may have looked damaged.
        """
        failure: InputError | None = None
        try:
            read()
        except InputError as error:
            failure = error
        if not self.is_unchanged():
            raise InputError(
                f"{self.path} changed while it was read; wait until the capture is finished, then "
                "try again"
            ) from failure
        if failure is not None:
            raise failure

"""Marks and notes that people set on a timeline, kept beside the capture.

The file is ``CAPTURE.notes.json``; it is written when the first note is made, never before, and
the capture itself is never touched. Where the capture's folder cannot be written, the notes stand
in the user's data folder instead. Neither is in the cache, so clearing that loses none.

Every change names the revision of the note that it was made from. Where another window has
changed the note in between, the change is refused and nothing is lost; notes of others are never
touched by it. Several servers may share one file: it is read again under a lock before each
change, and replaced whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypedDict

import msgspec

from stepscope.trace.errors import ConflictError, InputError, StorageError, UsageError
from stepscope.trace.folders import user_folder
from stepscope.trace.text import JsonError, from_json

SCHEMA: Final = "stepscope.notes/1"
SUFFIX: Final = ".notes.json"
MOST_NOTES: Final = 5_000
LONGEST_TEXT: Final = 10_000
_LONGEST_FILE: Final = MOST_NOTES * (4 * LONGEST_TEXT + 500)
_LONGEST_TIME_NS: Final = 1 << 53
"""Times are doubles in the browser: exact up to 104 days."""


class Note(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One mark or note.

    Attributes:
        id: stays the same for as long as it lives.
        revision: 1 for a new one, one more with every change.
        begin_ns: begin on the clock of the job's first capture, ns since its origin.
        end_ns: end, ns; equal to the begin for a mark.
        text: what the user wrote; may be empty for a mark.
        deleted: whether it is gone. Kept, so that a late change of it is noticed.
    """

    id: str
    revision: int
    begin_ns: int
    end_ns: int
    text: str = ""
    deleted: bool = False


class PlacedNote(TypedDict):
    """A note on the job's clock."""

    id: str
    revision: int
    begin: int
    end: int
    text: str


class NotesAnswer(TypedDict):
    """All notes by time, and the revision and path of their file."""

    revision: int
    path: str
    notes: list[PlacedNote]


class _File(msgspec.Struct, kw_only=True):
    schema: str = SCHEMA
    capture: str = ""
    revision: int = 0
    notes: list[Note] = msgspec.field(default_factory=list)


class Notes:
    """The notes of one capture.

    Args:
        capture: the file or folder that the user named.
        offset_ns: what brings the capture's times to the job's clock, ns. Stored times are those
            of the capture, so they hold whichever ranks are opened together with it.
    """

    def __init__(self, capture: Path, offset_ns: int = 0) -> None:
        self._capture = capture
        self._offset_ns = offset_ns

    @property
    def path(self) -> Path:
        """Where the notes are, or would be written."""
        beside = self._capture.with_name(self._capture.name + SUFFIX)
        if beside.exists() or (
            not self._elsewhere.exists() and os.access(beside.parent, os.W_OK | os.X_OK)
        ):
            return beside
        return self._elsewhere

    @property
    def _elsewhere(self) -> Path:
        """The place for captures in folders that cannot be written."""
        whole = os.fsencode(self._capture.absolute())
        digest = hashlib.sha256(whole).hexdigest()[:20]
        return _data_folder() / "notes" / f"{digest}{SUFFIX}"

    def read(self) -> NotesAnswer:
        """All notes on the job's clock, by time; empty where nobody made any.

        Raises:
            InputError: the file is there and cannot be read as notes.
        """
        return self._answer(self._load())

    def change(
        self, id_: str, based_on: int, begin_ns: int, end_ns: int, text: str, *, deleted: bool
    ) -> NotesAnswer:
        """Make, change or remove one note.

        Args:
            id_: its id, chosen by whoever makes it.
            based_on: revision of the note that was changed; 0 for a new one.
            begin_ns: begin on the job's clock, ns.
            end_ns: end, ns.
            text: what it says.
            deleted: whether it is removed.

        Returns:
            As :meth:`read`, with the change.

        Raises:
            ConflictError: the note is at another revision by now.
            UsageError: it cannot be such a note, or there are too many.
            StorageError: the file cannot be written.
        """
        _check(id_, begin_ns, end_ns, text)
        with self._locked():
            file = self._load()
            known = next((note for note in file.notes if note.id == id_), None)
            if (known.revision if known else 0) != based_on:
                raise ConflictError(
                    "another window has changed this note in the meantime; its text is shown now, "
                    "write your change again"
                )
            made = Note(
                id=id_,
                revision=based_on + 1,
                begin_ns=begin_ns - self._offset_ns,
                end_ns=end_ns - self._offset_ns,
                text="" if deleted else text,
                deleted=deleted,
            )
            others = [note for note in file.notes if note.id != id_]
            if len(others) >= MOST_NOTES:
                raise UsageError(f"there are {MOST_NOTES:,} notes, which is as many as are kept")
            file.notes = [*others, made]
            file.revision += 1
            file.capture = self._capture.name.encode("utf-8", "replace").decode()
            self._save(file)
        return self._answer(file)

    def _answer(self, file: _File) -> NotesAnswer:
        notes: list[PlacedNote] = [
            {
                "id": note.id,
                "revision": note.revision,
                "begin": note.begin_ns + self._offset_ns,
                "end": note.end_ns + self._offset_ns,
                "text": note.text,
            }
            for note in sorted(file.notes, key=lambda note: (note.begin_ns, note.id))
            if not note.deleted
        ]
        path = os.fsencode(self.path).decode("utf-8", "replace")
        return {"revision": file.revision, "path": path, "notes": notes}

    def _load(self) -> _File:
        path = self.path
        try:
            if path.stat().st_size > _LONGEST_FILE:
                raise InputError(f"{path} is too large for notes; move it away")
            data = path.read_bytes()
        except FileNotFoundError:
            return _File()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}; check its rights") from error
        try:
            found: _File = from_json(data, _File)
        except JsonError as error:
            metadata = f"{path} holds no notes that can be read: {error}; move it away"
            raise InputError(metadata) from error
        if found.schema != SCHEMA:
            raise InputError(
                f"{path} is of another version ({found.schema[:40]!r}); use the Stepscope that "
                "wrote it, or move it away"
            )
        return found

    def _save(self, file: _File) -> None:
        path = self.path
        data = msgspec.json.format(msgspec.json.encode(file), indent=1)
        temporary = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".notes-")
            with os.fdopen(handle, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except OSError as error:
            if temporary:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
            raise StorageError(
                f"cannot write {path}: {error.strerror}; check the folder's rights and room"
            ) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other servers out; the lock is the folder, so that nothing is left beside it."""
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise StorageError(f"cannot write notes into {folder}: {error.strerror}") from error
        try:
            with contextlib.suppress(OSError):  # a file system without locks goes without
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _check(id_: str, begin_ns: int, end_ns: int, text: str) -> None:
    if not 1 <= len(id_) <= 64 or not id_.isascii() or not id_.isalnum():
        raise UsageError("the id of a note is letters and digits, 64 at most")
    if not -_LONGEST_TIME_NS <= begin_ns <= end_ns <= _LONGEST_TIME_NS:
        raise UsageError("the note ends before it begins, or lies outside of all time")
    if len(text) > LONGEST_TEXT:
        raise UsageError(
            f"the note has {len(text):,} characters, but {LONGEST_TEXT:,} at most are kept; "
            "nothing was written: shorten it, or make two of it"
        )


def _data_folder() -> Path:
    """The user's folder for data that no cache may drop.

    Raises:
        StorageError: the user has no home.
    """
    return user_folder(
        "STEPSCOPE_DATA_DIR",
        "notes",
        xdg="XDG_DATA_HOME",
        usual=".local/share",
        macos="Library/Application Support",
    )

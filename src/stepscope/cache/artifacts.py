"""Artifacts: what was made of a trace, kept beside it for the next time.

An artifact is a name, a revision that holds all it depends on, and a function that writes it. It
is either as it was written and of that revision, or absent: one that is damaged, cut off or of
something else is made again. Its kind is what stands before the first hyphen of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.cache.arrays import ArrayFile, ArrayWriter, NotWholeError
from stepscope.cache.store import ARTIFACT_SUFFIX, Cache
from stepscope.trace.errors import StorageError
from stepscope.trace.store import storage_errors
from stepscope.trace.trace import Trace

_MOST_OF_A_KIND = 256
"""Kept beside one trace; the oldest are removed."""


class Artifacts:
    """What is kept beside one trace.

    Args:
        cache: where.
        trace: the trace, in the cache or elsewhere.
    """

    def __init__(self, cache: Cache, trace: Trace) -> None:
        self._cache = cache
        self._folder = trace.folder

    def path(self, name: str) -> Path | None:
        """Where an artifact is, if it is; None where nothing is kept of the trace.

        Raises:
            StorageError: the cache cannot be read.
        """
        entry = self._cache.beside(self._folder, make=False)
        return None if entry is None else entry / f"{name}{ARTIFACT_SUFFIX}"

    def find(self, name: str, revision: str) -> ArrayFile | None:
        """An artifact, if it is there and can be used."""
        with suppress(NotWholeError, StorageError, OSError):
            path = self.path(name)
            return None if path is None else ArrayFile(path, revision)
        return None

    def make(
        self, name: str, revision: str, write: Callable[[ArrayWriter], Mapping[str, Any]]
    ) -> None:
        """Make an artifact; readers see it once it is whole.

        Args:
            name: its name.
            revision: what it depends on.
            write: fills it, and says what readers are told.

        Raises:
            StorageError: the cache cannot be written.
        """
        entry = self._cache.beside(self._folder, make=True)
        assert entry is not None
        path = entry / f"{name}{ARTIFACT_SUFFIX}"
        with storage_errors(entry):
            with self._cache.replacing(path) as file, ArrayWriter(file) as writer:
                writer.close(write(writer), revision)
            for former in entry.glob("*.arrays"):  # the form of versions before, read by nobody
                former.unlink(missing_ok=True)
            alike = list(entry.glob(f"{name.partition('-')[0]}-*{ARTIFACT_SUFFIX}"))
            if len(alike) > _MOST_OF_A_KIND:
                alike.sort(key=lambda file: file.stat().st_mtime_ns)
                for old in alike[: len(alike) - _MOST_OF_A_KIND]:
                    old.unlink(missing_ok=True)
            size = path.stat().st_size
        self._cache.grown(size)

    def is_sound(self, name: str) -> bool:
        """Whether an artifact, where there is one, is as it was written; else it is removed."""
        with suppress(StorageError, OSError):
            path = self.path(name)
            if path is None or not path.exists():
                return True
            with suppress(NotWholeError):
                if ArrayFile(path, revision=None).verify():
                    return True
            path.unlink(missing_ok=True)
        return False

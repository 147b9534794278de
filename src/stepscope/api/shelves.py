"""What is kept of a job's timeline beside its cached traces.

Tracks are kept a trace, the diagnosis and what belongs to it with the job's first trace. Every
file says what it depends on; one that is absent, cut off, damaged or about something else is made
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.answers import code_digest
from stepscope.timeline.explained import Explained, open_explained, store_explained
from stepscope.timeline.stored import Stored, identity, open_stored
from stepscope.trace.arrays import ArrayFile, ArrayWriter, NotWholeError
from stepscope.trace.cache import Cache
from stepscope.trace.errors import StorageError
from stepscope.trace.store import storage_errors
from stepscope.trace.trace import RankTrace

if TYPE_CHECKING:
    from stepscope.timeline.timeline import Timeline

TRACKS = "timeline.arrays"
DIAGNOSIS = "diagnosis.arrays"
CLOCKS = "clocks.arrays"
TABLES = "tables.arrays"
STEPS = "steps.arrays"


class Shelves:
    """The files of one job.

    Args:
        rank_traces: its traces.
        cache: where they are.
        paths: what the user named; the diagnosis repeats it.
        choice: what the user says a step is.
    """

    def __init__(
        self, rank_traces: Sequence[RankTrace], cache: Cache, paths: Sequence[str], choice: str = ""
    ) -> None:
        self._rank_traces = list(rank_traces)
        self._cache = cache
        self._paths = list(paths)
        self._choice = choice
        self._opened: dict[int, Stored] = {}

    def _place(self, rank_trace: RankTrace, name: str) -> Path:
        """Where a file is read from.

        Raises:
            NotWholeError: nothing is kept of this trace.
        """
        shelf = self._cache.shelf(rank_trace.trace.folder, make=False)
        if shelf is None:
            raise NotWholeError(f"nothing is kept of {rank_trace.trace.folder}")
        return shelf / name

    def _made(self, rank_trace: RankTrace) -> Path:
        """The folder that files are written to."""
        shelf = self._cache.shelf(rank_trace.trace.folder, make=True)
        assert shelf is not None
        return shelf

    def stored(self) -> list[Stored | None]:
        """The stored tracks of each trace; None where there are none."""
        for number, rank_trace in enumerate(self._rank_traces):
            if number not in self._opened:
                with suppress(NotWholeError, StorageError, OSError):
                    path = self._place(rank_trace, TRACKS)
                    self._opened[number] = open_stored(path, identity(rank_trace.trace))
        return [self._opened.get(number) for number in range(len(self._rank_traces))]

    def missing(self) -> bool:
        """Whether a trace has no stored tracks, or the job no stored clock."""
        return None in self.stored() or self.offsets_ns() is None

    def offsets_ns(self) -> list[int] | None:
        """What is added to each trace's times to be on the job's clock, ns; None if not stored."""
        if len(self._rank_traces) == 1:
            return [0]
        with suppress(NotWholeError, StorageError, OSError):
            header = ArrayFile(self._place(self._rank_traces[0], CLOCKS)).header
            if header.get("identity") == self.identity:
                return [int(offset) for offset in header["offsets"]]
        return None

    def store(self, progress: Callable[[float], None], offsets_ns: Callable[[], list[int]]) -> None:
        """Store the tracks of the traces that have none, and the clock of a job that has none."""
        from stepscope.timeline.storing import store_tracks

        wanted = [m for m, one in zip(self._rank_traces, self.stored(), strict=True) if one is None]
        for done, rank_trace in enumerate(wanted):
            shelf = self._made(rank_trace)
            with storage_errors(shelf):
                store_tracks(
                    rank_trace.trace,
                    shelf / TRACKS,
                    identity(rank_trace.trace),
                    lambda share, done=done: progress((done + share) / len(wanted)),  # type: ignore[misc]
                )
        if self.offsets_ns() is None:
            header = {"identity": self.identity, "offsets": offsets_ns()}
            shelf = self._made(self._rank_traces[0])
            with storage_errors(shelf), ArrayWriter(shelf / CLOCKS) as writer:
                writer.close(header)
        if wanted:
            self._cache.shrink()

    def place(self, name: str) -> Path:
        """Where a file about the whole job is read from.

        Raises:
            NotWholeError: nothing is kept of the job.
        """
        return self._place(self._rank_traces[0], name)

    def holds(self, name: str, opened: Callable[[Path, str], object]) -> bool:
        """Whether a file about the whole job is there and can be used.

        Args:
            name: its name.
            opened: opens it, given its path and what it must depend on.
        """
        with suppress(NotWholeError, StorageError, OSError):
            opened(self.place(name), self.identity)
            return True
        return False

    def write(self, name: str, store: Callable[[Path, str], None]) -> None:
        """Store a file about the whole job.

        Args:
            name: its name.
            store: writes it, given its path and what it depends on.

        Raises:
            StorageError: the cache cannot be written.
        """
        shelf = self._made(self._rank_traces[0])
        with storage_errors(shelf):
            store(shelf / name, self.identity)
        self._cache.shrink()

    def whole(self) -> bool:
        """Whether all contents are as they were written; removes what is not."""
        paths = {one.file.path for one in self.stored() if one is not None}
        for name in (DIAGNOSIS, TABLES, STEPS):
            with suppress(NotWholeError, StorageError, OSError):
                paths.add(self.place(name))
        damaged = [path for path in paths if path.exists() and not _matches(path)]
        for path in damaged:
            path.unlink(missing_ok=True)
        return not damaged

    def explained(self) -> Explained | None:
        """The stored diagnosis with its tracks; None where there is none."""
        with suppress(NotWholeError, StorageError, OSError):
            return open_explained(self._place(self._rank_traces[0], DIAGNOSIS), self.identity)
        return None

    def store_explained(self, timeline: Timeline, answer: bytes) -> None:
        """Store a diagnosis with its tracks."""
        shelf = self._made(self._rank_traces[0])
        with storage_errors(shelf):
            explained = ((t, timeline.explanation(t)) for t in timeline.tracks if t.explained)
            store_explained(shelf / DIAGNOSIS, self.identity, explained, answer)

    @property
    def identity(self) -> str:
        """What files about the whole job depend on."""
        facts = [code_digest(), *self._paths, self._choice]
        for rank_trace in self._rank_traces:
            facts += [identity(rank_trace.trace), str(rank_trace.rank), rank_trace.rank_source]
        return hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()


def _matches(path: Path) -> bool:
    """Whether a file is as it was written."""
    with suppress(NotWholeError):
        return ArrayFile(path).verify()
    return False

"""What is kept of a job's timeline: tracks with each trace, all else with the job's first one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stepscope.api.answers import JobRevision
from stepscope.cache.artifacts import Artifacts
from stepscope.cache.store import Cache
from stepscope.timeline.explained import Explained, write_explained
from stepscope.timeline.stored import Stored, revision_of_tracks
from stepscope.trace.errors import InputError

if TYPE_CHECKING:
    from stepscope.cache.arrays import ArrayFile, ArrayWriter
    from stepscope.timeline.timeline import Timeline

TRACKS: Final = "timeline-tracks"
DIAGNOSIS: Final = "timeline-diagnosis"
CLOCKS: Final = "timeline-clocks"
TABLES: Final = "timeline-tables"
STEPS: Final = "timeline-steps"


class StoredTimeline:
    """The artifacts of one job's timeline.

    Args:
        job: the job's revision.
        cache: where they are.
    """

    def __init__(self, job: JobRevision, cache: Cache) -> None:
        self._job = job
        self._beside = [Artifacts(cache, rank_trace.trace) for rank_trace in job.rank_traces]
        self._tracks: dict[int, Stored] = {}

    def tracks(self) -> list[Stored | None]:
        """The stored tracks of each trace; None where there are none."""
        for number, (rank_trace, kept) in enumerate(
            zip(self._job.rank_traces, self._beside, strict=True)
        ):
            if number not in self._tracks:
                with suppress(InputError):  # the trace is gone
                    if file := kept.find(TRACKS, revision_of_tracks(rank_trace.trace)):
                        self._tracks[number] = Stored(file)
        return [self._tracks.get(number) for number in range(len(self._beside))]

    def is_missing(self) -> bool:
        """Whether a trace has no stored tracks, or the job no stored clock."""
        return None in self.tracks() or self.offsets_ns() is None

    def offsets_ns(self) -> list[int] | None:
        """What is added to each trace's times to be on the job's clock, ns; None if not stored."""
        if len(self._beside) == 1:
            return [0]
        file = self.find(CLOCKS)
        return None if file is None else [int(offset) for offset in file.about["offsets"]]

    def make(self, progress: Callable[[float], None], offsets_ns: Callable[[], list[int]]) -> None:
        """Store the tracks of the traces that have none, and the clock of a job that has none."""
        from stepscope.timeline.storing import write_tracks

        wanted = [n for n, one in enumerate(self.tracks()) if one is None]
        for done, number in enumerate(wanted):
            trace = self._job.rank_traces[number].trace

            def report(share: float, done: int = done) -> None:
                progress((done + share) / len(wanted))

            self._beside[number].make(
                TRACKS,
                revision_of_tracks(trace),
                lambda writer, trace=trace, report=report: write_tracks(trace, writer, report),  # type: ignore[misc]
            )
        if self.offsets_ns() is None:
            self.write(CLOCKS, lambda _: {"offsets": offsets_ns()})

    def find(self, name: str) -> ArrayFile | None:
        """An artifact about the whole job; None where there is none that can be used."""
        with suppress(InputError):  # the trace is gone
            return self._beside[0].find(name, self._job.now())
        return None

    def write(self, name: str, write: Callable[[ArrayWriter], dict[str, object]]) -> None:
        """Make an artifact about the whole job.

        Raises:
            InputError: a trace is gone.
            StorageError: the cache cannot be written.
        """
        self._beside[0].make(name, self._job.now(), write)

    def is_whole(self) -> bool:
        """Whether all contents are as they were written; removes what is not."""
        sound = [kept.is_sound(TRACKS) for kept in self._beside]
        sound += [self._beside[0].is_sound(name) for name in (DIAGNOSIS, TABLES, STEPS)]
        return all(sound)

    def explained(self) -> Explained | None:
        """The stored diagnosis with its tracks; None where there is none."""
        file = self.find(DIAGNOSIS)
        return None if file is None else Explained(file)

    def write_explained(self, timeline: Timeline, answer: bytes) -> None:
        """Store a diagnosis with its tracks."""
        explained = [(t, timeline.explanation(t)) for t in timeline.tracks if t.explained]
        self.write(DIAGNOSIS, lambda writer: write_explained(writer, explained, answer))

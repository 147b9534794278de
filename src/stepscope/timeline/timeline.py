"""The timeline of a job: its tracks, and the windows, rows and places that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING

from stepscope.timeline import colours
from stepscope.timeline.answers import TimelineLayout
from stepscope.timeline.explained import Explained as ExplainedTracks
from stepscope.timeline.explained import Gap, gap_facts, idle_of, steps_of
from stepscope.timeline.source import Source
from stepscope.timeline.stored import Stored
from stepscope.timeline.tile import MOST_COLUMNS, Window, tile
from stepscope.timeline.track import Names, Slices, Track
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import IntArray
from stepscope.trace.trace import RankTrace

if TYPE_CHECKING:
    from stepscope.breakdown.explain import Explanation

Explained = Callable[[], "Sequence[tuple[RankTrace, Explanation]]"]


class Timeline:
    """All tracks of a job on one clock.

    Tracks are built when they are first shown and then kept. May be asked by several threads.

    Args:
        rank_traces: the traces, by rank.
        offsets_ns: what is added to the times of each to be on the job's clock, ns.
        explained: gives the explained devices; asked only by tracks that need them.
        stored: stored tracks of each trace; None where there are none.

    Attributes:
        explained: stored tracks that need explanations, once there are any.
    """

    def __init__(
        self,
        rank_traces: Sequence[RankTrace],
        offsets_ns: Sequence[int],
        explained: Explained,
        stored: Sequence[Stored | None] | None = None,
    ) -> None:
        self.rank_traces = list(rank_traces)
        self.offsets_ns = list(offsets_ns)
        self.stored = list(stored) if stored is not None else [None] * len(self.rank_traces)
        kept = [one for one in self.stored if one is not None]
        self.names = Names([one.texts for one in kept])
        self._bases = {
            id(one): base for one, (base, _) in zip(kept, self.names.stored, strict=True)
        }
        for one in kept:
            base = self._bases[id(one)]
            self.names.long |= {base + number: texts for number, texts in one.long.items()}
        self.explained: ExplainedTracks | None = None
        self._explained = explained
        self.sources = [
            Source(i, rank_trace.rank, rank_trace.trace.frame, offset, self.names)
            for i, (rank_trace, offset) in enumerate(zip(rank_traces, offsets_ns, strict=True))
        ]
        self.tracks = [track for source in self.sources for track in self._of(source)]
        for number, track in enumerate(self.tracks):
            track.id = number
        metas = [rank_trace.trace.meta for rank_trace in rank_traces]
        pairs = list(zip(metas, self.offsets_ns, strict=True))
        self.begin_ns = min(meta.window_start_ns + offset for meta, offset in pairs)
        self.end_ns = max(meta.window_end_ns + offset for meta, offset in pairs)
        self.end_ns = max(self.end_ns, self.begin_ns + 1)

    def _of(self, source: Source) -> Iterator[Track]:
        """Tracks of one trace; those of a device begin with what its explanation says."""
        for track in self._plain(source):
            if track.path.endswith("/busy"):
                stem = track.path.removesuffix("busy")
                for title, build in (("Steps", self._steps), ("Idle, by cause", self._idle)):
                    yield Track(
                        0,
                        title,
                        "step" if title == "Steps" else "idle_gap",
                        stem + title,
                        track.rank_trace,
                        track.rank,
                        build=partial(build, track, stem + title),
                        process_id=track.process_id,
                        device=track.device,
                        explained=True,
                    )
            yield track

    def _plain(self, source: Source) -> Iterator[Track]:
        """Tracks of one trace that need no explanation."""
        stored = self.stored[source.rank_trace]
        if stored is not None:
            offset, base = source.offset_ns, self._bases[id(stored)]
            yield from stored.tracks(source.rank_trace, source.rank, offset, base)
            return
        # what reads tables is loaded only where nothing is stored
        from stepscope.timeline.build import counter_tracks, device_tracks, thread_tracks

        yield from device_tracks(source)
        yield from counter_tracks(source)
        yield from thread_tracks(source)

    def explanation(self, track: Track) -> Explanation:
        """The explanation of a track's device.

        Raises:
            InputError: a trace holds no GPU work.
            UsageError: it is of no device that was explained.
        """
        rank_trace = self.rank_traces[track.rank_trace]
        for other, found in self._explained():
            same = (found.gpu.process_id, found.gpu.device) == (track.process_id, track.device)
            if other is rank_trace and same:
                return found
        raise UsageError(f"{track.path} is of no device that was explained")

    def gap_facts(self, track: Track) -> dict[str, IntArray]:
        """What is known of the pieces of idle time of a track: columns of :class:`Gap`.

        Raises:
            InputError: a trace holds no GPU work.
            UsageError: it is of no device that was explained.
        """
        if self.explained is not None:
            return self.explained.gap_facts(track)
        return gap_facts(self.explanation(track))

    def gap(self, track: Track, row: int) -> Gap:
        """What is known of one of them."""
        values = [int(of[row]) for of in self.gap_facts(track).values()]
        return Gap(values[0], bool(values[1]), *values[2:])

    def _steps(self, busy: Track, path: str) -> Slices:
        offset = self.offsets_ns[busy.rank_trace]
        if self.explained is not None:
            return self.explained.slices(path, offset, self.names)
        return steps_of(self.explanation(busy), offset, self.names)

    def _idle(self, busy: Track, path: str) -> Slices:
        offset = self.offsets_ns[busy.rank_trace]
        if self.explained is not None:
            return self.explained.slices(path, offset, self.names)
        return idle_of(self.explanation(busy), offset, self.names)

    def track(self, number: int) -> Track:
        """A track by its number, built.

        Raises:
            UsageError: there is no such track.
        """
        track = self._numbered(number)
        track.content  # noqa: B018 - from here on, every part of it is there
        return track

    def _numbered(self, number: int) -> Track:
        if not 0 <= number < len(self.tracks):
            raise UsageError(f"there is no track {number}")
        return self.tracks[number]

    def tile(
        self,
        tracks: Sequence[int],
        begin: int,
        bucket: int,
        columns: int,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> bytes:
        """What some tracks show in a window, see :mod:`stepscope.timeline.tile`.

        Args:
            tracks: their numbers.
            begin: begin, ns.
            bucket: width of a column, ns.
            columns: number of columns.
            cancelled: whether nobody waits for the answer any more.

        Raises:
            UsageError: the window or a track is impossible.
            GivenUpError: nobody waits.
        """
        if bucket < 1 or not 1 <= columns <= MOST_COLUMNS or abs(begin) > 1 << 62:
            raise UsageError("the window is impossible")
        window = Window(begin, bucket, columns)
        wanted = [self._numbered(number) for number in tracks]
        return tile(wanted, window, self.names, cancelled)

    def layout(self) -> TimelineLayout:
        """The tracks without their content, and what the classes mean."""
        return {
            "begin": self.begin_ns,
            "end": self.end_ns,
            **colours.classes(),
            "members": [
                {
                    "rank": rank_trace.rank,
                    "path": str(rank_trace.trace.path.name),
                    "source": rank_trace.trace.meta.source,
                    "host": rank_trace.trace.meta.hostname,
                    "offset": offset,
                    "missing": [
                        {"table": a.table, "reason": a.reason, "flag": a.flag}
                        for a in rank_trace.trace.meta.missing
                    ],
                }
                for rank_trace, offset in zip(self.rank_traces, self.offsets_ns, strict=True)
            ],
            "tracks": [
                {
                    "id": track.id,
                    "title": track.title,
                    "group": self.group_of(track),
                    "kind": track.kind,
                    "table": track.table,
                    "path": track.path,
                    "rank": track.rank,
                    "thread": track.thread_id,
                    "device": track.device,
                    "explained": track.explained,
                    "unit": track.unit,
                }
                for track in self.tracks
            ],
        }

    def group_of(self, track: Track) -> str:
        """Title of the group that a track stands in."""
        rank_trace = self.rank_traces[track.rank_trace]
        rank = f"Rank {rank_trace.rank} · " if len(self.rank_traces) > 1 else ""
        if track.thread_id >= 0:
            known = self._thread_names(track.rank_trace).get(
                (track.process_id, track.thread_id), ""
            )
            main = " · main" if track.thread_id == track.process_id else ""
            return f"{rank}Thread {track.thread_id}{f' · {known}' if known else ''}{main}"
        if track.device < 0:
            return f"{rank}CPU counters"
        name = self._device_names(track.rank_trace).get(track.device, "")
        several = self._processes[track.rank_trace] > 1
        process = f" · process {track.process_id}" if several and track.process_id >= 0 else ""
        return f"{rank}GPU {track.device}{f' · {name}' if name else ''}{process}"

    @cached_property
    def _processes(self) -> list[int]:
        """Number of processes of each trace."""
        found: list[set[int]] = [set() for _ in self.rank_traces]
        for track in self.tracks:
            found[track.rank_trace].add(track.process_id)
        return [len(processes - {-1}) for processes in found]

    @cache  # noqa: B019 - lives as long as the session
    def _thread_names(self, rank_trace: int) -> dict[tuple[int, int], str]:
        if (stored := self.stored[rank_trace]) is not None:
            return stored.threads
        frame = self.sources[rank_trace].read("thread", "process_id", "thread_id", "name")
        return {
            (int(frame["process_id"][row]), int(frame["thread_id"][row])): frame.text("name", row)
            for row in range(len(frame))
        }

    @cache  # noqa: B019
    def _device_names(self, rank_trace: int) -> dict[int, str]:
        if (stored := self.stored[rank_trace]) is not None:
            return stored.devices
        frame = self.sources[rank_trace].read("device", "device", "name")
        return {int(frame["device"][row]): frame.text("name", row) for row in range(len(frame))}

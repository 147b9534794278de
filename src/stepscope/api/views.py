"""The job's timeline, what the page in the browser asks of it, and files for other viewers.

Where a job is large, another process explains it and stores what tables and the step view need
(``server/background.py``); the server then reads what a question needs, and never holds an
explained job in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stepscope.api.stored import STEPS, TABLES
from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.trace import RankTrace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.api.explained import Explained
    from stepscope.api.stored import StoredTimeline
    from stepscope.breakdown.explain import Explanation
    from stepscope.timeline.added import Drawn
    from stepscope.timeline.answers import Classes, Extract, Instance, PackedSteps, Statistics
    from stepscope.timeline.ask import Asker
    from stepscope.timeline.panels import Panels
    from stepscope.timeline.stepview.steps import AlignedSteps, StepView
    from stepscope.timeline.timeline import Timeline
    from stepscope.trace.notes import Notes


class Views:
    """Views of the timeline.

    Args:
        ranks: the job's traces.
        explained: the explained job.
        stored: what is kept of the timeline beside the cached traces.

    Attributes:
        explains_elsewhere: whether another process explains the job; set by who lets it do so.
    """

    def __init__(
        self, ranks: Sequence[RankTrace], explained: Explained, stored: StoredTimeline
    ) -> None:
        self._ranks = ranks
        self._explained = explained
        self._stored = stored
        self.explains_elsewhere = False
        self._stored_steps: StepView[Any] | None = None

    @cached_property
    def timeline(self) -> Timeline:
        """All tracks of the job on one clock: stored ones, else built when first shown."""
        from stepscope.timeline.timeline import Timeline

        made = Timeline(
            list(self._ranks), self._offsets_ns, self._explained_here, self._stored.tracks()
        )
        made.explained = self._stored.explained()
        return made

    def _explained_here(self) -> list[tuple[RankTrace, Explanation]]:
        if self.explains_elsewhere:
            raise UsageError("idle time is not explained yet; wait until the diagnosis is shown")
        rank_traces = {rank_trace.rank: rank_trace for rank_trace in self._ranks}
        return [(rank_traces[d.trace_rank], d.explanation) for d in self._explained.devices]

    @cached_property
    def _offsets_ns(self) -> list[int]:
        """What is added to each trace's times so that all are on one clock, ns."""
        return self._stored.offsets_ns() or self._clock_offsets_ns()

    def _clock_offsets_ns(self) -> list[int]:
        """What is added to each trace's times so that all are on one clock, ns.

        By matched collectives where there are any, which do not rely on clocks; else by the wall
        clocks, else all traces begin together.
        """
        rank_traces = self._ranks
        if len(rank_traces) == 1:
            return [0]
        found: dict[int, int] = {}
        try:
            view = self._explained.view
            if view.collectives is not None:
                offsets = view.collectives.matched.offsets_ns
                pairs = zip(view.devices, offsets, strict=True)
                found = {device.trace_rank: offset for device, offset in pairs}
        except InputError:  # a rank without GPU work has a timeline, too
            found = {}
        if len(found) == len(rank_traces):
            return [found[rank_trace.rank] for rank_trace in rank_traces]
        metas = [rank_trace.trace.meta for rank_trace in rank_traces]
        epochs = [meta.origin_epoch_ns for meta in metas if meta.origin_epoch_ns is not None]
        if len(epochs) == len(metas):
            return [epoch - min(epochs) for epoch in epochs]
        return [-meta.window_start_ns for meta in metas]

    def stored_timeline_is_missing(self) -> bool:
        """Whether :meth:`store_timeline` has anything to do."""
        return self._stored.is_missing()

    def store_timeline(self, progress: Callable[[float], None]) -> None:
        """Store the tracks of every trace for which that is not done yet.

        Args:
            progress: is told the share that is done, 0 to 1.

        Raises:
            InputError: a table is damaged.
            StorageError: the cache cannot be written.
        """
        self._stored.make(progress, self._clock_offsets_ns)

    def timeline_is_whole(self) -> bool:
        """Whether stored tracks are as they were written; removes those that are not."""
        return self._stored.is_whole()

    def diagnosed(self) -> bytes | None:
        """The stored diagnosis with its places in the timeline, as JSON; None where none is.

        From then on, the timeline shows what belongs to it.
        """
        found = self._stored.explained()
        if found is None:
            return None
        self.timeline.explained = found
        return found.answer

    def store_diagnosis(self, answer: bytes) -> None:
        """Keep a diagnosis with the tracks that belong to it, for the next time.

        Raises:
            InputError: a trace holds no GPU work.
            StorageError: the cache cannot be written.
        """
        self._stored.write_explained(self.timeline, answer)

    def stored_panels(self) -> Panels | None:
        """Tables and flame graphs; None where tables are to be stored, and are not yet."""
        panels = self.panels
        if self.explains_elsewhere and not panels.is_stored:
            from stepscope.timeline.stored_tables import StoredTables

            file = self._stored.find(TABLES)
            if file is None:
                return None
            panels.use(StoredTables(file))
        return panels

    def stored_steps(self) -> StepView[Any] | None:
        """The step view; None where it is to be stored, and is not yet."""
        if not self.explains_elsewhere:
            return self.aligned
        if self._stored_steps is None:
            from stepscope.timeline.stepview.stored import stored_view

            timeline = self.timeline
            ranks = [rank_trace.rank for rank_trace in timeline.rank_traces]
            if (file := self._stored.find(STEPS)) is not None:
                self._stored_steps = stored_view(file, ranks, timeline.offsets_ns)
        return self._stored_steps

    def store_tables_and_steps(self, stored: Callable[[str], None]) -> None:
        """Store what tables and the step view need, where that is not done yet.

        Args:
            stored: is told the name of each file that is there.

        Raises:
            InputError: a trace holds no GPU work.
            StorageError: the cache cannot be written.
        """
        from stepscope.jobs.view import JobView
        from stepscope.timeline.panels import Panels
        from stepscope.timeline.stepview.stored import write_steps

        if self._stored.find(STEPS) is None:
            self._stored.write(STEPS, lambda writer: write_steps(writer, self.aligned))
        stored(STEPS)
        if self._stored.find(TABLES) is None:
            # not the job's own panels, which would keep all columns while it diagnoses
            panels = Panels(self.timeline, lambda: JobView(self._explained.devices))
            self._stored.write(TABLES, panels.write)
        stored(TABLES)

    @cached_property
    def asker(self) -> Asker:
        """Answers about single rows of the timeline."""
        from stepscope.timeline.ask import Asker

        return Asker(self.timeline)

    @cached_property
    def aligned(self) -> AlignedSteps:
        """The steps of every device side by side.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.timeline.stepview.steps import AlignedSteps

        timeline = self.timeline
        place = {rank_trace.rank: i for i, rank_trace in enumerate(timeline.rank_traces)}
        offsets = [
            timeline.offsets_ns[place[device.trace_rank]] for device in self._explained.devices
        ]
        titles = [
            f"Rank {device.rank} · GPU {device.explanation.gpu.device}"
            for device in self._explained.devices
        ]
        return AlignedSteps(self._explained.devices, offsets, titles)

    def packed_steps(self) -> PackedSteps | None:
        """The step view for a page without a server; None where it would be too large.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self.aligned.packed()

    @cached_property
    def panels(self) -> Panels:
        """Tables and flame graphs of windows of the timeline."""
        from stepscope.timeline.panels import Panels

        return Panels(self.timeline, lambda: self._explained.view)

    @cached_property
    def notes(self) -> Notes:
        """Marks and notes that people have set on the timeline."""
        from stepscope.trace.notes import Notes

        return Notes(self._ranks[0].trace.path, self.timeline.offsets_ns[0])

    def statistics(self, begin_ns: int, end_ns: int, *, explained: bool) -> Statistics:
        """Where each device's time goes in a window of the timeline, and its longest kernels."""
        from stepscope.timeline.window import statistics

        return statistics(self.timeline, begin_ns, end_ns, explained=explained)

    def instances(self, cause: str, ranks: Sequence[int]) -> list[Instance]:
        """Instances of a cause on the timeline: the typical one, then the largest first.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.timeline.instances import instances

        return instances(self.asker, self._explained.view, cause, ranks)

    def exported(
        self, kind: str, *, counters: bool = False, drawn: Sequence[Drawn] = ()
    ) -> Iterator[bytes]:
        """The timeline as a file of another viewer, in parts.

        Args:
            kind: ``perfetto``, ``chrome`` or ``speedscope``.
            counters: whether to add the length of each stream's queue and the bandwidth of copies.
            drawn: the critical path, to be drawn as tracks of its devices.
        """
        from stepscope.export import chrome, perfetto, speedscope

        writers: dict[str, Callable[[Timeline], Iterator[bytes]]] = {
            "chrome": chrome.write,
            "perfetto": perfetto.write,
            "speedscope": speedscope.write,
        }
        timeline = self.timeline
        if counters or drawn:
            from stepscope.timeline.added import counter_tracks, drawn_track, with_tracks

            added = list(counter_tracks(timeline)) if counters else []
            added += [drawn_track(timeline, "Critical path", one) for one in drawn]
            timeline = with_tracks(timeline, added)
        return writers[kind](timeline)

    def write_database(self, path: Path) -> None:
        """Write a SQLite file in the schema of Nsight Systems.

        Args:
            path: the file, which does not exist.

        Raises:
            UsageError: the job has several captures, or ids that do not fit the schema.
            OSError: the file cannot be written.
        """
        from stepscope.export import nsys

        if len(self._ranks) > 1:
            raise UsageError(
                f"a file of Nsight Systems' schema holds one capture, and these are "
                f"{len(self._ranks)} ranks; export each by itself, or as parquet"
            )
        nsys.write(self._ranks[0].trace, path)

    def write_tables(self, folder: Path, kind: str) -> list[str]:
        """Write every table of all ranks as a file.

        Args:
            folder: an existing empty folder.
            kind: ``parquet`` or ``arrow``.

        Returns:
            The tables that were written.

        Raises:
            OSError: a file cannot be written.
        """
        from stepscope.export import tables

        return tables.write(self._ranks, folder, kind)

    def refuse_too_large(self, window: str, step: int | None) -> None:
        """Refuse what :meth:`extract` would refuse, as far as that is known without much work.

        Args:
            window: as for :meth:`extract`.
            step: as for :meth:`extract`.

        Raises:
            UsageError: it holds too much for one page, or the window is written wrong.
        """
        from stepscope.timeline.extract import refuse_too_large
        from stepscope.trace.scope import time_scope

        if step is not None:
            return  # which time that is, is known when the job is explained
        scope = time_scope(window) if window else None
        offsets = None if scope is None else self._offsets_ns
        refuse_too_large(self._ranks, scope, offsets)

    def extract(self, window: str, step: int | None) -> Extract:
        """A window of the timeline by itself.

        Args:
            window: ``[start]/[end]``, as for reports; empty for all.
            step: number of the step to take instead; None for ``window``.

        Raises:
            UsageError: the window is written wrong, empty, or holds too much.
            InputError: a step is asked for, and a trace holds no GPU work.
        """
        from stepscope.timeline.extract import chosen, extract

        begin, end = chosen(
            self.timeline, window, step, self._explained.explanations if step is not None else []
        )
        return extract(self.timeline, begin, end)


def timeline_classes() -> Classes:
    """Classes of what is drawn, the position is the code; and what their colours mean."""
    from stepscope.timeline import colours

    return colours.classes()

"""The job's timeline: all tracks on one clock, and what of them is kept for the next time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from stepscope.session.explaining import Explaining
from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.trace import Member

if TYPE_CHECKING:
    from stepscope.breakdown.explain import Explanation
    from stepscope.session.shelves import Shelves
    from stepscope.timeline.timeline import Timeline


class WithTimeline(Explaining):
    """The job's timeline."""

    @cached_property
    def timeline(self) -> Timeline:
        """All tracks of the job on one clock: stored ones, else built when first shown."""
        from stepscope.timeline.timeline import Timeline

        made = Timeline(
            self.job.members,
            self._offsets_ns,
            self._explained_here,
            self._shelves.stored(),
        )
        made.explained = self._shelves.explained()
        return made

    def _explained_here(self) -> list[tuple[Member, Explanation]]:
        if self.explains_elsewhere:
            raise UsageError("idle time is not explained yet; wait until the diagnosis is shown")
        return [(member, e) for _, member, e in self._explained]

    @cached_property
    def _offsets_ns(self) -> list[int]:
        """What is added to each trace's times so that all are on one clock, ns."""
        return self._shelves.offsets_ns() or self._clock_offsets_ns()

    def _clock_offsets_ns(self) -> list[int]:
        """What is added to each trace's times so that all are on one clock, ns.

        By matched collectives where there are any, which do not rely on clocks; else by the wall
        clocks, else all traces begin together.
        """
        members = self.job.members
        if len(members) == 1:
            return [0]
        found: dict[int, int] = {}
        try:
            view = self._view
            if view.collectives is not None:
                offsets = view.collectives.matched.offsets_ns
                pairs = zip(view.devices, offsets, strict=True)
                found = {device.trace_rank: offset for device, offset in pairs}
        except InputError:  # a rank without GPU work has a timeline, too
            found = {}
        if len(found) == len(members):
            return [found[member.rank] for member in members]
        metas = [member.trace.meta for member in members]
        epochs = [meta.origin_epoch_ns for meta in metas if meta.origin_epoch_ns is not None]
        if len(epochs) == len(metas):
            return [epoch - min(epochs) for epoch in epochs]
        return [-meta.window_start_ns for meta in metas]

    @cached_property
    def _shelves(self) -> Shelves:
        """What is kept of the timeline beside the cached traces."""
        from stepscope.session.shelves import Shelves

        return Shelves(self.job.members, self._cache, self.paths, self.choice.text)

    def stored_timeline_is_missing(self) -> bool:
        """Whether :meth:`store_timeline` has anything to do."""
        return self._shelves.missing()

    def store_timeline(self, progress: Callable[[float], None]) -> None:
        """Store the tracks of every trace for which that is not done yet.

        Args:
            progress: is told the share that is done, 0 to 1.

        Raises:
            InputError: a table is damaged.
            StorageError: the cache cannot be written.
        """
        self._shelves.store(progress, self._clock_offsets_ns)

    def timeline_is_whole(self) -> bool:
        """Whether stored tracks are as they were written; removes those that are not."""
        return self._shelves.whole()

    def diagnosed(self) -> bytes | None:
        """The stored diagnosis with its places in the timeline, as JSON; None where none is.

        From then on, the timeline shows what belongs to it.
        """
        found = self._shelves.explained()
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
        self._shelves.store_explained(self.timeline, answer)


def timeline_classes() -> dict[str, object]:
    """Classes of what is drawn, the position is the code; and what their colours mean."""
    from stepscope.timeline import colours

    return {"classes": colours.drawn_classes(), "legend": colours.legend()}

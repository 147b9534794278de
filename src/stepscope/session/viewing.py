"""What the page in the browser asks of the timeline, and the timeline as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from stepscope.session.timeline import WithTimeline

if TYPE_CHECKING:
    from stepscope.timeline.ask import Asker
    from stepscope.timeline.panels import Panels
    from stepscope.timeline.stepview.steps import AlignedSteps
    from stepscope.timeline.timeline import Timeline
    from stepscope.trace.notes import Notes


class Viewing(WithTimeline):
    """Views of the timeline."""

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
        place = {member.rank: i for i, member in enumerate(timeline.members)}
        offsets = [timeline.offsets_ns[place[device.trace_rank]] for device in self.devices]
        titles = [
            f"Rank {device.rank} · GPU {device.explanation.lane.device}" for device in self.devices
        ]
        return AlignedSteps(self.devices, offsets, titles)

    def packed_steps(self) -> dict[str, object] | None:
        """The step view for a page without a server; None where it would be too large.

        Raises:
            InputError: a trace holds no GPU work.
        """
        return self.aligned.packed()

    @cached_property
    def panels(self) -> Panels:
        """Tables and flame graphs of windows of the timeline."""
        from stepscope.timeline.panels import Panels

        return Panels(self.timeline, lambda: self._view)

    @cached_property
    def notes(self) -> Notes:
        """Marks and notes that people have set on the timeline."""
        from stepscope.trace.notes import Notes

        return Notes(self.job.members[0].trace.path, self.timeline.offsets_ns[0])

    def statistics(self, begin_ns: int, end_ns: int, *, explained: bool) -> dict[str, object]:
        """Where each device's time goes in a window of the timeline, and its longest kernels."""
        from stepscope.timeline.hostwindow import threads
        from stepscope.timeline.window import statistics

        found = statistics(self.timeline, begin_ns, end_ns, explained=explained)
        return {**found, "threads": threads(self.timeline, begin_ns, end_ns)}

    def instances(self, cause: str, ranks: Sequence[int]) -> list[dict[str, object]]:
        """Instances of a cause on the timeline: the typical one, then the largest first.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.timeline.instances import instances

        return instances(self.asker, self._view, cause, ranks)

    def exported(self, kind: str) -> Iterator[bytes]:
        """The timeline as a file of another viewer, in parts.

        Args:
            kind: ``perfetto``, ``chrome`` or ``speedscope``.
        """
        from stepscope.export import chrome, perfetto, speedscope

        writers: dict[str, Callable[[Timeline], Iterator[bytes]]] = {
            "chrome": chrome.write,
            "perfetto": perfetto.write,
            "speedscope": speedscope.write,
        }
        return writers[kind](self.timeline)

    def refuse_too_large(self, window: str, step: int | None) -> None:
        """Refuse what :meth:`extract` would refuse, as far as that is known without much work.

        Args:
            window: as for :meth:`extract`.
            step: as for :meth:`extract`.

        Raises:
            UsageError: it holds too much for one page, or the window is written wrong.
        """
        from stepscope.tabular.window import time_scope
        from stepscope.timeline.extract import refuse_too_large

        if step is not None:
            return  # which time that is, is known when the job is explained
        scope = time_scope(window) if window else None
        offsets = None if scope is None else self._offsets_ns
        refuse_too_large(self.job.members, scope, offsets)

    def extract(self, window: str, step: int | None) -> dict[str, object]:
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
            self.timeline, window, step, self.explanations if step is not None else []
        )
        return extract(self.timeline, begin, end)

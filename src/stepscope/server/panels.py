"""The routes of the panels: tables, instances, flame graphs, notes. No logic of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.json import encode as as_json

from stepscope.api.guide import guide_about
from stepscope.api.stored import TABLES
from stepscope.server.changes import changing
from stepscope.server.handlers import Handlers, JobHandlers, whole
from stepscope.trace.errors import StepscopeError, UsageError
from stepscope.trace.text import JsonError, from_json

if TYPE_CHECKING:
    from starlette.routing import Route

    from stepscope.timeline.panels import Panels

MOST_WARMED = 100_000
"""GPU operations up to which a job is explained unasked: that takes less than a second."""


class Change(msgspec.Struct, kw_only=True):
    """A note as the page sends it; times are on the job's clock, ns."""

    id: str
    revision: int
    begin: int
    end: int
    text: str = ""
    deleted: bool = False


class PanelHandlers(JobHandlers):
    """Handles what the panels ask."""

    def handlers(self) -> Handlers:
        """Name of each route, its handler, and the media type of the answer."""
        answers = (self.table, self.instances, self.flame, self.memory, self.notes, self.guide)
        return {answer.__name__: (answer, "application/json") for answer in answers}

    def routes(self) -> list[Route]:
        """Routes that change something: those of notes."""
        return [changing("/api/note", self.note)]

    def warm(self) -> None:
        """Make what the first table needs before anybody asks."""
        with contextlib.suppress(StepscopeError):  # whoever asks for it is told
            # a large job that another process has explained waits until somebody asks
            operations = sum(trace.rows("gpu_op") for trace in self._job.traces)
            if self._job.explained.is_known or operations <= MOST_WARMED:
                for by in ("operator", "kernel"):
                    self._panels().table(by, None, None)

    def table(self, query: Mapping[str, str]) -> bytes:
        """GPU time of a window by kernel, operator, ..."""
        return as_json(self._panels().table(query.get("by", "kernel"), *_window(query)))

    def instances(self, query: Mapping[str, str]) -> bytes:
        """Where the operations of one row of a table are drawn."""
        by, group = query.get("by", "kernel"), whole(query.get("group"))
        return as_json(self._panels().instances(by, group, *_window(query)))

    def flame(self, query: Mapping[str, str]) -> bytes:
        """The flame graph of a window."""
        begin, end = _window(query)
        panels = self._panels() if begin is None else self._views.panels
        return as_json(
            panels.flame(
                query.get("kind", ""),
                query.get("weight", "cpu"),
                begin,
                end,
                reverse=query.get("reverse") == "1",
            )
        )

    def memory(self, query: Mapping[str, str]) -> bytes:
        """What was allocated over time, and by whom at the peak."""
        with self._lock:
            return as_json(self._job.memory())

    def guide(self, query: Mapping[str, str]) -> bytes:
        """Which tool answers which question, about this job."""
        return as_json(guide_about(self._job.paths, self._job.ranks))

    def notes(self, query: Mapping[str, str]) -> bytes:
        """All marks and notes."""
        return as_json(self._views.notes.read())

    def note(self, body: bytes) -> bytes:
        """Make, change or remove one."""
        try:
            wanted: Change = from_json(body, Change)
        except JsonError as error:
            raise UsageError(f"this is no note: {error}") from error
        return as_json(
            self._views.notes.change(
                wanted.id,
                wanted.revision,
                wanted.begin,
                wanted.end,
                wanted.text,
                deleted=wanted.deleted,
            )
        )

    def _panels(self) -> Panels:
        """The panels, once the job is explained: here, or by the other process."""
        if self._views.explains_elsewhere:
            return self._waited(self._views.stored_panels, TABLES)
        with self._lock:
            _ = self._job.explained.explanations
        return self._views.panels


def _window(query: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Begin and end; neither where the steady steps are asked for."""
    if "begin" not in query:
        return None, None
    return whole(query.get("begin")), whole(query.get("end"))

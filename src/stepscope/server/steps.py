"""Handlers of the step view: figures of every step, and their picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.api.stored import STEPS
from stepscope.server.handlers import Handlers, JobHandlers, spans, whole
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    from stepscope.timeline.stepview.steps import StepView


class StepHandlers(JobHandlers):
    """Handles what is asked about steps side by side."""

    asked = False
    """Whether anybody has looked at the steps."""

    def handlers(self) -> Handlers:
        """Name of each route, its handler, and the media type of the answer."""
        return {
            "steps": (self.steps, "application/json"),
            "stepgrid": (self.grid, "application/octet-stream"),
        }

    def warm(self) -> None:
        """Explain the job before it is asked for: the diagnosis needs that too."""
        with self._lock:
            aligned = self._views.aligned
        for device in aligned.devices:
            device.pieces  # noqa: B018

    def _view(self) -> StepView[Any]:
        if self._views.explains_elsewhere:
            return self._waited(self._views.stored_steps, STEPS)
        with self._lock:
            return self._views.aligned

    def steps(self, query: Mapping[str, str]) -> bytes:
        """Figures of the steps of one device."""
        self.asked = True
        align = query.get("align", "start")
        view = self._view()
        with self._lock:
            found = view.figures(number(query, "device", 0), align)
        return msgspec.json.encode(found)

    def grid(self, query: Mapping[str, str]) -> bytes:
        """Rows of steps, columns of time."""
        view = self._view()
        first, count = number(query, "first"), number(query, "count")
        if first < 0 or count < 1:
            raise UsageError("the picture has no rows")
        return view.picture(
            number(query, "device", 0),
            align=query.get("align", "start"),
            sort=query.get("sort", "index"),
            colour=query.get("colour", "kind"),
            rows=slice(first, first + count),
            group=number(query, "group", 1),
            columns=spans(*(number(query, name) for name in ("begin", "bucket", "columns"))),
            phases=query.get("phases") == "1",
        )


def number(query: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A whole number of a query.

    Raises:
        UsageError: it is none.
    """
    text = query.get(name)
    if text is None and default is not None:
        return default
    return whole(text, f"{name} is ")

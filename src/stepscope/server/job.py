"""A job of digests: its diagnosis, the heat map of ranks and steps, and the ranks' timelines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.json import encode as as_json
from starlette.applications import Starlette
from starlette.routing import Mount

from stepscope.api.views import timeline_classes
from stepscope.server.app import page_routes
from stepscope.server.guard import Guard
from stepscope.server.handlers import progress
from stepscope.server.ranks import RankTimelines
from stepscope.server.steps import number
from stepscope.trace.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.api.job_page import JobPage
    from stepscope.server.answers import JobAnswer, JobLayout, NamedJob


class JobPageHandlers:
    """Handles what is asked about a job of digests.

    Args:
        page: the job.
    """

    def __init__(self, page: JobPage) -> None:
        self._page = page
        self._lock = threading.Lock()
        self._diagnosis: bytes | None = None
        self._doing = ""

    def layout(self, query: Mapping[str, str]) -> bytes:
        """Which job it is; at once, before it is diagnosed."""
        job: NamedJob = {"paths": self._page.paths, "ranks": self._page.ranks}
        found: JobLayout = {"job": job, **timeline_classes()}
        return as_json(found)

    def diagnosis(self, query: Mapping[str, str]) -> bytes:
        """What ``stepscope job`` says, the axes of the heat map, and which captures are here."""
        with self._lock:
            if self._diagnosis is None:
                self._doing = f"comparing {self._page.ranks:,} ranks"
                try:
                    found = to_builtins(self._page.diagnosis())
                    del found["heat_map"]  # one of the values that the page asks for
                    answer: JobAnswer = {
                        "diagnosis": found,
                        "grid": self._page.grid(),
                        "here": self._page.reachable(),
                    }
                    self._diagnosis = as_json(answer)
                finally:
                    self._doing = ""
            return self._diagnosis

    def progress(self, query: Mapping[str, str]) -> bytes:
        """What is being made that a question may wait for, in words; empty for nothing."""
        return progress(self._doing)

    def cells(self, query: Mapping[str, str]) -> bytes:
        """One value of the heat map."""
        return as_json(self._page.cells(query.get("value", "")))

    def rank(self, query: Mapping[str, str]) -> bytes:
        """One rank."""
        return as_json(self._page.rank(number(query, "row")))


def job_application(page: JobPage, timelines: RankTimelines, token: str, port: int) -> Guard:
    """The server's application: the job, and the timeline of each rank at ``rank/ROW/``.

    Args:
        page: the job.
        timelines: answers for the ranks' timelines.
        token: first part of every path.
        port: port that it listens on.
    """
    handlers = JobPageHandlers(page)
    json = "application/json"
    routes: list[Any] = list(
        page_routes(
            {
                "layout": (handlers.layout, json),
                "jobdiagnosis": (handlers.diagnosis, json),
                "jobcells": (handlers.cells, json),
                "jobrank": (handlers.rank, json),
                "progress": (handlers.progress, json),
            },
            of_job=True,
        )
    )
    routes.append(Mount("/rank/{row:int}", app=timelines))
    # while the browser starts
    threading.Thread(target=_warm, args=(handlers,), daemon=True).start()
    return Guard(Starlette(routes=routes), token, port)


def _warm(handlers: JobPageHandlers) -> None:
    with contextlib.suppress(StepscopeError):  # whoever asks for it is told
        handlers.diagnosis({})

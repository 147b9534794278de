"""Timelines of the ranks of a job: each capture is opened when its timeline is first looked at."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette

from stepscope.server.answering import in_thread, refusal
from stepscope.server.app import PageHandlers, asset_routes, job_routes
from stepscope.server.background import Process, explaining_beside, prepare
from stepscope.trace.errors import StepscopeError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from stepscope.api.job_page import JobPage

MOST_OPEN: Final = 6
"""Captures that stay open; the one that was looked at longest ago makes room."""

ABOVE: Final = "../../"
"""From a rank's page to that of its job."""


@dataclass
class _Opened:
    """The page of one capture."""

    app: Starlette
    explaining: Process | None

    def stop(self) -> None:
        if self.explaining is not None:
            self.explaining.stop()


class RankTimelines:
    """Answers what the pages of ranks ask.

    Args:
        page: the job.
    """

    def __init__(self, page: JobPage) -> None:
        self._page = page
        self._lock = threading.Lock()
        self._opening: dict[int, threading.Lock] = {}
        self._opened: OrderedDict[int, _Opened] = OrderedDict()
        # the page itself is there at once, and says that it waits
        self._page_files: ASGIApp = Starlette(routes=asset_routes())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request below ``rank/ROW/``."""
        row = int(scope["path_params"]["row"])
        path = scope["path"].removeprefix(scope["root_path"])
        inner = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
        if not path.startswith("/api/"):
            await self._page_files(inner, receive, send)
            return
        try:
            opened = await in_thread(lambda: self._open(row))
        except StepscopeError as error:
            await refusal(error)(inner, receive, send)
            return
        await opened.app(inner, receive, send)

    def _open(self, row: int) -> _Opened:
        with self._lock:
            opening = self._opening.setdefault(row, threading.Lock())
        with opening:
            with self._lock:
                if row in self._opened:
                    self._opened.move_to_end(row)
                    return self._opened[row]
            job = self._page.open(row)
            prepare(job, lambda share: None)
            explaining = explaining_beside(job)
            above = f"{ABOVE}#rank={self._page.name_of(row)}"
            handlers = PageHandlers(job, explaining, above=above)
            threading.Thread(target=handlers.warm, daemon=True).start()
            made = _Opened(Starlette(routes=job_routes(handlers)), explaining)
            with self._lock:
                self._opened[row] = made
                left = (
                    [self._opened.popitem(last=False)[1]] if len(self._opened) > MOST_OPEN else []
                )
        for one in left:
            one.stop()
        return made

    def stop(self) -> None:
        """End what works for the open captures."""
        with self._lock:
            for one in self._opened.values():
                one.stop()

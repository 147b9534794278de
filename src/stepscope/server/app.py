"""The routes and their handlers: each asks the job and encodes the answer. No logic of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import TYPE_CHECKING, Any

from msgspec.json import encode as as_json
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from stepscope.server.answering import DEADLINE_S, EXPLAINED_DEADLINE_S, answered
from stepscope.server.background import Process, diagnosis_of
from stepscope.server.guard import Guard
from stepscope.server.handlers import Handlers, Lock, page_problems, progress, spans, whole
from stepscope.server.panels import PanelHandlers
from stepscope.server.steps import StepHandlers
from stepscope.trace.errors import StepscopeError, StorageError, UsageError

if TYPE_CHECKING:
    from starlette.requests import Request

    from stepscope.api import Job
    from stepscope.server.answers import Layout

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_ASSETS = ("index.html", "app.js", "app.css")
_JOB_ASSETS = ("job.html", "job.js", "app.css")
"""The first is the page itself."""
_LONGEST_SEARCH = 300
_BEFORE_CHECKING_S = 5.0
"""The first pictures come before the check of what is stored, which reads all of it."""
_DAMAGED = (
    "the stored timeline is damaged and was removed; end stepscope ui and start it again, which "
    "makes it again"
)
_AT_ONCE = {"layout", "row", "near", "statistics", "progress", "notes", "guide"}
"""Handlers that wait for no explanation."""
_BUILDERS = 2
"""Tracks built at a time: numpy lets go of Python's lock, and a laptop has two idle cores."""


class PageHandlers:
    """Handles what the page asks.

    Args:
        job: the opened job.
        explaining: the process that diagnoses, where that is not done in this one.
        lock: a reentrant lock that others hold while they diagnose the same job.
        above: address of the page that this one belongs to, relative to it; empty for none.
    """

    _damaged = ""

    def __init__(
        self,
        job: Job,
        explaining: Process | None = None,
        lock: Lock | None = None,
        above: str = "",
    ) -> None:
        self._job = job
        self._above = above
        self._views = job.views  # made here, before several threads ask for it
        self._lock: Lock = lock or threading.Lock()
        # Its own: a page that is loaded again needs no wait.
        self._diagnosing: Lock = lock or threading.Lock()
        self._explaining = explaining
        self._diagnosis: bytes | None = None
        self.steps = StepHandlers(job, self._lock, explaining)
        self.panels = PanelHandlers(job, self._lock, explaining)

    def warm(self) -> None:
        """Build all tracks while the browser starts, and see whether stored ones are sound."""
        with contextlib.suppress(StepscopeError):  # whoever asks for it is told
            with self._lock:
                tracks = self._views.timeline.tracks
            wanted = [track.id for track in tracks if not track.explained]
            with ThreadPoolExecutor(_BUILDERS) as builders:
                list(builders.map(self._built, wanted))
            if not self._views.explains_elsewhere:
                self.steps.warm()
            time.sleep(_BEFORE_CHECKING_S)
            if not self._views.timeline_is_whole():
                self._damaged = _DAMAGED

    def _built(self, track: int) -> None:
        if not self.steps.asked:  # who looks at the steps first needs the cores for them
            self._views.timeline.track(track)

    def layout(self, query: Mapping[str, str]) -> bytes:
        """Tracks, classes, members."""
        with self._lock:
            tracks = self._views.timeline.layout()
        found: Layout = {
            **tracks,
            "paths": self._job.paths,
            "above": self._above,
            "problems": page_problems(self._job),
        }
        return as_json(found)

    def diagnosis(self, query: Mapping[str, str]) -> bytes:
        """The diagnosis, and where its findings are seen."""
        with self._diagnosing:
            if self._diagnosis is None:
                self._diagnosis = self._views.diagnosed() or self._diagnosed()
                if not self._views.explains_elsewhere:
                    threading.Thread(target=self.panels.warm, daemon=True).start()
            return self._diagnosis

    def _diagnosed(self) -> bytes:
        """A new diagnosis: by the other process where there is one, else here."""
        if self._explaining is not None:
            self._explaining.wait()
            found = self._views.diagnosed()
            if found is None:
                raise StorageError(
                    "the diagnosis could not be kept; check that the cache folder is writable, "
                    "or run stepscope diagnose"
                )
            return found
        with self._lock:  # the steps need it too, but not the rest of the diagnosis
            self._job.explained.explanations  # noqa: B018
        made = diagnosis_of(self._job)
        with contextlib.suppress(StorageError):  # then it is made again the next time
            self._views.store_diagnosis(made)
        return made

    def progress(self, query: Mapping[str, str]) -> bytes:
        """What is being made that a question may wait for, in words; empty for nothing."""
        return progress(self._explaining.doing if self._explaining is not None else "")

    def tile(self, query: Mapping[str, str], gone: threading.Event) -> bytes:
        """Rows of tracks in a window."""
        if self._damaged:
            raise StorageError(self._damaged)
        tracks = [whole(text) for text in query.get("tracks", "").split(",") if text]
        return self._views.timeline.tile(
            tracks,
            *spans(*(whole(query.get(name)) for name in ("begin", "bucket", "columns"))),
            gone.is_set,
        )

    def row(self, query: Mapping[str, str]) -> bytes:
        """One slice in full."""
        return as_json(self._views.asker.row(whole(query.get("track")), whole(query.get("row"))))

    def near(self, query: Mapping[str, str]) -> bytes:
        """The next or previous slice."""
        return as_json(
            self._views.asker.near(
                whole(query.get("track")),
                whole(query.get("row")),
                whole(query.get("step")),
                same=query.get("same") == "1",
            )
        )

    def search(self, query: Mapping[str, str], gone: threading.Event) -> bytes:
        """Slices whose names match."""
        text = query.get("text", "")[:_LONGEST_SEARCH]
        regex = query.get("regex") == "1"
        return as_json(self._views.asker.search(text, regex=regex, given_up=gone.is_set))

    def statistics(self, query: Mapping[str, str]) -> bytes:
        """Where the time of a window goes."""
        begin, end = whole(query.get("begin")), whole(query.get("end"))
        if end <= begin:
            raise UsageError("the window is empty")
        explained = self._diagnosis is not None
        return as_json(self._views.statistics(begin, end, explained=explained))


def asset(name: str) -> bytes:
    """A file of the page as it ships."""
    return resources.files("stepscope.server").joinpath("static", name).read_bytes()


def application(job: Job, token: str, port: int, explaining: Process | None = None) -> Guard:
    """The server's application.

    Args:
        job: the opened job.
        token: first part of every path.
        port: port that it listens on.
        explaining: the process that diagnoses, where that is not done in this one.
    """
    handlers = PageHandlers(job, explaining)
    threading.Thread(target=handlers.warm, daemon=True).start()
    return Guard(Starlette(routes=job_routes(handlers)), token, port)


def job_routes(page: PageHandlers) -> list[Route]:
    """Routes of one job's page."""
    named: Handlers = {
        "layout": (page.layout, "application/json"),
        "diagnosis": (page.diagnosis, "application/json"),
        "row": (page.row, "application/json"),
        "near": (page.near, "application/json"),
        "statistics": (page.statistics, "application/json"),
        "progress": (page.progress, "application/json"),
        **page.steps.handlers(),
        **page.panels.handlers(),
    }
    tile = Route("/api/tile", cancellable(page.tile))
    search = Route("/api/search", cancellable(page.search, "application/json"))
    return [*page_routes(named), tile, search, *page.panels.routes()]


def page_routes(handlers: Handlers, *, of_job: bool = False) -> list[Route]:
    """Routes of a page that needs some handlers.

    Args:
        handlers: the handlers.
        of_job: whether it is the page of a job of digests.
    """
    routes = [
        Route(
            f"/api/{name}",
            _endpoint(*handler, DEADLINE_S if name in _AT_ONCE else EXPLAINED_DEADLINE_S),
        )
        for name, handler in handlers.items()
    ]
    return [*routes, *asset_routes(_JOB_ASSETS if of_job else _ASSETS)]


def asset_routes(names: tuple[str, ...] = _ASSETS) -> list[Route]:
    """Routes of a page as it ships: its files, of which the first is what a browser asks for."""
    return [Route("/", _file(names[0])), *(Route(f"/{name}", _file(name)) for name in names)]


def _endpoint(
    answer: Callable[[Mapping[str, str]], bytes], kind: str, deadline_s: float
) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        query = dict(request.query_params)
        return await answered(request, lambda _: answer(query), kind, deadline_s)

    return endpoint


def cancellable(
    answer: Callable[[Mapping[str, str], threading.Event], bytes],
    kind: str = "application/octet-stream",
) -> Callable[..., Any]:
    """A route whose answer is given up when the page no longer waits: it asked for another view.

    Args:
        answer: gives the answer; its second argument is set once nobody waits.
        kind: the answer's media type.
    """

    async def endpoint(request: Request) -> Response:
        query = dict(request.query_params)
        return await answered(request, lambda gone: answer(query, gone), kind)

    return endpoint


def _file(name: str) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        kind = _TYPES[name[name.rindex(".") :]]
        return Response(asset(name), media_type=f"{kind}; charset=utf-8")

    return endpoint

"""The routes: each asks the session and encodes the answer. No logic of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Route

from stepscope.server.guard import Guard
from stepscope.server.panels import PanelDesk
from stepscope.server.steps import Lock, Questions, StepDesk
from stepscope.trace.errors import StepscopeError, UsageError

if TYPE_CHECKING:
    from starlette.requests import Request

    from stepscope.session import Session

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_ASSETS = ("index.html", "app.js", "app.css")
_LONGEST_SEARCH = 300
_BUILDERS = 2
"""Tracks built at a time: numpy lets go of Python's lock, and a laptop has two idle cores."""


class Desk:
    """Answers the questions of the page.

    Args:
        session: the opened job.
        lock: a reentrant lock that others hold while they diagnose the same job.
    """

    def __init__(self, session: Session, lock: Lock | None = None) -> None:
        self._session = session
        self._lock: Lock = lock or threading.Lock()
        self._diagnosing: Lock = lock or threading.Lock()
        self._diagnosis: bytes | None = None
        self.steps = StepDesk(session, self._lock)
        self.panels = PanelDesk(session, self._lock)

    def warm(self) -> None:
        """Build all tracks while the browser starts; the questions that need them wait less."""
        with contextlib.suppress(StepscopeError):  # whoever asks for it is told
            with self._lock:
                tracks = self._session.timeline.tracks
            wanted = [track.id for track in tracks if not track.explained]
            with ThreadPoolExecutor(_BUILDERS) as builders:
                list(builders.map(self._built, wanted))
            self.steps.warm()

    def _built(self, track: int) -> None:
        if not self.steps.asked:  # who looks at the steps first needs the cores for them
            self._session.timeline.track(track)

    def layout(self, query: Mapping[str, str]) -> bytes:
        """Tracks, classes, members."""
        with self._lock:
            found = self._session.timeline.layout()
        found["paths"] = self._session.paths
        found["problems"] = [msgspec.to_builtins(problem) for problem in self._session.problems]
        return _json(found)

    def diagnosis(self, query: Mapping[str, str]) -> bytes:
        """The diagnosis, and where its findings are seen."""
        with self._diagnosing:
            if self._diagnosis is None:
                with self._lock:  # the steps need it too, but not the rest of the diagnosis
                    self._session.explanations  # noqa: B018
                self._diagnosis = diagnosis_of(self._session)
                threading.Thread(target=self.panels.warm, daemon=True).start()
            return self._diagnosis

    def tile(self, query: Mapping[str, str]) -> bytes:
        """Rows of tracks in a window."""
        tracks = [_number(text) for text in query.get("tracks", "").split(",") if text]
        return self._session.timeline.tile(
            tracks,
            _number(query.get("begin")),
            _number(query.get("bucket")),
            _number(query.get("columns")),
        )

    def row(self, query: Mapping[str, str]) -> bytes:
        """One slice in full."""
        return _json(
            self._session.asker.row(_number(query.get("track")), _number(query.get("row")))
        )

    def near(self, query: Mapping[str, str]) -> bytes:
        """The next or previous slice."""
        return _json(
            self._session.asker.near(
                _number(query.get("track")),
                _number(query.get("row")),
                _number(query.get("step")),
                same=query.get("same") == "1",
            )
        )

    def search(self, query: Mapping[str, str]) -> bytes:
        """Slices whose names match."""
        text = query.get("text", "")[:_LONGEST_SEARCH]
        return _json(self._session.asker.search(text, regex=query.get("regex") == "1"))

    def statistics(self, query: Mapping[str, str]) -> bytes:
        """Where the time of a window goes."""
        begin, end = _number(query.get("begin")), _number(query.get("end"))
        if end <= begin:
            raise UsageError("the window is empty")
        explained = self._diagnosis is not None
        return _json(self._session.statistics(begin, end, explained=explained))


def diagnosis_of(session: Session) -> bytes:
    """Diagnosis, instances of its findings, and how far the timeline can show them, as JSON."""
    diagnosis = session.diagnose()
    found = {
        "diagnosis": msgspec.to_builtins(diagnosis),
        "instances": [
            session.instances(finding.cause, finding.ranks) for finding in diagnosis.findings
        ],
    }
    return _json(found)


def asset(name: str) -> bytes:
    """A file of the page as it ships."""
    return resources.files("stepscope.server").joinpath("static", name).read_bytes()


def application(session: Session, token: str, port: int) -> Guard:
    """The server's application.

    Args:
        session: the opened job.
        token: first part of every path.
        port: port that it listens on.
    """
    desk = Desk(session)
    threading.Thread(target=desk.warm, daemon=True).start()
    return Guard(Starlette(routes=desk_routes(desk)), token, port)


def desk_routes(desk: Desk) -> list[Route]:
    """Routes of one job's page."""
    questions: Questions = {
        "layout": (desk.layout, "application/json"),
        "diagnosis": (desk.diagnosis, "application/json"),
        "tile": (desk.tile, "application/octet-stream"),
        "row": (desk.row, "application/json"),
        "near": (desk.near, "application/json"),
        "search": (desk.search, "application/json"),
        "statistics": (desk.statistics, "application/json"),
        **desk.steps.questions(),
        **desk.panels.questions(),
    }
    return page_routes(questions) + desk.panels.routes()


def page_routes(questions: Questions) -> list[Route]:
    """Routes of a page that asks some questions."""
    routes = [Route(f"/api/{name}", _question(*told)) for name, told in questions.items()]
    routes.append(Route("/", _file("index.html")))
    routes += [Route(f"/{name}", _file(name)) for name in _ASSETS]
    return routes


def _question(answer: Callable[[Mapping[str, str]], bytes], kind: str) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        if await request.is_disconnected():  # the view has moved on while this one waited
            return Response(status_code=204)
        try:
            body = await run_in_threadpool(answer, dict(request.query_params))
        except StepscopeError as error:
            status = 400 if isinstance(error, UsageError) else 410
            return Response(_json({"error": str(error)}), status, media_type="application/json")
        return Response(body, media_type=kind)

    return endpoint


def _file(name: str) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        kind = _TYPES[name[name.rindex(".") :]]
        return Response(asset(name), media_type=f"{kind}; charset=utf-8")

    return endpoint


def _number(text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError as error:
        raise UsageError(f"{(text or '')[:40]!r} is no whole number") from error


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)

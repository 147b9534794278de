"""The routes: each asks the session and encodes the answer. No logic of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Route

from stepscope.server.guard import Guard
from stepscope.trace.errors import GivenUpError, StepscopeError, StorageError, UsageError

if TYPE_CHECKING:
    from starlette.requests import Request

    from stepscope.server.background import Process
    from stepscope.session import Session

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_ASSETS = ("index.html", "app.js", "app.css")
_LONGEST_SEARCH = 300
_BEFORE_CHECKING_S = 5.0
"""The first pictures come before the check of what is stored, which reads all of it."""
_DAMAGED = (
    "the stored timeline is damaged and was removed; end stepscope ui and start it again, which "
    "makes it anew"
)


class Desk:
    """Answers the questions of the page.

    Args:
        session: the opened job.
        explaining: the process that diagnoses, where that is not done in this one.
    """

    _damaged = ""

    def __init__(self, session: Session, explaining: Process | None = None) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._diagnosing = threading.Lock()  # its own: a page that is loaded again needs no wait
        self._explaining = explaining
        self._diagnosis: bytes | None = None

    def warm(self) -> None:
        """Build all tracks while the browser starts, and see whether stored ones are sound."""
        with contextlib.suppress(StepscopeError):  # whoever asks for it is told
            with self._lock:
                tracks = self._session.timeline.tracks
            for track in tracks:
                if not track.explained:
                    self._session.timeline.track(track.id)
            time.sleep(_BEFORE_CHECKING_S)
            if not self._session.timeline_is_whole():
                self._damaged = _DAMAGED

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
                self._diagnosis = self._session.diagnosed() or self._diagnosed()
            return self._diagnosis

    def _diagnosed(self) -> bytes:
        """A new diagnosis: by the other process where there is one, else here."""
        if self._explaining is not None:
            self._explaining.wait()
            found = self._session.diagnosed()
            if found is None:
                raise StorageError(
                    "the diagnosis could not be kept; check that the cache folder is writable, "
                    "or run stepscope diagnose"
                )
            return found
        made = diagnosis_of(self._session)
        with contextlib.suppress(StorageError):  # then it is made again the next time
            self._session.store_diagnosis(made)
        return made

    def tile(self, query: Mapping[str, str], gone: threading.Event) -> bytes:
        """Rows of tracks in a window."""
        if self._damaged:
            raise StorageError(self._damaged)
        tracks = [_number(text) for text in query.get("tracks", "").split(",") if text]
        return self._session.timeline.tile(
            tracks,
            _number(query.get("begin")),
            _number(query.get("bucket")),
            _number(query.get("columns")),
            gone.is_set,
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


def application(
    session: Session, token: str, port: int, explaining: Process | None = None
) -> Guard:
    """The server's application.

    Args:
        session: the opened job.
        token: first part of every path.
        port: port that it listens on.
        explaining: the process that diagnoses, where that is not done in this one.
    """
    desk = Desk(session, explaining)
    threading.Thread(target=desk.warm, daemon=True).start()
    questions: dict[str, tuple[Callable[[Mapping[str, str]], bytes], str]] = {
        "layout": (desk.layout, "application/json"),
        "diagnosis": (desk.diagnosis, "application/json"),
        "row": (desk.row, "application/json"),
        "near": (desk.near, "application/json"),
        "search": (desk.search, "application/json"),
        "statistics": (desk.statistics, "application/json"),
    }
    routes = [Route(f"/api/{name}", _question(*told)) for name, told in questions.items()]
    routes.append(Route("/api/tile", cancellable(desk.tile)))
    routes.append(Route("/", _file("index.html")))
    routes += [Route(f"/{name}", _file(name)) for name in _ASSETS]
    return Guard(Starlette(routes=routes), token, port)


def _question(answer: Callable[[Mapping[str, str]], bytes], kind: str) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        return await _answered(lambda: answer(dict(request.query_params)), kind)

    return endpoint


def cancellable(
    answer: Callable[[Mapping[str, str], threading.Event], bytes],
) -> Callable[..., Any]:
    """A route whose answer is given up when the page no longer waits: it asked for another view.

    Args:
        answer: gives the answer; its second argument is set once nobody waits.
    """

    async def endpoint(request: Request) -> Response:
        gone = threading.Event()
        watching = asyncio.create_task(_watch(request, gone))
        try:
            return await _answered(
                lambda: answer(dict(request.query_params), gone), "application/octet-stream"
            )
        except GivenUpError:
            return Response(status_code=204)
        finally:
            watching.cancel()

    return endpoint


async def _watch(request: Request, gone: threading.Event) -> None:
    """Wait until the other end has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def _answered(answer: Callable[[], bytes], kind: str) -> Response:
    try:
        body = await run_in_threadpool(answer)
    except StepscopeError as error:
        status = 400 if isinstance(error, UsageError) else 410
        return Response(_json({"error": str(error)}), status, media_type="application/json")
    return Response(body, media_type=kind)


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

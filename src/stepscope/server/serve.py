"""Run the server until it is interrupted."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepscope.server.background import explaining_beside
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from stepscope.api import Job
    from stepscope.api.job_page import JobPage
    from stepscope.api.runs import Pair

HOST = "127.0.0.1"
_POLL_S = 1.0


def listening(port: int) -> socket.socket:
    """A socket on the loopback interface.

    Args:
        port: which port; 0 for a free one.

    Raises:
        UsageError: the port cannot be had.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen()
    except OSError as error:
        found.close()
        raise UsageError(
            f"cannot listen on port {port}: {error.strerror}; choose another with --port, or "
            "leave it out for a free one"
        ) from error
    return found


def serve(shown: Job | Pair | JobPage, port: int, ready: Callable[[str], None]) -> None:
    """Serve captures, two runs side by side, or a job of digests, until the process is interrupted.

    Args:
        shown: the opened captures, the two runs, or the job.
        port: which port; 0 for a free one.
        ready: receives the address, once it answers.

    Raises:
        UsageError: the port cannot be had.
    """
    from stepscope.api import Job
    from stepscope.api.runs import Pair
    from stepscope.server.app import application
    from stepscope.server.job import job_application
    from stepscope.server.pair import pair_application
    from stepscope.server.ranks import RankTimelines

    explaining = explaining_beside(shown) if isinstance(shown, Job) else None
    timelines: RankTimelines | None = None

    def made(token: str, bound: int) -> ASGIApp:
        nonlocal timelines
        if isinstance(shown, Pair):
            return pair_application(shown, token, bound)
        if isinstance(shown, Job):
            return application(shown, token, bound, explaining)
        timelines = RankTimelines(shown)
        return job_application(shown, timelines, token, bound)

    try:
        serve_application(made, port, ready)
    finally:
        if explaining is not None:
            explaining.stop()
        if timelines is not None:
            timelines.stop()


def serve_application(
    made: Callable[[str, int], ASGIApp],
    port: int,
    ready: Callable[[str], None],
    *,
    token: str = "",
    lifespan: bool = False,
) -> None:
    """Serve an application on the loopback interface, until the process is interrupted.

    Args:
        made: (token, port) -> what answers.
        port: which port; 0 for a free one.
        ready: receives the address, once it answers.
        token: the secret part of the address; by default a new one.
        lifespan: whether the application wants to be told of begin and end.

    Raises:
        UsageError: the port cannot be had.
    """
    import uvicorn

    sock = listening(port)
    bound = sock.getsockname()[1]
    token = token or secrets.token_urlsafe(24)
    config = uvicorn.Config(
        made(token, bound),
        log_level="critical",
        access_log=False,
        lifespan="on" if lifespan else "off",
        server_header=False,
        ws="none",  # else its library is imported, which nothing here needs
    )
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    ready(f"http://{HOST}:{bound}/{token}/")
    try:
        _run(lambda: server.run(sockets=[sock]))
    finally:
        sock.close()


def _run(serving: Callable[[], None]) -> None:
    """Serve in another thread, so that this one ends at once when a signal says so.

    There the server handles no signals: SIGTERM ends the process by itself, and Ctrl+C is answered
    here, whatever requests compute meanwhile.
    """
    failure: list[BaseException] = []

    def run() -> None:
        try:
            serving()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="stepscope-server", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
    if failure:
        raise failure[0]

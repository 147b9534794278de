"""Run the server until it is interrupted."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    from stepscope.runs import Pair
    from stepscope.session import Session

HOST = "127.0.0.1"


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


def serve(shown: Session | Pair, port: int, ready: Callable[[str], None]) -> None:
    """Serve a job, or two runs side by side, until the process is interrupted.

    Args:
        shown: the opened job, or the two runs.
        port: which port; 0 for a free one.
        ready: receives the address, once it answers.

    Raises:
        UsageError: the port cannot be had.
    """
    import uvicorn

    from stepscope.runs import Pair
    from stepscope.server.app import application
    from stepscope.server.pair import pair_application

    sock = listening(port)
    bound = sock.getsockname()[1]
    token = secrets.token_urlsafe(24)
    if isinstance(shown, Pair):
        app = pair_application(shown, token, bound)
    else:
        app = application(shown, token, bound)
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, lifespan="off", server_header=False
    )
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    ready(f"http://{HOST}:{bound}/{token}/")
    try:
        server.run(sockets=[sock])
    finally:
        sock.close()

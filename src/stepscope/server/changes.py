"""Routes that change something, which only the page itself may ask for (see ``guard.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Route

from stepscope.trace.errors import ConflictError, StepscopeError, UsageError

if TYPE_CHECKING:
    from starlette.requests import Request

LONGEST_BODY = 130_000
"""Bytes of a change: the text of a note with every character written as two escapes, and a little
around it."""


def changing(path: str, answer: Callable[[bytes], bytes]) -> Route:
    """A route that takes JSON and answers with JSON.

    Args:
        path: where it is asked; must stand in ``guard.CHANGES``.
        answer: makes the change; what it raises becomes the answer: 409 for a conflict, 400 for
            what cannot be, 410 where files fail.
    """

    async def endpoint(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_BODY:
                return _refusal(
                    UsageError(
                        f"the note is too long: over {LONGEST_BODY:,} bytes; nothing was written: "
                        "shorten it"
                    )
                )
        try:
            found = await run_in_threadpool(answer, body)
        except StepscopeError as error:
            return _refusal(error)
        return Response(found, media_type="application/json")

    return Route(path, endpoint, methods=["POST"])


def _refusal(error: StepscopeError) -> Response:
    status = 410
    if isinstance(error, UsageError):
        status = 409 if isinstance(error, ConflictError) else 400
    body = msgspec.json.encode({"error": str(error)})
    return Response(body, status, media_type="application/json")

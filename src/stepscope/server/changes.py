"""Routes that change something, which only the page itself may ask for (see ``guard.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.routing import Route

from stepscope.server.answering import answered, refusal
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LONGEST_BODY = 130_000
"""Bytes of a change: the text of a note with every character written as two escapes, and a little
around it."""


def changing(path: str, answer: Callable[[bytes], bytes]) -> Route:
    """A route that takes JSON and answers with JSON.

    Args:
        path: where it is asked; ``guard.CHANGES`` must let it pass.
        answer: makes the change; what it raises becomes the answer: 409 for a conflict, 400 for
            what cannot be, 410 where files fail.
    """

    async def endpoint(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_BODY:
                return refusal(
                    UsageError(
                        f"the note is too long: over {LONGEST_BODY:,} bytes; nothing was written: "
                        "shorten it"
                    )
                )
        whole = body
        return await answered(request, lambda _: answer(whole), "application/json")

    return Route(path, endpoint, methods=["POST"])

"""Who may ask the server: the page that it served itself, and nobody else.

A server on the loopback interface can be reached by every web page that the user's browser shows
and by every user of the machine. Hence: a random token is part of every path; the ``Host`` header
must name the loopback interface, which a rebound DNS name does not; a request that another origin
caused is refused; the one path that changes anything takes JSON from the page's own origin; and
the page may load and connect to nothing but this server.
"""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
CHANGES = re.compile(r"/(rank/[0-9]{1,9}/)?api/note")
"""Paths that change something: the notes of the user, of a capture or of a rank's."""
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


PAGE_METHODS = frozenset({"GET", "HEAD"})
MCP_METHODS = frozenset({"GET", "POST", "DELETE"})
"""Clients of the Model Context Protocol post their questions; nothing is changed by them."""


def hosts(port: int) -> set[str]:
    """Values of the ``Host`` header that name the loopback interface."""
    return {f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")}


class Guard:
    """Wraps an application: lets pass what may pass, and removes the token from the path.

    Args:
        app: what is protected.
        token: first part of every path.
        port: port of the server.
        methods: what may be asked, beside changes by the page.
    """

    def __init__(
        self, app: ASGIApp, token: str, port: int, methods: frozenset[str] = PAGE_METHODS
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts(port)
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        reason = self._refused(scope)
        if reason:
            await _refuse(send, *reason)
            return
        rest = "/" + scope["path"].split("/", 2)[2]
        inner = {**scope, "path": rest, "raw_path": rest.encode(), "root_path": ""}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                names = {name for name, _ in own}
                kept = [(k, v) for k, v in message["headers"] if k.lower() not in names]
                message = {**message, "headers": [*kept, *own]}
            await send(message)

        await self._app(inner, receive, guarded)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason of a refusal; None where the request may pass."""
        named = [value for name, value in scope["headers"] if name.lower() == b"host"]
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        origin = headers.get("origin")
        parts = scope["path"].split("/", 2)
        given = parts[1] if len(parts) == 3 else ""
        reason: tuple[int, str] | None = None
        if len(named) != 1 or headers["host"].lower() not in self._hosts:
            reason = 421, "this server answers on the loopback interface only"
        elif origin is not None and origin.removeprefix("http://") not in self._hosts:
            reason = 403, "a page of another origin asked"
        elif headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            reason = 403, "a page of another site asked"
        elif not hmac.compare_digest(given.encode(), self._token.encode()):
            reason = 404, "the address lacks its token; use the one that the server printed"
        elif scope["method"] == "POST" and CHANGES.fullmatch("/" + parts[2]):
            # browsers always name the origin of a POST; nobody else has to be let in
            if origin is None:
                reason = 403, "a change comes from the page itself, which names its origin"
            elif headers.get("content-type") != "application/json":
                reason = 415, "a change is JSON"
        elif scope["method"] not in self._methods:
            reason = 405, "this server only answers questions"
        return reason


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = f"stepscope: {reason}\n".encode()
    headers = {**HEADERS, "content-type": "text/plain; charset=utf-8"}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})

"""Every request is answered in time, and the server ends, whatever a request computes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.requests import Request
from tests.server.served import Served

from stepscope.api.inputs import bundled_capture
from stepscope.server.answering import answered
from stepscope.trace.errors import GivenUpError, InputError

LIMIT_S = 60
BUSY = """
import os, sys
from stepscope.cli.main import main
from stepscope.timeline.ask import Asker

def search(*_, **__):
    os.write(1, b"busy\\n")  # as a whole: others write, too
    while True:
        sum(range(100_000))

Asker.search = search
sys.argv = ["stepscope", "ui", "--no-browser", sys.argv[1]]
main()
"""


def in_a_loop_of_its_own(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it in another thread: in this one the browser's tests may have a loop that runs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("requests", [1, 60])
def test_a_server_ends_while_requests_compute(how: signal.Signals, requests: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(bundled_capture())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        served = Served(process.stdout.readline().strip())
        for _ in range(requests):
            threading.Thread(target=ask, args=(served,), daemon=True).start()
        assert process.stdout.readline() == "busy\n"
        process.send_signal(how)
        _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert "Traceback" not in errors
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGTERM)


def ask(served: Served) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):  # it ends without an answer
        served.get("api/search?text=x")


@pytest.mark.parametrize(
    "text",
    ["([a-z_]%2B)%2B([a-z]%2B)%2B$X", "(a*)*b", "(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)[^%00-%ff]$"],
)
def test_a_slow_expression_of_python_is_answered(text: str, served: Served) -> None:
    answer = served.get(f"api/search?regex=1&text={text}")
    assert answer.status == 200
    assert "hits" in json.loads(answer.body)


@pytest.mark.parametrize("text", ["a(?=b)", "a(?!b)", "(?<=a)b", "(?<!a)b", "(a)%5C1", "a%2B%2B"])
def test_what_re2_lacks_is_said_in_a_line(text: str, served: Served) -> None:
    answer = served.get(f"api/search?regex=1&text={text}")
    assert answer.status == 400
    output = json.loads(answer.body)["error"]
    assert "is no regular expression" in output
    assert "RE2, which is used here, has no look-ahead" in output
    assert "\n" not in output


def request_of(closed: asyncio.Event) -> Request:
    async def receive() -> dict[str, Any]:
        await closed.wait()
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    return Request(scope, receive)


def test_a_request_is_answered_at_its_deadline() -> None:
    reply = threading.Event()

    def slow(gone: threading.Event) -> bytes:
        if gone.wait(LIMIT_S):
            reply.set()
        return b""

    async def run() -> Any:
        return await answered(request_of(asyncio.Event()), slow, "text/plain", 0.05)

    response = in_a_loop_of_its_own(run())
    assert response.status_code == 503
    assert "longer than 0.05 s" in json.loads(response.body)["error"]
    assert reply.wait(LIMIT_S)  # what was computed is told to stop


def test_what_nobody_waits_for_is_given_up() -> None:
    def slow(gone: threading.Event) -> bytes:
        assert gone.wait(LIMIT_S)
        raise GivenUpError

    async def run() -> Any:
        closed = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, closed.set)
        return await answered(request_of(closed), slow, "text/plain", LIMIT_S)

    assert in_a_loop_of_its_own(run()).status_code == 204


def test_errors_and_answers_pass() -> None:
    def fails(_: threading.Event) -> bytes:
        raise InputError("it is damaged")

    async def run() -> list[Any]:
        asked = request_of(asyncio.Event())
        return [
            await answered(asked, lambda _: b"here", "text/plain"),
            await answered(asked, fails, "text/plain"),
        ]

    good, bad = in_a_loop_of_its_own(run())
    assert (good.status_code, good.body) == (200, b"here")
    assert (bad.status_code, json.loads(bad.body)) == (410, {"error": "it is damaged"})

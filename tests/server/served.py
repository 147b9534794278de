"""A real server in a process of its own, and requests that say exactly what they should."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.cli.command import forks


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Served:
    """What ``stepscope ui`` printed."""

    address: str

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    @property
    def path(self) -> str:
        return urlsplit(self.address).path

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        """Ask with exactly these headers; a path that begins with / is taken as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(
            method,
            path if path.startswith("/") else self.path + path,
            skip_host=True,
            skip_accept_encoding=True,
        )
        for name, value in {"host": f"127.0.0.1:{self.port}", **headers}.items():
            if value:
                connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return found


@contextlib.contextmanager
def serving(*arguments: str | Path) -> Iterator[Served]:
    """``stepscope ui`` until the block ends."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as errors:
        words = ["ui", "--no-browser", *map(str, arguments)]
        environment = {**os.environ, "BROWSER": "false"}
        process = forks().start(words, environment, writing, errors.fileno())
        os.close(writing)
        with os.fdopen(reading) as output:
            try:
                line = output.readline().strip()
                if line.startswith("{"):  # --format json
                    line = json.loads(line)["address"]
                errors.seek(0)
                assert line.startswith("http://127.0.0.1:"), errors.read()
                yield Served(line)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)
                process.wait()

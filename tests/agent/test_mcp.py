"""The server, driven by the SDK's own client: over standard streams, and over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import pytest
from tests.cli.command import Stepscope, is_one_line
from tests.support.captures import DATA, unpack

from stepscope.agent import protocol
from stepscope.agent.tool import tools

if TYPE_CHECKING:
    from mcp.client.client import Client  # every worker would import it, and one needs it

CAPTURE = DATA / "nsys" / "cnn_disk.sqlite.xz"
SECRET = "test_secret_of_24_letters"


@asynccontextmanager
async def over_streams(folder: Path) -> AsyncIterator[Client]:
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "stepscope", "mcp", "--allow", str(folder)],
        env=dict(os.environ),
    )
    async with Client(stdio_client(server)) as client:
        yield client


async def conversation(client: Client, name: str) -> None:
    """What an agent does: list, diagnose, ask for evidence, be refused."""
    from mcp.shared.exceptions import MCPError

    listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == list(tools())
    assert all(tool.description and tool.input_schema["type"] == "object" for tool in listed)

    async def call(tool: str, **arguments: object) -> tuple[bool, str]:
        result = await client.call_tool(tool, arguments)
        (content,) = result.content
        return bool(result.is_error), getattr(content, "text", "")

    failed, text = await call("diagnose", capture=name)
    found: dict[str, Any] = json.loads(text)
    assert not failed
    assert found["verdict"] == "input_starvation"
    failed, text = await call("query", capture="c1", sql="SELECT name FROM gpu_op LIMIT 1")
    assert not failed
    assert json.loads(text)["rows"][0][0].startswith("«")
    for tool, arguments, reason in (
        ("query", {"capture": "c1", "sql": "COPY gpu_op TO 'x'"}, "SELECT"),
        ("query", {"capture": "c1", "sql": "SELECT * FROM '/etc/passwd'"}, "no table"),
        ("open", {"capture": "/etc/passwd"}, "outside"),
        ("nothing", {}, "no tool nothing"),
    ):
        failed, text = await call(tool, **arguments)
        assert failed
        assert reason in text
        assert "\n" not in text
    uris = [str(one.uri) for one in (await client.list_resources()).resources]
    assert uris == ["stepscope://schema", "stepscope://findings/c1"]
    (content,) = (await client.read_resource(uris[1])).contents
    assert json.loads(getattr(content, "text", ""))["verdict"] == "input_starvation"
    (content,) = (await client.read_resource(uris[0])).contents
    assert "start_ns" in json.loads(getattr(content, "text", ""))["gpu_op"]
    with pytest.raises(MCPError, match="no resource"):
        await client.read_resource("stepscope://findings/c9")


def test_over_standard_streams() -> None:
    path = unpack(CAPTURE)

    async def run() -> None:
        async with over_streams(path.parent) as client:
            await conversation(client, path.name)

    anyio.run(run)


def test_over_http_with_a_token_on_loopback() -> None:
    from mcp.client.client import Client

    path = unpack(CAPTURE)
    server = subprocess.Popen(
        [sys.executable, "-m", "stepscope", "mcp", "--http", "--allow", str(path.parent)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "STEPSCOPE_MCP_TOKEN": SECRET},
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert urlsplit(address).hostname == "127.0.0.1"
        assert urlsplit(address).path == f"/{SECRET}/mcp"

        async def run() -> None:
            async with Client(address) as client:
                await conversation(client, path.name)

        anyio.run(run)
        port = urlsplit(address).port or 0
        for wrong, status in (
            ({}, 200),
            ({"token": "another"}, 404),
            ({"host": "example.org"}, 421),
            ({"origin": "http://example.org"}, 403),
            ({"sec-fetch-site": "cross-site"}, 403),
            ({"method": "PUT"}, 405),
        ):
            assert answered(port, **wrong) == status, wrong
    finally:
        server.terminate()
        server.wait(20)


def answered(port: int, token: str = SECRET, method: str = "POST", **headers: str) -> int:
    """Status of a request that a client would make, with something changed."""
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    accepted = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    connection.request(method, f"/{token}/mcp", json.dumps(body), {**accepted, **headers})
    status = connection.getresponse().status
    connection.close()
    return status


def test_without_the_sdk_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert protocol.missing_sdk() == ""
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    assert "pip install mcp" in protocol.missing_sdk()


def test_bad_options_are_one_line(reader: Stepscope, tmp_path: Path) -> None:
    assert "is no folder" in refused(reader, "mcp", "--allow", tmp_path / "none")
    assert "--http" in refused(reader, "mcp", "--port", "8000")
    assert "is no secret" in refused(reader, "mcp", "--http", STEPSCOPE_MCP_TOKEN="short")


def refused(reader: Stepscope, *arguments: str | Path, **env: str) -> str:
    return is_one_line(reader(*arguments, expect=2, **env).stderr)

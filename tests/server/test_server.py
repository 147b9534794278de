"""Who may ask, what is answered, and what ships."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.cli.command import Stepscope, is_one_line
from tests.server.served import Served, serving
from tests.support.tiles import decode

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture
from stepscope.server.app import asset

ROOT = Path(__file__).parents[2]


def test_the_page_and_its_parts_are_served(served: Served) -> None:
    for name, kind in (("", "html"), ("app.js", "javascript"), ("app.css", "css")):
        answer = served.get(name)
        assert answer.status == 200
        assert kind in answer.headers["content-type"]
        assert len(answer.body) > 100


def test_every_answer_forbids_all_that_is_not_needed(served: Served) -> None:
    for path in ("", "app.js", "api/layout", "api/row?track=99&row=0", "/", "/wrong/api/layout"):
        headers = served.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


@pytest.mark.parametrize(
    "path",
    ["/", "/api/layout", "//api/layout", "/index.html", "/x/api/layout", "/../api/layout", "/%2e"],
)
def test_without_the_token_there_is_nothing(served: Served, path: str) -> None:
    answer = served.get(path)
    assert answer.status == 404
    assert b"token" in answer.body
    token = served.path.strip("/")
    assert len(token) >= 32
    assert token.encode() not in answer.body
    assert served.get(f"/{token[:-1]}/api/layout").status == 404
    assert served.get(f"/{token}x/api/layout").status == 404


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil"])
def test_a_rebound_name_is_refused(served: Served, host: str) -> None:
    assert served.get("api/layout", host=host).status in (400, 421)


def test_other_names_of_the_loopback_interface_are_fine(served: Served) -> None:
    assert served.get("api/layout", host=f"localhost:{served.port}").status == 200


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "https://127.0.0.1:{port}"])
def test_other_origins_are_refused(served: Served, origin: str) -> None:
    assert served.get("api/layout", origin=origin.format(port=served.port)).status == 403


def test_the_own_origin_may_ask(served: Served) -> None:
    origin = f"http://127.0.0.1:{served.port}"
    answer = served.get("api/layout", origin=origin, sec_fetch_site="same-origin")
    assert answer.status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_that_other_sites_cause_are_refused(served: Served, site: str) -> None:
    assert served.get("", sec_fetch_site=site).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_questions_are_answered(served: Served, method: str) -> None:
    assert served.get("api/layout", method=method).status == 405


@pytest.mark.parametrize(
    ("path", "summary"),
    [
        ("api/tile", "whole number"),
        ("api/tile?tracks=x&begin=0&bucket=1&columns=1", "whole number"),
        ("api/tile?tracks=3&begin=0&bucket=0&columns=1", "no columns"),
        ("api/tile?tracks=3&begin=0&bucket=1&columns=99999999", "impossible"),
        ("api/tile?tracks=77&begin=0&bucket=1&columns=5", "no track"),
        ("api/row?track=3&row=99999999", "no row"),
        ("api/search?regex=1&text=%28", "regular expression"),
        ("api/statistics?begin=5&end=5", "empty"),
    ],
)
def test_wrong_questions_get_a_sentence(served: Served, path: str, summary: str) -> None:
    answer = served.get(path)
    assert answer.status == 400
    assert summary in json.loads(answer.body)["error"]


def test_files_beside_the_page_are_not_served(served: Served) -> None:
    for path in ("../app.py", "..%2fapp.py", "built_from", "ui/package.json", "api/"):
        assert served.get(path).status == 404


def test_a_tile_travels_whole(served: Served) -> None:
    layout = json.loads(served.get("api/layout").body)
    stream = next(t["id"] for t in layout["tracks"] if t["title"].startswith("Stream"))
    answer = served.get(f"api/tile?tracks={stream}&begin=0&bucket=1048576&columns=500")
    tile = decode(answer.body)
    counted = sum(
        len(row["arrays"]["start"]) + int(row["arrays"]["count"].sum()) for row in tile["rows"]
    )
    rows = Job([bundled_capture()]).query("SELECT count(*) AS n FROM gpu_op").to_pydict()
    assert counted == rows["n"][0] > 5000
    found = json.loads(served.get("api/diagnosis").body)
    assert found["diagnosis"]["verdict"] == "input_starvation"
    assert len(found["instances"]) == len(found["diagnosis"]["findings"])


def test_a_port_that_is_taken_is_said_in_one_line(reader: Stepscope) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = reader("ui", "--no-browser", "--port", str(port), bundled_capture(), expect=2)
    assert f"port {port}" in is_one_line(done.stderr)


def test_interrupting_ends_it_quietly() -> None:
    command = [sys.executable, "-m", "stepscope", "ui", "--no-browser", str(bundled_capture())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors
    assert process.returncode in (0, 130)


def test_a_capture_without_gpu_work_still_has_a_timeline(
    tmp_path: Path,
) -> None:
    from tests.support.build import Build

    b = Build()
    b.range(0, 10, "alone")
    trace = b.trace(tmp_path)
    with serving(trace.folder) as served:
        layout = json.loads(served.get("api/layout").body)
        assert [t["title"] for t in layout["tracks"]] == ["Ranges"]
        answer = served.get("api/diagnosis")
        assert answer.status == 410
        assert "no GPU work" in json.loads(answer.body)["error"]


def test_a_trace_deleted_while_open_is_said(tmp_path: Path) -> None:
    from tests.support.build import Build

    b = Build()
    b.kernel(5, 9, call=(1, 2))
    trace = b.trace(tmp_path)
    with serving(trace.folder) as served:
        layout = json.loads(served.get("api/layout").body)
        stream = next(t["id"] for t in layout["tracks"] if t["title"] == "Stream 7")
        shutil.rmtree(trace.folder)
        answer = served.get(f"api/row?track={stream}&row=0")
        assert answer.status in (400, 410)
        assert json.loads(answer.body)["error"]


# --- what ships ----------------------------------------------------------------------------------


def dev() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dev_for_ui", ROOT / "dev.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_ASKED = {
    "tile": ("tracks", "begin", "bucket", "columns"),
    "row": ("track", "row"),
    "near": ("track", "row", "step"),
    "statistics": ("begin", "end"),
    "table": ("begin", "end"),
    "instances": ("group", "begin", "end"),
    "flame": ("begin", "end"),
    "steps": ("device",),
    "stepgrid": ("device", "first", "count", "group", "begin", "bucket", "columns"),
}
_NUMBERS = (10**23, -(10**23), 2**63, 2**63 - 1, -(2**63), 2**62, 2**61, -(2**61), -1, 0)


@pytest.mark.parametrize("route", _ASKED)
def test_numbers_out_of_all_bounds_are_refused(served: Served, route: str) -> None:
    usual = {"begin": 0, "end": 1000, "bucket": 1000, "columns": 10, "count": 5, "group": 1}
    for name in _ASKED[route]:
        for number in (*_NUMBERS, "9" * 5000, "nan", "1e3"):
            asked = {**{key: usual.get(key, 0) for key in _ASKED[route]}, name: number}
            query = "&".join(f"{key}={value}" for key, value in asked.items())
            answer = served.get(f"api/{route}?{query}&kind=calls")
            assert answer.status in (200, 400), (query[:200], answer.body[:200])
            if isinstance(number, str) or abs(number) > 2**62:
                assert answer.status == 400, query[:200]
                assert "error" in json.loads(answer.body)


def test_the_page_is_built_from_its_source() -> None:
    built = asset("built_from").decode().strip()
    assert built == dev().ui_digest(), "run python3 dev.py ui"


def test_the_page_asks_nobody_else() -> None:
    for name in ("index.html", "app.js", "app.css", "job.html", "job.js"):
        text = asset(name).decode().replace("http://www.w3.org/", "")
        assert not re.search(r"(https?|wss?)://|//[a-z]+\.[a-z]{2,}", text), name
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert "eval(" not in text
    assert "<script>" not in asset("index.html").decode()
    assert sum(len(asset(name)) for name in ("index.html", "app.js", "app.css")) < 185_000
    assert len(asset("job.js")) < 60_000


def test_a_superseded_tile_is_given_up() -> None:
    """The page aborts a request when the view has moved on: the work for it stops."""
    import asyncio
    import threading

    from starlette.applications import Starlette
    from starlette.routing import Route

    from stepscope.server.app import cancellable
    from stepscope.trace.errors import GivenUpError

    begun, stopped = threading.Event(), threading.Event()

    def answer(query: object, gone: threading.Event) -> bytes:
        begun.set()
        if not gone.wait(30):
            return b"nobody said that the page has gone"
        stopped.set()
        raise GivenUpError

    app = Starlette(routes=[Route("/", cancellable(answer))])
    sent: list[dict[str, object]] = []

    async def ask() -> None:
        async def receive() -> dict[str, object]:
            await asyncio.sleep(0.01)
            if not begun.is_set():
                return {"type": "http.request", "body": b"", "more_body": False}
            return {"type": "http.disconnect"}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        await app(scope, receive, send)  # type: ignore[arg-type]

    # in a thread of its own: the driver of the browser tests has a loop in this one
    thread = threading.Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    thread.join(60)
    assert stopped.is_set()
    assert all(not message.get("body") for message in sent)


def test_the_other_process_diagnoses_and_says_why_not(tmp_path: Path) -> None:
    from tests.support.build import Build

    from stepscope.cache.store import Cache
    from stepscope.server.background import DIAGNOSIS, TRACKS, Process
    from stepscope.trace.errors import InputError

    reply: list[float] = []
    job = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))
    Process(job, TRACKS, reply.append).wait()
    assert reply == sorted(reply)
    assert reply[-1] == 1.0
    assert not job.views.stored_timeline_is_missing()
    Process(job, DIAGNOSIS).wait()
    answer = job.views.diagnosed()
    assert answer is not None
    assert json.loads(answer)["diagnosis"]["verdict"] == "input_starvation"
    b = Build()
    b.range(1, 2, "no GPU work")
    without = Job([b.trace(tmp_path).folder], cache=Cache(tmp_path / "cache"))
    with pytest.raises(InputError, match="holds no GPU work"):
        Process(without, DIAGNOSIS).wait()


def test_the_server_of_a_large_trace_lets_another_process_explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepscope.cache.store import Cache
    from stepscope.server import background
    from stepscope.server.app import PageHandlers
    from stepscope.server.background import DIAGNOSIS, Process

    monkeypatch.setattr(background, "HERE_EVENTS", 10)
    job = Job([bundled_capture()], cache=Cache(tmp_path / "cache"))
    background.prepare(job, lambda _: None)
    assert not job.views.stored_timeline_is_missing()
    job.views.explains_elsewhere = True
    handlers = PageHandlers(job, Process(job, DIAGNOSIS))
    found = json.loads(handlers.diagnosis({}))
    assert found["diagnosis"]["findings"]
    assert "_explained" not in job.__dict__  # nothing was explained here
    steps = next(t.id for t in job.timeline.tracks if t.title == "Steps")
    assert len(job.timeline.track(steps).slices) > 3

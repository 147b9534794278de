"""The timeline as one HTML file that opens from disk: no server, nothing fetched."""

from __future__ import annotations

import base64
import gzip
import hashlib
from typing import TYPE_CHECKING

import msgspec

from stepscope.api import Job
from stepscope.server.app import asset
from stepscope.server.background import diagnosis_of
from stepscope.server.handlers import page_problems
from stepscope.trace.errors import InputError

if TYPE_CHECKING:
    from stepscope.server.answers import Layout, Packed
    from stepscope.timeline.answers import PackedSteps


def page(job: Job, window: str = "", step: int | None = None) -> str:
    """The file's text.

    Args:
        job: the opened job.
        window: ``[start]/[end]``; empty for all.
        step: number of a step to take instead.

    Raises:
        UsageError: the window is wrong, or holds too much for one page.
    """
    job.views.refuse_too_large(window, step)  # before minutes are spent on it
    found = job.views.extract(window, step)
    try:
        diagnosed: msgspec.Raw | None = msgspec.Raw(diagnosis_of(job))
        refused = ""
    except InputError as error:
        diagnosed, refused = None, str(error)
    layout: Layout = {
        **found["layout"],
        "paths": [path.rpartition("/")[2] for path in job.paths],
        "above": "",
        "problems": page_problems(job),
    }
    if diagnosed is None:  # tracks that need an explanation have none
        layout["tracks"] = [track for track in layout["tracks"] if not track["explained"]]
    panels = job.views.panels.extract(layout["begin"], layout["end"], tables=diagnosed is not None)
    notes = job.views.notes.read()
    notes["path"] = notes["path"].rpartition("/")[2]
    steps, steps_refused = _steps(job)
    packed: Packed = {
        "layout": layout,
        "tracks": found["tracks"],
        "names": found["names"],
        "steps": steps,
        "steps_refused": steps_refused,
        "diagnosed": diagnosed,
        "refused": refused,
        "panels": {**panels, "notes": notes},
    }
    return written(msgspec.json.encode(packed))


def written(data: bytes) -> str:
    """The page with some data inside, which its script shows."""
    # base64 holds nothing that HTML could take for markup
    packed = base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()
    script = asset("app.js").decode()
    style = asset("app.css").decode()
    if "</script" in script.lower() or "</style" in style.lower():
        raise AssertionError("the built assets cannot stand inside a page")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<title>Stepscope</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        '<div id="app"></div>\n'
        f'<script type="application/octet-stream" id="trace">{packed}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _steps(job: Job) -> tuple[PackedSteps | None, str]:
    """The step view of the whole capture, or why the page has none."""
    try:
        steps = job.views.packed_steps()
    except InputError as error:
        return None, str(error)
    refused = (
        "the steps hold too many operations for one page; stepscope ui CAPTURE without --static "
        "shows them"
    )
    return steps, "" if steps is not None else refused


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

"""Real output for the hand-written pages: what ``stepscope demo`` prints, as text and as image."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from stepscope.api import Job
from stepscope.cache.store import Cache
from stepscope.render.terminal import print_diagnosis
from tools.docs.consoles import cache_folder, captures, executed, scratch

if TYPE_CHECKING:
    from stepscope.diagnosis.result import Diagnosis

WIDTH = 100
"""Columns of the terminal that the shown output is made for."""

_THEME = TerminalTheme(
    (27, 30, 36),
    (216, 222, 233),
    [
        *((59, 66, 82), (224, 98, 96), (120, 190, 110), (229, 192, 90)),
        *((97, 150, 230), (190, 130, 220), (86, 182, 194), (216, 222, 233)),
    ],
    [
        *((107, 114, 128), (242, 139, 130), (152, 214, 140), (245, 215, 130)),
        *((130, 175, 250), (210, 160, 240), (120, 210, 220), (240, 244, 250)),
    ],
)
_SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>Output of stepscope demo</title>
<style>
.{unique_id}-matrix {{
  font-category: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{
  font-category: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 16px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@contextmanager
def demo_job() -> Iterator[Job]:
    """The bundled trace, under the name that ``stepscope demo`` shows."""
    capture = scratch() / "h200_input_starvation.sqlite"
    if not capture.exists():
        shutil.copy(captures() / "starved.sqlite", capture)
    yield Job([capture], cache=Cache(Path(cache_folder())))


@cache
def _diagnosis() -> Diagnosis:
    with demo_job() as job:
        found = job.diagnose()
    names = [Path(path).name for path in found.trace.paths]  # the folder is a temporary one
    return msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, paths=names))


def _demo_console() -> Console:
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True,
        color_system="truecolor", highlight=False, markup=False, emoji=False,
    )  # fmt: skip
    print_diagnosis(_diagnosis(), console)
    return console


def demo() -> str:
    """The output of ``stepscope demo``."""
    lines = _demo_console().export_text().rstrip().splitlines()
    return _fenced("text", "\n".join(line.rstrip() for line in lines))


@cache
def demo_image() -> str:
    """The same as an SVG that loads nothing."""
    return _demo_console().export_svg(
        title="stepscope demo", theme=_THEME, code_format=_SVG, font_aspect_ratio=0.602,
        unique_id="demo",
    )  # fmt: skip


def words(svg: str) -> list[str]:
    """The text of an SVG: what stays the same when a library draws it differently."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def evidence() -> str:
    """The first figure of the first finding, as in the JSON."""
    item = _diagnosis().findings[0].evidence[0]
    return _fenced("json", msgspec.json.format(msgspec.json.encode(item)).decode())


SNIPPETS: dict[str, Callable[[], str]] = {
    "demo": demo,
    "evidence": evidence,
}
"""What ``<!-- output: NAME -->`` in a page stands for."""

_PLACE = re.compile(r"(<!-- output: (\w+) -->\n)((?:(?!<!-- ).*\n)*?)(<!-- end of output -->)")


def filled(page: str) -> str:
    """A hand-written page with its outputs made again.

    Raises:
        KeyError: it asks for an output that does not exist.
        ValueError: a place for an output has no end.
    """
    if len(_PLACE.findall(page)) != page.count("<!-- output: "):
        raise ValueError("an output has no end, or is not alone on its line")
    page = _PLACE.sub(lambda place: f"{place[1]}{_output(place[2])}\n{place[4]}", page)
    return executed(page)


@cache
def _output(name: str) -> str:
    """One output; nothing but the package decides what it is."""
    return SNIPPETS[name]()


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"

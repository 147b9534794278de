"""Real output for the hand-written pages: of ``stepscope demo`` and of queries on its trace."""

from __future__ import annotations

import io
import lzma
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from stepscope.api import Job
from stepscope.cache.store import Cache
from stepscope.render.info import info_text
from stepscope.render.tables import as_columns
from stepscope.render.terminal import print_diagnosis
from tools.docs.consoles import executed

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
    """The bundled trace, opened with a cache of its own that is gone afterwards."""
    packed = resources.files("stepscope.data").joinpath("h200_input_starvation.sqlite.xz")
    with tempfile.TemporaryDirectory(prefix="stepscope-docs-") as name:
        capture = Path(name) / packed.name.removesuffix(".xz")
        capture.write_bytes(lzma.decompress(packed.read_bytes()))
        yield Job([capture], cache=Cache(Path(name) / "cache"))


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


def recompute() -> str:
    """The same figure, asked for with ``stepscope query``."""
    return _query(_diagnosis().findings[0].evidence[0].sql)


def idle() -> str:
    """Idle time by cause, with the command that gives it."""
    sql = (
        "SELECT cause, count(*) AS pieces, sum(end_ns - start_ns)::BIGINT AS idle_ns "
        "FROM idle_gap GROUP BY cause ORDER BY idle_ns DESC"
    )
    return _query(sql)


def steps() -> str:
    """A few columns of the ``step`` table."""
    sql = "SELECT step, steady, wall_ns, compute_ns, exposed_copy_ns, memset_ns, idle_ns FROM step"
    with demo_job() as job:
        return _fenced("text", as_columns(job.query(f"{sql} LIMIT 4")).rstrip())


def info() -> str:
    """The tables and the absent tables of the bundled trace, as ``stepscope info`` shows them."""
    with demo_job() as job:
        text = info_text(job.ranks[0])
    return _fenced("text", text[text.index("  tables") :].rstrip())


def whatif() -> str:
    """A prediction for the bundled trace, with the command that gives it."""
    from stepscope.render.simulation import whatif_text
    from stepscope.simulation import Free

    with demo_job() as job:
        name = Path(job.paths[0]).name
        text = whatif_text(job.whatif([Free("input_starvation")]))
    command = f"stepscope whatif {name} --free input_starvation"
    return _fenced("sh", command) + "\n\n" + _fenced("text", text.rstrip())


def critical_path() -> str:
    """The critical path of the bundled trace, by kind."""
    from stepscope.render.simulation import critical_path_text

    with demo_job() as job:
        name = Path(job.paths[0]).name
        text = critical_path_text(job.critical_path())
    by_kind = text[: text.index("\n\n")]
    return _fenced("sh", f"stepscope critical-path {name}") + "\n\n" + _fenced("text", by_kind)


SNIPPETS: dict[str, Callable[[], str]] = {
    "demo": demo,
    "evidence": evidence,
    "recompute": recompute,
    "idle": idle,
    "steps": steps,
    "info": info,
    "whatif": whatif,
    "critical_path": critical_path,
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


def _query(sql: str) -> str:
    name = _diagnosis().trace.paths[0]
    with demo_job() as job:
        answer = as_columns(job.query(sql))
    broken = sql.replace(" FROM ", "\n   FROM ").replace(" WHERE ", "\n   WHERE ")
    command = f"stepscope query {shlex.quote(name)} \\\n  {_quoted(broken)}"
    return _fenced("sh", command) + "\n\n" + _fenced("text", answer.rstrip())


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'

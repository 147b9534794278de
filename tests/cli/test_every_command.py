"""What holds for every command: lines within the terminal, one document of JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.command import Stepscope
from tests.support.captures import DATA

from stepscope.api.bundled import copy_bundled
from stepscope.cli import registry

WIDTHS = (80, 100)
SHOWN = {
    "analyze": ("analyze -r all exposed", "analyze --help-rules ALL", "analyze starved.sqlite"),
    "cache": ("cache",),
    "comm": (
        "comm exposed",
        "comm straggler --by rank",
        "comm exposed --by instance",
        "comm exposed --by split",
    ),
    "compare": ("compare starved.sqlite healthy.sqlite",),
    "critical-path": ("critical-path straggler", "critical-path starved.sqlite"),
    "demo": ("demo", "demo --list"),
    "diagnose": ("diagnose starved.sqlite", "diagnose straggler"),
    "digest": ("digest exposed -o {new}",),
    "doctor": ("doctor",),
    "explain": ("explain input_starvation", "explain --list"),
    "gaps": ("gaps starved.sqlite", "gaps exposed --by cause"),
    "gate": ("gate starved.sqlite --baseline healthy.sqlite",),
    "guide": ("guide", "guide --goal idle_gpu"),
    "info": ("info starved.sqlite", "info exposed"),
    "job": ("job straggler",),
    "kernels": ("kernels starved.sqlite", "kernels kernels.csv", "kernels kernels.csv --kernel 0"),
    "memory": ("memory memory.json.gz --batch 2 --fits 80G",),
    "operators": ("operators memory.json.gz",),
    "phases": ("phases starved.sqlite",),
    "recipe": ("recipe cuda_gpu_kern_sum exposed -o {new}",),
    "report": ("report starved.sqlite", "report exposed"),
    "stats": ("stats exposed", "stats --help-reports ALL", "stats --help-formats ALL"),
    "steps": ("steps exposed",),
    "verify": ("verify {stored} starved.sqlite",),
    "whatif": ("whatif starved.sqlite --free input_starvation", "whatif --list"),
}
"""Command -> calls of it, in the folder of the bundled captures."""
OTHERS = {
    **dict.fromkeys(("run", "capture", "ceilings"), "records a program, or measures a GPU"),
    **dict.fromkeys(("completion", "skill", "mcp", "export", "ui"), "writes files, or serves"),
    "query": "the columns are the user's",
    "history": "test_commands.py and test_history.py",
}
"""Command -> why it is not here."""
COMMAND_TO_COPY = re.compile(r" *(\$ |stepscope |nsys |ncu )")


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures")
    copy_bundled(folder)
    return folder


def among_captures(
    call: str, captures: Path, reader: Stepscope, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Go to the captures; the file of a stored diagnosis, made where a call has it."""
    monkeypatch.chdir(captures)
    stored = folder / "stored.json"
    if "{stored}" in call:
        stored.write_text(reader("diagnose", "starved.sqlite", "-f", "json").stdout)
    return stored


@pytest.mark.parametrize("call", [call for calls in SHOWN.values() for call in calls])
def test_lines_fit_the_terminal(
    call: str,
    captures: Path,
    reader: Stepscope,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = among_captures(call, captures, reader, tmp_path, monkeypatch)
    for width in WIDTHS:
        words = call.format(new=f"{call.split(maxsplit=1)[0]}{width}", stored=stored).split()
        done = reader.on_terminal(*words, COLUMNS=str(width), TERM="dumb")
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout
        long = [line for line in done.stdout.splitlines() if len(line) > width]
        # what is copied (a path, a command) stays whole
        assert [
            line for line in long if " " in line.strip() and not COMMAND_TO_COPY.match(line)
        ] == []


@pytest.mark.parametrize(
    "call", [call for calls in SHOWN.values() for call in calls if "--help-" not in call]
)
def test_json_is_one_document(
    call: str,
    captures: Path,
    reader: Stepscope,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = among_captures(call, captures, reader, tmp_path, monkeypatch)
    done = reader.ends(*call.format(new=tmp_path / "new", stored=stored).split(), "-f", "json")
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["schema"].startswith("stepscope.")


def test_a_single_report_is_the_array_of_nsys(captures: Path, reader: Stepscope) -> None:
    words = ("stats", captures / "starved.sqlite", "-f", "json", "-r")
    assert len(json.loads(reader(*words, "nvtx_sum").stdout)) > 1
    (held,) = json.loads(reader(*words, "nvtx_sum,osrt_sum").stdout)["reports"]
    assert held["report"] == "nvtx_sum"
    assert held["rows"] == json.loads(reader(*words, "nvtx_sum").stdout)
    missing = json.loads(reader(*words, "osrt_sum").stdout)
    assert missing["reports"] == []
    assert missing["skipped"][0]["reason"].endswith("nsys profile -t osrt")


def test_what_was_removed_is_told_in_json(stepscope: Stepscope) -> None:
    assert stepscope.json("cache", "clear")["freed_bytes"] == 0


@pytest.mark.parametrize("name", sorted(registry.commands()))
def test_formats_have_one_name(name: str) -> None:
    of_nsys = {"stats", "analyze"}
    formats = [o for o in registry.commands()[name].params if "--format" in o.opts]
    assert len(formats) == 1
    if name not in of_nsys:
        kinds = list(formats[0].type.choices)
        assert kinds[0] == "text"
        assert "json" in kinds
        assert not {"column", "terminal"} & {*kinds}


@pytest.mark.parametrize("earlier", ["text", "terminal", "column"])
def test_earlier_names_of_text_are_understood(
    earlier: str, captures: Path, reader: Stepscope
) -> None:
    for words in (("kernels",), ("diagnose",), ("stats", "-r", "nvtx_sum")):
        call = (*words, captures / "starved.sqlite")
        assert reader(*call, "-f", earlier).stdout == reader(*call).stdout


def test_every_command_is_looked_at() -> None:
    assert {*SHOWN} | {*OTHERS} == {*registry.commands()}
    assert not {*SHOWN} & {*OTHERS}


@pytest.mark.parametrize("call", ["whatif {} --free input_starvation", "info {}", "report {}"])
def test_prose_is_broken_in_a_pipe_too(call: str, reader: Stepscope) -> None:
    capture = DATA / "kineto" / "cnn_disk.json.gz"
    text = reader(*call.format(capture).split()).stdout
    prose = [line for line in text.splitlines() if line.lstrip().startswith("· ")]
    assert all(len(line) <= 100 for line in prose if len(line.split()) > 2)


def test_figures_are_whole_in_a_narrow_table(captures: Path, reader: Stepscope) -> None:
    words = ("stats", "-r", "nvtx_sum", captures / "starved.sqlite")
    whole = reader(*words, "-f", "csv").stdout.splitlines()
    narrow = reader.on_terminal(*words, COLUMNS="80", TERM="dumb").stdout
    assert "not shown at this width: " in narrow
    total = int(whole[1].split(",")[1])
    assert f" {total:,} " in narrow

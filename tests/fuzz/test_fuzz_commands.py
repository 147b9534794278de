"""Damaged files of every kind through the command line, compared with the undamaged answer.

Each case ends in the undamaged answer, in one that says what is damaged, or in one line and exit
code 2; where nobody can tell the damage (a digit that became another one), in any sound answer.
Never a traceback, never a changed input, never for long.

The cases are seeded, so every run tries the same ones; STEPSCOPE_FUZZ_ROUNDS=50 tries more, and
STEPSCOPE_FUZZ_FIRST=1000 others.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import lzma
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.cli.command import Stepscope, is_one_line
from tests.compare.profiles import profile
from tests.fuzz import damage
from tests.fuzz.damage import Damage, Damaged
from tests.support import ncu
from tests.support.captures import DATA

from stepscope.compare.history import History
from stepscope.compare.stored import write_baseline
from stepscope.trace.notes import Notes

ROUNDS = int(os.environ.get("STEPSCOPE_FUZZ_ROUNDS", "1"))
FIRST = int(os.environ.get("STEPSCOPE_FUZZ_FIRST", "0"))
CAPTURE = DATA / "kineto" / "cnn_small.json.gz"
KEPT_EVENTS = 1200


@dataclass
class Kind:
    """A kind of file.

    Attributes:
        name: of the file.
        commands: asked of it; ``@`` is the file, ``+`` a whole one of the kind.
        damages: ways to damage it.
        cases: tried in a round.
        states: finds what an answer says about damage.
        program: run in place of the command line.
    """

    name: str
    commands: Sequence[Sequence[str]]
    damages: Sequence[Damage]
    cases: int = 16
    states: Callable[[str], Any] = lambda out: None
    program: str = ""


class Tried:
    """Runs the commands of a kind on a file, and judges what they say.

    Args:
        kind: what is tried.
        original: the undamaged file.
        folder: an empty folder.
        stepscope: the command line.
        beside: other files of the same folder.
    """

    def __init__(
        self,
        kind: Kind,
        original: bytes,
        folder: Path,
        stepscope: Stepscope,
        beside: Sequence[Path] = (),
    ) -> None:
        self.kind, self.original, self.stepscope = kind, original, stepscope
        self._folder = folder / "input"
        self._folder.mkdir()
        self._whole = folder / f"whole.{kind.name.partition('.')[2]}"
        self._whole.write_bytes(original)
        self._output = folder / "output"
        self.path = self._folder / kind.name
        self.path.write_bytes(original)
        for path in beside:
            shutil.copy(path, self._folder)
        self._names = {path.name for path in self._folder.iterdir()}
        self._sound: dict[int, subprocess.CompletedProcess[str]] = {}
        self.refused = self.same = self.output = self.other = 0

    def asked(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if self._output.is_dir():
            shutil.rmtree(self._output)
        self._output.mkdir()
        words: dict[str, str | Path] = {"@": self.path, "+": self._whole}
        words |= {"%": self._output / "out", "%.svg": self._output / "out.svg"}
        done = self.stepscope.ends(
            *(words.get(word, word) for word in command), program=self.kind.program
        )
        assert {path.name for path in self._folder.iterdir()} == self._names
        return done

    def sound(self, at: int) -> subprocess.CompletedProcess[str]:
        """What a command says of the undamaged file."""
        if at not in self._sound:
            self.path.write_bytes(self.original)
            done = self._sound[at] = self.asked(self.kind.commands[at])
            assert done.returncode in (0, 1), done.stderr
        return self._sound[at]

    def __call__(self, made: Damaged, choose: random.Random) -> None:
        every = range(len(self.kind.commands))
        for at in every if ROUNDS > 1 else [choose.choice(every)]:
            sound = self.sound(at)
            self.path.write_bytes(made.data)
            done = self.asked(self.kind.commands[at])
            assert self.path.read_bytes() == made.data
            self._judge(done, sound, made)

    def _judge(
        self,
        done: subprocess.CompletedProcess[str],
        sound: subprocess.CompletedProcess[str],
        made: Damaged,
    ) -> None:
        assert done.returncode in (0, 1, 2), (done.returncode, done.stderr[-3000:])
        assert "Traceback" not in done.stderr
        if done.returncode == 2:
            assert done.stdout == ""
            is_one_line(done.stderr)
            self.refused += 1
            return
        if "json" in done.args and (done.stdout or not done.stderr):  # a report may be skipped
            json.loads(done.stdout)
        if done.stdout == sound.stdout and done.returncode == sound.returncode:
            self.same += 1
        elif done.stderr != sound.stderr or self.kind.states(done.stdout) != self.kind.states(
            sound.stdout
        ):
            self.output += 1
        else:
            assert not made.answer, "the answer differs, and nothing says why"
            self.other += 1


def each(tried: Tried) -> Tried:
    """Try the seeded cases of a kind."""
    kind = tried.kind
    for case in range(FIRST, FIRST + kind.cases * ROUNDS):
        choose = random.Random(f"{kind.name} {case}")
        made = choose.choice(kind.damages)(tried.original, choose)
        try:
            tried(made, choose)
        except BaseException as error:
            error.add_note(f"case {case} of {kind.name}: {made.what[:500]}")
            raise
    print(f"{kind.name}: {tried.refused} refused, {tried.same} the same, {tried.output} said, "
          f"{tried.other} that nobody can tell")  # fmt: skip
    return tried


# --- what is damaged -----------------------------------------------------------------------------


def runs(count: int) -> list[Any]:
    return [profile([round((10 + (i > 5)) * 1e6) + i * 1000] * 6) for i in range(count)]


def _history(place: Path) -> None:
    with History(f"{place}", create=True) as history:
        for number, run in enumerate(runs(12)):
            history.add(run, name="gpt", revision=f"c{number:03}", label="one")


_HISTORY = [
    ["history", "list", "--file", "@", "--format", "json"],
    ["history", "list", "--file", "@", "--format", "csv"],
    ["history", "list", "--file", "@"],
    ["history", "plot", "--file", "@", "--format", "json"],
    ["history", "plot", "--file", "@", "--format", "html"],
    ["history", "plot", "--file", "@"],
    ["history", "bisect", "--file", "@"],
    ["history", "copy", "--file", "@", "--to", "%"],
]


def test_history_in_sqlite(tmp_path: Path, reader: Stepscope) -> None:
    _history(tmp_path / "h.sqlite")
    original = (tmp_path / "h.sqlite").read_bytes()

    def cells(data: bytes, choose: random.Random) -> Damaged:
        return damage.in_sqlite(data, choose, tmp_path)

    kind = Kind("h.sqlite", _HISTORY, [cells, cells, cells, damage.in_bytes], 12)
    assert each(Tried(kind, original, tmp_path, reader)).refused


def test_history_in_a_folder(tmp_path: Path, reader: Stepscope) -> None:
    (tmp_path / "h").mkdir()
    _history(tmp_path / "h")
    first, *others = sorted((tmp_path / "h").iterdir())
    commands = [[word if word != "@" else f"{tmp_path}/input/" for word in c] for c in _HISTORY]
    kind = Kind(first.name, commands, [damage.checked(damage.in_bytes)], 8)
    assert each(Tried(kind, first.read_bytes(), tmp_path, reader, others)).refused


_JSON = [
    damage.in_json,
    damage.in_json,
    damage.in_json,
    damage.cut,
    damage.in_text,
    damage.in_bytes,
]


def test_baseline(tmp_path: Path, reader: Stepscope) -> None:
    path = tmp_path / "b.json"
    write_baseline(path, runs(2), "1")
    reader("gate", CAPTURE, "--save-baseline", path)
    commands = [["gate", str(CAPTURE), "--baseline", "@", "--format", "json"]]
    kind = Kind("b.json", commands, _JSON)
    assert each(Tried(kind, path.read_bytes(), tmp_path, reader)).refused


_CONFIG = b"""# what is checked
[gate]
min_effect = 0.02
alpha = 0.01
run_noise = 0.05
allow_missing = true

[gate.budget]
step_ms = 250.0
idle_share = 0.9

[[gate.figure]]
name = "kernels"
sql = "SELECT count(*) FROM gpu_op"
max = 100000

[[gate.cell]]
name = "longest"
report = "cuda_gpu_kern_sum"
column = "Total Time (ns)"
row = "gemm"
max = 1e12
min = 0
"""


def test_config(tmp_path: Path, reader: Stepscope) -> None:
    commands = [["gate", str(CAPTURE), "--config", "@", "--format", "json"]]
    damages = [damage.in_lines, damage.in_lines, damage.in_bytes, damage.in_text]
    assert each(Tried(Kind("s.toml", commands, damages), _CONFIG, tmp_path, reader)).refused


_CEILINGS = json.dumps(
    {"schema": "stepscope.ceilings/2", "device": "NVIDIA H200", "measured_at": "2026-01-01",
     "dram_bytes_per_s": 4.1e12, "fp32_flop_per_s": 5.5e13, "fp64_flop_per_s": 3e13,
     "bf16_flop_per_s": 8e14, "warnings": ["none"], "sms": 132}
).encode()  # fmt: skip


def test_ceilings(tmp_path: Path, reader: Stepscope) -> None:
    commands = [["kernels", str(CAPTURE), "--roofline", "--ceilings", "@", "--format", "json"]]
    assert each(Tried(Kind("c.json", commands, _JSON), _CEILINGS, tmp_path, reader)).refused


def test_notes(tmp_path: Path, reader: Stepscope) -> None:
    capture = tmp_path / "trace.json.gz"
    capture.write_bytes(CAPTURE.read_bytes())
    notes = Notes(capture)
    for number in range(3):
        notes.change(f"n{number}", 0, 1000 * number, 1000 * number + 5, "slow", deleted=False)
    original = notes.path.read_bytes()
    notes.path.unlink()
    (tmp_path / "work").mkdir()
    commands = [[str(capture), "@"]]
    kind = Kind("n.notes.json", commands, _JSON, 12, program=_READS_NOTES)
    assert each(Tried(kind, original, tmp_path / "work", reader)).refused


_READS_NOTES = """
import shutil, sys, msgspec
from pathlib import Path
from stepscope.cli import main as module
from stepscope.trace.notes import Notes
_, capture, notes = sys.argv
shutil.copy(notes, capture + ".notes.json")
module._run = lambda: print(msgspec.json.encode(Notes(Path(capture)).read()).decode())
module.main()
"""


# --- reports of Nsight Compute -------------------------------------------------------------------


def _stated_in_report(out: str) -> Any:
    return json.loads(out).get("warnings") if out.startswith("{") else None


_NCU = [
    ["kernels", "@", "--format", "json"],
    ["kernels", "@", "--kernel", "0", "--format", "json"],
    ["kernels", "@"],
    ["kernels", "@", "--plot", "%.svg"],
    ["compare", "@", "+", "--format", "json"],
]


@pytest.mark.parametrize("page", ["raw", "details"])
def test_csv_of_nsight_compute(page: str, tmp_path: Path, reader: Stepscope) -> None:
    original = lzma.decompress(ncu.PRINTED[page].read_bytes())
    damages = [damage.in_cells, damage.in_cells, damage.in_bytes, damage.in_text, damage.cut]
    kind = Kind("k.csv", _NCU, damages, 8, _stated_in_report)
    assert each(Tried(kind, original, tmp_path, reader)).refused


def test_report_of_nsight_compute(tmp_path: Path, reader: Stepscope) -> None:
    if importlib.util.find_spec("ncu_report") is None:
        pytest.skip("needs NVIDIA's package ncu-report, which is not installed")
    packed = DATA.parent / "ncu" / "h200" / "small_basic.ncu-rep.xz"
    original = lzma.decompress(packed.read_bytes())
    kind = Kind("k.ncu-rep", _NCU, [damage.in_bytes, damage.cut], 8)
    assert each(Tried(kind, original, tmp_path, reader)).refused


# --- captures ------------------------------------------------------------------------------------


def _problems(out: str) -> Any:
    """Kinds and numbers of what an import counted."""
    if not out.startswith("{"):
        return None
    found = json.loads(out)
    traces = found.get("traces", [])
    return [[(p["id"], p["count"]) for p in t["meta"]["problems"]] for t in traces]


def _read(*more: str) -> list[list[str]]:
    return [
        ["info", "@", "--format", "json", "--again"],
        ["stats", "@", "-r", "cuda_gpu_kern_sum", "--format", "json"],
        *([name, "@", "--format", "json"] for name in more),
    ]


_ALL = ("diagnose", "comm", "steps", "kernels", "operators") if ROUNDS > 1 else ()


@pytest.fixture(scope="module")
def kineto_text() -> bytes:
    """The beginning of a real trace, laid out as the profiler writes it."""
    document = json.loads(gzip.decompress(CAPTURE.read_bytes()))
    events = document["traceEvents"]
    timed = sorted((e for e in events if e.get("ph") == "X"), key=lambda event: event["ts"])
    rest = [event for event in events if event.get("ph") == "M"]
    document["traceEvents"] = timed[:KEPT_EVENTS] + rest
    return json.dumps(document, indent=2).encode()


def test_kineto(kineto_text: bytes, tmp_path: Path, reader: Stepscope) -> None:
    damages = [damage.in_json, damage.in_json, damage.in_bytes, damage.in_text, damage.cut]
    kind = Kind("t.json", _read(*_ALL), damages, 12, _problems)
    assert each(Tried(kind, kineto_text, tmp_path, reader)).refused


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_packed_kineto(form: str, kineto_text: bytes, tmp_path: Path, reader: Stepscope) -> None:
    if form == "gz":
        packed = gzip.compress(kineto_text, 1, mtime=0)
    else:
        packed = zstandard.ZstdCompressor(1, write_checksum=True).compress(kineto_text)
    kind = Kind(f"t.json.{form}", _read(), [damage.checked(damage.in_bytes)], 6, _problems)
    assert each(Tried(kind, packed, tmp_path, reader)).refused


def test_nsight_systems(tmp_path: Path, reader: Stepscope) -> None:
    nsys = Path(__file__).parents[1] / "importers" / "nsys_data" / "ddp_2steps.sqlite.xz"
    original = lzma.decompress(nsys.read_bytes())

    def cells(data: bytes, choose: random.Random) -> Damaged:
        return damage.in_sqlite(data, choose, tmp_path)

    kind = Kind("t.sqlite", _read(*_ALL), [cells, cells, damage.in_bytes, damage.cut], 8, _problems)
    assert each(Tried(kind, original, tmp_path, reader)).refused

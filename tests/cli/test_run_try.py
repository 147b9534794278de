"""``stepscope run --try``: what goes with it, what is refused, and what is printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
from tests.cli.command import Stepscope
from tests.support.captures import DATA, unpack
from tests.support.paper_torch import TRAIN, write

from stepscope.api.tries import predicted_by
from stepscope.compare.tried import TrySession


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--try", "fast"), "there is no try 'fast'; there are allocator=expandable"),
        (("--try", "workers"), "workers needs a number"),
        (("--try", "tf32", "--ring", "3"), "--ring is about a recording"),
        (("--try", "tf32", "--backend", "ncu"), "--backend ncu records single kernels"),
        (("--try", "tf32", "--no-hook"), "is about a recording"),
        (("--try", "auto", "--no-diagnose"), "--try auto takes the fixes that a diagnosis names"),
        (("--try", "tf32", "--steps", "1"), "needs 3 steps at least"),
        (("--try", "tf32", "--against", "none.sqlite"), "none.sqlite"),
        (("--each",), "--each is for --try"),
        (("--against", "x"), "--against is for --try"),
    ],
)
def test_bad_options(
    stepscope: Stepscope, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    folder = tmp_path / "out"
    message = stepscope.refuses("run", *words, "-o", folder, "--", sys.executable, "-c", "0")
    assert why in message
    assert not folder.exists()


def test_a_folder_in_use_and_a_program_that_is_not_there(
    stepscope: Stepscope, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    message = stepscope.refuses("run", "--try", "tf32", "-o", tmp_path, "--", sys.executable)
    assert "is not empty" in message
    done = stepscope.ends("run", "--try", "tf32", "-o", tmp_path / "o", "--", "no-such-program")
    assert done.returncode == 2


def test_the_runs_are_listed_and_nothing_is_done(stepscope: Stepscope, tmp_path: Path) -> None:
    words = ("run", "--try", "tf32", "--dry-run", "-o", tmp_path / "o", "--", "python", "x y")
    done = stepscope(*words)
    assert done.stdout.splitlines()[0] == "recorded, 10 steps: python 'x y'"
    assert len(done.stdout.splitlines()) == 5
    assert not (tmp_path / "o").exists()


def test_output_of_the_program_comes_first_and_then_the_result(
    stepscope: Stepscope, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{TRAIN}\nprint('the loss is fine')")
    environment = {"PYTHONPATH": str(write(tmp_path / "packages"))}
    words = ("--rounds", "1", "--no-diagnose", "--try", "prefetch=4", "--", sys.executable, script)
    done = stepscope.ends("run", "-o", tmp_path / "o", "--format", "json", *words, **environment)
    assert done.returncode == 0, done.stderr
    first, _, rest = done.stdout.partition("\n")
    assert first == "the loss is fine"
    result = msgspec.json.decode(rest, type=TrySession)
    assert [one.verdict for one in result.tried] == ["changed_nothing"]
    assert json.loads(Path(result.folder, "try.json").read_text()) == json.loads(rest)
    done = stepscope.ends("run", "-o", tmp_path / "p", "--strict", *words, **environment)
    assert done.returncode == 2
    assert "changed nothing: prefetch=4: the DataLoader has no workers" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_capture_predicts() -> None:
    found = predicted_by(str(unpack(DATA / "nsys" / "gpt1024_sync_item.sqlite.xz")))
    assert "host_sync" in found.order
    one = found.of(("host_sync",))
    assert one is not None
    assert one.low_ns <= one.step_ns <= one.high_ns
    assert one.step_ns == pytest.approx(0.77e9, rel=0.1)  # measured: docs/how-it-works.md

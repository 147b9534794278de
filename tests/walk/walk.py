"""Walks every command that README, guides and findings name, on a GPU, on three unlike programs.

    python tests/walk/walk.py            # some ten minutes; exit code 1 where something is wrong
    python tests/walk/walk.py --list     # what would be walked, and what not, and why

Prints a line a command, then what is wrong. Every command must end as it should, within its time,
without a traceback; what was recorded must be diagnosed with as many steps as were asked for, as
long as the program says itself that they were, within a tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run by its path
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.walk.documented import ROOT, Command, documented

PROGRAMS = Path(__file__).parent / "programs"
STEPS = {"gpt": 60, "conv": 60, "decode": 200}
GOES_ON = {"gpt": 250, "conv": 600, "decode": 200}
"""How many steps where only some are recorded: so many that the program lasts a few seconds more,
in which steps that are not recorded are timed."""
TRAINING = ("gpt", "conv")
EVERYWHERE = (
    "stepscope run -- python train.py",
    "stepscope run --steps 10 --warmup 20 -- python train.py",
    "stepscope run --sample-hz 50 -- python train.py",
    "stepscope run --backend torch --stacks --steps 5 -- python train.py",
)
"""Captures that are walked on all three programs; each other one on one of them, in turn."""
OF_ONE = {"ncu": "gpt", "--ops": "gpt", "--gc": "gpt", "torch": "gpt", "--graph": "decode"}
"""Words of a command that are for one program."""
WITHIN = 0.10
"""How far the length of a step may be from what the program says."""
HOST = ("host_sync", "host_compute", "input_starvation")
_BAD = ("Traceback (most recent call last)", "internal error")


@dataclass
class Walked:
    """How one command went."""

    words: list[str]
    program: str = ""
    code: int = -1
    seconds: float = 0.0
    out: str = ""
    err: str = ""
    folder: Path | None = None
    times: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def line(self) -> str:
        """One line of the report."""
        what = shlex.join(self.words).replace(sys.executable, "python")[:90]
        printed = " ".join(self.notes)
        mark = "BAD" if self.wrong else "ok "
        return f"{mark} {self.program:6} {self.code:3} {self.seconds:5.1f} s  {what}  {printed}"


def run(words: Sequence[str], folder: Path, limit_s: float, **environment: str) -> Walked:
    """Run a command of ``stepscope`` in a folder; ``>`` writes its output to a file there."""
    words = list(words)
    target = words[words.index(">") + 1] if ">" in words else ""
    plain = words[: words.index(">")] if target else words
    began = time.monotonic()
    found = Walked(words)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *plain],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
        found.code, found.out, found.err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        found.wrong.append(f"did not end within {limit_s:.0f} s")
        found.err = (error.stderr or b"").decode("utf-8", "replace") if error.stderr else ""
    found.seconds = time.monotonic() - began
    if target:
        (folder / target).write_text(found.out)
    found.wrong += [f"says {bad!r}" for bad in _BAD if bad in found.err + found.out]
    return found


# --- captures -------------------------------------------------------------------------------------


def assigned(commands: Sequence[Command]) -> list[tuple[str, Command]]:
    """(program, command) of all captures, those that all programs share first."""
    everywhere = [c for c in commands if shlex.join(c.words) in EVERYWHERE]
    found = [(program, c) for c in everywhere for program in STEPS]
    turn, examined = 0, False
    for command in (c for c in commands if c not in everywhere):
        text = shlex.join(command.words)
        if "--examine" in text and examined:
            continue  # the same with another file's name
        examined |= "--examine" in text
        only = next((name for word, name in OF_ONE.items() if word in text), "")
        found.append((only or tuple(STEPS)[turn % len(STEPS)], command))
        turn += not only
    return found


def captured(program: str, command: Command, work: Path, first: Path | None) -> Walked:
    """Record a program by a command, and judge what came out.

    Args:
        program: its name.
        command: the capture's.
        work: where its folder is made.
        first: an earlier capture of the same program, for ``--examine``.
    """
    split = command.words.index("--")
    given = [str(first) if word == "CAPTURE" or word.endswith(".json.gz") else word
             for word in command.words[:split]]  # fmt: skip
    output = Path(tempfile.mkdtemp(prefix=f"{program}-", dir=work))
    times = output.with_suffix(".times")
    json_ = [] if "ncu" in given else ["--format", "json"]
    words = [*given, *json_, "-o", str(output / "run"), "--"]
    steps = (GOES_ON if _by_steps(given) else STEPS)[program]
    found = run(
        [*words, sys.executable, str(PROGRAMS / f"{program}.py")],
        work, 150, WALK_TIMES=str(times), WALK_STEPS=str(steps),
    )  # fmt: skip
    found.program, found.words = program, [*given, *command.words[split:]]
    found.folder = output / "run"
    if times.is_file():
        found.times = [int(text) for text in times.read_text().split()]
    if "--examine" in given and found.code == 2 and found.err.startswith("stepscope:"):
        found.notes.append(found.err.strip().splitlines()[-1][:120])  # no kernel is to be examined
        return found
    if not found.times:
        found.wrong.append("the program did not come to its end")
    _judge_capture(found, given)
    return found


def _by_steps(given: Sequence[str]) -> bool:
    """Whether some of the program's steps are recorded only."""
    return "ncu" not in given and ("--steps" in given or "torch" in given)


def _judge_capture(found: Walked, given: list[str]) -> None:
    by_steps = _by_steps(given)
    if by_steps and found.program not in TRAINING:
        if found.code or "optimizer steps" not in found.err:
            found.wrong.append("does not say that there are no optimizer steps")
        return
    if found.code:
        found.wrong.append(f"exit code {found.code}: {found.err.strip()[-300:]}")
        return
    if "ncu" in given:
        return
    try:
        answer = answer_in(found.out)
    except ValueError:
        found.wrong.append(f"gives no JSON: {found.out[-200:]!r}")
        return
    if "--try" in given:  # its answer is about both sides; the last run's times are of one
        if not answer["schema"].startswith("stepscope.try/"):
            found.wrong.append(f"answers with {answer['schema']}")
        return
    first, last = 0, len(found.times)
    asked = None
    if by_steps:
        asked = int(given[given.index("--steps") + 1]) if "--steps" in given else 10
        warmup = int(given[given.index("--warmup") + 1]) if "--warmup" in given else 5
        first, last = warmup, warmup + asked - 1  # the last one's end is the recording's, too
    _judge_steps(found, answer, asked, found.times[first:last])
    if "--sample-hz" in given:
        hosts = [f for f in answer["findings"] if f["cause"] in HOST]
        lines = [f["where"].get("source") for f in hosts]
        if hosts and not any(line and found.program in line for line in lines):
            found.wrong.append(f"no line of the program in {lines}")
        found.notes.append(f"lines {lines}")


def answer_in(out: str) -> dict[str, Any]:
    """The JSON behind what the program printed.

    Raises:
        ValueError: there is none.
    """
    begins = re.search(r'^\{\s*"schema"', out, re.MULTILINE)
    if begins is None:
        raise ValueError("no schema")
    answer: dict[str, Any] = json.loads(out[begins.start() :])
    return answer


def _judge_steps(
    found: Walked, answer: dict[str, Any], asked: int | None, begins: list[int]
) -> None:
    steps, (steady, last) = answer["trace"]["steps"], answer["trace"]["steady_steps"]
    lengths = [b - a for a, b in pairwise(begins)]  # the first step's begin is not known
    if asked is None:
        own_ns = statistics.median(lengths[max(0, steady - 1) : max(last, steady + 1)])
        here_ns = answer["step_ns"]["median"]
    else:  # recording is switched on in the first one and off in the last one; of two none is left
        own_ns = statistics.median(lengths or [0])
        here_ns = statistics.median(_lengths(answer["trace"]["paths"][0])[1:-1] or [0])
        if answer["profiler_overhead"]["how"] != "unrecorded steps":
            found.wrong.append("has not measured the profiler overhead")
    found.notes.append(
        f"{answer['verdict']} {steps} steps {here_ns / 1e6:.2f} ms, own {own_ns / 1e6:.2f} ms"
    )
    found.notes += [text for text in answer["warnings"] if text.startswith("profiler overhead")]
    if asked is not None and steps != asked:
        found.wrong.append(f"{steps} steps instead of {asked}")
    if asked is None and abs(steps - len(begins)) > 0.05 * len(begins) + 3:
        found.wrong.append(f"{steps} steps instead of {len(begins)}")
    if abs(here_ns - own_ns) > WITHIN * own_ns:
        found.wrong.append(f"steps of {here_ns / 1e6:.2f} ms instead of {own_ns / 1e6:.2f} ms")


def _lengths(capture: str) -> list[int]:
    """The lengths of a capture's steps, ns."""
    listed = run(["stepscope", "steps", capture, "--format", "json"], Path.cwd(), 60)
    table = json.loads(listed.out)
    at = table["columns"].index("wall_ns")
    return [row[at] for row in table["rows"]]


# --- what reads captures --------------------------------------------------------------------------

_LACKING = ("holds no capture", "does not exist", "is not JSON")
"""Refusals that say that an earlier command left nothing to read."""
_CAPTURES = (".sqlite", ".json.gz", ".nsys-rep", ".json", "/")
_FOLDERS = ("CAPTURE", "LOGDIR", "run1", "before1", "after1")
_OTHER_TOOLS = (".csv", ".xplane.pb", ".pickle")
"""Files that no command of the walk records."""


def read_with(
    command: Command, capture: Path, report: Path | None, folder: Path
) -> list[str] | None:
    """The command's words with captures of ours in place of its files; None where one is lacking.

    Args:
        command: as it is documented.
        capture: stands for every trace.
        report: stands for every Nsight Compute report.
        folder: where it is run; what an earlier command of the page wrote there stays.
    """
    words, follows = [], ""
    for word in command.words:
        is_output = follows in ("-o", "--output", "--static", ">", "--plot")
        file, at, change = word.partition("@")
        if is_output:
            words.append(word)
        elif word.endswith(_OTHER_TOOLS) or (word.endswith(".ncu-rep") and report is None):
            return None
        elif word.endswith(".ncu-rep"):
            words.append(str(report))
        elif file in _FOLDERS or (file.endswith(_CAPTURES) and not (folder / file).exists()):
            words.append(f"{capture}{at}{change}")
        else:
            words.append(word)
        follows = word
    if "--" in words:  # stepscope doctor -- python train.py
        words = [*words[: words.index("--") + 1], sys.executable, str(PROGRAMS / "gpt.py")]
    return words


def read_all(commands: Sequence[Command], capture: Path, report: Path | None,
             work: Path) -> list[Walked]:  # fmt: skip
    """Run what reads captures: the commands of one page in turn, pages side by side."""
    pages: dict[str, list[Command]] = {}
    for command in commands:
        pages.setdefault(command.where, []).append(command)

    def page(where: str) -> list[Walked]:
        folder = Path(tempfile.mkdtemp(prefix="read-", dir=work))
        found = []
        for command in pages[where]:
            words = read_with(command, capture, report, folder)
            if words is None:
                continue
            one = run(words, folder, 120)
            one.words = list(command.words)
            # 1: a gate or a verification failed; 2: these ranks, ranges or steps are not there
            refused = one.code == 2 and one.err.startswith(("stepscope:", "Usage:"))
            if one.code not in (0, 1) and not refused:
                one.wrong.append(f"exit code {one.code}: {one.err.strip()[-300:]}")
            if any(text in one.err for text in _LACKING):
                one.wrong.append(f"finds nothing: {one.err.strip()[-300:]}")
            if one.code == 2:
                one.notes.append(one.err.strip().splitlines()[-1][:120])
            found.append(one)
        return found

    with ThreadPoolExecutor(8) as pool:
        return [one for walked in pool.map(page, pages) for one in walked]


# --- the walk -------------------------------------------------------------------------------------


def walk(minutes: float, programs: Sequence[str] = tuple(STEPS)) -> list[Walked]:
    """Walk all commands; what time does not allow is wrong."""
    until = time.monotonic() + 60 * minutes
    commands = [command for command in documented() if not command.why_not]
    found: list[Walked] = []
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        work = Path(folder)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(work / "inductor"))
        first: dict[str, Path | None] = dict.fromkeys(STEPS)
        report = None
        for program, command in assigned([c for c in commands if c.is_capture]):
            if program not in programs:
                continue
            if time.monotonic() > until:
                found.append(Walked(list(command.words), program, wrong=["no time was left"]))
                continue
            one = captured(program, command, work, first[program])
            print(one.line(), flush=True)
            found.append(one)
            if one.folder is not None and not one.wrong and one.code == 0:
                reports = list(one.folder.glob("*.ncu-rep"))
                if first[program] is None and not reports:
                    first[program] = one.folder
                report = next(iter(reports), report)
        capture = next((path for path in first.values() if path is not None), None)
        if capture is None:
            found.append(Walked(["stepscope"], wrong=["nothing was captured"]))
            return found
        for one in read_all([c for c in commands if not c.is_capture], capture, report, work):
            print(one.line(), flush=True)
            found.append(one)
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no capture after these")
    parser.add_argument("--programs", default=",".join(STEPS), help="only these")
    parser.add_argument("--list", action="store_true", help="print the commands, and walk none")
    given = parser.parse_args()
    if given.list:
        for command in documented():
            print(f"{shlex.join(command.words)}  [{command.why_not or 'walked'}]")
        return 0
    source = str(ROOT / "src")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    found = walk(given.minutes, given.programs.split(","))
    wrong = [one for one in found if one.wrong]
    print(f"{len(found)} commands, {len(wrong)} wrong")
    for one in wrong:
        print(f"* {one.program} {shlex.join(one.words)[:120]}: {'; '.join(one.wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

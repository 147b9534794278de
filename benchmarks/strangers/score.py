"""Score the diagnosis on public captures that nobody here made: step, kind and first cause.

usage: python benchmarks/strangers/score.py FOLDER... [--only TEXT]

The captures are not in the repository. ``labels*.json`` tell where each was published and how its
label was found without Stepscope; files are looked up in the folders by their SHA-256, whatever
they are called. A file that is not there counts as absent, neither right nor wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.api import Job
from stepscope.trace.errors import StepscopeError

LABELS = sorted(Path(__file__).parent.glob("labels*.json"))
COLUMNS = ("steps", "step_ms", "kind", "first")
REFUSED = "insufficient_data"


@dataclass(frozen=True)
class Answer:
    """What Stepscope says of one capture, or the sentence with which it refuses it."""

    steps: int | None
    step_ms: float | None
    kind: str
    first: str
    refusal: str = ""


def files_by_digest(folders: list[Path], sizes: set[int]) -> dict[str, Path]:
    """Files below the folders whose size is that of a label, by their SHA-256."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_size in sizes:
                found.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    return found


def answer(path: Path) -> Answer:
    """Diagnose one capture with default options.

    A refusal (one sentence, exit code 2) counts as ``insufficient_data`` without steps.
    """
    try:
        result = Job([path]).diagnose()
    except StepscopeError as error:
        return Answer(None, None, "", REFUSED, str(error))
    return Answer(
        result.trace.steps,
        result.step_ns.median / 1e6,
        result.trace.step.kind,
        result.verdict,
    )


def judged(label: dict[str, Any], given: Answer) -> dict[str, bool | None]:
    """Right or wrong by column; ``None`` where the label leaves the column open."""
    verdict: dict[str, bool | None] = dict.fromkeys(COLUMNS)
    if label["steps"] is not None:
        verdict["steps"] = given.steps in label["steps"]
    if label["step_ms"] is not None:
        away = abs((given.step_ms or 0.0) - label["step_ms"])
        verdict["step_ms"] = away <= label["tolerance"] * label["step_ms"]
    if label["kind"]:
        verdict["kind"] = given.kind in label["kind"]
    if label["first"]:
        verdict["first"] = given.first in label["first"]
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument(
        "--only", default="", help="labels whose repository or path holds this text"
    )
    options = parser.parse_args()
    labels = [
        label
        for file in LABELS
        for label in json.loads(file.read_text())
        if options.only in f"{label['repository']}/{label['path']}"
    ]
    paths = files_by_digest(options.folders, {label["bytes"] for label in labels})
    right = dict.fromkeys(COLUMNS, 0)
    asked = dict.fromkeys(COLUMNS, 0)
    absent = 0
    for label in labels:
        name = f"{label['repository']}/{label['path']}"
        path = paths.get(label["sha256"])
        if path is None:
            absent += 1
            print(f"absent  {name}")
            continue
        given = answer(path)
        verdict = judged(label, given)
        for column, hit in verdict.items():
            asked[column] += hit is not None
            right[column] += bool(hit)
        wrong = [column for column, hit in verdict.items() if hit is False]
        step = "no step" if given.step_ms is None else f"{given.steps} x {given.step_ms:.4g} ms"
        print(f"{'NO' if wrong else 'ok':7} {name}\n        {step} {given.kind} {given.first}")
        if given.refusal:
            print(f"        {given.refusal}")
        for column in wrong:
            print(f"        {column}: expected {label[column]}, found {getattr(given, column)}")
    print(", ".join(f"{column} {right[column]} of {asked[column]}" for column in COLUMNS), end="")
    print(f"; {absent} of {len(labels)} absent")
    sys.exit(0)


if __name__ == "__main__":
    main()

"""Evaluates agents on labelled captures: cause, prediction, calls, tokens.

usage: python benchmarks/agents/evaluate.py [--set NAME]... [--only TEXT] [--docs]

The scripted agent always answers. Where STEPSCOPE_EVAL_URL and STEPSCOPE_EVAL_MODEL name an
OpenAI-compatible endpoint (and STEPSCOPE_EVAL_KEY its key), that model answers as well, with and
without the skill. ``--docs`` keeps the scores, of which ``dev.py docs`` makes the reference page.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bench import Answer, Desk, Score, desk_for, scored
from cases import SETS, Case, cases
from model import Endpoint, asked
from policy import scripted

SCORES = Path(__file__).parent / "scores.json"


def agents() -> dict[str, Callable[[Case, Desk], Answer]]:
    """The agents that can answer here."""
    found: dict[str, Callable[[Case, Desk], Answer]] = {"scripted": scripted}
    endpoint = Endpoint.offered()
    for skill in (True, False) if endpoint is not None else ():
        name = f"{endpoint.model} {'with' if skill else 'without'} the skill"
        found[name] = partial(asked, endpoint=endpoint, skill=skill)
    return found


def line(score: Score) -> str:
    """One score as a line of text."""
    error = "" if score.error is None else f"{100 * score.error:+.0f} %"
    doubt = "unreliable" if score.unreliable else ""
    mark = "ok" if score.right else "NO"
    return (
        f"{mark}  {score.name:44} {score.expected:22} {score.verdict:22} {error:>7} {doubt:10} "
        f"{score.calls} calls {score.tokens:5} tokens"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", dest="sets", action="append", choices=SETS)
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, list[Score]] = {name: [] for name in agents()}
    with tempfile.TemporaryDirectory(prefix="stepscope-agents-") as scratch:
        for case in cases(Path(scratch), tuple(arguments.sets or SETS)):
            if arguments.only not in case.name:
                continue
            for name, agent in agents().items():
                desk = desk_for(case)
                score = scored(case, agent(case, desk), desk)
                found[name].append(score)
                print(f"{name}: {line(score)}", flush=True)
    if arguments.docs:
        document = {name: [asdict(score) for score in scores] for name, scores in found.items()}
        SCORES.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

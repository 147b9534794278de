"""The page of the exam of predictions, from the scores that ``benchmarks/predictions`` keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.docs.markdown import table

_EXAM = Path(__file__).parents[2] / "benchmarks" / "predictions"
_SCORES = _EXAM / "scores.json"

_INTRODUCTION = """\
Pairs of programs, one with a planted fault and one with that fault repaired by hand, were timed
untraced; the faulty one was then recorded by `stepscope run` (`own`) and by torch.profiler
(`kineto`). The *measured* ratio is the repaired program's mean step over the faulty one's, the
*predicted* one what `stepscope diagnose` says of the recording: the step without the planted cause,
or with the lever, over the recorded step. The *error* is predicted over measured, less one; +- is
how far turns of the same program differ. Pairs where that is more than 5 % ("turns differ") are
summed up apart: there the truth itself is not known better. *At one pace* are those whose recorded
process, in steps that were not recorded, took what the timed process took, within 5 %; captures of
torch.profiler hold no such steps. The unseen half are the programs that were written last, by
authors who knew neither the model nor its results; single results of it were not looked at while
the model was worked on. The development half are all earlier ones.

How it was made, and how to run it: `benchmarks/predictions/README.md`."""

_FIRST_SEEN = """\
What a new set's predictions were when it was first scored, before anything was changed: as good as
they are on programs that nobody here has seen. How wide ranges are was chosen by them
(`python benchmarks/predictions/first_seen.py`)."""

_TITLES = {"development": "Development half", "unseen": "Unseen half"}


def predictions_page() -> list[str]:
    """The parts of the page."""
    scores: dict[str, Any] = json.loads(_SCORES.read_text(encoding="utf-8"))
    parts = ["# Predictions against measurements", _INTRODUCTION, "## Summary"]
    parts.append(_summary(scores["summaries"]))
    parts += ["## As first seen", _FIRST_SEEN, _first_seen(scores["first seen"])]
    for half, title in _TITLES.items():
        chosen = [row for row in scores["rows"] if row["half"] == half]
        parts += [f"## {title}", _table(chosen) if chosen else "Only the summary is told so far."]
    return parts


def _summary(found: dict[str, dict[str, int | float]]) -> str:
    if not found:
        return "No pair is stored yet."
    figures = next(iter(found.values()))
    return table(
        ("", *found),
        [(name, *(_figure(each[name]) for each in found.values())) for name in figures],
    )


def _first_seen(found: dict[str, dict[str, int | float]]) -> str:
    return table(
        ("set", *found["all"]),
        [(name, *(_figure(value) for value in each.values())) for name, each in found.items()],
    )


def _figure(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1%}"


def _table(rows: list[dict[str, Any]]) -> str:
    return table(
        ("pair", "source", "planted", "measured", "predicted", "range", "error", "named"),
        [
            (
                row["name"],
                row["source"],
                row["cause"],
                f"{row['measured']:.3f} +-{row['spread']:.0%}",
                *_predicted(row),
                _named(row),
            )
            for row in rows
        ],
    )


def _predicted(row: dict[str, Any]) -> tuple[str, str, str]:
    if row["predicted"] is None:
        return ("nothing", "", "")
    between = f"{row['low']:.3f} to {row['high']:.3f}"
    if row["at_least"]:
        return ("at least a gain", between, "")
    return f"{row['predicted']:.3f}", between, f"{row['predicted'] / row['measured'] - 1:+.1%}"


def _named(row: dict[str, Any]) -> str:
    if row["rank"] == 1:
        return "first"
    if row["rank"] == 0:
        return "as a lever"
    return f"not; first is {row['verdict']}" if row["rank"] < 0 else f"no. {row['rank']}"

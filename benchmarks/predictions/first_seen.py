"""What was predicted for programs that nobody had looked at, and how wide that makes a range.

usage: python benchmarks/predictions/first_seen.py [--add ROWS.jsonl SET]

Each new set of the exam is scored once before the model is changed. ``first_seen.json`` keeps what
came out, without the names of the programs: whoever works on the model must not know which pair of
an unseen set was missed. Printed are the errors by set, and which part of the measured ratios lies
in the predicted ranges for several values of ``breakdown.repaired.OF_THE_GAIN`` and ``UNFORESEEN``,
which are chosen by them. ``--add`` takes rows of ``score.py`` (one JSON object a line).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from timing import NOISY

FIRST_SEEN = Path(__file__).parent / "first_seen.json"
NEAR = 0.1
"""A prediction that misses by less is near."""
TOLERANCE = 0.005
"""A range holds what lies so little beside it."""
_KEPT = ("source", "measured", "spread", "predicted", "low", "high", "at_least")
_TRIED = ((0.35, 0.0), (0.5, 0.0), (0.8, 0.0), (0.3, 0.12), (0.4, 0.12), (0.4, 0.14), (0.5, 0.12))
"""Parts of the gain, and what goes unforeseen."""

Row = dict[str, Any]


def kept() -> list[Row]:
    """All rows: columns of ``score.Row``, the set, and what their ranges leave open.

    ``of_the_gain``, and ``unforeseen`` where that is not 0 (``breakdown.repaired``).
    """
    rows: list[Row] = json.loads(FIRST_SEEN.read_text(encoding="utf-8"))
    return rows


def predicted(rows: list[Row]) -> list[Row]:
    """Those with a prediction that says more than that something is gained."""
    return [row for row in rows if row["predicted"] is not None and not row["at_least"]]


def figures(rows: list[Row]) -> dict[str, int | float]:
    """How many were predicted, the median error, how many are within 10 %, and ranges that hold."""
    found = predicted(rows)
    errors = [abs(row["predicted"] / row["measured"] - 1) for row in found]
    return {
        "captures": len(rows),
        "predicted": len(found),
        "median error": statistics.median(errors),
        "within 10 %": sum(error <= NEAR for error in errors) / len(errors),
        "ranges that hold": sum(map(holds, found)) / len(found),
    }


def by_set() -> dict[str, dict[str, int | float]]:
    """The figures by set, and those of all; pairs whose turns differ apart."""
    rows = kept()
    sets = list(dict.fromkeys(row["set"] for row in rows))
    found = {}
    for name in (*sets, "all"):
        for steady in (True, False):
            mine = [row for row in rows if name in (row["set"], "all") and is_steady(row) == steady]
            if predicted(mine):
                found[name if steady else f"{name}, turns differ"] = figures(mine)
    return found


def is_steady(row: Row) -> bool:
    """Whether turns of the same program agree, so that the truth is known."""
    return bool(row["spread"] <= NOISY)


def holds(row: Row, of_the_gain: float | None = None, unforeseen: float = 0.0) -> bool:
    """Whether the measured ratio is in the range, or would be if that left something else open."""
    low, high = row["low"], row["high"]
    if of_the_gain is not None:
        low, high = with_part(row, of_the_gain, unforeseen)
    return within(low, row["measured"], high)


def within(low: float, measured: float, high: float) -> bool:
    """Whether a range holds what was measured."""
    return bool(low - TOLERANCE <= measured <= high + TOLERANCE)


def with_part(row: Row, of_the_gain: float, unforeseen: float = 0.0) -> tuple[float, float]:
    """The ends of a range that leaves something else open; each is independent of the rest.

    A range that ends at today's step still does.
    """
    middle, gain = row["predicted"], max(1 - row["predicted"], 0.0)
    more = ((of_the_gain * gain) ** 2 - (row["of_the_gain"] * gain) ** 2) * middle**2
    further = (unforeseen**2 - row.get("unforeseen", 0.0) ** 2) * middle**2
    below, above = (
        math.sqrt(max(side**2 + changed, 0.0))
        for side, changed in ((middle - row["low"], more + further), (row["high"] - middle, more))
    )
    capped = row["high"] <= 1.0 + TOLERANCE
    return middle - below, min(middle + above, 1.0) if capped else middle + above


def _add(path: Path, name: str, of_the_gain: float, unforeseen: float) -> None:
    rows = kept() if FIRST_SEEN.exists() else []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        left_open = {"of_the_gain": of_the_gain, "unforeseen": unforeseen}
        rows.append({"set": name} | left_open | {key: row[key] for key in _KEPT})
    text = ",\n".join(json.dumps(row) for row in rows)
    FIRST_SEEN.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def main() -> None:
    """Print the errors by set and the ranges that hold, or keep the rows of a new set."""
    from stepscope.breakdown.repaired import OF_THE_GAIN, UNFORESEEN

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--add", nargs=2, metavar=("ROWS", "SET"))
    arguments = parser.parse_args()
    if arguments.add:
        _add(Path(arguments.add[0]), arguments.add[1], OF_THE_GAIN, UNFORESEEN)
        return
    for name, found in by_set().items():
        told = ", ".join(
            f"{key} {value if isinstance(value, int) else f'{value:.1%}'}"
            for key, value in found.items()
        )
        print(f"{name}: {told}")
    rows = predicted(kept())
    for tried in _TRIED:
        sides = []
        for steady in (True, False):
            mine = [row for row in rows if is_steady(row) == steady]
            held = sum(holds(row, *tried) for row in mine) / len(mine)
            widths = [
                2 * (high - low) / (high + low)
                for low, high in (with_part(row, *tried) for row in mine)
            ]
            sides.append(f"{held:.1%} hold, {statistics.median(widths):.1%} wide")
        print(
            f"of the gain {tried[0]}, unforeseen {tried[1]}: {sides[0]}; turns differ: {sides[1]}"
        )


if __name__ == "__main__":
    main()

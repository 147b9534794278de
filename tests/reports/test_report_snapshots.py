"""Every report and rule on two captures: one made up of every kind of event, one of a training.

The table is the registry: a new report has its snapshot once ``--snapshots`` has written it.
"""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from tests.support.captures import DATA, unpack
from tests.support.separated import as_csv
from tests.support.snapshots import Snapshot, left_over

from stepscope.cache.store import Cache
from stepscope.importers.registry import load
from stepscope.reports.registry import reports, rules
from stepscope.reports.report import answer, parse
from stepscope.reports.source import Source

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
CAPTURES = {
    "every kind of event": ORACLE / "made_up.sqlite.xz",
    "training, torch.profiler": DATA / "kineto" / "cnn_disk.json.gz",
}
ALL = {**reports(), **rules()}
MOST_ROWS = 6


@cache
def source(capture: str) -> Source:
    return Source(load(unpack(CAPTURES[capture]), Cache()))


def test_reports_and_rules_have_names_of_their_own() -> None:
    assert len(ALL) == len(reports()) + len(rules())
    assert not left_over(__file__, (f"{name}.csv" for name in ALL))


@pytest.mark.parametrize("name", ALL)
def test_rows_of_a_report(name: str, snapshot: Snapshot) -> None:
    parts = []
    for capture in CAPTURES:
        outcome = answer(parse(name, ALL), source(capture))
        if outcome.table is None:
            parts.append(f"# {capture}: {outcome.missing}\n")
            continue
        shown = "".join(islice(as_csv(outcome.table).splitlines(keepends=True), MOST_ROWS + 1))
        parts.append(f"# {capture}: {outcome.table.num_rows} rows\n{shown}")
    snapshot("\n".join(parts), f"{name}.csv")

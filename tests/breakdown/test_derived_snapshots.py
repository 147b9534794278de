"""Every derived table on captures of three kinds: a run, one without annotations, two ranks.

The table is the registry: a new derived table has its snapshot once ``--snapshots`` has written it.
"""

from __future__ import annotations

from functools import cache

import pytest
from tests.support.captures import BUNDLED, DATA, unpack
from tests.support.snapshots import Snapshot, columns_text, left_over

from stepscope.api import Job
from stepscope.derived import names

TUTORIALS = BUNDLED.parent / "tutorials"
JOBS = {
    "Nsight Systems": [DATA / "nsys" / "gpt_sync_layers.sqlite.xz"],
    "torch.profiler": [DATA / "kineto" / "gpt1024_unfused_attention.json.xz"],
    "two ranks": sorted((TUTORIALS / "exposed").glob("*.xz")),
}


@cache
def job(title: str) -> Job:
    return Job([unpack(path) for path in JOBS[title]])


@pytest.mark.parametrize("table", names())
def test_rows_of_a_derived_table(table: str, snapshot: Snapshot) -> None:
    lines = []
    for title in JOBS:
        rows = job(title).query(f"SELECT * FROM {table} ORDER BY ALL")
        lines += [f"# {title}: {len(rows)} rows", *columns_text(rows, exact=False), ""]
    snapshot("\n".join(lines), f"{table}.txt")


def test_no_snapshot_is_left_over() -> None:
    assert not left_over(__file__, (f"{table}.txt" for table in names()))

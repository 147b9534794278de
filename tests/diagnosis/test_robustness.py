"""Lost records change how sure a diagnosis is, not what it says."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.support.captures import DATA, of_each_cause, unpack, with_lost_records

from stepscope.api import Job


@pytest.mark.parametrize(("file", "cause"), of_each_cause().items(), ids=str)
def test_a_few_lost_records_keep_the_verdict(file: str, cause: str, tmp_path: Path) -> None:
    damaged = with_lost_records(unpack(DATA / file), tmp_path, 0.02)
    diagnosis = Job([damaged]).diagnose()
    assert diagnosis.verdict == cause
    for gpu in diagnosis.accounting:
        busy = gpu.compute_ns + gpu.exposed_communication_ns + gpu.exposed_copy_ns
        assert busy + gpu.memset_ns + gpu.idle_ns == gpu.wall_ns
        assert sum(gpu.idle_by_cause_ns.values()) == gpu.idle_ns


def test_a_capture_without_kernels_blames_nobody(tmp_path: Path) -> None:
    """Copies alone leave all computing as idle time, which no cause explains."""
    path = unpack(DATA / "nsys" / "cnn_small.sqlite.xz", tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    diagnosis = Job([path]).diagnose()
    assert diagnosis.verdict == "insufficient_data"
    assert "no kernel" in diagnosis.findings[0].message
    assert diagnosis.findings[0].next_capture

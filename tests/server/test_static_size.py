"""What is too large for one page is refused before anything is explained."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build import Build

from stepscope.api import Job
from stepscope.server.page import page
from stepscope.timeline import extract
from stepscope.trace.errors import UsageError


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Forty kernels where a page shows twenty rows, and nothing may be explained."""
    b = Build()
    for k in range(40):
        at = 100.0 * k
        b.kernel(at + 6, at + 90, call=(at, at + 4))
    opened = Job([b.trace(tmp_path).folder])
    monkeypatch.setattr(extract, "MOST_ROWS", 20)

    def never(*_: object) -> None:
        raise AssertionError("something was explained")

    monkeypatch.setattr(Job, "diagnose", never)
    monkeypatch.setattr("stepscope.breakdown.explain.explain", never)
    return opened


def test_a_capture_is_refused_by_its_metadata(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a table was read")

    monkeypatch.setattr("stepscope.trace.trace.Trace.frame", never)
    with pytest.raises(
        UsageError, match=r"the capture holds 40 rows or more.*20.*--window.*--only-step"
    ):
        page(job)


def test_a_window_is_refused_by_the_times_of_its_rows(job: Job) -> None:
    with pytest.raises(UsageError, match=r"the window holds 30 rows or more.*--window"):
        page(job, "1ms/")  # the kernels from 1 to 4 ms
    with pytest.raises(UsageError, match=r"the window holds 25 rows or more"):
        page(job, "500us/2.95ms")


def test_a_window_that_fits_is_not_refused_by_then(job: Job) -> None:
    job.views.refuse_too_large("1ms/1.5ms", None)
    job.views.refuse_too_large("", 1)

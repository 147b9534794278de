"""The one facade: open captures, explain, diagnose, query. Every front door calls only this.

:class:`Session` is one opened job. What it answers stands in one module each, and each is built on
the one before it:

* :mod:`~stepscope.session.captures`: which files a path stands for; the bundled capture.
* :mod:`~stepscope.session.opening`: the opened job, its ranks, what was odd about them.
* :mod:`~stepscope.session.explaining`: steps, accounting and gaps of every device.
* :mod:`~stepscope.session.simulating`: the job replayed, as it was and with changes.
* :mod:`~stepscope.session.ranking`: its causes, ranked by what they cost.
* :mod:`~stepscope.session.querying`: SQL, and the tables that people ask for first.
* :mod:`~stepscope.session.diagnosing`: the diagnosis, its verification, a run's profile.
* :mod:`~stepscope.session.reporting`: reports and rules.
* :mod:`~stepscope.session.timeline`: all tracks on one clock, and what is kept of them
  (:mod:`~stepscope.session.shelves`).
* :mod:`~stepscope.session.viewing`: what the page asks of the timeline; files for other viewers.

Two modules need no job: :mod:`~stepscope.session.kernel_reports` reads what Nsight Compute wrote,
:mod:`~stepscope.session.ceilings` what ``stepscope ceilings`` did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.session.captures import bundled_capture, expand, open_cache
from stepscope.session.ceilings import ceilings_beside_data_sheet, read_ceilings
from stepscope.session.diagnosing import Diagnosing, stored_options
from stepscope.session.kernel_reports import (
    compare_kernel_reports,
    explain_kernel,
    is_kernel_report,
    kernel_report,
    kernel_rooflines,
)
from stepscope.session.opening import OpenOptions
from stepscope.session.reporting import (
    Reporting,
    known_reports,
    known_rules,
    rule_requests,
    stats_requests,
)
from stepscope.session.simulating import changes_of
from stepscope.session.timeline import timeline_classes
from stepscope.session.viewing import Viewing
from stepscope.trace.cache import remove_leftovers

if TYPE_CHECKING:
    from stepscope.tabular.report import Outcome as Outcome
    from stepscope.tabular.report import Report as Report
    from stepscope.tabular.report import Request as Request

__all__ = [
    "OpenOptions",
    "Session",
    "bundled_capture",
    "ceilings_beside_data_sheet",
    "changes_of",
    "compare_kernel_reports",
    "expand",
    "explain_kernel",
    "is_kernel_report",
    "kernel_report",
    "kernel_rooflines",
    "known_reports",
    "known_rules",
    "open_cache",
    "read_ceilings",
    "remove_leftovers",
    "rule_requests",
    "stats_requests",
    "stored_options",
    "timeline_classes",
]


class Session(Diagnosing, Reporting, Viewing):
    """One opened job.

    Args:
        paths: a capture, a folder of captures or a Stepscope trace folder, or several of them.
        cache: where imported files are kept; the user's cache by default.
        again: import even what the cache holds.
        ceilings: a file that ``stepscope ceilings`` wrote; by default data sheets tell.
        apart: each capture is looked at by itself, so they need not be of one job.
        step: name of the ranges that are the steps, a regular expression that finds their names,
            or ``none`` for the whole capture as one; by default the capture tells.
        step_kernel: regular expression that finds the kernels at which steps begin.

    Raises:
        UsageError: the captures cannot be the ranks of one job.
        InputError: a path cannot be read as a capture.
        StorageError: the cache cannot be written.
    """

"""Several runs at once: compare them, judge them, keep them. The facade's second half.

:mod:`stepscope.session` opens one run; what looks at more than one is here:

* :mod:`~stepscope.runs.comparing`: profiles of runs, comparisons, trends.
* :mod:`~stepscope.runs.pair`: two runs step by step, as the page shows them.
* :mod:`~stepscope.runs.gating`: budgets and baselines.
* :mod:`~stepscope.runs.recorded`: the run history.
* :mod:`~stepscope.runs.bisecting`: which recorded run changed a figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.runs.bisecting import history_bisect
from stepscope.runs.comparing import compare_runs, profiles_of, trend_of_runs
from stepscope.runs.gating import gate_runs
from stepscope.runs.pair import SIDES, Pair
from stepscope.runs.recorded import (
    UNSENT,
    history_add,
    history_copy,
    history_entries,
    history_keep,
    history_log,
    history_parquet,
    history_plot,
    send_to,
)

if TYPE_CHECKING:
    from stepscope.compare.gate import GateResult as GateResult
    from stepscope.compare.result import Comparison as Comparison
    from stepscope.compare.trend import Trend as Trend

__all__ = [
    "SIDES",
    "UNSENT",
    "Pair",
    "compare_runs",
    "gate_runs",
    "history_add",
    "history_bisect",
    "history_copy",
    "history_entries",
    "history_keep",
    "history_log",
    "history_parquet",
    "history_plot",
    "profiles_of",
    "send_to",
    "trend_of_runs",
]

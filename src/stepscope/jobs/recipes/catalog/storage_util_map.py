"""Counters of storage over time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stepscope.jobs.recipes.recipe import Capture
from stepscope.jobs.recipes.utilisation import Clock, binned, map_recipe
from stepscope.reports.needs import Need

_NAMED = "regexp_matches(metric, 'disk|storage|nfs|lustre', 'i')"
_STORAGE = Need(
    "counters of storage",
    "storage_metrics",
    "nsys profile --storage-metrics (2025.6 and later)",
    f"metric_sample WHERE {_NAMED}",
)


def _means(capture: Capture, clock: Clock) -> pa.Table:
    found = {}
    for column, words in (("read_percent", "%read%"), ("write_percent", "%write%")):
        rows = capture.source.columns(
            f"SELECT time_ns, value FROM metric_sample WHERE {_NAMED} AND metric ILIKE '{words}'"
        )
        means = clock.mean(rows["time_ns"], rows["value"].astype(np.float64))
        # counters have units of their own: the busiest part is 100
        most = np.nanmax(means) if np.isfinite(means).any() else np.nan
        found[column] = 100 * means / most if most else means
    return binned(clock, {(0, 0): found}, list(found))


RECIPE = map_recipe(
    "storage_util_map",
    "Storage Utilization Heatmap",
    "Mean of the samples of the counters that read and that write, in percent of the capture's "
    "busiest part: their units differ between kinds of storage.",
    None,
    {
        "read_percent": "reading, percent of the capture's busiest part",
        "write_percent": "writing, percent of the capture's busiest part",
    },
    (_STORAGE,),
    means=_means,
)

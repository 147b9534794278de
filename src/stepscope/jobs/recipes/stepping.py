"""What one capture says of its steps: the rows that recipes about ranks start from."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from stepscope.jobs.recipes.recipe import Capture, Values

PARTS: Final = {
    "compute_ns": "compute kernels run, ns",
    "exposed_communication_ns": "only communication runs, waiting for other ranks included, ns",
    "exposed_copy_ns": "only copies run, ns",
    "memset_ns": "only fills run, ns",
    "idle_ns": "nothing runs, ns",
}
"""The parts that a step's length is the sum of, exactly."""
STEP: Final = {
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
    "step": "number of the step",
    "wall_ns": "its length, ns",
    **PARTS,
}

ALIGNED: Final = """
WITH timed AS (
    SELECT part.*, start_ns + coalesce(origin_epoch_ns, 0) AS begun_ns,
        count(origin_epoch_ns) OVER () = count(*) OVER ()
        AND max(origin_epoch_ns + start_ns) OVER ()
        - min(origin_epoch_ns + start_ns) OVER () < 10000000000 + 2 * (
            SELECT max(end_ns - begin_ns) FROM capture) AS comparable
    FROM part JOIN capture USING (input)
), typical AS (
    SELECT coalesce(median(wall_ns), 0)::BIGINT AS ns FROM timed
), anchor AS (
    SELECT step AS number, begun_ns - (SELECT ns // 2 FROM typical) AS from_ns FROM timed
    WHERE (input, process_id, device) = (
        SELECT (input, process_id, device) FROM timed GROUP BY input, process_id, device
        ORDER BY count(*) DESC, input, process_id, device LIMIT 1)
), placed AS (
    SELECT timed.* EXCLUDE (step, begun_ns, comparable),
        CASE WHEN comparable THEN number ELSE step END AS step,
        row_number() OVER (PARTITION BY input, process_id, device,
            CASE WHEN comparable THEN number ELSE step END ORDER BY begun_ns) AS again
    FROM timed ASOF LEFT JOIN anchor ON timed.begun_ns >= anchor.from_ns
)
"""
"""``placed``: the rows of ``part`` with steps counted as on the rank that has most of them.

Captures of ranks may begin some steps apart: a rank's step is that of the other which begins
nearest on the machines' clocks. Where clocks are unknown or do not fit, steps are counted from
each capture's first. ``again`` is above 1 where two steps of a rank are nearest to one.
"""


def steps_of(capture: Capture, values: Values) -> pa.Table:
    """One row a steady step and device: ``STEP``, ``start_ns`` and ``kernels``."""
    del values
    names = [*STEP, "start_ns", "kernels"]
    parts = []
    for e in capture.explained:
        steady = slice(e.first, e.last + 1)
        bounds = e.bounds_ns[e.first : e.last + 2]
        number = np.arange(e.first, e.last + 1)
        kernels = e.gpu.ops["start_ns"][e.gpu.ops.equals("kind", "kernel")]
        columns = {
            "process_id": np.full(len(number), e.gpu.process_id),
            "device": np.full(len(number), e.gpu.device),
            "step": number,
            "wall_ns": e.accounting.wall_ns[steady],
            **{name: getattr(e.accounting, name)[steady] for name in PARTS},
            "start_ns": bounds[:-1],
            "kernels": np.diff(np.searchsorted(np.sort(kernels), bounds)),
        }
        parts.append(pa.table({name: pa.array(columns[name], pa.int64()) for name in names}))
    schema = pa.schema([(name, pa.int64()) for name in names])
    return pa.concat_tables(parts) if parts else schema.empty_table()

"""Recipes that show how much of each stretch of the job's time something was in use, by device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stepscope.intervals import overlap_per_window, union
from stepscope.jobs.recipes.recipe import (
    BEGIN,
    IDENTITY,
    LENGTH,
    Capture,
    Chart,
    Figure,
    Option,
    Output,
    Recipe,
    Values,
)
from stepscope.reports.needs import Need
from stepscope.trace.frame import IntArray

Spans = tuple[IntArray, IntArray]
DEVICE = {
    "process_id": "operating-system process id",
    "device": "CUDA device ordinal inside the process",
}
BINS = Option("bins", "number of equal parts of the job's time", 30, 1, 2000)
CUMULATIVE = Option("cumulative", "work of several streams at one time counts in full each", False)


class Clock:
    """The parts of the job's time as one capture sees them.

    Args:
        capture: the capture.
        values: the recipe's, with when the job began and how long it lasted.
    """

    def __init__(self, capture: Capture, values: Values) -> None:
        meta = capture.trace.meta
        begin = int(values[BEGIN])
        self.number = int(values["bins"])
        self.size = max(math.ceil(int(values[LENGTH]) / self.number), 1)
        origin = meta.origin_epoch_ns if begin and meta.origin_epoch_ns is not None else begin
        self.offset = origin - begin
        self.starts = np.arange(self.number, dtype=np.int64) * self.size
        own = self.starts - self.offset
        self.low = np.maximum(own, meta.window_start_ns)
        self.high = np.minimum(own + self.size, meta.window_end_ns)
        self.inside = self.high > self.low

    def percent(self, spans: Spans, *, cumulative: bool) -> Any:
        """Share of each part that is covered, percent; NaN outside of the capture."""
        length = np.where(self.inside, self.high - self.low, 1)
        high = np.maximum(self.high, self.low)
        if cumulative:
            covered = _overlap_of_all(spans, self.low, high)
        else:
            covered = overlap_per_window(union(*spans), self.low, high)
        return np.where(self.inside, 100.0 * covered / length, np.nan)

    def mean(self, time: IntArray, value: Any) -> Any:
        """Mean of the samples of each part; NaN where there is none."""
        part = (time + self.offset) // self.size
        ok = (part >= 0) & (part < self.number)
        count = np.bincount(part[ok], minlength=self.number)
        sums = np.bincount(part[ok], weights=value[ok], minlength=self.number)
        return np.where(count > 0, sums / np.maximum(count, 1), np.nan)


def _overlap_of_all(spans: Spans, low: IntArray, high: IntArray) -> IntArray:
    """Length of all spans inside each window, those that overlap in full each."""
    start, end = np.sort(spans[0]), np.sort(spans[1])

    def before(at: IntArray, ordered: IntArray) -> IntArray:
        """Sum of ``at - t`` over all earlier times ``t``."""
        sums = np.concatenate([[0], np.cumsum(ordered)])
        n = np.searchsorted(ordered, at)
        return np.asarray(at * n - sums[n])

    def covered(at: IntArray) -> IntArray:
        return before(at, start) - before(at, end)

    return covered(high) - covered(low)


def spans_by_device(capture: Capture, statement: str) -> dict[tuple[int, int], Spans]:
    """``start_ns`` and ``end_ns`` of a statement's rows by (``process_id``, ``device``)."""
    found = capture.source.columns(statement)
    device = np.maximum(found["device"], 0)
    keys = sorted(set(zip(found["process_id"].tolist(), device.tolist(), strict=True)))
    masks = {key: (found["process_id"] == key[0]) & (device == key[1]) for key in keys}
    return {key: (found["start_ns"][m], found["end_ns"][m]) for key, m in masks.items()}


def binned(
    clock: Clock, columns: Mapping[tuple[int, int], Mapping[str, Any]], names: Sequence[str]
) -> pa.Table:
    """One row a part and device."""
    parts: list[pa.Table] = []
    schema = pa.schema(
        [
            *((n, pa.int64()) for n in ("bin", "start_ns", *DEVICE)),
            *((n, pa.float64()) for n in names),
        ]
    )
    for (process, device), values in columns.items():
        fixed = {
            "bin": np.arange(clock.number),
            "start_ns": clock.starts,
            "process_id": np.full(clock.number, process),
            "device": np.full(clock.number, device),
        }
        arrays = [pa.array(fixed[n], pa.int64()) for n in fixed]
        arrays += [pa.array(values[n], pa.float64(), from_pandas=True) for n in names]
        parts.append(pa.Table.from_arrays(arrays, schema=schema))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def map_recipe(
    name: str,
    title: str,
    doc: str,
    spans: Callable[[Capture], dict[tuple[int, int], dict[str, Spans]]] | None,
    values: dict[str, str],
    needs: Sequence[Need],
    *,
    means: Callable[[Capture, Clock], pa.Table] | None = None,
    source: str = "`nsys recipe` of the same name",
) -> Recipe:
    """A recipe of this family.

    Args:
        name: of the recipe.
        title: one line.
        doc: what is in use.
        spans: what was busy when, by (process, device) and column.
        values: columns -> meaning; each in percent.
        needs: what a capture must hold.
        means: instead of ``spans``: the table itself.
        source: of the definition.
    """

    def run(capture: Capture, given: Values) -> pa.Table:
        clock = Clock(capture, given)
        if means is not None:
            return means(capture, clock)
        assert spans is not None
        together = bool(given.get("cumulative"))
        return binned(
            clock,
            {
                device: {n: clock.percent(s, cumulative=together) for n, s in found.items()}
                for device, found in spans(capture).items()
            },
            list(values),
        )

    first = next(iter(values))
    averages = ", ".join(f"avg({n}) AS {n}" for n in values)
    return Recipe(
        name,
        title,
        f"{doc} The job's time, from the begin of the first capture to the end of the last on the "
        "machines' clocks, is cut into equal parts; what lies outside of a capture is empty.",
        run,
        (
            Output(
                "analysis",
                "One part of the job's time on one device of one rank.",
                {
                    **IDENTITY,
                    "bin": "number of the part, from 0",
                    "start_ns": "its begin, ns since the begin of the job",
                    **DEVICE,
                    **values,
                },
                "SELECT rank, capture, * EXCLUDE (input, rank, capture) FROM part "
                "ORDER BY rank, process_id, device, bin",
                ("rank", "process_id", "device", "bin"),
            ),
            Output(
                "mean_stats",
                "One part of the job's time, mean over the devices that were captured then.",
                {"bin": "number of the part", "start_ns": "its begin, ns", **values},
                f"SELECT bin, start_ns, {averages} FROM analysis GROUP BY ALL ORDER BY bin",
                ("bin",),
            ),
            Output(
                "rank_stats",
                "One device of one rank, mean over its captured time.",
                {**IDENTITY, **DEVICE, **values},
                f"SELECT rank, capture, process_id, device, {averages} FROM analysis GROUP BY ALL "
                "ORDER BY rank, process_id, device",
                ("rank", "process_id", "device"),
            ),
        ),
        charts=(
            *(
                Chart(
                    "heat",
                    "analysis",
                    f"{n} by rank over time",
                    n,
                    x="start_ns",
                    y="rank",
                    unit="percent",
                )
                for n in values
            ),
            *(
                Chart(
                    "line", "mean_stats", f"{n}, mean of all ranks", n, x="start_ns", unit="percent"
                )
                for n in [first]
            ),
        ),
        figures=(
            *(
                Figure(
                    n,
                    f"{n.removesuffix('_percent')}, mean of all devices",
                    "share",
                    f"SELECT avg({n}) / 100 FROM rank_stats",
                )
                for n in values
            ),
            Figure(
                "least_used_rank",
                f"rank with the least {first}",
                "",
                f"SELECT rank FROM rank_stats ORDER BY {first}, rank LIMIT 1",
            ),
        ),
        options=(BINS, CUMULATIVE) if means is None else (BINS,),
        needs=tuple(needs),
        aligned=True,
        source=source,
    )

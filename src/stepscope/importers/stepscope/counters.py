"""Counters that the launcher sampled beside the program: the table ``metric_sample``."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepscope.importers.stepscope.about import Window
from stepscope.importers.stepscope.raw import Raw
from stepscope.importers.stepscope.sink import Sink, dictionary
from stepscope.intervals.distinct import with_inverse

COUNTERS_FILE = "counters.csv"
"""Columns: monotonic time in ns, index of the GPU in the machine, its uuid, counter, value."""


def read_counters(sink: Sink, folder: Path, raws: Sequence[Raw], window: Window) -> None:
    """Fill ``metric_sample`` with the samples inside the window of the GPUs that were used."""
    path = folder / COUNTERS_FILE
    if not path.exists():
        return
    ordinals = {
        str(device.get("uuid")): int(device["device"])
        for raw in raws
        for device in raw.one("devices").get("devices", [])
    }
    used = {device for _, _, device, _ in sink.streams}
    times, gpus, names, values = [], [], [], []
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.reader(stream):
            try:
                time, gpu, uuid, name, value = row
                sample = int(time), int(gpu), float(value)
            except ValueError:
                continue  # the last line of a file that was cut short
            mine = uuid not in ordinals or ordinals[uuid] in used
            if mine and window.start_ns <= sample[0] <= window.end_ns:
                times.append(sample[0])
                gpus.append(sample[1])
                values.append(sample[2])
                names.append(name)
    words, codes = with_inverse(np.array(names, dtype=object))
    sink.put(
        "metric_sample",
        {
            "time_ns": sink.times(np.array(times, np.int64)),
            "device": np.array(gpus, np.int32),
            "metric": dictionary(codes, [str(word) for word in words]),
            "value": np.array(values),
        },
    )

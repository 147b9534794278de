"""Counters that the launcher sampled beside the program: the table ``metric_sample``."""

from __future__ import annotations

import csv
from collections.abc import Sequence

import numpy as np

from stepscope.importers.stepscope.about import Window
from stepscope.importers.stepscope.files import Files
from stepscope.importers.stepscope.raw import Raw
from stepscope.importers.stepscope.sink import Sink, dictionary
from stepscope.intervals.distinct import with_inverse

COUNTERS_FILE = "counters.csv"
"""Columns: monotonic time in ns, index of the GPU in the machine, its uuid, counter, value."""
_MOST_GPUS = 1 << 16


def read_counters(sink: Sink, files: Files, raws: Sequence[Raw], window: Window) -> None:
    """Fill ``metric_sample`` with the samples inside the window of the GPUs that were used."""
    path = files.path(COUNTERS_FILE)
    if not path.exists():
        return
    ordinals = {
        str(device.get("uuid")): int(device["device"])
        for raw in raws
        for device in raw.one("devices").get("devices", [])
    }
    used = {device for _, _, device, _ in sink.streams}
    times, gpus, names, values = [], [], [], []
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                ((time, gpu, uuid, name, value),) = csv.reader([line])
                sample = int(time), int(gpu), float(value)
            except (ValueError, csv.Error):
                continue  # the last line of a file that was cut short
            if not 0 <= sample[1] < _MOST_GPUS:
                continue
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

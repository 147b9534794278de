"""Kernels too short or too small to fill the GPU."""

from __future__ import annotations

import numpy as np

from stepscope.activity.communication import is_communication
from stepscope.tabular.maths import (
    dictionary,
    group,
    nullable,
    round_half_away,
    statistics,
)
from stepscope.tabular.needs import KERNELS, Need
from stepscope.tabular.report import ROWS, Answer, Argument, Arguments, Column, Report, limit
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import IntArray

_MICROSECOND_NS = 1000


def _storms(source: Source, arguments: Arguments) -> Answer:
    kernels = source.kernels()
    longest, least = int(arguments["us"]) * _MICROSECOND_NS, int(arguments["count"])
    groups, firsts = group(kernels["process_id"], kernels["device"])
    found: list[tuple[int, int, int, float, int, int]] = []
    for number, row in enumerate(firsts.tolist()):
        mine = np.flatnonzero(groups == number)
        start, end = kernels["start_ns"][mine], kernels["end_ns"][mine]
        tiny = end - start < longest
        edges = np.flatnonzero(np.diff(tiny.astype(np.int8), prepend=0, append=0))
        for begin, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if stop - begin >= least:
                span = max(int(end[begin:stop].max() - start[begin]), 1)
                busy = 100.0 * float((end[begin:stop] - start[begin:stop]).sum()) / span
                place = (int(kernels["process_id"][row]), int(kernels["device"][row]))
                found.append((span, int(start[begin]), stop - begin, busy, *place))
    found.sort(key=lambda storm: (-storm[0], storm[1]))
    found = found[limit(arguments)]
    columns = [np.array([storm[i] for storm in found], dtype=np.int64) for i in (0, 1, 2, 4, 5)]
    busy_share = round_half_away(np.array([storm[3] for storm in found]))
    return [*columns[:3], busy_share, *columns[3:]]


def _sms(source: Source, kernels: Rows) -> IntArray:
    """SMs of the device of each kernel; -1 where unknown."""
    devices = source.rows("device")
    columns = [devices[name].tolist() for name in ("process_id", "device", "sm_count")]
    known = {(process, device): count for process, device, count in zip(*columns, strict=True)}
    groups, firsts = group(kernels["process_id"], kernels["device"])
    places = zip(
        kernels["process_id"][firsts].tolist(), kernels["device"][firsts].tolist(), strict=True
    )
    counts = [known.get((p, d), known.get((-1, d), -1)) for p, d in places]
    return np.array(counts, dtype=np.int64)[groups]


def _small(source: Source, arguments: Arguments) -> Answer:
    kernels = source.kernels()
    blocks = np.ones(len(kernels), np.int64)
    for axis in "xyz":
        blocks *= np.maximum(kernels[f"grid_{axis}"].astype(np.int64), 1)
    units = _sms(source, kernels)
    whole = int(kernels.duration.sum())
    keep = (blocks * 100 < units * int(arguments["filled"])) & (kernels["grid_x"] > 0)
    # communication takes few SMs on purpose: it waits for the network
    keep &= ~kernels.that("name", is_communication)
    kernels, blocks, units = kernels.where(keep), blocks[keep], units[keep]
    groups, firsts = group(kernels["name"], blocks, units)
    found = statistics(kernels.duration, groups, len(firsts))
    order = np.lexsort((blocks[firsts], -found.total))
    share = found.total * 100.0 / max(whole, 1)
    order = order[share[order] >= int(arguments["share"])][limit(arguments)]
    return [
        round_half_away(share[order]),
        found.total[order],
        found.count[order],
        round_half_away(found.avg[order]),
        blocks[firsts][order],
        units[firsts][order],
        nullable(round_half_away(blocks[firsts][order] / units[firsts][order], 2)),
        dictionary(kernels["name"][firsts][order], kernels.texts("name")),
    ]


def _sizes_known(source: Source) -> bool:
    devices = source.rows("device")
    return bool(len(devices)) and bool((devices["sm_count"] > 0).any())


RULES = [
    Report(
        "tiny_kernels",
        "Storms of Tiny Kernels",
        "Runs of consecutive kernels of one device that are all shorter than the limit. Longest "
        "first.",
        (
            Column("Duration", "dur", "first start to last end"),
            Column("Start", "ts", "begin"),
            Column("Kernels", doc="number of kernels"),
            Column("Busy", "ratio", "work in percent of the duration"),
            Column("PID", doc="process"),
            Column("Device ID", doc="device ordinal inside the process"),
        ),
        _storms,
        arguments=(
            ROWS,
            Argument("us", "a kernel is tiny below so many us", 10, low=1),
            Argument("count", "leave out runs of fewer kernels", 100, low=2),
        ),
        needs=(KERNELS,),
        none_found="No long run of tiny kernels.",
        advice="A launch costs the host some 5 us, so kernels as short as these cannot keep the "
        "GPU busy. Fuse them (torch.compile, fused or foreach optimizers) or replay them as a CUDA "
        "graph.",
    ),
    Report(
        "small_grids",
        "Kernels With Fewer Blocks Than SMs",
        "Kernels by name and number of blocks whose grid has fewer blocks than the given share of "
        "the device's SMs, so that the others have nothing to do. Communication is "
        "left out. Longest total first.",
        (
            Column("Time", "ratio", "share of the time of all kernels"),
            Column("Total Time", "dur", "sum of the durations"),
            Column("Instances", doc="number of kernels"),
            Column("Avg", "dur", "mean duration"),
            Column("Blocks", doc="blocks of the grid"),
            Column("SMs", doc="SMs of the device"),
            Column("Filled", doc="blocks a SM"),
            Column("Name", doc="kernel"),
        ),
        _small,
        arguments=(
            ROWS,
            Argument(
                "filled", "show grids that fill less than so many percent", 75, low=1, high=100
            ),
            # more than its share no kernel can gain
            Argument("share", "leave out less than so many percent of the kernels' time", 5, low=0),
        ),
        needs=(
            KERNELS,
            Need(
                "number of SMs of its GPUs",
                "device",
                "nsys profile -t cuda (torch.profiler: ProfilerActivity.CUDA)",
                _sizes_known,
            ),
        ),
        none_found="Every kernel has blocks for most SMs.",
        advice="Part of the GPU is idle during these kernels whatever its utilisation says. Give "
        "them more work at once (larger batch, joined tensors), let the library choose a split "
        "(split-K), or run them beside others on a second stream.",
    ),
]

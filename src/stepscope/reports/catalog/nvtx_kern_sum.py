"""Kernels by the ranges around their launch."""

from __future__ import annotations

import numpy as np

from stepscope.intervals.distinct import values_without
from stepscope.reports.summary import spread, spread_columns
from stepscope.tabular.attribution import (
    BASE,
    MANGLED,
    STYLES,
    kernel_names,
    launches,
    range_names,
    range_styles,
    ranges_around,
    usable_ranges,
)
from stepscope.tabular.maths import dictionary, group, nullable, statistics, text_ranks
from stepscope.tabular.needs import CUDA_CALLS, KERNELS, RANGES
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Source


def _run(source: Source, arguments: Arguments) -> Answer:
    kernels, calls = source.kernels(), source.cuda_calls()
    ranges = usable_ranges(source, own_thread=True)
    names = kernel_names(source, kernels, arguments)
    labels, styles = range_names(ranges), range_styles(ranges)
    kernel, call = launches(kernels, calls)
    # pairs (kernel, range) through the call, and every kernel that is in no range
    row, of_range = ranges_around(source, ranges, calls, call, none=True)
    alone = values_without(np.arange(len(kernels)), kernel)
    which = np.concatenate([kernel[row], alone])
    of_range = np.concatenate([of_range, np.full(len(alone), -1)])
    unknown = np.full(len(alone), -1)
    process = np.concatenate([calls["process_id"][call][row], unknown])
    thread = np.concatenate([calls["thread_id"][call][row], unknown])
    label = np.append(labels.codes, -1)[of_range]
    style = np.append(styles, -1)[of_range]
    name = names.codes[which]
    groups, firsts = group(label, style, process, thread, name)
    found = statistics(kernels.duration[which], groups, len(firsts))
    pairs, pair_firsts = group(groups, of_range)
    del pairs
    instances = np.bincount(groups[pair_firsts][of_range[pair_firsts] >= 0], minlength=len(firsts))
    kernel_pairs, kernel_firsts = group(groups, which)
    del kernel_pairs
    distinct = np.bincount(groups[kernel_firsts], minlength=len(firsts))
    rank = np.append(text_ranks(labels.texts), -1)[label[firsts]]
    order = np.lexsort(
        (
            text_ranks(names.texts)[name[firsts]],
            -found.total,
            thread[firsts],
            process[firsts],
            rank,
        )
    )
    return [
        dictionary(label[firsts][order], labels.texts),
        dictionary(style[firsts][order], STYLES),
        nullable(process[firsts][order]),
        nullable(thread[firsts][order]),
        instances[order],
        distinct[order],
        found.total[order],
        *spread(found, order),
        dictionary(name[firsts][order], names.texts),
    ]


REPORTS = [
    Report(
        "nvtx_kern_sum",
        "NVTX Range Kernel Summary",
        "Kernels by every range of the launching thread that encloses the launching call, outer "
        "ranges included, so a kernel counts once a level. Kernels outside all ranges come first, "
        "without a range: in PyTorch those of the backward pass, which another thread launches.",
        (
            Column("NVTX Range", doc="domain:text, or the text alone in the default domain"),
            Column("Style", doc="PushPop or StartEnd"),
            Column("PID", doc="process"),
            Column("TID", doc="launching thread"),
            Column("NVTX Inst", doc="range instances that launched the kernel"),
            Column("Kern Inst", doc="number of kernels"),
            Column("Total Time", "dur", "sum of the kernels' durations"),
            *spread_columns(),
            Column("Kernel Name"),
        ),
        _run,
        arguments=(BASE, MANGLED),
        aliases=("nvtxkernsum",),
        needs=(RANGES, CUDA_CALLS, KERNELS),
    )
]

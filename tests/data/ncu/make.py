"""Writes ``kernels.csv.xz``: the metrics that Stepscope asks for, of a real report, as CSV.

usage: python make.py REPORT.ncu-rep, with NVIDIA's ncu-report package installed.

The CSV has the form of ``ncu --csv --page raw`` with base units: Nsight Compute itself is not
needed to make it. Values are the report's, unrounded.
"""

from __future__ import annotations

import csv
import io
import lzma
import sys
from pathlib import Path

import ncu_report  # type: ignore[import-not-found]

from stepscope.ncu.metrics import BREAKDOWNS
from stepscope.ncu.read_rep import _NAMES

report = ncu_report.load_report(sys.argv[1])
actions = [
    range_.action_by_idx(i)
    for range_ in [report.range_by_idx(r) for r in range(report.num_ranges())]
    for i in range(range_.num_actions())
]
names = set(_NAMES) | {"device__attribute_display_name"}
for action in actions:
    for breakdown in BREAKDOWNS.values():
        names |= set(action.metric_by_name(breakdown).value().split(","))
held = sorted(n for n in names if actions[0].metric_by_name(n) is not None)
out = io.StringIO()
writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
first = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
         "Block Size", "Grid Size", "Device", "CC"]  # fmt: skip
writer.writerow([*first, *held])
writer.writerow([*[""] * len(first), *(actions[0].metric_by_name(n).unit() for n in held)])
for at, action in enumerate(actions):
    sizes = [
        "("
        + ", ".join(str(action.metric_by_name(f"launch__{k}_dim_{a}").value()) for a in "xyz")
        + ")"
        for k in ("block", "grid")
    ]
    name = action.name(action.NameBase_DEMANGLED)
    writer.writerow(
        [str(at), "1", "kernels", "host", name, "1", "7", *sizes, "0", "9.0",
         *(action.metric_by_name(n).value() for n in held)]
    )  # fmt: skip
target = Path(__file__).with_name("kernels.csv.xz")
target.write_bytes(lzma.compress(out.getvalue().encode(), preset=9))

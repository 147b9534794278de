"""Reference pages about Nsight Compute reports: limiters, stall reasons, metrics, results."""

from __future__ import annotations

import msgspec

from stepscope.kernels import ceilings
from stepscope.ncu import decide, explain, memory, report_diff, result, roofline
from stepscope.ncu.limiters import LIMITERS
from stepscope.ncu.metrics import METRICS, SECTIONS
from stepscope.ncu.stalls import STALLS
from stepscope.operators import averages_result, compiled, phases, python_time, sheets
from stepscope.operators import roofline as operators
from stepscope.operators.flops import OPERATORS
from tools.docs.markdown import code, constants, prose, table

RESULTS: dict[str, tuple[str, str, str, list[type[msgspec.Struct]]]] = {
    "ncu-kernels": (
        "a report's kernels",
        "`kernels REPORT`",
        result.KERNELS_SCHEMA,
        [result.KernelTable, result.KernelRow],
    ),
    "ncu-explanation": (
        "an explained kernel",
        "`kernels REPORT --kernel`",
        result.EXPLANATION_SCHEMA,
        [
            result.Explanation,
            result.KernelRow,
            result.Section,
            result.Shown,
            result.StallShare,
            roofline.Roofline,
            roofline.Roof,
            result.HotLine,
            result.RuleMessage,
        ],
    ),
    "ncu-report-diff": (
        "two reports compared",
        "`kernels REPORT --against`",
        result.REPORT_DIFF_SCHEMA,
        [result.ReportDiff, result.Pair, result.Change, roofline.Roofline, roofline.Roof],
    ),
    "operator-rooflines": (
        "operators under the roofline",
        "`kernels TRACE --roofline`",
        operators.SCHEMA,
        [operators.OperatorRooflines, operators.OperatorRoofline],
    ),
    "operators": (
        "host and device time by operator",
        "`operators`",
        averages_result.SCHEMA,
        [
            averages_result.OperatorAverages,
            averages_result.OperatorRow,
            averages_result.OperatorKernel,
            compiled.CompiledCode,
            compiled.CompiledRegion,
        ],
    ),
    "operator-sheet": (
        "operators by unique shape",
        "`operators --sheet`",
        sheets.SCHEMA,
        [sheets.Sheet, sheets.SheetRow],
    ),
    "phases": (
        "the phases of a step",
        "`phases`",
        phases.SCHEMA,
        [phases.Phases, phases.DeviceSteps, phases.PhaseTime],
    ),
    "python-time": (
        "where Python spends the steps",
        "`phases --python`",
        python_time.SCHEMA,
        [python_time.PythonReport, python_time.PythonTime, python_time.PythonProcess],
    ),
    "ceilings": ("a GPU's ceilings", "`ceilings`", ceilings.SCHEMA, [ceilings.Ceilings]),
}
"""File stem -> what it is, what prints it, its version, its structs."""


def limiters_page() -> list[str]:
    """Parts of the page on limiters."""
    rows = [
        (code(name), f"{value:,.6g}", prose(doc))
        for module in (decide, memory, explain, report_diff, operators)
        for name, (value, doc) in constants(module).items()
        if isinstance(value, int | float) and doc
    ]
    shown = [
        (
            code(metric.key),
            metric.label,
            metric.unit,
            ", ".join(map(code, metric.names)),
            code(metric.section),
        )
        for metric in METRICS.values()
    ]
    return [
        "# Limiters",
        "What `stepscope kernels REPORT` says holds a kernel back. The questions are asked in this "
        "order: does the grid fill the device, is a memory level busy, are the SMs "
        "busy, what do warps wait for. Names of kernels are never looked at.",
        table(
            ("limiter", "title", "bound", "when", "what helps"),
            [
                (code(entry.id), entry.title, entry.bound, prose(entry.meaning),
                 prose("; ".join(entry.advice)))
                for entry in LIMITERS.values()
            ],
        ),
        "## Thresholds",
        table(("constant", "value", "reason"), rows),
        "## Stall reasons",
        table(
            ("reason", "waits for", "what helps"),
            [
                (stall.title, prose(stall.waits_for), prose(stall.remedy))
                for stall in STALLS.values()
            ],
        ),
        "## Work of operators",
        "`kernels TRACE --roofline` knows the operations of these operators from their shapes: "
        + ", ".join(map(code, OPERATORS))
        + ".",
        "## Metrics",
        "Names that versions have given a metric, the newest first; the section collects it "
        f"(`ncu --section`). Sections: {', '.join(f'`{k}` ({v})' for k, v in SECTIONS.items())}.",
        table(("key", "label", "unit", "names", "section"), shown),
    ]  # fmt: skip

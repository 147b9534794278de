"""The reference of comparison, gate and history: contracts, budgets, constants of the method."""

from __future__ import annotations

from typing import Final

import msgspec

from stepscope.compare import (
    budgets,
    changepoints,
    gate,
    kernels,
    matching,
    profile,
    result,
    setup,
    statistics,
    stored,
    trend,
    tried,
    work,
)
from stepscope.compare.history import folder, model, postgres, sqlite
from tools.docs.markdown import code, constants, prose, table

Structs = list[type[msgspec.Struct]]

_PROFILE: Final[Structs] = [
    profile.Profile,
    profile.KernelUse,
    profile.PlaceUse,
    profile.CollectiveUse,
    profile.FindingUse,
]
CONTRACTS: Final[dict[str, tuple[str, str, str, Structs]]] = {
    "compare": (
        "a comparison",
        "`compare`",
        result.SCHEMA,
        [
            result.Comparison,
            result.StepDifference,
            result.CauseMoved,
            result.PartDifference,
            result.KernelDifference,
            result.PlaceDifference,
            result.CollectiveDifference,
            result.FindingDifference,
            result.PredictionCheck,
            result.SetupDifference,
            *_PROFILE,
        ],
    ),
    "trend": (
        "a trend",
        "`compare` with more than two runs",
        trend.SCHEMA,
        [trend.Trend, trend.TrendRow],
    ),
    "try": (
        "what fixes that were tried came to",
        "`run --try`",
        tried.SCHEMA,
        [
            tried.TrySession,
            tried.Tried,
            tried.Applied,
            tried.TriedStep,
            tried.TriedPrediction,
            tried.LossComparison,
            tried.Wait,
        ],
    ),
    "gate": (
        "a gate's verdict",
        "`gate`",
        gate.SCHEMA,
        [gate.GateResult, gate.Check, result.CauseMoved],
    ),
    "history": (
        "a series of runs",
        "`history plot`",
        model.SCHEMA,
        [model.Plot, model.Entry, model.Mark],
    ),
}
"""File -> what it is, command, version and structs."""


def comparison_parts() -> list[str]:
    """The page on what comparison, gate and history assume."""
    parts = [
        "# Comparison: what is assumed",
        "The constants behind [`compare`](commands.md#compare), [`gate`](commands.md#gate) and "
        "[`history`](commands.md#history). The guides explain the method: "
        "[compare](../guides/compare.md), [gate](../guides/gate.md), "
        "[history](../guides/history.md).",
        "## Constants",
    ]
    rows = [
        (code(name), f"{value:,}" if isinstance(value, int) else f"{value:g}", prose(doc))
        for module in (
            *(statistics, setup, work, kernels, changepoints, stored),
            *(sqlite, folder, postgres),
        )
        for name, (value, doc) in constants(module).items()
        if isinstance(value, int | float) and doc
    ]
    parts.append(table(("constant", "value", "meaning"), rows))
    parts += [
        "## Relations of kernels",
        table(
            ("relation", "meaning"),
            [(code(name), prose(doc)) for name, doc in matching.RELATIONS.items()],
        ),
        "## Budgets",
        "What `[gate.budget]`, `--budget` and `history plot --figure` know.",
        table(
            ("budget", "meaning", "where the capture does not tell"),
            [(code(b.name), prose(b.doc), prose(b.missing)) for b in budgets.BUDGETS.values()],
        ),
    ]
    return parts

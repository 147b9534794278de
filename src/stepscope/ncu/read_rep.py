"""Read an ``.ncu-rep`` through NVIDIA's ``ncu-report`` package (extra ``ncu``).

Objects of that package do not keep alive what they came from: an action must be kept for as long
as its metrics are used.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.ncu.metrics import BREAKDOWNS, METRICS, SAMPLES_METRIC, STALLS_METRIC
from stepscope.ncu.model import Launch, Line, Report, Rule, RuleKind, Wanted
from stepscope.ncu.rep_blocks import unfinished
from stepscope.ncu.stalls import STALLS
from stepscope.ncu.units import factor
from stepscope.trace.errors import InputError

HOTTEST = 10
"""Source lines and instructions that are shown."""

_KINDS: dict[int, RuleKind] = {1: "good", 2: "optimization", 3: "warning", 4: "error"}
_LINK = re.compile(r"@(?:section|url|metric|source)[^@:]*:([^@]*?)(?::[^@:]*(?::[^@]*)?)?@")
_OPCODES = "sass__inst_executed_per_opcode"
_EXCESS = "derived__memory_l2_theoretical_sectors_global_excessive"


def read_rep(path: Path, wanted: Wanted | None) -> Report:
    """Read a report.

    Raises:
        InputError: the package is missing, or the file is damaged.
    """
    try:
        package: Any = importlib.import_module("ncu_report")
    except ImportError as error:
        raise InputError(
            f"{path} can be read only with NVIDIA's ncu-report package, which is not installed: "
            "pip install ncu-report, or give what ncu --import REPORT.ncu-rep --csv "
            "--page raw prints"
        ) from error
    broken = unfinished(path)
    if broken:
        raise InputError(f"{path} ends too early ({broken}): copy it again, or profile again")
    try:
        context = package.load_report(str(path))
        launches = list(_launches(context, wanted))
    except Exception as error:  # the package has no exceptions of its own
        raise InputError(
            f"{path} cannot be read by ncu-report ({type(error).__name__}); it is damaged, or "
            "newer than the package: pip install -U ncu-report"
        ) from error
    return Report(str(path), "ncu-rep", launches)


def _launches(context: Any, wanted: Wanted | None) -> Iterator[Launch]:
    number = 0
    for at in range(context.num_ranges()):
        range_ = context.range_by_idx(at)
        for index in range(range_.num_actions()):
            action = range_.action_by_idx(index)
            launch = _launch(action, number)
            if wanted is not None and wanted(number, launch.name):
                launch.rules = list(_rules(action))
                _lines(action, launch)
            yield launch
            number += 1


def _launch(action: Any, number: int) -> Launch:
    values: dict[str, float] = {}
    for name in _NAMES:
        value = _number(action, name)
        if value is not None:
            values[name] = value
    breakdown = {}
    for kind, name in BREAKDOWNS.items():
        parts = (_text(action, name) or "").split(",")
        found = {part: _number(action, part) for part in map(str.strip, parts) if part}
        breakdown[kind] = {part: value for part, value in found.items() if value is not None}
    major = _number(action, "device__attribute_compute_capability_major")
    minor = _number(action, "device__attribute_compute_capability_minor")
    return Launch(
        number=number,
        name=str(action.name(action.NameBase_DEMANGLED)),
        function=str(action.name(action.NameBase_FUNCTION)),
        grid=_dimensions(action, "launch__grid_dim_"),
        block=_dimensions(action, "launch__block_dim_"),
        device=_text(action, "device__attribute_display_name") or "",
        capability="" if major is None else f"{major:.0f}.{minor or 0:.0f}",
        values=values,
        breakdown=breakdown,
        opcodes=_opcodes(action),
    )


def _stall_names() -> Iterator[str]:
    for stall in STALLS.values():
        for name in stall.names:
            yield STALLS_METRIC.format(name)
            yield SAMPLES_METRIC.format(name)


_NAMES = (*dict.fromkeys(name for m in METRICS.values() for name in m.names), *_stall_names())


def _number(action: Any, name: str) -> float | None:
    metric = action.metric_by_name(name)
    if metric is None:
        return None
    value = metric.value()
    return float(value) * factor(metric.unit()) if isinstance(value, int | float) else None


def _text(action: Any, name: str) -> str | None:
    metric = action.metric_by_name(name)
    value = None if metric is None else metric.value()
    return value if isinstance(value, str) else None


def _dimensions(action: Any, stem: str) -> tuple[int, int, int]:
    x, y, z = (int(_number(action, stem + axis) or 0) for axis in "xyz")
    return x, y, z


def _opcodes(action: Any) -> dict[str, int]:
    metric = action.metric_by_name(_OPCODES)
    if metric is None or not metric.has_correlation_ids():
        return {}
    names = metric.correlation_ids()
    found = {names.as_string(i): metric.as_uint64(i) for i in range(metric.num_instances())}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _rules(action: Any) -> Iterator[Rule]:
    for result in action.rule_results_as_dicts():
        stated = result.get("rule_message") or {}
        message = _LINK.sub(r"\1", stated.get("message", "")).strip()
        if not message:
            continue
        estimate = result.get("speedup_estimation") or {}
        gain = estimate.get("speedup")
        yield Rule(
            identifier=str(result.get("rule_identifier", "")),
            section=str(result.get("section_identifier", "")),
            title=stated.get("title", ""),
            message=message,
            kind=_KINDS.get(stated.get("type", 0), "note"),
            speedup=None if gain is None else gain / 100,
            local=estimate.get("type") == 1,
        )


def _per_instruction(action: Any, name: str) -> dict[int, int]:
    """Address -> value."""
    metric = action.metric_by_name(name)
    if metric is None or not metric.has_correlation_ids():
        return {}
    addresses = metric.correlation_ids()
    count = metric.num_instances()
    return {addresses.as_uint64(i): int(metric.as_double(i)) for i in range(count)}


def _lines(action: Any, launch: Launch) -> None:
    """The hottest source lines and instructions, by samples, else by executions."""
    executed = _per_instruction(action, "inst_executed")
    samples = _per_instruction(action, "smsp__pcsamp_sample_count")
    excess = _per_instruction(action, _EXCESS)
    stalls = {
        key: _per_instruction(action, SAMPLES_METRIC.format(name))
        for key, stall in STALLS.items()
        if stall.idle
        for name in stall.names
    }
    addresses = sorted(executed.keys() | samples.keys())
    if not addresses:
        return
    files = dict(action.source_files().items())
    texts = {name: text.splitlines() for name, text in files.items() if text}

    def line(where: str, text: str, members: list[int]) -> Line:
        waiting = {key: sum(of.get(a, 0) for a in members) for key, of in stalls.items()}
        most = max(waiting, key=lambda key: waiting[key])
        return Line(
            where=where,
            text=text.strip(),
            samples=sum(samples.get(a, 0) for a in members),
            executed=sum(executed.get(a, 0) for a in members),
            stall=most if waiting[most] else "",
            excess_sectors=sum(excess.get(a, 0) for a in members),
        )

    def weight(address: int) -> int:
        return samples.get(address, 0) if samples else executed.get(address, 0)

    by_line: dict[tuple[str, int], list[int]] = {}
    for address in addresses:
        info = action.source_info(address)
        if info is not None and info.file_name():
            by_line.setdefault((info.file_name(), int(info.line())), []).append(address)
    first = addresses[0]
    hot = sorted(addresses, key=weight, reverse=True)[:HOTTEST]
    launch.sass = [line(f"+0x{a - first:04x}", str(action.sass_by_pc(a)), [a]) for a in hot]
    lines = sorted(by_line.items(), key=lambda item: -sum(map(weight, item[1])))[:HOTTEST]
    for (name, row), members in lines:
        known = texts.get(name, [])
        text = known[row - 1] if 0 < row <= len(known) else ""
        launch.source.append(line(f"{name}:{row}", text, members))

"""Recomputes every figure of a stored diagnosis from its evidence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from stepscope.diagnosis.profiler_overhead_figures import OVERHEAD_NAMES
from stepscope.diagnosis.result import SCHEMA, Diagnosis, Evidence, Finding, KernelSplit
from stepscope.diagnosis.sentence import unsupported
from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.problems import with_current_names

_EARLIER: Final = "stepscope.diagnosis/1"
VERIFICATION_SCHEMA = "stepscope.verify/1"

_RELATIVE = 1e-9  # what the order of a floating-point sum may change


class Difference(msgspec.Struct, frozen=True):
    """One figure that the trace does not give.

    Attributes:
        where: which part of the report.
        figure: name of the figure.
        reported: its value in the report.
        recomputed: what its statement gives on the trace; null where it cannot be evaluated.
        why: in words.
    """

    where: str
    figure: str
    reported: float | int | str | None
    recomputed: float | int | str | None
    why: str


class Verification(msgspec.Struct, frozen=True):
    """The answer of ``stepscope verify``.

    Attributes:
        schema: name and version of this contract.
        checked: figures that were compared.
        verified: whether all of them agree.
        differences: those that do not, in the order of the report.
    """

    schema: str
    checked: int
    verified: bool
    differences: list[Difference]


def verify(report: bytes, compute: Callable[[str], float | int]) -> Verification:
    """Compare every figure of a report with what its statement gives.

    Each evidence value is recomputed; the fields of findings, the step time and the accounting
    must equal the evidence of the same name; every figure in a finding's sentence must be in its
    evidence.

    Args:
        report: what ``diagnose --format json`` wrote.
        compute: evaluates a statement on the trace.

    Raises:
        InputError: it is no diagnosis of a known version.
    """
    diagnosis = decoded(report)
    checked, differences = 0, []
    for found in _comparisons(diagnosis, compute):
        checked += 1
        if isinstance(found, Difference):
            differences.append(found)
    return Verification(VERIFICATION_SCHEMA, checked, not differences, differences)


def decoded(report: bytes) -> Diagnosis:
    """A stored diagnosis.

    Raises:
        InputError: it is none of a known version.
    """
    try:
        known = msgspec.json.decode(report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"the report is not JSON: {error}; write one with stepscope diagnose --format json"
        ) from error
    schema = known.get("schema") if isinstance(known, dict) else None
    if schema == _EARLIER:
        known = _upgraded(known)
    elif schema != SCHEMA:
        raise InputError(
            f"the report is no diagnosis ({SCHEMA}), "
            + (f"its schema is {schema!r}" if schema else "it names no schema")
            + "; write one with stepscope diagnose --format json"
        )
    try:
        return msgspec.convert(_with_current_names(known), type=Diagnosis)
    except msgspec.ValidationError as error:
        raise InputError(
            f"the report is not whole: {error}; write it again with stepscope diagnose --format "
            "json"
        ) from error


_RENAMED: Final = {
    "says": "message",  # old name: new name
    "do": "recommendations",  # old name: new name
    "because": "root_cause",  # old name: new name
}
_RENAMED_IN_SQL: Final = (
    ("kernel_family", "kernel_category"),  # old name: new name
    (r"\bfamily\b", "category"),  # old name: new name
    ("absent_ns", "missing_ns"),  # old name: new name
)


def _with_current_names(report: dict[str, Any]) -> dict[str, Any]:
    """A report whose problems and statements use the names of today's tables."""

    def current(value: Any) -> Any:
        if isinstance(value, list):
            return [current(item) for item in value]
        if not isinstance(value, dict):
            return value
        found = {name: current(item) for name, item in value.items()}
        if isinstance(sql := found.get("sql"), str):
            for old, new in _RENAMED_IN_SQL:
                sql = re.sub(old, new, sql)
            found["sql"] = sql
        return found

    named: dict[str, Any] = current(report)
    if "problems" in named:
        named["problems"] = with_current_names(named["problems"])
    return named


def _upgraded(report: dict[str, Any]) -> dict[str, Any]:
    """A report of version 1 with the names of version 2.

    It holds neither the mean step nor what a step is; these stay without evidence, and unchecked.
    """

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {_RENAMED.get(name, name): item for name, item in value.items()}

    upgraded = dict(report)
    if "remarks" in upgraded:  # old name: new name
        upgraded["warnings"] = upgraded.pop("remarks")  # old name: new name
    for finding in (found := renamed(report.get("findings"))) or []:
        if isinstance(finding, dict) and "inside" in finding:
            finding["inside"] = renamed(finding["inside"])
    upgraded["findings"] = found
    if isinstance(report.get("trace"), dict):
        unknown = {"kind": "step", "from": "", "inner": []}
        upgraded["trace"] = {
            "step": unknown | {"coverage_gpu": 1.0, "coverage_time": 1.0},
            **report["trace"],
        }
    if isinstance(report.get("step_ns"), dict):
        upgraded["step_ns"] = {"mean": 0, **report["step_ns"]}
    return upgraded


def _comparisons(
    diagnosis: Diagnosis, compute: Callable[[str], float | int]
) -> Iterator[Difference | None]:
    """One item a figure: None where it agrees."""
    facts = [(f"findings[{n}] {one.cause}", one) for n, one in enumerate(diagnosis.findings)]
    facts += [(f"levers[{n}] {one.cause}", one) for n, one in enumerate(diagnosis.levers)]
    for where, finding in facts:
        for item in finding.evidence:
            yield _recomputed(where, item, compute)
        yield from _fields(where, _fields_of(finding), finding.evidence)
        yield from _sentence(where, finding)
    for item in diagnosis.evidence:
        yield _recomputed("evidence", item, compute)
    step = diagnosis.step_ns
    stated: dict[str, Any] = {
        "median_step_ns": step.median,
        "p95_step_ns": step.p95,
        "step_variation": step.coefficient_of_variation,
    }
    if diagnosis.schema != _EARLIER:
        stated["mean_step_ns"] = step.mean
        stated["coverage_gpu"] = diagnosis.trace.step.coverage_gpu
        stated["coverage_time"] = diagnosis.trace.step.coverage_time
    if diagnosis.gpu_utilization is not None:
        stated["gpu_utilization"] = diagnosis.gpu_utilization
    if (cost := diagnosis.profiler_overhead) is not None:
        shown = {item.figure for item in diagnosis.evidence}
        names = next((n for n in OVERHEAD_NAMES if shown.issuperset(n)), OVERHEAD_NAMES[0])
        values = (cost.measured_ns, cost.low_ns, cost.high_ns)
        stated |= dict(zip(names, values, strict=True))
    for gpu in diagnosis.accounting:
        name = f"rank{gpu.rank}.device{gpu.device}"
        values = msgspec.to_builtins(gpu)
        causes = values.pop("idle_by_cause_ns")
        stated |= {f"{name}.{k}": v for k, v in values.items() if k.endswith("_ns")}
        stated |= {f"{name}.steps": gpu.steps} if gpu.steps else {}
        stated |= {f"{name}.idle_by_cause_ns.{k}": v for k, v in causes.items()}
    yield from _fields("summary", stated | _rows(diagnosis), diagnosis.evidence)
    if diagnosis.kernels is not None:
        yield from _split(diagnosis.kernels, compute)


def _rows(diagnosis: Diagnosis) -> dict[str, Any]:
    """The fields of ranks, outlier steps and two repairs together, by the name of their figures."""
    stated: dict[str, Any] = {}
    for row in diagnosis.ranks:
        values = msgspec.to_builtins(row)
        name = f"rank{row.rank}.device{row.device}.mean"
        stated |= {f"{name}.{k}": v for k, v in values.items() if k.endswith("_ns")}
    for odd in diagnosis.outlier_steps:
        stated[f"outlier.step{odd.step}.wall_ns"] = odd.wall_ns
        stated[f"outlier.step{odd.normal_step}.normal_ns"] = odd.normal_ns
    if diagnosis.combined is not None:
        values = msgspec.to_builtins(diagnosis.combined)
        stated |= {f"combined.{k}": v for k, v in values.items() if k.endswith("_ns")}
    return stated


def _split(
    split: KernelSplit, compute: Callable[[str], float | int]
) -> Iterator[Difference | None]:
    """The kernels against the ceilings: every figure, and the fields of its name."""
    for item in split.evidence:
        yield _recomputed("kernels", item, compute)
    stated: dict[str, Any] = {}
    for one in split.categories:
        stated[f"kernels.{one.category}.time_ns_per_step"] = one.time_ns_per_step
        if one.achieved is not None:
            stated[f"kernels.{one.category}.achieved"] = one.achieved
    if split.bound is not None:
        values = msgspec.to_builtins(split.bound)
        stated |= {f"kernels.{name}": v for name, v in values.items() if name != "assumed"}
    yield from _fields("kernels", stated, split.evidence)


def _fields_of(finding: Finding) -> dict[str, float | int]:
    names = ["predicted_step_ns", "prediction_low_ns", "prediction_high_ns"]
    if finding.share_of_step:
        names += ["time_ns_per_step", "share_of_step"]
    elif finding.cause == "insufficient_data":
        return {}
    if finding.unaffected_step_ns is not None:
        names.append("unaffected_step_ns")
    return {name: getattr(finding, name) for name in names}


def _recomputed(
    where: str, item: Evidence, compute: Callable[[str], float | int]
) -> Difference | None:
    try:
        value = compute(item.sql)
    except UsageError as error:
        return Difference(where, item.figure, item.value, None, str(error))
    if _equal(value, item.value):
        return None
    return Difference(where, item.figure, item.value, value, "the trace gives another value")


def _fields(
    where: str, stated: dict[str, Any], evidence: list[Evidence]
) -> Iterator[Difference | None]:
    values = {item.figure: item.value for item in evidence}
    for name, value in stated.items():
        if name not in values:
            yield Difference(where, name, value, None, "the report has no evidence for it")
        elif not _equal(values[name], value):
            why = "the report's field and its evidence differ"
            yield Difference(where, name, value, values[name], why)
        else:
            yield None


def _sentence(where: str, finding: Finding) -> Iterator[Difference | None]:
    where_ = finding.where
    names = [where_.range, where_.operator, where_.source, where_.function, *finding.names]
    missing = unsupported(finding.message, finding.evidence, [name for name in names if name])
    if not finding.message.endswith(finding.reason):
        yield Difference(where, "reason", finding.reason, finding.message, "is not what it says")
    elif not missing:
        yield None
    for number in missing:
        yield Difference(where, "message", number, None, "no evidence shows this figure")


def _equal(one: float, other: float) -> bool:
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=1e-12)

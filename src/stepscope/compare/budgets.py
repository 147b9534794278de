"""Budgets: limits for figures of a run, declared once, read from ``stepscope.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from stepscope.compare.profile import Profile
from stepscope.trace.errors import InputError, UsageError


@dataclass(frozen=True)
class Budget:
    """A figure that can be limited.

    Attributes:
        name: key in ``[gate.budget]`` and on the command line.
        doc: what it is, with its unit.
        value: computes it; None where the capture does not tell.
        missing: what to do where it does not.
    """

    name: str
    doc: str
    value: Callable[[Profile], float | None]
    missing: str = ""


def _part_ns(profile: Profile, name: str) -> float:
    return sum(profile.parts_ns.get(name, [])) / (len(profile.wall_ns) * profile.devices)


def _idle_ns(profile: Profile) -> float:
    return sum(_part_ns(profile, name) for name in profile.parts_ns if name.startswith("idle:"))


BUDGETS: Final[dict[str, Budget]] = {
    budget.name: budget
    for budget in (
        Budget("step_ms", "mean steady step, ms", lambda p: p.step_ns / 1e6),
        Budget("idle_share", "share of the step in which the device is idle, 0 to 1",
               lambda p: _idle_ns(p) / p.step_ns),
        Budget("exposed_communication_ms", "communication that no compute covers, ms per step",
               lambda p: _part_ns(p, "exposed_communication") / 1e6),
        Budget("exposed_communication_share", "the same as a share of the step, 0 to 1",
               lambda p: _part_ns(p, "exposed_communication") / p.step_ns),
        Budget("exposed_copy_ms", "copies that no kernel covers, ms per step",
               lambda p: _part_ns(p, "exposed_copy") / 1e6),
        Budget("peak_memory_bytes", "most memory that the framework had allocated on one device",
               lambda p: p.figures.get("peak_memory_bytes"),
               "record allocations: profile_memory=True of torch.profiler"),
        Budget("kernels_per_step", "kernels per step and device",
               lambda p: p.figures.get("kernels_per_step")),
        Budget("launches_per_step", "calls that enqueue work, a step and device",
               lambda p: p.figures.get("launches_per_step"),
               "record the CUDA runtime: -t cuda of nsys, ProfilerActivity.CPU of torch.profiler"),
    )
}  # fmt: skip
"""Every budget by name."""


@dataclass(frozen=True)
class SqlLimit:
    """A limit on the only cell of a statement's answer.

    Attributes:
        name: what it is called.
        sql: the statement.
        high: largest value allowed; None for no bound.
        low: smallest value allowed; None for no bound.
    """

    name: str
    sql: str
    high: float | None
    low: float | None


@dataclass(frozen=True)
class CellLimit:
    """A limit on a cell of a report.

    Attributes:
        name: what it is called.
        report: report with its arguments, as for ``stats -r``.
        column: column of the cell.
        row: text that one of the row's cells must contain; the first such row counts.
        high: largest value allowed; None for no bound.
        low: smallest value allowed; None for no bound.
    """

    name: str
    report: str
    column: str
    row: str
    high: float | None
    low: float | None


@dataclass(frozen=True)
class Rules:
    """What a gate asks.

    Attributes:
        limits: budget -> largest value allowed.
        figures: limits on SQL figures.
        cells: limits on report cells.
        min_effect: smallest slowdown against the baseline that fails, as a share.
        alpha: how often noise alone may fail the comparison with the baseline.
        run_noise: distance of single runs of the same code in 95 of 100 pairs, as a share; counts
            where there are too few runs to measure it; None for what is assumed then.
        allow_missing: whether what cannot be told passes.
        source: the file that says so; empty for none.
    """

    limits: dict[str, float] = field(default_factory=dict)
    figures: tuple[SqlLimit, ...] = ()
    cells: tuple[CellLimit, ...] = ()
    min_effect: float = 0.02
    alpha: float = 0.01
    run_noise: float | None = None
    allow_missing: bool = False
    source: str = ""


_LONGEST_FILE: Final = 1 << 20
_MOST_DOTS: Final = 1000
_MOST: Final = 1e300
_SETTINGS: Final = ("min_effect", "alpha", "run_noise")


def read_rules(path: Path) -> Rules:
    """Read the ``[gate]`` table of a TOML file.

    Raises:
        InputError: it cannot be read, or something in it is unknown or of the wrong kind.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST_FILE + 1)
        if len(data) > _LONGEST_FILE:
            raise InputError(f"{path} is too large for a configuration; name another file")
        text = data.decode("utf-8")
        # the reader's memory grows with the square of the parts of a key
        dots = [line.count(".") for line in text.splitlines()]
        if max(dots, default=0) > _MOST_DOTS:
            long = dots.index(max(dots)) + 1
            raise InputError(f"line {long} of {path} has more than {_MOST_DOTS} dots; shorten it")
        document = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check the path") from error
    except RecursionError as error:
        raise InputError(f"{path} is no TOML: it is nested too deeply; repair it") from error
    except ValueError as error:  # no UTF-8, no TOML, or integers that are too long
        raise InputError(f"{path} is no TOML: {str(error)[:300]}; repair it") from error
    gate = document.get("gate", {})
    try:
        return _rules(gate, str(path))
    except UsageError as error:
        raise InputError(f"{path}: {error}") from error


def _rules(gate: Any, source: str) -> Rules:
    if not isinstance(gate, dict):
        raise UsageError("gate must be a table: [gate]")
    known = {*_SETTINGS, "allow_missing", "budget", "figure", "cell"}
    _only(gate, known, "[gate]")
    settings: dict[str, Any] = {key: _share(gate[key], key) for key in _SETTINGS if key in gate}
    if "allow_missing" in gate:
        if not isinstance(gate["allow_missing"], bool):
            raise UsageError("allow_missing must be true or false")
        settings["allow_missing"] = gate["allow_missing"]
    budget = gate.get("budget", {})
    if not isinstance(budget, dict):
        raise UsageError("budget must be a table: [gate.budget]")
    return Rules(
        limits={name: _limit(name, value) for name, value in budget.items()},
        figures=tuple(
            SqlLimit(_text(item, "name"), _text(item, "sql"), *_bounds(item, "figure"))
            for item in _items(gate, "figure", {"name", "sql", "max", "min"})
        ),
        cells=tuple(
            CellLimit(
                _text(item, "name"),
                _text(item, "report"),
                _text(item, "column"),
                _text(item, "row", ""),
                *_bounds(item, "cell"),
            )
            for item in _items(gate, "cell", {"name", "report", "column", "row", "max", "min"})
        ),
        source=source,
        **settings,
    )


def with_limits(rules: Rules, written: Sequence[str]) -> Rules:
    """Rules with limits from the command line, written ``NAME=VALUE``.

    Raises:
        UsageError: one is written wrong or unknown.
    """
    limits = dict(rules.limits)
    for text in written:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} is not NAME=VALUE, as in step_ms=25")
        try:
            limits[name.strip()] = _limit(name.strip(), float(value))
        except ValueError:
            raise UsageError(f"{value!r} is no number; write {name}=25") from None
    return replace(rules, limits=limits)


def _limit(name: str, value: Any) -> float:
    if name not in BUDGETS:
        raise UsageError(f"no budget {name!r}; known: {', '.join(BUDGETS)}")
    limit = _number(value, name)
    if name.endswith("_share") and limit > 1:  # as percent it would pass whatever comes
        raise UsageError(f"{name} goes from 0 to 1; for {limit:g} % write {limit / 100:g}")
    if limit < 0:  # no run has less than nothing
        raise UsageError(f"{name} is never below 0; {limit:g} would fail whatever comes")
    return limit


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST < value < _MOST:
        raise UsageError(f"{name} must be a number, and a finite one")
    return float(value)


def _share(value: Any, name: str) -> float:
    number = _number(value, name)
    if not 0 <= number < 1 or (name == "alpha" and not 0 < number < 0.5):
        raise UsageError(f"{name} must be a share between 0 and 1, as in 0.02 for 2 %")
    return number


def _only(table: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(table.keys() - known)
    if unknown:
        raise UsageError(f"{where} knows no {unknown[0]!r}; known: {', '.join(sorted(known))}")


def _items(gate: dict[str, Any], key: str, known: set[str]) -> list[dict[str, Any]]:
    items = gate.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UsageError(f"{key} must be tables: [[gate.{key}]]")
    for item in items:
        _only(item, known, f"[[gate.{key}]]")
    return items


def _text(item: dict[str, Any], key: str, default: str | None = None) -> str:
    value = item.get(key, default)
    if not isinstance(value, str):
        raise UsageError(f"every [[gate.figure]] and [[gate.cell]] needs {key} as text")
    return value


def _bounds(item: dict[str, Any], kind: str) -> tuple[float | None, float | None]:
    high, low = (None if k not in item else _number(item[k], k) for k in ("max", "min"))
    if high is None and low is None:
        raise UsageError(f"[[gate.{kind}]] needs max or min")
    return high, low

"""Read what ``ncu --csv`` printed: ``--page raw`` (a column a metric) or ``--page details``."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from stepscope.ncu.metrics import by_label
from stepscope.ncu.model import Launch, Report, Rule, RuleKind
from stepscope.ncu.units import factor
from stepscope.trace.errors import InputError

_GROUPED = re.compile(r"^-?\d{1,3}(,\d{3})+(\.\d+)?$")
_DIMENSIONS = re.compile(r"\d+")
_KINDS: dict[str, RuleKind] = {"OPT": "optimization", "WRN": "warning", "ERR": "error",
                               "INF": "note", "OK": "good"}  # fmt: skip
_FIELD_LIMIT = 1 << 24
_MEMORY_UNITS = ("dram__", "fbpa__", "lts__", "l1tex__")
_SM_UNITS = ("sm__inst_executed", "sm__pipe", "sm__issue", "sm__mio", "idc__")
_PCT = ".avg.pct_of_peak_sustained_elapsed"
_NOT_PARTS = ("throughput",)

Row = dict[str, str]


def read_csv(path: Path) -> Report:
    """Read a CSV of either page.

    Raises:
        InputError: it is no such CSV, or breaks off within a line.
    """
    csv.field_size_limit(_FIELD_LIMIT)
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace").replace("\0", "")
        rows = list(_rows(text))
    except (OSError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}; print it again with ncu --csv") from error
    if not rows:
        raise InputError(
            f"{path} has a header, but no kernel below it; print it again with "
            "ncu --import REPORT.ncu-rep --csv --page raw"
        )
    details = "Metric Name" in rows[0]
    launches = _of_details(rows) if details else _of_raw(rows)
    for launch in launches:
        _breakdown(launch)
    return Report(str(path), "csv details" if details else "csv raw", launches)


def _rows(text: str) -> Iterator[Row]:
    """Rows below a header as column -> cell; lines of ncu's own log are left out."""
    if text.count('"') % 2:
        raise csv.Error("it ends within a cell, so the file is damaged")
    header: list[str] = []
    lines = (line for line in text.splitlines() if not line.startswith("==") and line.strip())
    for cells in csv.reader(lines):
        if cells[0] == "ID" and "Kernel Name" in cells:
            header = cells
        elif header and len(cells) in _lengths(header):
            # rows of metrics end before the columns about rules, mostly with a comma
            yield dict(zip(header, [*cells, *[""] * (len(header) - len(cells))], strict=True))
        elif header:
            raise csv.Error(
                f"a line has {len(cells)} cells instead of {len(header)}, so the file is damaged"
            )


def _lengths(header: list[str]) -> set[int]:
    """Numbers of cells that a whole line below this header may have."""
    if "Metric Value" not in header:
        return {len(header)}
    least = header.index("Metric Value") + 1
    return {least, min(least + 1, len(header)), len(header)}


def _of_raw(rows: list[Row]) -> list[Launch]:
    launches: list[Launch] = []
    units: Row = {}
    for row in rows:
        if not row["ID"]:
            units = row  # the line below the header
            continue
        launch = _launch(row, len(launches))
        for name, cell in row.items():
            if "__" in name or name.startswith(("memory_", "inst_executed")):
                value = _number(cell)
                if value is not None:
                    launch.values[name] = value * factor(units.get(name, ""))
        launches.append(launch)
    return launches


def _of_details(rows: list[Row]) -> list[Launch]:
    labels = by_label()
    found: dict[tuple[str, str], Launch] = {}
    for row in rows:
        key = row.get("Process ID", ""), row["ID"]
        launch = found.get(key)
        if launch is None:
            launch = found[key] = _launch(row, len(found))
        label, section = row["Metric Name"], row.get("Section Name", "")
        value = _number(row.get("Metric Value", ""))
        if label and value is not None:
            name = (
                label
                if "__" in label
                else (labels.get((section, label)) or labels.get(("", label), ""))
            )
            if name:
                launch.values.setdefault(name, value * factor(row.get("Metric Unit", "")))
        if row.get("Rule Description"):
            launch.rules.append(_rule(row, section))
    return list(found.values())


def function_of(name: str) -> str:
    """A demangled name without return type, namespaces, template arguments and parameters."""
    plain = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    return re.split(r"[<(]", plain, maxsplit=1)[0].split(" ")[-1].rsplit("::", 1)[-1]


def _launch(row: Row, number: int) -> Launch:
    name = row["Kernel Name"]
    return Launch(
        number=number,
        name=name,
        function=function_of(name),
        grid=_triple(row.get("Grid Size", "")),
        block=_triple(row.get("Block Size", "")),
        device=row.get("device__attribute_display_name", ""),
        capability=row.get("CC", ""),
    )


def _rule(row: Row, section: str) -> Rule:
    gain = _number(row.get("Estimated Speedup", ""))
    return Rule(
        identifier=row.get("Rule Name", ""),
        section=section,
        title="",
        message=row["Rule Description"],
        kind=_KINDS.get(row.get("Rule Type", ""), "note"),
        speedup=None if gain is None else gain / 100,
        local=row.get("Estimated Speedup Type", "") == "local",
    )


def _breakdown(launch: Launch) -> None:
    """What the throughputs are made of: the raw page names no breakdown, but holds its metrics."""
    parts = {
        name: value
        for name, value in launch.values.items()
        if name.endswith(_PCT) and not any(word in name for word in _NOT_PARTS)
    }
    launch.breakdown = {
        "memory": {n: v for n, v in parts.items() if n.startswith(_MEMORY_UNITS)},
        "compute": {n: v for n, v in parts.items() if n.startswith(_SM_UNITS)},
    }


def _number(cell: str) -> float | None:
    """A cell as ncu writes numbers; None for text, and for what was not collected."""
    cell = cell.strip()
    if not cell:
        return None
    if _GROUPED.match(cell):
        cell = cell.replace(",", "")
    cell = cell.split(" ", 1)[0]  # values of instances follow in brackets
    try:
        return float(cell)
    except ValueError:
        return None


def _triple(text: str) -> tuple[int, int, int]:
    sizes = [int(found[:12]) for found in _DIMENSIONS.findall(text)[:3]]
    x, y, z = (*sizes, *([1] * (3 - len(sizes)))) if sizes else (0, 0, 0)
    return x, y, z

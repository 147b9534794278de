"""What tests cost: CPU seconds of each test and fixture, what they started included.

``pytest --cpu FILE`` appends one JSON line to FILE for each test and fixture; ``python -m
tests.support.costs FILE`` sums them. CPU seconds say on a busy machine what ``--durations``, which
reads a clock, cannot.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

TICK = os.sysconf("SC_CLK_TCK")


def spent() -> float:
    """CPU seconds so far of this process, of what it waited for, and of all that it has running."""
    own = os.times()
    below = _running(os.getpid())
    return own.user + own.system + own.children_user + own.children_system + below


def _running(process: int) -> float:
    """CPU seconds of the live descendants, and of what those waited for."""
    total = 0.0
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a child ended meanwhile
            for child in children.read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) / TICK + _running(int(child))
    return total


class Costs:
    """The plugin: writes a line a test and a line a fixture."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inside = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
        outer, self._inside, start = self._inside, 0.0, spent()
        try:
            return (yield)
        finally:
            all_of_it = spent() - start
            self._write(
                "fixture", f"{fixturedef.baseid}::{fixturedef.argname}", all_of_it - self._inside
            )
            self._inside = outer + all_of_it

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._inside, start = 0.0, spent()
        try:
            return (yield)
        finally:
            self._write("test", item.nodeid, spent() - start - self._inside)

    def _write(self, what: str, name: str, seconds: float) -> None:
        line = json.dumps({"what": what, "name": name, "cpu_s": round(seconds, 4)}) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)  # one short write: lines of several workers stay whole


def summary(path: Path, rows: int) -> None:
    """Print the sums by folder, by file, by test function and by fixture."""
    sums: dict[str, dict[str, list[float]]] = {
        key: defaultdict(list) for key in ("folders", "files", "test functions", "fixtures")
    }
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        file, _, name = row["name"].partition("::")
        folder = "/".join(file.split("/")[:2])
        sums["folders"][folder].append(row["cpu_s"])
        if row["what"] == "fixture":
            sums["fixtures"][row["name"]].append(row["cpu_s"])
        else:
            sums["files"][file].append(row["cpu_s"])
            sums["test functions"][f"{file}::{name.partition('[')[0]}"].append(row["cpu_s"])
    for title, groups in sums.items():
        print(f"{title}: {sum(map(sum, groups.values())):.1f} s")
        ordered = sorted(groups.items(), key=lambda group: -sum(group[1]))
        for name, costs in ordered[:rows]:
            print(f"  {sum(costs):8.2f} s {len(costs):6}  {name}")


if __name__ == "__main__":
    summary(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40)

"""What every importer makes of its captures: each table's rows and its columns in short.

A captured file in one of the folders of ``FILES`` is a row by itself; an importer whose captures
are made in Python has a row in ``MADE``.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import xspace
from tests.support.allocator import MIB, Allocator
from tests.support.captures import DATA, unpack
from tests.support.perfetto import timeline
from tests.support.raw import write_raw
from tests.support.rocprof import Run, as_database, as_json
from tests.support.snapshots import Snapshot, columns_text, left_over

from stepscope.cache.store import Cache
from stepscope.importers.registry import detect, importers, load
from stepscope.trace.trace import Trace

HERE = Path(__file__).parent
TUTORIALS = HERE.parents[1] / "src/stepscope/data/tutorials"
FILES = {
    path.relative_to(folder.parent).as_posix(): path
    for folder in (
        *(DATA / "jax", DATA / "kineto", DATA / "nsys", DATA.parent / "levers"),
        *(DATA.parent / "ranks", HERE / "kineto_data", HERE / "nsys_data", TUTORIALS),
    )
    for path in sorted(folder.iterdir())
    if path.name.endswith((".sqlite.xz", ".json.xz", ".json.gz", ".json.zst"))
}


def allocations() -> bytes:
    draw, made = random.Random(1), Allocator()
    live = [made.alloc(draw.randint(300, 31 * MIB)) for _ in range(60)]
    for address in live[::3]:
        made.free(address)
    return pickle.dumps(made.snapshot())


MADE: dict[str, Callable[[Path], object]] = {
    "allocations.pickle": lambda path: path.write_bytes(allocations()),
    "loop.pftrace": lambda path: path.write_bytes(timeline()),
    "rocprof.db": lambda path: as_database(Run(), path, tracks=True),
    "rocprof.json": lambda path: path.write_bytes(as_json(Run())),
    "killed.stepscope-raw": write_raw,
    "training.xplane.pb": lambda path: path.write_bytes(xspace.training(steps=3)),
}


def names() -> dict[str, str]:
    """Row -> the name of its snapshot."""
    return {row: f"{row.partition('.')[0].replace('/', '-')}.{row.partition('.')[2]}.txt"
            for row in (*FILES, *MADE)}  # fmt: skip


def summary(trace: Trace) -> str:
    meta = trace.meta
    lines = [f"source {meta.source}"]
    lines += [f"problem {problem.id}: {problem.count}" for problem in meta.problems]
    lines += [f"missing {missing.table}" for missing in meta.missing]
    for table, rows in sorted(meta.rows.items()):
        lines += [f"\n{table}: {rows} rows", *columns_text(trace.arrow(table), exact=True)]
    return "\n".join(lines)


def test_every_importer_has_a_capture(tmp_path: Path) -> None:
    found = set()
    for name, make in MADE.items():
        make(tmp_path / name)
        found.add(detect(tmp_path / name))
    found |= {detect(unpack(path)) for path in FILES.values()}
    assert {importer.name for importer in importers()} == {known.name for known in found if known}
    assert not left_over(__file__, names().values())


@pytest.mark.parametrize("row", names())
def test_tables_of_a_capture(row: str, snapshot: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / row if row in MADE else unpack(FILES[row])
    if row in MADE:
        MADE[row](path)
    snapshot(summary(load(path, Cache())), names()[row])

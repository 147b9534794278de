"""Recipes of the real ``nsys`` over SQLite exports, for golden figures and for benchmarks.

``nsys recipe`` takes reports only, but it reads nothing of a report whose exports lie beside it
and are younger: an empty file stands for each report, beside its SQLite export and the Parquet
files that ``nsys export --type parquetdir`` would make of it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_TYPES = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string(), "BLOB": pa.binary()}


def stage(captures: Sequence[Path], folder: Path) -> Path:
    """A folder of reports with their exports beside them; what is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for capture in captures:
        report = folder / f"{capture.stem}.nsys-rep"
        if not report.exists():
            report.touch()
        # a recipe that finds no data removes the export before it tries to make another
        if not report.with_suffix(".sqlite").exists():
            shutil.copyfile(capture, report.with_suffix(".sqlite"))
        tables = folder / f"{capture.stem}_pqtdir"
        if tables.exists():
            continue
        tables.mkdir()
        connection = sqlite3.connect(capture)
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (name,) in names.fetchall():
            columns = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
            rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()
            values = zip(*rows, strict=True) if rows else [[] for _ in columns]
            arrays = [
                pa.array(list(column), _TYPES.get(about[2].upper(), pa.string()), from_pandas=True)
                for column, about in zip(values, columns, strict=True)
            ]
            table = pa.table(arrays, names=[about[1] for about in columns])
            pq.write_table(table, tables / f"{name}.parquet")
        connection.close()
    return folder


def run(
    nsys: Path, python: Path, recipe: str, inputs: Path, output: Path, *options: str
) -> dict[str, pa.Table]:
    """What a real recipe writes, by file name without suffix.

    Args:
        nsys: the tool.
        python: an interpreter below 3.12 with pandas, pyarrow and psutil.
        recipe: name.
        inputs: what :func:`stage` made.
        output: a new folder.
        options: of the recipe.

    Raises:
        RuntimeError: it wrote nothing, with what it said.
    """
    for place in nsys.parent.glob("root/usr/lib/*/nsight-systems/target-*/python/packages"):
        (place / "nsys_recipe" / "third_party").mkdir(exist_ok=True)  # the package lacks it
    paths = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    done = subprocess.run(
        [nsys, "recipe", recipe, "--input", inputs, "--output", output, *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": paths},
    )
    found = {path.stem: pq.read_table(path) for path in sorted(output.glob("*.parquet"))}
    if not found:
        raise RuntimeError(f"{recipe}: {done.stdout} {done.stderr}".strip())
    return found

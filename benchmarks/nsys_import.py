"""How fast, and in how much memory, a large Nsight Systems SQLite export is imported.

    python benchmarks/nsys_import.py SOURCE.sqlite [--factor 40] [--repeat 3] [--shuffle]

Tiles the source trace (times and correlation ids shifted), then measures each contender in a
process of its own, in turn: reading only the same columns with ADBC in one piece (the floor of any
reader in Python), the import into a trace, the import without ADBC, and ``nsys stats`` where nsys
is found (STEPSCOPE_NSYS, PATH or the usual folders). Prints the best wall time of the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMES = ("start", "end", "timestamp")
LITERALS = {"int": "0", "float": "0.0", "text": "x''"}
TILED = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "NVTX_EVENTS",
    "OSRT_API",
    "SCHED_EVENTS",
    "COMPOSITE_EVENTS",
)


def length_ns(path: Path) -> int:
    """Length of an exported capture, ns."""
    db = sqlite3.connect(path)
    (length,) = db.execute("SELECT max(duration) FROM ANALYSIS_DETAILS").fetchone()
    db.close()
    return int(length)


def tile(
    source: Path, target: Path, factor: int, *, shuffle: bool, span_ns: int | None = None
) -> None:
    """Write ``factor`` copies of a trace one after another into one database.

    Args:
        source: the trace.
        target: the database.
        factor: number of copies.
        shuffle: whether rows are stored out of order.
        span_ns: from one copy to the next; the trace's own length by default.
    """
    shutil.copyfile(source, target)
    db = sqlite3.connect(target)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA synchronous = OFF")
    span = span_ns or length_ns(source)
    ids = db.execute("SELECT max(correlationId) + 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0]
    for table in TILED:
        columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
        if not columns:
            continue
        last = db.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0]
        for number in range(1, factor):
            shown = ", ".join(
                f'"{name}" + {number * span}'
                if name in TIMES
                else f'"{name}" + {number * ids}'
                if name == "correlationId"
                else f'"{name}" + {number << 32}'
                if name == "id"
                else f'"{name}"'
                for name in columns
            )
            db.execute(f"INSERT INTO {table} SELECT {shown} FROM {table} WHERE rowid <= ?", (last,))
        if shuffle:
            db.execute(f"CREATE TABLE shuffled AS SELECT * FROM {table} ORDER BY random()")
            db.execute(f"DELETE FROM {table}")
            db.execute(f"INSERT INTO {table} SELECT * FROM shuffled")
            db.execute("DROP TABLE shuffled")
    db.execute("UPDATE ANALYSIS_DETAILS SET duration = duration * ?", (factor,))
    db.commit()
    if shuffle:
        db.execute("VACUUM")
    db.close()


# contenders, each run in a process of its own -----------------------------------------------------


def import_trace(path: Path) -> int:
    """Import into an empty folder; returns the rows of all tables."""
    from stepscope.importers.nsys import IMPORTER
    from stepscope.trace.problems import ProblemLog
    from stepscope.trace.store import TraceWriter

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        problems = ProblemLog()
        writer = TraceWriter(Path(folder), problems)
        IMPORTER.read(path, writer)
        rows = sum(writer.close().values())
        losses = [p for p in problems.problems() if p.severity in ("data_loss", "error")]
        assert not losses, losses
        return rows


def import_without_adbc(path: Path) -> int:
    sys.modules["adbc_driver_sqlite"] = None  # type: ignore[assignment]
    return import_trace(path)


def read_columns(path: Path) -> int:
    """Read the columns that the import asks for, with ADBC, each table in one piece."""
    import adbc_driver_manager
    import adbc_driver_sqlite
    import pyarrow as pa

    from stepscope.importers.nsys.source import sqlite_uri

    rows, kept = 0, []
    for table, columns in wanted_columns(path.with_suffix(".columns.json")):
        literals = ", ".join(
            {"int": "0", "float": "0.0", "text": "x''"}[k] for k in columns.values()
        )
        shown = ", ".join(
            f'CAST("{name}" AS BLOB)' if kind == "text" else f'"{name}"'
            for name, kind in columns.items()
        )
        with (
            adbc_driver_sqlite.connect(sqlite_uri(path)) as database,
            adbc_driver_manager.AdbcConnection(database) as connection,
            adbc_driver_manager.AdbcStatement(connection) as statement,
        ):
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(1 << 16)})
            statement.set_sql_query(f'SELECT {literals} UNION ALL SELECT {shown} FROM "{table}"')
            handle, _ = statement.execute_query()
            reader = pa.RecordBatchReader._import_from_c(handle.address)
            found = reader.read_all()
        kept.append(found)
        rows += found.num_rows - 1
    return rows


def wanted_columns(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    yield from json.loads(file.read_text())


def record_columns(source: Path, file: Path) -> None:
    """Note which columns of which tables an import of ``source`` asks for."""
    from stepscope.importers.nsys.sqlite_source import SqliteSource

    asked: list[tuple[str, dict[str, str]]] = []
    original = SqliteSource.batches

    def batches(
        self: Any, table: str, columns: Any, bad: Any, where: Any = None, order: Any = None
    ) -> Any:
        if where is None:
            asked.append((table, dict(columns)))
        return original(self, table, columns, bad, where, order)

    SqliteSource.batches = batches  # type: ignore[method-assign]
    import_trace(source)
    file.write_text(json.dumps(asked))


CONTENDERS = {
    "adbc, columns only, one piece": read_columns,
    "stepscope import": import_trace,
    "stepscope import, no adbc": import_without_adbc,
}


# measuring ----------------------------------------------------------------------------------------


def measure(command: list[str]) -> dict[str, Any]:
    """Wall s, CPU s and peak MB of a command and its children."""
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode("utf-8", "replace").strip()
    if process.returncode:
        sys.exit(f"{command} failed:\n{text}")
    return {
        "wall": wall,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak": usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1 << 20),
        "said": text.splitlines()[-1] if text else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--factor", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--shuffle", action="store_true", help="rows in random order (2025.6+)")
    parser.add_argument("--keep", type=Path, help="keep the tiled database here")
    parser.add_argument("--run", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(CONTENDERS[arguments.run](arguments.source))
        return
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-") as name:
        compare(arguments, Path(name))


def compare(arguments: argparse.Namespace, folder: Path) -> None:
    from stepscope.importers.nsys.sqlite_source import find_nsys

    path = folder / "tiled.sqlite"
    tile(arguments.source, path, arguments.factor, shuffle=arguments.shuffle)
    record_columns(arguments.source, path.with_suffix(".columns.json"))
    with path.open("rb") as stream:
        while stream.read(1 << 24):  # everybody starts with the file in the page cache
            pass
    print(f"{arguments.source.name} x {arguments.factor}: {path.stat().st_size / 1e6:.0f} MB")
    commands = {name: [sys.executable, __file__, str(path), "--run", name] for name in CONTENDERS}
    nsys = find_nsys()
    if nsys is None:
        print("nsys stats: skipped, no nsys found (set STEPSCOPE_NSYS)")
    else:
        reports = ["-r", "cuda_gpu_kern_sum", "-r", "cuda_api_sum", "--format", "csv"]
        output = ["--output", str(folder / "stats"), "--force-overwrite", "true"]
        commands["nsys stats, two sums"] = [str(nsys), "stats", *reports, *output, str(path)]
    best: dict[str, dict[str, Any]] = {}
    for _ in range(arguments.repeat):
        for contender, command in commands.items():
            result = measure(command)
            if contender not in best or result["wall"] < best[contender]["wall"]:
                best[contender] = result
    floor = best["adbc, columns only, one piece"]
    print(f"{'contender':32}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}{'wall ratio':>12}{'rows':>12}")
    for contender, result in best.items():
        rows = result["said"] if contender in CONTENDERS else ""
        print(
            f"{contender:32}{result['wall']:8.2f}{result['cpu']:8.2f}{result['peak']:9.0f}"
            f"{result['wall'] / floor['wall']:12.2f}{rows:>12}"
        )
    if arguments.keep:
        shutil.move(path, arguments.keep)


if __name__ == "__main__":
    main()

"""Cut the compressed fixtures beside this file from full captures.

    python make_fixtures.py ddp CAPTURE.sqlite        -> ddp_2steps.sqlite.xz
    python make_fixtures.py host CAPTURE.sqlite       -> host_2023_4.sqlite.xz
    python make_fixtures.py stream CAPTURE.arrows     -> host_2023_4.arrows.xz

``ddp``: one rank of a DDP training (Nsight Systems 2025.3, ``-t cuda,nvtx``), two of its steps.
``host``: a Python program with threads, NVTX ranges of which two stay open, samples, scheduling,
OS runtime and the GIL (2023.4). ``stream`` is the same report exported with ``-t arrow``.
Everything about the machine and its other processes is left out, and of the environment all but
the variables that tell the rank.
"""

from __future__ import annotations

import lzma
import sqlite3
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
KEPT_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
KEPT_SYSTEM = (
    "CpuCores",
    "CpuDescription",
    "NvDriverVersion",
    "CudaDriverVersion",
    "OsDescription",
    "Hostname",
)
KEPT_ENUMS = (
    "ENUM_CUDA_MEMCPY_OPER",
    "ENUM_CUDA_MEM_KIND",
    "ENUM_CUPTI_SYNC_TYPE",
    "ENUM_NSYS_EVENT_CLASS",
)
STRING_COLUMNS = ("nameId", "textId", "demangledName", "shortName", "mangledName", "jsonTextId")
DROPPED = ("ProcessStreams", "ANALYSIS_FILE", "OSRT_CALLCHAINS", "SAMPLING_CALLCHAINS")


def tables_of(db: sqlite3.Connection) -> dict[str, list[str]]:
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: [row[1] for row in db.execute(f'PRAGMA table_info("{name}")')] for name in names}


def keep_steps(db: sqlite3.Connection, first: int, last: int) -> None:
    """Keep the events of some steps; GPU work by the calls that launched it."""
    low, high = db.execute(
        "SELECT min(start), max(end) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId"
        " WHERE coalesce(s.value, n.text) IN (?, ?)",
        (f"step_{first}", f"step_{last}"),
    ).fetchone()
    tables = tables_of(db)
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"):
        db.execute(f"DELETE FROM {table} WHERE start < ? OR end > ?", (low, high))
    db.execute(
        "DELETE FROM NVTX_EVENTS WHERE eventType <> 75 AND (start < ? OR end > ?)", (low, high)
    )
    for part in ("KERNEL", "MEMCPY", "MEMSET", "CUDA_EVENT"):
        table = f"CUPTI_ACTIVITY_KIND_{part}"
        if table in tables:
            db.execute(
                f"DELETE FROM {table} WHERE correlationId NOT IN"
                " (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME)"
            )


def strip(db: sqlite3.Connection) -> None:
    """Remove what is about the machine, and strings that nothing refers to."""
    tables = tables_of(db)
    for table in tables:
        if table in DROPPED or (table.startswith("ENUM_") and table not in KEPT_ENUMS):
            db.execute(f'DROP TABLE "{table}"')
    tables = tables_of(db)
    threads = " UNION ".join(
        f"SELECT globalTid FROM {table}"
        for table, columns in tables.items()
        if "globalTid" in columns and table != "ThreadNames"
    )
    db.execute(f"DELETE FROM ThreadNames WHERE globalTid NOT IN ({threads})")
    db.execute(
        f"DELETE FROM PROCESSES WHERE globalPid NOT IN (SELECT (globalTid >> 24) << 24 FROM"
        f" ({threads}))"
    )
    db.execute(
        "DELETE FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT_VARIABLE' AND NOT ("
        + " OR ".join(f"value LIKE '{name}=%'" for name in KEPT_VARIABLES)
        + ")"
    )
    db.execute("DELETE FROM META_DATA_CAPTURE WHERE name LIKE '%DIRECTORY%' OR value LIKE '%/%/%'")
    db.execute("DELETE FROM META_DATA_EXPORT WHERE value LIKE '%/%'")
    kept = ", ".join(f"'{name}'" for name in KEPT_SYSTEM)
    db.execute(f"DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE name NOT IN ({kept})")
    if "DIAGNOSTIC_EVENT" in tables:
        db.execute("DELETE FROM DIAGNOSTIC_EVENT WHERE text LIKE '%/%'")
    used = " UNION ".join(
        f'SELECT "{column}" FROM {table} WHERE "{column}" IS NOT NULL'
        for table, columns in tables.items()
        for column in columns
        if column in STRING_COLUMNS
    )
    db.execute(f"DELETE FROM StringIds WHERE id NOT IN ({used})")
    db.commit()
    db.execute("VACUUM")


def pack(data: bytes, name: str) -> None:
    packed = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    (HERE / f"{name}.xz").write_bytes(packed)
    print(f"{name}: {len(data)} bytes, {len(packed)} packed")


def cut_database(source: Path, name: str, steps: tuple[int, int] | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.sqlite"
        copy.write_bytes(source.read_bytes())
        db = sqlite3.connect(copy)
        if steps:
            keep_steps(db, *steps)
        strip(db)
        db.close()
        pack(copy.read_bytes(), name)


def cut_stream(source: Path, database: Path, name: str) -> None:
    """The rows that the cut database of the same report still holds, in the stream's own types."""
    import pyarrow as pa
    from pyarrow import ipc

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.sqlite"
        copy.write_bytes(lzma.decompress(database.read_bytes()))
        db = sqlite3.connect(copy)
        out = pa.BufferOutputStream()
        with pa.OSFile(str(source)) as stream:
            while stream.tell() < stream.size():
                table = ipc.open_stream(stream).read_all()
                known = table.schema.metadata[b"table_name"].decode()
                if known not in tables_of(db):
                    continue
                columns = ", ".join(f'"{field.name}"' for field in table.schema)
                kept = {tuple(row) for row in db.execute(f'SELECT {columns} FROM "{known}"')}
                rows = [tuple(row.values()) for row in table.to_pylist()]
                table = table.filter(pa.array([row in kept for row in rows], pa.bool_()))
                with ipc.new_stream(out, table.schema) as writer:
                    writer.write_table(table)
        db.close()
        pack(out.getvalue().to_pybytes(), name)


if __name__ == "__main__":
    what, given = sys.argv[1], Path(sys.argv[2])
    if what == "ddp":
        cut_database(given, "ddp_2steps.sqlite", (8, 9))
    elif what == "host":
        cut_database(given, "host_2023_4.sqlite", None)
    else:
        cut_stream(given, HERE / "host_2023_4.sqlite.xz", "host_2023_4.arrows")

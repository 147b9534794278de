"""Cut Nsight Systems exports of the ranks of one job to some steps, small enough to commit.

usage: python tests/data/ranks/make.py FIRST_STEP EXPORT.sqlite... (writes EXPORT.sqlite.xz here)

What began before the range ``step_<FIRST_STEP>`` is removed, and the GPU work that it enqueued;
so is what the export tells of the machine: its processes, paths and environment but for the rank.
"""

from __future__ import annotations

import lzma
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

_HOST = ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
         "PROFILER_OVERHEAD")  # fmt: skip
_GPU = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT")  # fmt: skip

_USED = "SELECT shortName FROM CUPTI_ACTIVITY_KIND_KERNEL UNION " + " UNION ".join(
    f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"
    for table, column in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "mangledName"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
        ("NVTX_EVENTS", "textId"),
        ("ThreadNames", "nameId"),
        ("PROFILER_OVERHEAD", "nameId"),
    )
)
_PRIVATE = (
    "DELETE FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT%' AND value NOT LIKE 'RANK=%' "
    "AND value NOT LIKE 'WORLD_SIZE=%'",
    "DELETE FROM META_DATA_CAPTURE WHERE value LIKE '/%' OR name LIKE '%PATH%' "
    "OR name LIKE '%DIR%' OR name LIKE '%ARGUMENT%'",
    "DELETE FROM META_DATA_EXPORT WHERE value LIKE '%/%'",
    "DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE length(value) > 200 OR value LIKE '%/%'",
    "DELETE FROM DIAGNOSTIC_EVENT WHERE text LIKE '%/%'",
    "DELETE FROM PROCESSES WHERE globalPid NOT IN (SELECT globalPid FROM "
    "CUPTI_ACTIVITY_KIND_KERNEL)",
    "DELETE FROM ThreadNames WHERE globalTid / 16777216 * 16777216 NOT IN (SELECT globalPid FROM "
    "CUPTI_ACTIVITY_KIND_KERNEL)",
    "DELETE FROM ANALYSIS_FILE",
    "DELETE FROM ProcessStreams",
    f"DELETE FROM StringIds WHERE id NOT IN ({_USED})",
)


def cut(export: Path, first_step: int, target: Path) -> None:
    """Write the export from a step on, compressed."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / export.name
        shutil.copyfile(export, copy)
        connection = sqlite3.connect(copy)
        ((begin,),) = connection.execute(
            "SELECT min(n.start) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
            "WHERE coalesce(n.text, s.value) = ?",
            [f"step_{first_step}"],
        ).fetchall()
        for table in _HOST:
            # a domain's declaration carries its name and is no event of a step
            keep = " AND eventType <> 75" if table == "NVTX_EVENTS" else ""
            connection.execute(f"DELETE FROM {table} WHERE start < ?{keep}", [begin])
        for table in _GPU:
            connection.execute(
                f"DELETE FROM {table} WHERE correlationId NOT IN "
                "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME)"
            )
        for statement in _PRIVATE:
            connection.execute(statement)
        connection.commit()
        connection.execute("VACUUM")
        connection.close()
        target.write_bytes(lzma.compress(copy.read_bytes(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        path = Path(name)
        cut(path, int(sys.argv[1]), Path(__file__).parent / f"{path.name}.xz")

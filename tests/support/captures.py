"""Real captures for tests: unpacking, and variants with something taken away."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import re
import sqlite3
from pathlib import Path
from typing import IO, Any

DATA = Path(__file__).parents[1] / "data" / "captures"
BUNDLED = Path(__file__).parents[2] / "src/stepscope/data/h200_input_starvation.sqlite.xz"


def unpack(packed: Path, folder: Path) -> Path:
    """A capture ready to read; ``.xz`` is unpacked into ``folder``, others are used in place."""
    if packed.suffix != ".xz":
        return packed
    target = folder / packed.stem
    if not target.exists():
        partial = target.with_suffix(".part")
        partial.write_bytes(lzma.decompress(packed.read_bytes()))
        partial.replace(target)
    return target


def without_annotations(capture: Path, folder: Path) -> Path:
    """The same capture as if the program had no NVTX ranges and no user annotations."""
    target = folder / f"bare_{capture.name}"
    if capture.suffix == ".sqlite":
        target.write_bytes(capture.read_bytes())
        connection = sqlite3.connect(target)
        with connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            if "NVTX_EVENTS" in tables:  # exports leave empty tables out
                connection.execute("DELETE FROM NVTX_EVENTS")
        connection.close()
        return target
    with _opened(capture, "rt") as stream:
        document = json.load(stream)
    events = document["traceEvents"]
    document["traceEvents"] = [
        event
        for event in events
        if event.get("cat") not in ("user_annotation", "gpu_user_annotation")
        and not re.match(r"ProfilerStep#", event.get("name", ""))
    ]
    with _opened(target, "wt") as stream:
        json.dump(document, stream)
    return target


def _opened(path: Path, mode: str) -> IO[Any]:
    """A text file, compressed where its name says so."""
    return gzip.open(path, mode, compresslevel=1) if path.suffix == ".gz" else path.open(mode)


def with_lost_records(capture: Path, folder: Path, share: float) -> Path:
    """The same capture as if the tool had lost a share of the kernels, copies and calls.

    Which ones is decided by a fixed pseudo-random sequence.
    """
    target = folder / f"lost_{capture.name}"
    chance = random.Random(0)
    if capture.suffix == ".sqlite":
        target.write_bytes(capture.read_bytes())
        connection = sqlite3.connect(target)
        with connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY",
                          "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):  # fmt: skip
                if table not in tables:
                    continue
                rows = connection.execute(f"SELECT rowid FROM {table}").fetchall()
                lost = [row for row in rows if chance.random() < share]
                connection.executemany(f"DELETE FROM {table} WHERE rowid = ?", lost)
        connection.close()
        return target
    with _opened(capture, "rt") as stream:
        document = json.load(stream)
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if event.get("ph") != "X" or chance.random() >= share
    ]
    with _opened(target, "wt") as stream:
        json.dump(document, stream)
    return target

"""Real captures for tests: unpacking, and variants with something taken away."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import sqlite3
from pathlib import Path

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
    packed = capture.suffix == ".gz"
    with gzip.open(capture, "rt") if packed else capture.open() as stream:
        document = json.load(stream)
    events = document["traceEvents"]
    document["traceEvents"] = [
        event
        for event in events
        if event.get("cat") not in ("user_annotation", "gpu_user_annotation")
        and not re.match(r"ProfilerStep#", event.get("name", ""))
    ]
    with gzip.open(target, "wt", compresslevel=1) if packed else target.open("w") as stream:
        json.dump(document, stream)
    return target

"""Tasks for tests of the engine: importable, as those of the product are."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stepscope.trace.errors import InputError


def counted(source: Path, output: Path, options: dict[str, Any]) -> None:
    """The length of a text; what the text says may go wrong instead."""
    text = source.read_text()
    if text.startswith("broken"):
        raise InputError(f"{source.name} is broken")
    if text.startswith("bug"):
        raise KeyError(text)
    if text.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if text.startswith("once"):  # the first process that reads it dies
        mark = source.with_suffix(".seen")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if text.startswith("waits"):  # the first time, until it is killed or told to go on
        mark = source.with_suffix(".pid")
        if not mark.exists():
            mark.write_text(str(os.getpid()))
            while not source.with_suffix(".go").exists():
                time.sleep(0.01)
    if text.startswith("full"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if text.startswith("slow"):
        source.with_suffix(".started").touch()
        time.sleep(60)
    pq.write_table(pa.table({"length": [len(text) * options.get("times", 1)]}), output)

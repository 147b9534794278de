"""Real captures for tests: unpacking, and variants with something taken away."""

from __future__ import annotations

import fcntl
import gzip
import itertools
import json
import lzma
import os
import random
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from stepscope.api import Job

DATA = Path(__file__).parents[1] / "data" / "captures"
SHARED = Path(__file__).parents[3] / "shared" / "data"
BUNDLED = Path(__file__).parents[2] / "src/stepscope/data/h200_input_starvation.sqlite.xz"


def of_each_cause() -> dict[str, str]:
    """One labelled capture for each cause and source that one shows: the smallest file, its cause.

    For tests that change a capture and diagnose it anew; what is only read is diagnosed once a run.
    """
    rows = [row for row in json.loads((DATA / "truth.json").read_text()) if row["cause"]]
    rows.sort(key=lambda row: (DATA / row["file"]).stat().st_size)
    chosen = {(row["source"], row["cause"]): row for row in reversed(rows)}
    return {row["file"]: row["cause"] for row in rows if row in chosen.values()}


def shared(name: str) -> Path:
    """A capture of ../shared/data, unpacked as by ``unpack``; skips where it is absent."""
    if not (SHARED / name).exists():
        pytest.skip(f"needs ../shared/data/{name}, which is not here")
    return unpack(SHARED / name)


def unpack(packed: Path, folder: Path | None = None) -> Path:
    """A capture ready to read; ``.xz`` is unpacked, others are used in place.

    Without a folder it is one for the whole test run, whichever xdist worker asks first. With the
    cache that all share, such a capture is imported and diagnosed once. Do not change it.
    """
    if packed.suffix != ".xz":
        return packed
    if folder is None:
        kind = packed.parent.name
        target = _once(packed.stem, kind, lambda into: _unpacked(packed, into / packed.stem))
    else:
        target = _unpacked(packed, folder / packed.stem)
    if target.suffix == ".tar":
        (target,) = target.iterdir()  # what our collector recorded
    return target


def _unpacked(packed: Path, target: Path) -> Path:
    if target.exists():
        return target
    partial = target.with_suffix(".part")
    if target.suffix == ".tar":
        with tarfile.open(packed) as archive:
            # Python before 3.11.4 knows no filters
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(partial)
    else:
        with lzma.open(packed) as source, partial.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    return partial.replace(target)


def _once(name: str, kind: str, make: Callable[[Path], Path]) -> Path:
    """A file or folder of a test run, made by who asks first."""
    folder = Path(os.environ["STEPSCOPE_CACHE_DIR"]).parent / "captures" / kind
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # what was interrupted is not taken for whole
        done = folder / f"{name}.done"
        if not done.exists():
            assert make(folder) == folder / name
            done.touch()
    return folder / name


def ranks_of(name: str, source: str) -> Path:
    """A folder of the four ranks of a job of ../shared/data/h200, one for the whole test run.

    Args:
        name: of the job, such as ``ddp_healthy``.
        source: ``nsys`` or ``kineto``.
    """
    suffix = {"nsys": "sqlite.xz", "kineto": "json.gz"}[source]
    captures = [shared(f"h200/{source}/{name}.rank{rank}.{suffix}") for rank in range(4)]

    def linked(into: Path) -> Path:
        folder = into / f"{name}.ranks"
        folder.mkdir(exist_ok=True)
        for capture in captures:
            (folder / capture.name).unlink(missing_ok=True)
            (folder / capture.name).symlink_to(capture)
        return folder

    return _once(f"{name}.ranks", source, linked)


def without_annotations(capture: Path, folder: Path | None = None) -> Path:
    """The same capture as if the program had no NVTX ranges and no user annotations.

    Without a folder it is one for the whole test run, as in ``unpack``.
    """
    if folder is None:
        kind = capture.parent.name
        return _once(f"bare_{capture.name}", kind, lambda into: without_annotations(capture, into))
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
        stream.write(json.dumps(document))
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
        stream.write(json.dumps(document))  # json.dump takes several times as long
    return target


def edited(
    capture: Path, folder: Path, *, kernel: str = "", factor: float = 1.0, noise: float = 0.0,
    seed: int = 0,
) -> Path:  # fmt: skip
    """The same Nsight Systems export as if one kernel took another time and the steps were noisy.

    Time is stretched as a whole, so what follows shifts with what came before.

    Args:
        capture: an SQLite export.
        folder: where the edited copy goes.
        kernel: short name of the kernels that change; all shapes of it.
        factor: their time, over before.
        noise: the longest pause that is put into each step, as a share of its length; it lies in
            the longest pause that the device makes there anyway, so that no kernel changes.
        seed: of the pauses.
    """
    target = folder / f"edited_{kernel[:20]}_{factor}_{noise}_{seed}_{capture.name}"
    target.write_bytes(capture.read_bytes())
    connection = sqlite3.connect(target)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    kernels = connection.execute(
        "SELECT k.start, k.end, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.shortName ORDER BY k.start"
    ).fetchall()
    stretched = [(start, end) for start, end, name in kernels if name == kernel]
    knots = [(t, 0.0) for pair in stretched for t in pair]
    extra = {end: (end - start) * (factor - 1) for start, end in stretched}
    steps = [
        start
        for (start,) in connection.execute(
            "SELECT start FROM NVTX_EVENTS WHERE text GLOB 'step_*' AND end IS NOT NULL "
            "ORDER BY start"
        )
    ]
    chance = random.Random(seed)
    length = (steps[-1] - steps[0]) / (len(steps) - 1)
    for begin in steps if noise else []:
        inside = [(a[1], b[0]) for a, b in itertools.pairwise(kernels)
                  if begin <= a[1] < b[0] < begin + length]  # fmt: skip
        if inside:
            gap = max(inside, key=lambda pair: pair[1] - pair[0])
            middle = (gap[0] + gap[1]) // 2
            knots += [(middle, 0.0), (middle + 1, 0.0)]
            extra[middle + 1] = chance.uniform(0, noise) * length
    knots.sort()
    at = np.array([t for t, _ in knots], np.int64)
    shift = np.cumsum([extra.get(t, 0.0) for t, _ in knots])

    def moved(t: int | None) -> int | None:
        return None if t is None else t + round(float(np.interp(t, at, shift)))

    connection.create_function("moved", 1, moved, deterministic=True)
    tables = names & {
        *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
        *("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "NVTX_EVENTS"),
    }
    with connection:
        for table in tables:
            connection.execute(f"UPDATE {table} SET start = moved(start), end = moved(end)")
    connection.close()
    return target


def written_job(data: bytes, folder: Path, name: str) -> Job:
    """A job of one capture with this content, under a cache of its own."""
    from stepscope.api import Job
    from stepscope.cache.store import Cache

    path = folder / name
    path.write_bytes(data)
    return Job([path], cache=Cache(folder / "cache"))


def query_rows(job: Job, sql: str) -> list[tuple[Any, ...]]:
    """The rows that a statement gives."""
    return list(zip(*job.query(sql).to_pydict().values(), strict=True))

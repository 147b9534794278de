"""Importing a PyTorch trace, against parsing the same JSON with the fastest parsers of PyPI.

    python benchmarks/kineto_import.py [--factor 1] [--trace TRACE] [--repeat 3]

Builds one large file by repeating a trace (times, ids and correlations moved on), then runs each
contender in a process of its own and prints the best of the repetitions: wall and CPU seconds,
peak memory, and the ratio of the import to each. The import is the whole of it, Parquet files
included; the parsers only parse. Reading the file counts, starting Python and importing modules
does not. Needs the packages of the ``bench`` extra.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUNDLED = Path(__file__).parents[1] / "tests" / "importers" / "kineto_data" / "ddp_rank2.json.zst"
_MOVED = re.compile(r'"(ts|id|correlation|External id)": (\d+)(\.\d+)?')


def build(source: Path, target: Path, factor: int) -> int:
    """Write the trace ``factor`` times over; returns the number of bytes."""
    from stepscope.importers.common.stream import open_text

    with open_text(source) as read:
        text = b"".join(iter(read, b"")).decode()
    start = text.index('"traceEvents": [') + len('"traceEvents": [')
    end = text.rindex("]", 0, text.rindex("traceName"))
    body = text[start:end].rstrip()
    numbers: dict[str, list[int]] = {"ts": [], "id": []}
    for match in _MOVED.finditer(body):
        numbers["ts" if match[1] == "ts" else "id"].append(int(match[2]))
    times, largest_id = numbers["ts"], max(numbers["id"])
    steps = {"ts": max(times) - min(times) + 1000}
    with target.open("w") as file:
        file.write(text[:start])
        for turn in range(factor):

            def move(match: re.Match[str], turn: int = turn) -> str:
                step = steps.get(match[1], largest_id + 1)
                return f'"{match[1]}": {int(match[2]) + turn * step}{match[3] or ""}'

            file.write(("," if turn else "") + (_MOVED.sub(move, body) if turn else body))
        file.write(text[end:])
    return target.stat().st_size


def stepscope(path: Path) -> float:
    import pyarrow.parquet  # noqa: F401 - as below

    from stepscope.importers.kineto import IMPORTER
    from stepscope.importers.kineto import read as _read  # noqa: F401 - import time does not count
    from stepscope.trace.problems import ProblemLog
    from stepscope.trace.store import TraceWriter

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        writer = TraceWriter(Path(folder), ProblemLog())
        IMPORTER.read(path, writer)
        writer.close()
        return time.perf_counter() - start


def orjson(path: Path) -> float:
    import orjson as parser

    start = time.perf_counter()
    parser.loads(path.read_bytes())
    return time.perf_counter() - start


def orjson_without_gc(path: Path) -> float:
    gc.disable()
    return orjson(path)


def msgspec(path: Path) -> float:
    import msgspec as parser

    start = time.perf_counter()
    parser.json.decode(path.read_bytes())
    return time.perf_counter() - start


def msgspec_without_gc(path: Path) -> float:
    gc.disable()
    return msgspec(path)


def msgspec_typed(path: Path) -> float:
    """The whole file at once into structs with the fields that the importer reads."""
    import msgspec as parser

    from stepscope.importers.kineto.events import Event

    document = parser.defstruct("Document", [("traceEvents", list[Event[float, str]])])
    decoder = parser.json.Decoder(document)
    gc.disable()
    start = time.perf_counter()
    decoder.decode(path.read_bytes())
    return time.perf_counter() - start


def pysimdjson_dom(path: Path) -> float:
    """The parse alone: no Python object is made of any event."""
    import simdjson

    start = time.perf_counter()
    simdjson.Parser().parse(path.read_bytes())
    return time.perf_counter() - start


def pysimdjson_objects(path: Path) -> float:
    import simdjson

    gc.disable()
    start = time.perf_counter()
    document = simdjson.Parser().parse(path.read_bytes())
    document.as_dict()  # type: ignore[union-attr]
    return time.perf_counter() - start


CONTENDERS = {
    function.__name__: function
    for function in (
        stepscope,
        pysimdjson_dom,
        pysimdjson_objects,
        orjson_without_gc,
        orjson,
        msgspec_typed,
        msgspec_without_gc,
        msgspec,
    )
}


def measure(name: str, path: Path) -> None:
    """Run one contender here and print its figures as JSON."""
    before = time.process_time()
    wall = CONTENDERS[name](path)
    cpu = time.process_time() - before
    print(json.dumps({"wall": wall, "cpu": cpu, "megabytes": peak_megabytes()}))


def peak_megabytes() -> float:
    """Peak memory of this program (ru_maxrss also counts the parent's at the fork)."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1]) / 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--factor", type=int, default=50, help="how often the trace is repeated")
    arguments.add_argument("--trace", type=Path, default=BUNDLED)
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--only", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    arguments.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.run:
        measure(given.run[0], Path(given.run[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        size = build(given.trace, path, given.factor)
        print(f"{given.trace.name} x {given.factor}: {size / 1e6:.0f} MB, {os.cpu_count()} cores")
        best: dict[str, dict[str, float]] = {}
        for _ in range(given.repeat):
            for name in given.only:
                shown = subprocess.run(
                    [sys.executable, __file__, "--run", name, str(path)],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if shown.returncode:
                    reason = (shown.stderr.strip().splitlines() or [str(shown.returncode)])[-1]
                    print(f"{name:20} failed: {reason}")
                    continue
                figures = json.loads(shown.stdout)
                if name not in best or figures["wall"] < best[name]["wall"]:
                    best[name] = figures
    own = best.get("stepscope")
    print(f"{'':20} {'wall s':>8} {'CPU s':>8} {'peak MB':>8} {'import/it':>10} {'memory/it':>10}")
    for name, figures in best.items():
        line = f"{name:20} {figures['wall']:8.2f} {figures['cpu']:8.2f} {figures['megabytes']:8.0f}"
        if own and name != "stepscope":
            line += f" {own['wall'] / figures['wall']:10.2f}"
            line += f" {own['megabytes'] / figures['megabytes']:10.2f}"
        print(line)


if __name__ == "__main__":
    main()

"""Time and memory of reading a large raw capture, and that memory is bounded.

    python benchmarks/finalise.py [RECORDS]

Writes a synthetic capture of one process: for each kernel, which several streams complete out of
order, its call and a range around both (four records); reads it in a process of its own; prints a
line a size.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

from stepscope.importers.stepscope import layout

_BLOCK_ROWS = 5000
_CHUNK_ROWS = 1000
_STREAMS = 4
_READ = """
import resource, sys, time
from pathlib import Path
from stepscope.importers.registry import convert
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.process_time()
convert(Path(sys.argv[1]), Path(sys.argv[2]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.process_time() - begin, before / 1024, after / 1024)
"""


def block(kind: int, payload: bytes, rows: int, thread: int = 0, sequence: int = 0) -> bytes:
    """One block of the raw format."""
    width = layout.ROWS[kind].itemsize if kind in layout.ROWS else 0

    def header(crc: int) -> bytes:
        head = (layout.BLOCK_MAGIC, kind, width, rows, len(payload), crc, thread, sequence, 1)
        return struct.pack("<IHHIIIIQQ", *head)

    return header(zlib.crc32(payload, zlib.crc32(header(0)))) + payload


def write(path: Path, records: int) -> None:
    """Write a capture of so many rows."""
    count = records // 4
    generator = np.random.default_rng(1)
    with path.open("wb") as file:
        meta = b'{"type":"process","pid":7,"born_ns":1,"format":1}'
        file.write(block(layout.META, meta, 1))
        for first in range(0, count, _BLOCK_ROWS):
            number = np.arange(first, min(first + _BLOCK_ROWS, count))
            calls = np.zeros(len(number), layout.ROWS[layout.API])
            calls["start"] = (number + 1) * 8000
            calls["end"] = calls["start"] + 5000
            calls["correlation"], calls["thread"], calls["call"] = number + 1, 7, 211
            kernels = np.zeros(len(number), layout.ROWS[layout.KERNEL])
            kernels["start"] = calls["start"] + generator.integers(4000, 400_000, len(number))
            kernels["end"] = kernels["start"] + 6000
            kernels["correlation"] = number + 1
            kernels["stream"] = number % _STREAMS
            kernels["grid"], kernels["block"] = 10, 128
            # buffers come back a stream at a time
            kernels = kernels[np.argsort(kernels["stream"], kind="stable")]
            events = np.zeros(2 * len(number), layout.ROWS[layout.NVTX])
            events["op"][::2], events["op"][1::2] = layout.PUSH, layout.POP
            events["time"][::2], events["time"][1::2] = calls["start"] - 1000, calls["end"] + 1000
            for at in range(0, len(events), _CHUNK_ROWS):
                part = events[at : at + _CHUNK_ROWS]
                sequence = (2 * first + at) // _CHUNK_ROWS + 1
                file.write(block(layout.NVTX, part.tobytes(), len(part), 7, sequence))
            file.write(block(layout.API, calls.tobytes(), len(calls)))
            file.write(block(layout.KERNEL, kernels.tobytes(), len(kernels)))


def main() -> None:
    """Measure three sizes up to the one asked for."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
    print("records      file      CPU    memory, above that of the libraries")
    for records in (most // 25, most // 5, most):
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "p7-1.raw"
            write(raw, records)
            command = [sys.executable, "-c", _READ, str(raw), f"{folder}/t.stepscope"]
            begin = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            cpu, before, after = map(float, done.stdout.split())
            print(
                f"{records:9,}  {raw.stat().st_size / 1e6:6.0f} MB  {cpu:5.1f} s  "
                f"{after - before:6.0f} MB   (wall {time.monotonic() - begin:.1f} s)"
            )


if __name__ == "__main__":
    main()

"""Raw captures of our own, small ones made up whole: every kind of file beside each other."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np

from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.raw import write_list

STEP_NS = 1_000_000
STEPS = 8
PROCESS = 7


def block(
    kind: int,
    payload: bytes,
    rows: int = 1,
    thread: int = 0,
    sequence: int = 0,
    magic: int = layout.BLOCK_MAGIC,
) -> bytes:
    """One block of a raw file."""
    width = layout.ROWS[kind].itemsize if kind in layout.ROWS else 0

    def header(crc: int) -> bytes:
        head = (magic, kind, width, rows, len(payload), crc, thread, sequence, 48)
        return struct.pack("<IHHIIIIQQ", *head)

    before = zlib.crc32(header(0)) if magic == layout.BLOCK_MAGIC else 0
    return header(zlib.crc32(payload, before)) + payload


def texts(*words: bytes) -> bytes:
    """Texts, numbered from 1."""
    return b"".join(
        struct.pack("<II", number, len(word)) + word + bytes(-len(word) % 8)
        for number, word in enumerate(words, 1)
    )


def pushes(first: int, count: int, name: int) -> bytes:
    """NVTX rows of some steps."""
    events = np.zeros(2 * count, layout.ROWS[layout.NVTX])
    begin = (first + np.arange(count)) * STEP_NS
    events["time"][0::2], events["time"][1::2] = begin + 1000, begin + 900_000
    events["op"][0::2], events["op"][1::2] = layout.PUSH, layout.POP
    events["name"][0::2] = name
    return events.tobytes()


def chunk(kind: int, payload: bytes, sequence: int, thread: int = 9) -> bytes:
    """One chunk of a pool."""
    header = np.zeros(1, layout.CHUNK)
    header["magic"], header["state"], header["kind"] = layout.CHUNK_MAGIC, layout.FULL, kind
    header["row_bytes"] = layout.ROWS[kind].itemsize if kind in layout.ROWS else 0
    header["thread"], header["used"], header["sequence"] = thread, len(payload), sequence
    whole = header.tobytes() + payload
    return whole + bytes(layout.CHUNK_BYTES - len(whole))


def write_raw(folder: Path, kernel_ns: int = 400_000) -> Path:
    """A capture of a process that was killed: files, pool and what the launcher wrote."""
    folder.mkdir(parents=True)
    kernels = np.zeros(STEPS * 2, layout.ROWS[layout.KERNEL])
    begin = np.repeat(np.arange(STEPS), 2) * STEP_NS + np.tile([100_000, 520_000], STEPS)
    kernels["start"], kernels["end"] = begin, begin + kernel_ns
    kernels["correlation"], kernels["name"] = np.arange(1, 2 * STEPS + 1), 1
    calls = np.zeros(STEPS * 2, layout.ROWS[layout.API])
    calls["start"], calls["end"] = begin - 50_000, begin - 40_000
    calls["correlation"], calls["thread"], calls["call"] = kernels["correlation"], 9, 1
    states = np.array([(500, 1, 0)], layout.ROWS[layout.STATE])
    clocks = np.array([(100, 10**18, 100)], layout.ROWS[layout.CLOCK])
    process = {"type": "process", "pid": PROCESS, "born_ns": 1, "format": layout.FORMAT_VERSION,
               "host": "vm", "command": ["python", "train.py"], "pool": "/dev/shm/x",
               "environment": {"RANK": "0", "WORLD_SIZE": "1"}}  # fmt: skip
    parts = [
        block(layout.META, json.dumps(process).encode()),
        block(layout.META, b'{"type":"cupti","version":24}'),
        block(
            layout.META, b'{"type":"devices","devices":[{"device":0,"uuid":"GPU-1","name":"X"}]}'
        ),
        block(layout.CLOCK, clocks.tobytes()),
        block(layout.STATE, states.tobytes()),
        block(layout.STRINGS, texts(b"kernel", b"step"), sequence=1),
        block(layout.API_NAME, np.array([(1, 1)], layout.ROWS[layout.API_NAME]).tobytes()),
        block(layout.KERNEL, kernels.tobytes(), rows=len(kernels)),
        block(layout.API, calls.tobytes(), rows=len(calls)),
        block(layout.NVTX, pushes(0, STEPS // 2, 2), rows=STEPS, thread=9, sequence=2),
    ]
    (folder / f"p{PROCESS}-1.raw").write_bytes(b"".join(parts))
    rest = chunk(layout.NVTX, pushes(STEPS // 2, STEPS // 2, 2), 3)
    (folder / f"p{PROCESS}-1.pool").write_bytes(rest + bytes(layout.CHUNK_BYTES))
    output = {"stepscope": "0", "origin_monotonic_ns": 1, "origin_epoch_ns": 10**18, "options": {}}
    (folder / "capture.json").write_text(json.dumps(output, indent=1))
    times = [at * STEP_NS // 2 for at in range(1, 2 * STEPS)]
    samples = "".join(f"{time},0,GPU-1,gpu_util,{time % 97}\n" for time in times)
    (folder / "counters.csv").write_text(samples)
    states_ = "".join(f"{time}\t{PROCESS}\t9\tS\t{time // 3}\t{time // 9}\n" for time in times)
    (folder / "threads.tsv").write_text(states_)
    (folder / "names.tsv").write_text(f"{PROCESS}\t9\t1\ttrainer\n")
    (folder / "members.json").write_text(json.dumps({"processes": [PROCESS]}))
    (folder / f"stacks.{PROCESS}.tsv").write_text("".join(f"{time}\t9\t0\n" for time in times))
    frames = f"P\t{PROCESS}\t1\t0\t1000000\nF\t0\t12\tstep\ttrain.py\nS\t0\t0\n"
    (folder / f"frames.{PROCESS}.tsv").write_text(frames)
    write_list(folder)
    return folder

"""The raw file of one process, as the collector writes it.

A file is a sequence of blocks: a header of 40 bytes (:data:`HEADER`) and a payload of
``header["bytes"]`` bytes, all little-endian. A block is either rows of one fixed width
(:data:`ROWS` gives the columns of each kind), texts, or one JSON object. Files are only appended
to, so a file that was cut short is valid up to its last whole block; the CRC-32 of each block tells
whole from torn. It is that of the header, with 0 in its own place, and the payload; blocks of
format 1 begin with another magic number, and theirs is that of the payload alone.

- ``NAME.raw`` is the file itself. With a ring, rows are in ``NAME.NNNNNN.raw`` beside it, of which
  only the newest are kept.
- ``NAME.pool``, there only when the process ended without its closing, is the memory that threads
  wrote NVTX events and texts to: chunks of 64 KiB with a header of 64 bytes (:data:`CHUNK`). A
  chunk whose ``sequence`` stands in a block of the file has been written already.
- ``capture.json``, written by the launcher, tells the common time zero of all processes.
- ``files.json``, there where raw files are kept, lists all of them with their checksums.

Times are nanoseconds of the machine's monotonic clock (``CLOCK_MONOTONIC``); rows of kind ``clock``
pair it with the wall clock. Correlation ids count from 1 within a process.

JSON objects carry ``type``: ``process`` (who: pid, parent, host, command, environment; what
begins recording: ``when``; ``ring_ns``), ``cupti`` (version, path), ``devices``, ``threads``
(names), ``remark`` (severity, text), ``seen`` (name, domain and count of the ranges that were
opened before recording began), ``end`` (how the process ended, counts of what was dropped).
"""

from __future__ import annotations

import numpy as np

BLOCK_MAGIC = 0x32425353
BLOCK_MAGIC_1 = 0x31425353
CHUNK_MAGIC = 0x31435353
FORMAT_VERSION = 2
READ_VERSIONS = (1, FORMAT_VERSION)

HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("kind", "<u2"),
        ("row_bytes", "<u2"),
        ("rows", "<u4"),
        ("bytes", "<u4"),
        ("crc", "<u4"),
        ("thread", "<u4"),
        ("sequence", "<u8"),
        ("time_ns", "<u8"),
    ]
)
"""Header of a block. ``thread`` and ``sequence`` are those of the chunk it came from, else 0."""

CHUNK = np.dtype(
    [
        ("magic", "<u4"),
        ("state", "<u4"),
        ("kind", "<u2"),
        ("row_bytes", "<u2"),
        ("thread", "<u4"),
        ("used", "<u4"),
        ("reserved", "<u4"),
        ("sequence", "<u8"),
        ("reserved2", "V32"),
    ]
)
"""Header of a chunk in the pool. ``state``: 0 free, 1 being filled, 2 full."""
CHUNK_BYTES = 64 * 1024
FREE = 0
FULL = 2

META, STRINGS, NVTX, KERNEL, COPY, SET, API, SYNC, OVERHEAD, GRAPH, EVENT, MEMORY, STREAM = range(
    1, 14
)
WORK = (KERNEL, COPY, SET, GRAPH)
"""Rows of what the device did."""
API_NAME, CLOCK, STATE = range(14, 17)

ROWS: dict[int, np.dtype[np.void]] = {
    NVTX: np.dtype(
        [
            ("time", "<u8"),
            ("op", "u1"),
            ("payload_type", "u1"),
            ("has_color", "u1"),
            ("reserved", "u1"),
            ("name", "<u4"),
            ("domain", "<u4"),
            ("category", "<u4"),
            ("color", "<u4"),
            ("reserved2", "<u4"),
            ("payload", "<u8"),
            ("id", "<u8"),
        ]
    ),
    KERNEL: np.dtype(
        [
            ("start", "<u8"),
            ("end", "<u8"),
            ("graph_node", "<u8"),
            ("correlation", "<u4"),
            ("symbol", "<u4"),
            ("name", "<u4"),
            ("device", "<u4"),
            ("context", "<u4"),
            ("stream", "<u4"),
            ("grid", "<i4", 3),
            ("block", "<i4", 3),
            ("static_shared", "<u4"),
            ("dynamic_shared", "<u4"),
            ("local", "<u4"),
            ("registers", "<u4"),
            ("graph", "<u4"),
            ("reserved", "<u4"),
        ]
    ),
    COPY: np.dtype(
        [
            ("start", "<u8"),
            ("end", "<u8"),
            ("bytes", "<u8"),
            ("graph_node", "<u8"),
            ("correlation", "<u4"),
            ("device", "<u4"),
            ("context", "<u4"),
            ("stream", "<u4"),
            ("src_device", "<u4"),
            ("dst_device", "<u4"),
            ("graph", "<u4"),
            ("kind", "u1"),
            ("src_memory", "u1"),
            ("dst_memory", "u1"),
            ("flags", "u1"),
        ]
    ),
    SET: np.dtype(
        [
            ("start", "<u8"),
            ("end", "<u8"),
            ("bytes", "<u8"),
            ("graph_node", "<u8"),
            ("correlation", "<u4"),
            ("device", "<u4"),
            ("context", "<u4"),
            ("stream", "<u4"),
            ("value", "<u4"),
            ("graph", "<u4"),
            ("memory", "<u4"),
            ("reserved", "<u4"),
        ]
    ),
    API: np.dtype(
        [
            ("start", "<u8"),
            ("end", "<u8"),
            ("correlation", "<u4"),
            ("thread", "<u4"),
            ("call", "<u4"),
            ("result", "<u4"),
        ]
    ),
    SYNC: np.dtype(
        [
            ("start", "<u8"),
            ("end", "<u8"),
            ("event_sync", "<u8"),
            ("correlation", "<u4"),
            ("type", "<u4"),
            ("context", "<u4"),
            ("stream", "<u4"),
            ("event", "<u4"),
            ("reserved", "<u4"),
        ]
    ),
    OVERHEAD: np.dtype(
        [
            ("start", "<u8"),
            ("end", "<u8"),
            ("kind", "<u4"),
            ("object_kind", "<u4"),
            ("thread", "<u4"),
            ("reserved", "<u4"),
        ]
    ),
    GRAPH: np.dtype(
        [
            ("start", "<u8"),
            ("end", "<u8"),
            ("correlation", "<u4"),
            ("graph", "<u4"),
            ("device", "<u4"),
            ("context", "<u4"),
            ("stream", "<u4"),
            ("reserved", "<u4"),
        ]
    ),
    EVENT: np.dtype(
        [
            ("device_time", "<u8"),
            ("event_sync", "<u8"),
            ("correlation", "<u4"),
            ("context", "<u4"),
            ("stream", "<u4"),
            ("event", "<u4"),
            ("device", "<u4"),
            ("reserved", "<u4"),
        ]
    ),
    MEMORY: np.dtype(
        [
            ("time", "<u8"),
            ("address", "<u8"),
            ("bytes", "<u8"),
            ("correlation", "<u4"),
            ("operation", "<u4"),
            ("kind", "<u4"),
            ("device", "<u4"),
            ("context", "<u4"),
            ("stream", "<u4"),
        ]
    ),
    STREAM: np.dtype([("context", "<u4"), ("stream", "<u4"), ("priority", "<i4"), ("flag", "<u4")]),
    API_NAME: np.dtype([("call", "<u4"), ("name", "<u4")]),
    CLOCK: np.dtype([("monotonic", "<u8"), ("realtime", "<u8"), ("raw", "<u8")]),
    STATE: np.dtype([("time", "<u8"), ("recording", "<u4"), ("reason", "<u4")]),
}
"""Columns of each kind of row. ``name``, ``symbol`` and ``domain`` are text numbers, 0 for none."""

BYTES_ROW = np.dtype(
    [
        ("schema", "<u8"),
        ("op", "u1"),
        ("used", "u1"),
        ("reserved", "V2"),
        ("total", "<u4"),
        ("bytes", "V32"),
    ]
)
"""An NVTX row of op ``BYTES``: part of the binary payload of the event before it."""

PUSH, POP, BEGIN, FINISH, MARK, CATEGORY_NAME, THREAD_NAME, SCHEMA, BYTES = range(1, 10)
"""``op`` of an NVTX row."""

DRIVER_CALL = 0x80000000
"""Set in ``call`` of a driver function; the rest is CUPTI's callback id."""
NO_ID = 0xFFFFFFFF
"""Stands for "none" in stream and event ids."""

"""Codes of Nsight Systems, for exports that hold no ``ENUM_*`` tables or newer codes."""

from __future__ import annotations

MEMCPY_LABELS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
MEMCPY_KINDS = {
    0: "unknown",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "UVM HtoD",
    12: "UVM DtoH",
    13: "UVM DtoD",
}
MEMORY_KINDS = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "device_static",
    6: "managed_static",
    7: "unknown",
}
HOST_MEMORY = (0, 1)
SYNC_KINDS = {0: "unknown", 1: "event", 2: "stream_wait_event", 3: "stream", 4: "context"}
STREAM_FLAGS = {1: "default", 2: "non_blocking", 3: "null"}
OVERHEAD_LABELS = {
    0: "Undefined",
    1: "Unknown",
    2: "Driver JIT",
    3: "Buffer flush",
    4: "Instrumentation",
    5: "Resource creation",
    6: "Module loading",
    7: "Lazy function loading",
    8: "Command buffer full",
}
SEVERITIES = {0: "info", 1: "info", 2: "warning", 3: "error", 4: "info"}

RUNTIME_CLASS, DRIVER_CLASS = 0, 1
OSRT_START_CLASS = 31  # a marker "OS runtime tracing has begun", not a call

NVTX_PUSHPOP = (59, 70)
NVTX_MARK = 34
NVTX_THREAD_NAME = 39
NVTX_DOMAIN = 75
NVTX_NAMING = (33, NVTX_THREAD_NAME, NVTX_DOMAIN, 76, 97, 98, 99)
"""Rows that name something (categories, threads, domains, devices): no events."""

NO_ID = 4294967295
"""The unsigned 32-bit -1 that stands for "none" in stream and event ids."""

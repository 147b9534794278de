"""The shape of trace events and their fast decoding.

One struct holds every field that is read from any kind of event. Fields stand in the order in
which Kineto writes them, because the decoder looks for the next key after the last one found.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Generic, Literal, TypeVar

import msgspec

MISSING = -(2**63)
"""Stands for an absent integer until the column is written."""

NO_TEXT = msgspec.Raw(b"")
NO_TRIPLE = (MISSING, MISSING, MISSING)
_NAN = math.nan

Time = TypeVar("Time", float, Decimal)
Word = TypeVar("Word", bound=str)
KnownWord = Literal[
    "X",
    "s",
    "f",
    "i",
    "M",
    "cpu_op",
    "kernel",
    "cuda_runtime",
    "cuda_driver",
    "ac2g",
    "fwdbwd",
    "python_function",
    "gpu_memcpy",
    "gpu_memset",
    "user_annotation",
    "gpu_user_annotation",
    "overhead",
    "cpu_instant_event",
    "cuda_sync",
    "Trace",
]


def _key(name: str, default: Any = MISSING) -> Any:
    return msgspec.field(default=default, name=name)


class Args(msgspec.Struct, gc=False):
    """What the ``args`` object of an event may hold; ``Raw`` fields are JSON text.

    ``grid`` is a text in operators that are kernels of Triton, as Inductor writes its launch.
    """

    external_id: int | None = _key("External id")
    sequence_number: int | None = _key("Sequence number")
    forward_thread: int | None = _key("Fwd thread id")
    concrete_inputs: msgspec.Raw = _key("Concrete Inputs", NO_TEXT)
    input_types: msgspec.Raw = _key("Input type", NO_TEXT)
    input_shapes: msgspec.Raw = _key("Input Dims", NO_TEXT)
    device: int | None = _key("device")
    context: int | None = _key("context")
    stream: int | str | None = _key("stream")
    correlation: int | None = _key("correlation")
    registers: int | None = _key("registers per thread")
    shared_bytes: int | None = _key("shared memory")
    grid: tuple[int, int, int] | str | None = _key("grid", NO_TRIPLE)
    block: tuple[int, int, int] | None = _key("block", NO_TRIPLE)
    graph_id: int | None = _key("graph id")
    graph_node_id: int | None = _key("graph node id")
    bytes: int | None = _key("bytes")
    python_parent_id: int | None = _key("Python parent id")
    python_id: int | None = _key("Python id")
    total_reserved: int | None = _key("Total Reserved")
    total_allocated: int | None = _key("Total Allocated")
    memory_bytes: int | None = _key("Bytes")
    device_id: int | None = _key("Device Id")
    device_type: int | None = _key("Device Type")
    address: int | None = _key("Addr")
    in_device: int | None = _key("inDevice")
    in_context: int | None = _key("inContext")
    old_external_id: int | None = _key("external id")
    wait_on_event: int | None = _key("wait_on_cuda_event_id")
    collective: msgspec.Raw = _key("Collective name", NO_TEXT)
    in_elements: msgspec.Raw = _key("In msg nelems", NO_TEXT)
    out_elements: msgspec.Raw = _key("Out msg nelems", NO_TEXT)
    group_size: msgspec.Raw = _key("Group size", NO_TEXT)
    dtype: msgspec.Raw = _key("dtype", NO_TEXT)
    group_name: msgspec.Raw = _key("Process Group Name", NO_TEXT)
    group_description: msgspec.Raw = _key("Process Group Description", NO_TEXT)
    group_ranks: msgspec.Raw = _key("Process Group Ranks", NO_TEXT)
    sequence: msgspec.Raw = _key("Seq", NO_TEXT)
    rank: msgspec.Raw = _key("Rank", NO_TEXT)
    name: msgspec.Raw = _key("name", NO_TEXT)
    labels: msgspec.Raw = _key("labels", NO_TEXT)


class Event(msgspec.Struct, Generic[Time, Word], gc=False):
    """One trace event. ``ts`` and ``dur`` are microseconds."""

    ph: Word = ""  # type: ignore[assignment]
    cat: Word = ""  # type: ignore[assignment]
    name: str = ""
    pid: int | str | None = MISSING
    tid: int | str | None = MISSING
    ts: Time = _NAN  # type: ignore[assignment]
    dur: float = _NAN
    args: Args | None = None
    id: int | str | None = MISSING


NO_ARGS = Args()

KNOWN = msgspec.json.Decoder(list[Event[float, KnownWord]])
"""Decodes an array of events of today's categories; these words cost no new objects."""

FLOAT = msgspec.json.Decoder(list[Event[float, str]])
"""The same for any category. Exact to the nanosecond for times below 2**43 microseconds."""

DECIMAL = msgspec.json.Decoder(list[Event[Decimal, str]])
"""The same with exact decimal times, for microseconds since 1970 with a fraction."""

STRICT_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a strict decoder raises for text that it does not accept."""

"""The JSON of rocprofv3, one process a file, decoded by msgspec to the fields that are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stepscope.importers.common.stream import open_text
from stepscope.trace.errors import InputError


class Handle(msgspec.Struct, gc=False, frozen=True):
    """An id."""

    handle: int = 0


class Axes(msgspec.Struct, gc=False, frozen=True):
    """A size."""

    x: int = 0
    y: int = 0
    z: int = 0


class Correlation(msgspec.Struct, gc=False, frozen=True):
    """What links a call to its work."""

    internal: int = 0


class Dispatch(msgspec.Struct, gc=False, frozen=True):
    """Where and what a kernel is."""

    agent_id: Handle = Handle()
    queue_id: Handle = Handle()
    kernel_id: int = 0
    private_segment_size: int = 0
    group_segment_size: int = 0
    workgroup_size: Axes = Axes()
    grid_size: Axes = Axes()


class Kernel(msgspec.Struct, gc=False, frozen=True):
    """One dispatch."""

    start_timestamp: int
    end_timestamp: int
    dispatch_info: Dispatch
    correlation_id: Correlation = Correlation()
    stream_id: Handle = Handle()
    thread_id: int = 0


class Copy(msgspec.Struct, gc=False, frozen=True):
    """One copy."""

    start_timestamp: int
    end_timestamp: int
    kind: int = 0
    operation: int = 0
    bytes: int = 0
    src_agent_id: Handle = Handle()
    dst_agent_id: Handle = Handle()
    correlation_id: Correlation = Correlation()
    stream_id: Handle = Handle()


class Call(msgspec.Struct, gc=False, frozen=True):
    """One call of an API."""

    start_timestamp: int
    end_timestamp: int
    kind: int = 0
    operation: int = 0
    thread_id: int = 0
    correlation_id: Correlation = Correlation()


class Buffers(msgspec.Struct, frozen=True):
    """What was recorded."""

    kernel_dispatch: list[Kernel] = []
    memory_copy: list[Copy] = []
    hip_api: list[Call] = []
    hsa_api: list[Call] = []
    marker_api: list[Call] = []
    rccl_api: list[Call] = []


class Operations(msgspec.Struct, frozen=True):
    """Names of the operations of one kind."""

    kind: str = ""
    operations: list[str] = []


class Message(msgspec.Struct, frozen=True):
    """Text of a marker, by its correlation id."""

    key: int = 0
    value: str = ""


class Strings(msgspec.Struct, frozen=True):
    """Tables of names."""

    buffer_records: list[Operations] = []
    marker_api: list[Message] = []


class Symbol(msgspec.Struct, gc=False, frozen=True):
    """A kernel's name."""

    kernel_id: int = 0
    kernel_name: str = ""
    formatted_kernel_name: Any = ""


class Bank(msgspec.Struct, frozen=True):
    """Memory of an agent."""

    size_in_bytes: int = 0


class Agent(msgspec.Struct, frozen=True):
    """A processor or a GPU."""

    id: Handle = Handle()
    type: int = 0
    name: str = ""
    product_name: str = ""
    cu_count: int = 0
    max_engine_clk_fcompute: int = 0
    logical_node_type_id: int = 0
    mem_banks: list[Bank] = []


class Node(msgspec.Struct, frozen=True):
    """The machine."""

    hostname: str = ""


class Metadata(msgspec.Struct, frozen=True):
    """What the run says about itself."""

    pid: int = 0
    init_time: int = 0
    fini_time: int = 0
    node: Node = Node()
    command: list[str] = []


class Tool(msgspec.Struct, frozen=True):
    """One process's results."""

    metadata: Metadata = Metadata()
    agents: list[Agent] = []
    strings: Strings = Strings()
    kernel_symbols: list[Symbol] = []
    buffer_records: Buffers = Buffers()


class Document(msgspec.Struct, rename={"tools": "rocprofiler-sdk-tool"}):
    """The file."""

    tools: list[Tool]


def load(path: Path) -> Tool:
    """The results of a file.

    Raises:
        InputError: it is not whole, or no such file.
    """
    with open_text(path) as read:
        text = bytearray()
        while piece := read():
            text += piece
    try:
        found = msgspec.json.decode(text, type=Document, strict=False)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not a whole result of rocprofv3 ({str(error)[:200]}); the run or a copy "
            "did not finish, make it again"
        ) from error
    if len(found.tools) != 1:
        raise InputError(
            f"{path} holds results of {len(found.tools)} processes; rocprofv3 writes a file a "
            "process, give these"
        )
    return found.tools[0]

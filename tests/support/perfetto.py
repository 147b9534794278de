"""Traces of Perfetto written for tests, packet by packet."""

from __future__ import annotations

from tests.support.protobuf import field

BEGIN, END, INSTANT = 1, 2, 3


def packet(content: bytes, sequence: int = 1) -> bytes:
    """One packet."""
    return field(1, content + field(10, sequence))


def track(uuid: int, title: str, parent: int = 0, thread: tuple[int, int] | None = None) -> bytes:
    """The descriptor of a track."""
    made = field(1, uuid) + field(2, title) + (field(5, parent) if parent else b"")
    if thread is not None:
        made += field(4, field(1, thread[0]) + field(2, thread[1]))
    return packet(field(60, made))


def event(
    kind: int, at_ns: int, uuid: int, name: str = "", flow: int = 0, sequence: int = 1
) -> bytes:
    """The begin or end of a slice."""
    made = field(9, kind) + field(11, uuid)
    if name:
        made += field(23, name)
    if flow:
        made += field(36, flow)
    return packet(field(8, at_ns) + field(11, made), sequence)


def slice_(uuid: int, begin_ns: int, end_ns: int, name: str, flow: int = 0) -> bytes:
    """A slice that holds no other."""
    return event(BEGIN, begin_ns, uuid, name, flow) + event(END, end_ns, uuid)


def timeline(steps: int = 6) -> bytes:
    """A loop of steps: a range, a launch and a kernel each, as another tool might name them."""
    made = track(1, "GPU 0") + track(2, "stream 7", 1) + track(3, "main", 0, (50, 51))
    at = 1_000_000
    for step in range(steps):
        made += event(BEGIN, at, 3, f"step {step}")
        made += slice_(3, at + 10_000, at + 30_000, "cudaLaunchKernel", 100 + step)
        made += event(END, at + 900_000, 3)
        made += slice_(2, at + 40_000, at + 990_000, "void gemm<float>(float*)", 100 + step)
        at += 1_000_000
    return made

"""Logs of NCCL Inspector, the profiler plugin of NCCL: one line of JSON an operation.

A process writes ``HOST-pidN.log`` with a line for every operation that its kernels completed, of
all communicators and, where one process drives several GPUs, of all of these. A line has
``header`` (communicator, rank inside it), ``metadata`` (process, time of writing) and ``coll_perf``
or ``p2p_perf``; with ``NCCL_INSPECTOR_DUMP_VERBOSE=1`` these hold what the host saw of each
channel. From format 4.3 on, a line with ``dump_stats`` begins a batch of one communicator, and the
lines of the batch leave ``header`` and ``metadata`` out; it also counts what was dropped so far.
The text may be packed, as plain lines take some hundred bytes each.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from stepscope.importers.common.stream import first_bytes, is_packed, open_text, text_head
from stepscope.trace.errors import InputError
from stepscope.trace.frame import IntArray
from stepscope.trace.recorded import LoggedOperations, LoggedRank
from stepscope.trace.text import without_controls

_HEAD: Final = 4096
_LINE: Final = re.compile(rb'\s*\{\s*"header"\s*:\s*\{[^{}]*"n_ranks"')
_LONGEST: Final = 1 << 24
"""Bytes of a line: one of 64 channels with all its events takes some 10 kB."""
_ON_THE_CALL: Final = "collective_cpu"
_DROPPED: Final = "_dropped_total"
"""End of the names, in what a batch begins with, of counts of records that were never written."""
_SENDS: Final = frozenset({"Send", "Recv"})


class _Header(msgspec.Struct):
    id: str
    rank: int
    n_ranks: int
    nnodes: int = 0
    comm_name: str = ""


class _Metadata(msgspec.Struct):
    hostname: str = ""
    pid: int = -1
    dump_timestamp_us: int = 0


class _Channel(msgspec.Struct):
    kernel_stop_ts: int = 0


class _Trace(msgspec.Struct):
    kernel_events: list[_Channel] = []


class _Collective(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: int
    coll_timing_source: str = ""
    event_trace_ts: _Trace | None = None


class _Message(msgspec.Struct):
    p2p: str
    p2p_sn: int
    p2p_msg_size_bytes: int
    p2p_exec_time_us: int
    p2p_peer: int = -1
    p2p_timing_source: str = ""
    event_trace_ts: _Trace | None = None


class _Line(msgspec.Struct):
    header: _Header | None = None
    metadata: _Metadata | None = None
    dump_stats: dict[str, object] | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _Message | None = None


def looks_like_log(path: Path) -> bool:
    """Whether a file is a log of NCCL Inspector, by its content.

    Raises:
        InputError: it cannot be read.
    """
    if not path.is_file():
        return False
    head = first_bytes(path, _HEAD)
    if is_packed(head):
        head = text_head(path, _HEAD)[:_HEAD]
    return _LINE.match(head) is not None


def read_log(path: Path) -> LoggedOperations:
    """The operations of one log. A last line that was cut when the program ended is left out.

    Raises:
        InputError: it is damaged, or holds no operation.
    """
    decoder = msgspec.json.Decoder(_Line)
    ranks: dict[tuple[object, ...], int] = {}
    known: list[LoggedRank] = []
    names: dict[str, int] = {}
    columns = [array("q") for _ in range(9)]
    batch: tuple[_Header, _Metadata] | None = None
    dropped: dict[str, int] = {}
    for number, line, whole in _lines(path):
        try:
            found = decoder.decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if not whole and number > 1:
                break  # the program ended while it was written
            raise InputError(
                f"{path}, line {number} is damaged: {str(error)[:200]}; copy the log again, or "
                "leave it out"
            ) from error
        if found.header is not None and found.metadata is not None:
            header, about = found.header, found.metadata
            batch = (header, about) if found.dump_stats is not None else None
            _count(dropped, found.dump_stats or {})
        elif batch is not None:
            header, about = batch
        else:
            raise InputError(
                f"{path}, line {number} is damaged: it tells no communicator, and no batch began "
                "before it; copy the log again, or leave it out"
            )
        key = (header.id, header.rank, header.n_ranks, about.hostname, about.pid)
        at = ranks.get(key)
        if at is None:
            if not 0 <= header.rank < header.n_ranks:
                raise InputError(
                    f"{path}, line {number} is damaged: rank {header.rank} of a communicator of "
                    f"{header.n_ranks}"
                )
            at = ranks[key] = len(known)
            known.append(_rank(header, about))
        _add(columns, at, names, found, about.dump_timestamp_us)
    if not columns[0]:
        raise InputError(f"{path} holds no operation of NCCL Inspector")
    rank, name, count, peer, size, time, timed, dumped, end = map(_column, columns)
    return LoggedOperations(
        str(path), known, list(names), rank, name, count, peer, size, time, timed != 0, dumped,
        end, dropped,
    )  # fmt: skip


def _count(dropped: dict[str, int], stats: dict[str, object]) -> None:
    """Keep the largest count of each kind of record: counts only grow."""
    for name, value in stats.items():
        kind = without_controls(name.removesuffix(_DROPPED))
        if name.endswith(_DROPPED) and type(value) is int and value > dropped.get(kind, 0):
            dropped[kind] = value


def _rank(header: _Header, about: _Metadata) -> LoggedRank:
    return LoggedRank(
        communicator=without_controls(header.id),
        name="" if header.comm_name == "unknown" else without_controls(header.comm_name),
        rank=header.rank,
        size=header.n_ranks,
        nodes=header.nnodes,
        hostname=without_controls(about.hostname),
        process=about.pid,
    )


def _add(
    columns: list[array[int]], rank: int, names: dict[str, int], line: _Line, dumped_us: int
) -> None:
    """One operation more; a line of another kind is none."""
    one, message = line.coll_perf, line.p2p_perf
    if one is not None:
        facts = (one.coll, one.coll_sn, -1, one.coll_msg_size_bytes, one.coll_exec_time_us)
        source, trace = one.coll_timing_source, one.event_trace_ts
    elif message is not None and message.p2p in _SENDS:
        facts = (
            message.p2p, message.p2p_sn, message.p2p_peer, message.p2p_msg_size_bytes,
            message.p2p_exec_time_us,
        )  # fmt: skip
        source, trace = message.p2p_timing_source, message.event_trace_ts
    else:
        return
    name, number, peer, size, took = facts
    stops = [c.kernel_stop_ts for c in trace.kernel_events] if trace is not None else []
    seen = bool(stops) and min(stops) > 0
    values = (
        rank, names.setdefault(without_controls(name), len(names)), number, peer, size,
        took * 1000, source != _ON_THE_CALL, dumped_us * 1000,
        max(stops) * 1000 if seen else -1,
    )  # fmt: skip
    for column, value in zip(columns, values, strict=True):
        column.append(min(max(value, -1), (1 << 63) - 1))


def _column(values: array[int]) -> IntArray:
    return np.frombuffer(values, np.int64).copy()


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """(number, text, whether a line break follows) of every line that is not empty."""
    number, rest = 0, b""
    with open_text(path) as read:
        while piece := read():
            lines = (rest + piece).split(b"\n")
            rest = lines.pop()
            if len(rest) > _LONGEST:
                raise InputError(
                    f"{path} is no log of NCCL Inspector: a line has {len(rest)} bytes"
                )
            for line in lines:
                number += 1
                if line.strip():
                    yield number, line, True
    if rest.strip():
        yield number + 1, rest, False

"""The communication kernels of each rank, with what the capture says about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.activity.device import GpuTimeline, Reader
from stepscope.collectives import kinds
from stepscope.intervals import stab_innermost
from stepscope.intervals.distinct import distinct_rows, distinct_values
from stepscope.trace.frame import BoolArray, Frame, IntArray

_SAID = (
    "process_id",
    "correlation_id",
    "name",
    "dtype",
    "in_elements",
    "out_elements",
    "group_name",
    "group_size",
    "group_ranks",
    "sequence",
)
_ENCLOSING = ("process_id", "thread_id", "start_ns", "end_ns", "name")
_GRID = ("id", "grid_x", "block_x")


_ENOUGH_ALIKE: Final = 3
"""So many kernels of a stream that are known to be of one kind say what another one is."""


@dataclass(frozen=True)
class Participant:
    """One device of one rank, as the matching needs it.

    Attributes:
        rank: the rank.
        gpu: the device.
        read: gives the trace's tables as frames.
        clock: number of the trace: devices of one trace share a clock.
        epoch_ns: wall-clock time of the trace's time zero, ns since 1970; None where unknown.
        machine: host name; empty where unknown.
        world_size: ranks of the job; None where unknown.
    """

    rank: int
    gpu: GpuTimeline
    read: Reader
    clock: int
    epoch_ns: int | None = None
    machine: str = ""
    world_size: int | None = None


@dataclass(frozen=True)
class Calls:
    """Communication kernels of one device in time order; all arrays have one value a kernel.

    Attributes:
        op: row of ``GPU.ops``.
        stream: CUDA stream.
        start_ns: begin, on the trace's own clock.
        end_ns: end, on the trace's own clock.
        kind: code of the kind.
        token: code of what the operation looks like, comparable over all ranks; operations that
            belong together have the same.
        group: code of the communicator, comparable over all ranks; -1 where the capture does not
            tell it.
        sequence: number of the operation inside its communicator; -1 where unknown.
        bytes: message size; -1 where unknown.
        size: ranks of the communicator; -1 where unknown.
        stated: whether something else than the kernel's name says its kind.
    """

    op: IntArray
    stream: IntArray
    start_ns: IntArray
    end_ns: IntArray
    kind: IntArray
    token: IntArray
    group: IntArray
    sequence: IntArray
    bytes: IntArray
    size: IntArray
    stated: BoolArray

    def __len__(self) -> int:
        return len(self.op)

    @property
    def point_to_point(self) -> BoolArray:
        """Sends and receives."""
        mask: BoolArray = np.equal(self.kind, kinds.POINT_TO_POINT)
        return mask


@dataclass(frozen=True)
class GroupName:
    """A communicator that the framework declared.

    Attributes:
        ranks: its ranks, ascending; empty where unknown.
        name: the framework's name of it.
    """

    ranks: tuple[int, ...]
    name: str


@dataclass(frozen=True)
class JobCalls:
    """The communication of all ranks.

    Attributes:
        participants: the devices.
        calls: communication of each of them.
        groups: what the group codes mean.
    """

    participants: list[Participant]
    calls: list[Calls]
    groups: list[GroupName]


def job_calls(participants: Sequence[Participant]) -> JobCalls:
    """Collect the communication kernels of all ranks, with codes that are comparable over them."""
    tokens: dict[str, int] = {}
    groups: dict[str, int] = {}
    names: list[GroupName] = []
    found = [calls_of(p, tokens, groups, names) for p in participants]
    return JobCalls(list(participants), found, names)


def calls_of(
    p: Participant, tokens: dict[str, int], groups: dict[str, int], names: list[GroupName]
) -> Calls:
    """The communication kernels of one rank.

    Args:
        p: the device.
        tokens: code of each token by its text, which grows.
        groups: code of each communicator by its text, likewise.
        names: what the codes of communicators mean, likewise.
    """
    ops = p.gpu.ops
    op = np.flatnonzero(p.gpu.is_communication)
    n = len(op)
    unknown = np.full(n, -1, np.int64)
    kind, stated = _kinds(p, op)
    token = _codes_of_kernels(p, op, tokens)
    group, sequence = unknown.copy(), unknown.copy()
    size_bytes, size = unknown.copy(), unknown.copy()
    wording = p.read("collective", *_SAID)
    row = described_by(wording, p.gpu, op)
    known = row >= 0
    if known.any():
        rows, inverse = _distinct_rows(wording, row[known])
        each = [_described(wording, int(r), tokens, groups, names) for r in rows]
        facts = np.array(each, np.int64).reshape(-1, 5)[inverse]
        described = facts[:, 0] != kinds.UNKNOWN
        kind[known] = np.where(described, facts[:, 0], kind[known])
        stated[known] |= described
        token[known], group[known] = facts[:, 1], facts[:, 2]
        size_bytes[known], size[known] = facts[:, 3], facts[:, 4]
        sequence[known] = wording["sequence"][row[known]]
    return Calls(
        op=op,
        stream=ops["stream"][op].astype(np.int64),
        start_ns=ops["start_ns"][op],
        end_ns=ops["end_ns"][op],
        kind=kind,
        token=token,
        group=group,
        sequence=sequence,
        bytes=size_bytes,
        size=size,
        stated=stated,
    )


def _kinds(p: Participant, op: IntArray) -> tuple[IntArray, BoolArray]:
    """Kind of each kernel by the operator or range that encloses its launch, else by its name.

    PyTorch sends an all-to-all as sends and receives, and a barrier as an all-reduce: what the
    kernel is named says less than what the program asked for.

    Returns:
        The kinds, and where something else than the name says them.
    """
    gpu = p.gpu
    texts = gpu.ops.texts["name"]
    code_of = np.array([kinds.kind_of_kernel(text) for text in texts] + [kinds.UNKNOWN], np.int64)
    kind = code_of[gpu.ops["name"][op]]
    stated = np.zeros(len(op), bool)
    launched = np.flatnonzero(gpu.call[op] >= 0)
    if not len(launched) or not len(gpu.host.api):
        return kind, stated
    call = gpu.call[op[launched]]
    thread, at = gpu.host.api["thread_id"][call], gpu.host.api["start_ns"][call]
    ranges = gpu.host.ranges
    operators = _of_process(p.read("operator", *_ENCLOSING), gpu.process_id)
    # the framework's word counts more than a call of NCCL: it knows why it sends and receives
    for frame, states in (
        (ranges, _of_nccl),
        (operators, _of_framework),
        (ranges, _of_framework),
    ):
        around = _enclosing_kinds(frame, states, thread, at)
        message = around != kinds.UNKNOWN
        kind[launched[message]] = around[message]
        stated[launched[message]] = True
    # sends and receives that the program batched: an all-to-all has a range of its own name
    batched = _enclosing_kinds(ranges, _of_batch, thread, at, kinds.POINT_TO_POINT)
    both = (batched == kinds.POINT_TO_POINT) & (kind[launched] == kinds.POINT_TO_POINT)
    stated[launched[both]] = True
    return _like_their_stream(gpu, op, kind, stated), stated


def _like_their_stream(
    gpu: GpuTimeline, op: IntArray, kind: IntArray, stated: BoolArray
) -> IntArray:
    """Kinds in which sends and receives of unknown purpose are what all others of them are.

    What was launched before the capture began has no range around it: where the same kernel is
    always an all-to-all on that stream, it is one there as well.
    """
    unknown = ~stated & (kind == kinds.POINT_TO_POINT)
    if not unknown.any() or not stated.any():
        return kind
    group = distinct_rows((gpu.ops["name"][op], gpu.ops["stream"][op]))[1]
    known = np.flatnonzero(stated)
    count = np.bincount(group[known], minlength=int(group.max()) + 1)
    least, most = np.full(len(count), np.iinfo(np.int64).max), np.full(len(count), -1, np.int64)
    np.minimum.at(least, group[known], kind[known])
    np.maximum.at(most, group[known], kind[known])
    alike = (count >= _ENOUGH_ALIKE) & (least == most)
    kind = np.where(unknown & alike[group], least[group], kind)
    return kind


def _of_process(frame: Frame, process_id: int) -> Frame:
    return frame.take(frame["process_id"] == process_id) if len(frame) else frame


def _of_nccl(text: str) -> bool:
    """Whether a range is a call of NCCL, as its own annotations name it."""
    return text.lower().startswith(("nccl", "rccl"))


def _of_framework(text: str) -> bool:
    """Whether a range or an operator is how PyTorch names a collective."""
    return text.startswith(("c10d::", "nccl:", "_c10d_functional::", "c10d_functional::",
                            "symm_mem::"))  # fmt: skip


def _of_batch(text: str) -> bool:
    """Whether a range is PyTorch's ``batch_isend_irecv``, or other calls that it joins."""
    return text.startswith("nccl:coalesced")


def _enclosing_kinds(
    frame: Frame,
    states: Callable[[str], bool],
    thread: IntArray,
    at_ns: IntArray,
    states_kind: int | None = None,
) -> IntArray:
    """Kind that the innermost of some ranges around each launch states; ``UNKNOWN`` if none.

    Args:
        frame: the ranges.
        states: which of them count, by name.
        thread: thread of each launch.
        at_ns: when it began.
        states_kind: what they state; by default what their names say.
    """
    found = np.full(len(at_ns), kinds.UNKNOWN, np.int64)
    if not len(frame):
        return found
    wording = [
        kinds.UNKNOWN if not states(t) else kinds.kind_of(t) if states_kind is None else states_kind
        for t in frame.texts["name"]
    ]
    by_text = np.array([*wording, kinds.UNKNOWN], np.int64)
    stated = by_text[frame["name"]]
    useful = stated != kinds.UNKNOWN
    if not useful.any():
        return found
    frame, stated = frame.take(useful), stated[useful]
    for one in distinct_values(frame["thread_id"]).tolist():
        own = np.flatnonzero(frame["thread_id"] == one)
        mine = np.flatnonzero(thread == one)
        if not len(mine):
            continue
        own = own[np.argsort(frame["start_ns"][own], kind="stable")]
        mine = mine[np.argsort(at_ns[mine], kind="stable")]
        inside = stab_innermost(frame["start_ns"][own], frame["end_ns"][own], at_ns[mine])
        hit = inside >= 0
        found[mine[hit]] = stated[own[inside[hit]]]
    return found


def _codes_of_kernels(p: Participant, op: IntArray, tokens: dict[str, int]) -> IntArray:
    """Token of each kernel: its name and launch size."""
    if not len(op):
        return np.empty(0, np.int64)
    ops = p.gpu.ops
    grid = p.read("gpu_op", *_GRID)
    at = np.searchsorted(grid["id"], ops["id"][op])
    key = (ops["name"][op], grid["grid_x"][at], grid["block_x"][at])
    first, inverse = distinct_rows(key)
    codes = [
        _code(tokens, f"kernel|{ops.texts['name'][n] if n >= 0 else ''}|{grid_x}|{block_x}")
        for n, grid_x, block_x in zip(*(column[first].tolist() for column in key), strict=True)
    ]
    return np.array(codes, np.int64)[inverse]


def described_by(wording: Frame, gpu: GpuTimeline, op: IntArray) -> IntArray:
    """Row of ``collective`` that describes each kernel; -1 where none does."""
    if not len(wording) or not len(op):
        return np.full(len(op), -1, np.int64)
    own = np.flatnonzero(
        (wording["process_id"] == gpu.process_id) & (wording["correlation_id"] > 0)
    )
    if not len(own):
        return np.full(len(op), -1, np.int64)
    key = wording["correlation_id"][own]
    order = np.argsort(key, kind="stable")
    wanted = gpu.ops["correlation_id"][op]
    at = np.minimum(np.searchsorted(key[order], wanted), len(order) - 1)
    return np.where(key[order][at] == wanted, own[order][at], -1)


def _distinct_rows(wording: Frame, rows: IntArray) -> tuple[IntArray, IntArray]:
    """One row for each distinct description, and which of them each row has."""
    columns = ("name", "dtype", "in_elements", "out_elements", "group_name", "group_ranks",
               "group_size")  # fmt: skip
    first, inverse = distinct_rows([wording[column][rows] for column in columns])
    return rows[first], inverse


def _described(
    wording: Frame,
    row: int,
    tokens: dict[str, int],
    groups: dict[str, int],
    names: list[GroupName],
) -> tuple[int, int, int, int, int]:
    """Kind, token, group, bytes and group size of one description."""
    kind = kinds.kind_of(wording.text("name", row))
    dtype = wording.text("dtype", row)
    given, taken = int(wording["in_elements"][row]), int(wording["out_elements"][row])
    width = kinds.element_bytes(dtype)
    size_bytes = kinds.message_bytes(kind, given * width, taken * width) if width > 0 else -1
    ranks = listed_ranks(wording.text("group_ranks", row))
    name = wording.text("group_name", row)
    group = -1
    if ranks or name:
        text = ",".join(map(str, ranks)) or f"name {name}"
        if text not in groups:
            names.append(GroupName(ranks, name))
        group = _code(groups, text)
    # members of an all-to-all may differ in size, so do senders and receivers in their name
    same_size = kinds.KINDS[kind] in ("all_reduce", "broadcast", "reduce", "barrier")
    looks = f"{dtype}|{given}|{taken}" if same_size else dtype
    if kinds.KINDS[kind] in ("all_gather", "reduce_scatter"):
        looks = f"{dtype}|{size_bytes}"
    token = _code(tokens, f"said|{kind}|{looks}")
    size = int(wording["group_size"][row])
    return kind, token, group, size_bytes, size if size > 0 else (len(ranks) or -1)


def listed_ranks(text: str) -> tuple[int, ...]:
    """The numbers of a list written as JSON; empty where it is shortened or no list."""
    inside = text.strip()
    if not (inside.startswith("[") and inside.endswith("]")) or "..." in inside:
        return ()
    parts = [part.strip() for part in inside[1:-1].split(",")]
    if not all(part.isdecimal() for part in parts):
        return ()
    return tuple(sorted(int(part) for part in parts))


def _code(codes: dict[str, int], text: str) -> int:
    return codes.setdefault(text, len(codes))

"""The tracks that need an explanation, steps and idle time by cause: made, stored, read again.

Explaining takes long and much memory. What the timeline shows of it is stored with the diagnosis,
so that it is done once, and by another process than the one that answers the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.cache.arrays import ArrayFile, ArrayWriter
from stepscope.gaps.idle import CAUSES
from stepscope.timeline import classes
from stepscope.timeline.stored import Ints, StoredSlices
from stepscope.timeline.track import Names, Slices, Texts, Track, slices
from stepscope.timeline.writing import write_slices, write_texts
from stepscope.trace.frame import IntArray

if TYPE_CHECKING:
    from stepscope.breakdown.explain import Explanation


INFERRED = "the cause acted earlier, or this is an estimate"


class Gap(NamedTuple):
    """What is known of one piece of idle time.

    Attributes:
        evidence: position in ``untraced_cpu.EVIDENCE``; -1 where none is needed.
        inferred: whether the cause acted earlier, or this is an estimate.
        op: ``gpu_op.id`` of the operation that ended it; -1 where none did.
        call: ``api_call.id`` of what launched that; -1 where unknown.
        late: time from the begin of the gap to that of the call, ns.
    """

    evidence: int
    inferred: bool
    op: int
    call: int
    late: int


def steps_of(e: Explanation, offset: int, names: Names) -> Slices:
    """The steps of a device; ``offset`` is added to times, ns."""
    start, end = e.bounds_ns[:-1], e.bounds_ns[1:]
    number = np.arange(len(start))
    steady = (number >= e.first) & (number <= e.last)
    codes = [classes.CODE["step_aside"], classes.CODE["step_steady"]]
    return slices(
        start + offset,
        end + offset,
        np.array([names.number(f"step {i}") for i in number], np.int64),
        np.array(codes, np.uint8)[steady.astype(int)],
        number,
    )


def idle_of(e: Explanation, offset: int, names: Names) -> Slices:
    """The idle time of a device by cause; ``offset`` is added to times, ns."""
    rows = e.gaps.segments
    numbers = names.numbers([cause.replace("_", " ") for cause in CAUSES])
    code = np.array([classes.CODE[f"idle_{cause}"] for cause in CAUSES], np.uint8)
    return slices(
        rows["start_ns"] + offset,
        rows["end_ns"] + offset,
        numbers[rows["cause"]],
        code[rows["cause"]],
        np.arange(len(rows), dtype=np.int64),
    )


def gap_facts(e: Explanation) -> dict[str, IntArray]:
    """Columns of :class:`Gap`, one row a piece of idle time."""
    gap, gpu = e.gaps.segments, e.gpu
    op = gap["op"]
    none = np.full(len(op), -1, np.int64)
    ids, call, late = none, none, np.zeros(len(op), np.int64)
    if len(gpu.ops):
        ids = np.where(op >= 0, gpu.ops["id"][np.maximum(op, 0)], -1)
    if len(gpu.ops) and len(gpu.host.api):
        row = np.where(op >= 0, gpu.call[np.maximum(op, 0)], -1)
        known = np.maximum(row, 0)
        call = np.where(row >= 0, gpu.host.api["id"][known], -1)
        late = np.where(row >= 0, gpu.host.api["start_ns"][known] - gap["start_ns"], 0)
    return {
        "evidence": gap["evidence"],
        "inferred": gap["inferred"].astype(np.int64),
        "op": ids,
        "call": call,
        "late": late,
    }


def write_explained(
    writer: ArrayWriter, tracks: Iterable[tuple[Track, Explanation]], answer: bytes
) -> dict[str, Any]:
    """Write the explained tracks of a job, and an answer that took as long.

    Args:
        writer: of the file.
        tracks: tracks that need an explanation, each with that of its device.
        answer: bytes that are kept with it.

    Returns:
        What readers are told.

    Raises:
        OSError: the file cannot be written.
    """
    names = Names()
    about: dict[str, Any] = {}
    for track, e in tracks:
        content = (steps_of if track.table == "step" else idle_of)(e, 0, names)
        about[track.path] = write_slices(writer, track.path, content)
        if track.table == "idle_gap":
            for name, values in gap_facts(e).items():
                writer.add(f"{track.path}.{name}", np.asarray(values), "<i8")
    write_texts(writer, "names", names.texts)
    writer.add("answer", np.frombuffer(answer, np.uint8), "|u1")
    return {"tracks": about}


@dataclass(frozen=True)
class Explained:
    """Stored tracks that need explanations.

    Attributes:
        file: the file.
    """

    file: ArrayFile

    @property
    def answer(self) -> bytes:
        """What was kept with them."""
        return self.file["answer"].tobytes()

    def slices(self, path: str, offset: int, names: Names) -> Slices:
        """Steps or idle time of a device.

        Args:
            path: path of the track.
            offset: what is added to times, ns.
            names: where its names are numbered.
        """
        texts = Texts(self.file["names.text"].data, self.file["names.ends"])
        numbers = np.array([names.number(text) for text in texts], np.int64)

        def number(stored: Ints) -> IntArray:
            return numbers[stored]

        return StoredSlices(self.file, path, self.file.about["tracks"][path], offset, number)

    def gap_facts(self, track: Track) -> dict[str, IntArray]:
        """Columns of :class:`Gap`, one row a piece of idle time."""
        return {name: self.file[f"{track.path}.{name}"] for name in Gap._fields}

"""Rows of both forms of a result on their way to the canonical tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stepscope.importers.common.cuda import copy_name, short_kernel_name
from stepscope.importers.common.sink import Sink
from stepscope.importers.common.texts import StringTable, dictionary
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

_MISSING: Final = np.iinfo(np.int64).min
_SMALL: Final = 2**31 - 1
_FAR: Final = 2**62
_COPY: Final = re.compile(r"(HOST|DEVICE)_TO_(HOST|DEVICE)")
_RANGES: Final = {
    "roctxThreadRangeA": "pushpop",
    "roctxRangePushA": "pushpop",
    "roctxProcessRangeA": "startend",
    "roctxRangeStartA": "startend",
    "roctxMarkA": "mark",
}
_MOST_TEXT: Final = 1 << 16


@dataclass
class Rows:
    """Takes rows of a result, as sequences of one length.

    Attributes:
        sink: takes canonical rows.
        process: the process.
        devices: number of the GPU of each agent.
        linked: correlation ids of calls, and those of work.
    """

    sink: Sink
    process: int
    devices: dict[int, int]
    calls: list[IntArray] = field(default_factory=list)
    work: list[IntArray] = field(default_factory=list)
    not_gpu: int = 0

    def kernels(self, columns: dict[str, Sequence[Any]], names: Sequence[str]) -> None:
        """Take dispatches.

        Args:
            columns: start, end, agent, queue, stream, correlation, kernel (place in ``names``),
                group (bytes of LDS), private (bytes of scratch), block and grid in threads by axis.
            names: of kernels.
        """
        agent = _ints(columns["agent"])
        keep = self._on_gpu(agent)
        start, end, keep = self._timed(columns, keep)
        code = _ints(columns["kernel"])[keep]
        code = np.where((code < 0) | (code >= len(names)), -1, code)
        shown = [_clean(name) or f"[kernel {n}]" for n, name in enumerate(names)]
        place = self._place(columns, keep)
        blocks = {}
        for axis in "xyz":
            threads = _ints(columns[f"block_{axis}"])[keep]
            size = _ints(columns[f"grid_{axis}"])[keep]
            # AMD counts a grid in threads
            whole = np.where(threads > 0, -(-size // np.maximum(threads, 1)), _MISSING)
            blocks[f"grid_{axis}"] = _small(whole)
            blocks[f"block_{axis}"] = _small(threads)
        self.sink.put(
            "gpu_op",
            {
                "kind": dictionary(np.zeros(len(code), np.int32), ["kernel"]),
                **place,
                "start_ns": self.sink.times(start),
                "end_ns": self.sink.times(end),
                "name": dictionary(np.where(code < 0, len(shown), code), [*shown, "[kernel]"]),
                "short_name": dictionary(
                    np.where(code < 0, len(shown), code),
                    [*(short_kernel_name(name) for name in shown), "[kernel]"],
                ),
                "static_shared_bytes": _nullable(_ints(columns["group"])[keep]),
                "local_bytes": _nullable(_ints(columns["private"])[keep]),
                **blocks,
            },
        )

    def copies(self, columns: dict[str, Sequence[Any]]) -> None:
        """Take copies: start, end, source and target (agents), bytes, place, correlation, name.

        A copy belongs to the GPU it goes to, else to the one it comes from.
        """
        source, target = _ints(columns["source"]), _ints(columns["target"])
        on_target = self._is_gpu(target)
        agent = np.where(on_target, target, source)
        keep = self._on_gpu(agent)
        start, end, keep = self._timed(columns, keep)
        both = (on_target & self._is_gpu(source))[keep]
        apart = both & (source[keep] != target[keep])
        reported = [_kind(str(name)) for name in columns["name"]]
        found = np.array([_KINDS.index(kind) for kind in reported], np.int64)[keep]
        kind = np.where(apart, _KINDS.index("PtoP"), found)
        place = self._place({**columns, "agent": agent.tolist()}, keep)
        self.sink.put(
            "gpu_op",
            {
                "kind": dictionary(np.zeros(len(kind), np.int32), ["memcpy"]),
                **place,
                "start_ns": self.sink.times(start),
                "end_ns": self.sink.times(end),
                "name": dictionary(kind, [copy_name(k) for k in _KINDS]),
                "copy_kind": dictionary(kind, [k or None for k in _KINDS]),
                "bytes": _nullable(_ints(columns["bytes"])[keep]),
            },
        )

    def regions(self, columns: dict[str, Sequence[Any]]) -> None:
        """Take calls and ranges of the host.

        Columns are start, end, thread, correlation, name, message (of a range) and domain, such
        as ``HIP_RUNTIME_API`` or ``MARKER_CORE_API``.
        """
        start, end, keep = self._timed(columns, np.ones(len(columns["start"]), bool))
        domain = [str(d) for d in columns["domain"]]
        names = [_clean(str(name)) for name in columns["name"]]
        marker = np.array(
            ["MARKER" in d or n in _RANGES for d, n in zip(domain, names, strict=True)]
        )
        thread = _ints(columns["thread"])
        correlation = _ints(columns["correlation"])
        rows = np.flatnonzero(keep & ~marker) if len(keep) else np.empty(0, np.int64)
        string_table, kinds = StringTable(), StringTable()
        if len(rows):
            code = string_table.codes_of([names[row] for row in rows.tolist()])
            api = kinds.codes_of([_api(domain[row]) for row in rows.tolist()])
            self.calls.append(correlation[rows])
            self.sink.put(
                "api_call",
                {
                    "api": dictionary(api, kinds.texts),
                    "process_id": np.full(len(rows), self.process),
                    "thread_id": thread[rows],
                    "start_ns": self.sink.times(start[rows]),
                    "end_ns": self.sink.times(end[rows]),
                    "name": dictionary(code, string_table.texts),
                    "raw_name": dictionary(code, string_table.texts),
                    "correlation_id": _positive(correlation[rows]),
                },
            )
        rows = np.flatnonzero(keep & marker) if len(keep) else np.empty(0, np.int64)
        if len(rows):
            messages = StringTable()
            text = [
                _clean(str(columns["message"][row] or "")) or names[row] for row in rows.tolist()
            ]
            known = ["pushpop", "startend", "mark"]
            code = np.array(
                [known.index(_RANGES.get(names[row], "pushpop")) for row in rows.tolist()], np.int64
            )
            self.sink.put(
                "range",
                {
                    "kind": dictionary(code, known),
                    "process_id": np.full(len(rows), self.process),
                    "thread_id": thread[rows],
                    "start_ns": self.sink.times(start[rows]),
                    "end_ns": self.sink.times(end[rows]),
                    "name": dictionary(messages.codes_of(text), messages.texts),
                    "closed": np.ones(len(rows), bool),
                },
            )
        self.sink.threads |= {(self.process, t) for t in set(thread.tolist())}

    def unresolved(self) -> int:
        """Pieces of work whose call is not recorded; 0 where no calls are."""
        if not self.calls or not self.work:
            return 0
        from stepscope.intervals.distinct import among

        return int((~among(np.concatenate(self.work), np.concatenate(self.calls))).sum())

    def _place(self, columns: dict[str, Sequence[Any]], keep: BoolArray) -> dict[str, Any]:
        agent = _ints(columns["agent"])[keep]
        device = np.array([self.devices[a] for a in agent.tolist()], np.int64)
        stream = _ints(columns["stream"])[keep]
        if not (stream > 0).any():  # recorded without streams, as without HIP's calls
            stream = _ints(columns["queue"])[keep]
        stream = np.maximum(stream, 0)
        correlation = _ints(columns["correlation"])[keep]
        self.work.append(correlation)
        for where in set(zip(device.tolist(), stream.tolist(), strict=True)):
            self.sink.streams.add((self.process, -1, *where))
        return {
            "process_id": np.full(len(agent), self.process),
            "device": device,
            "stream": stream,
            "correlation_id": _positive(correlation),
        }

    def _is_gpu(self, agent: IntArray) -> BoolArray:
        return np.array([a in self.devices for a in agent.tolist()], bool)

    def _on_gpu(self, agent: IntArray) -> BoolArray:
        found = self._is_gpu(agent)
        self.not_gpu += int((~found).sum())
        return found

    def _timed(
        self, columns: dict[str, Sequence[Any]], keep: BoolArray
    ) -> tuple[IntArray, IntArray, BoolArray]:
        """Begins and ends of the rows to keep; without those that no clock tells."""
        start, end = _ints(columns["start"]), _ints(columns["end"])
        sound = (start > 0) & (end > 0) & (start < _FAR) & (end < _FAR)
        self.sink.writer.problems.count("no_time", int((keep & ~sound).sum()), scope="gpu_op")
        keep = keep & sound
        if "thread" in columns:  # of the host: other columns are not cut yet
            return start, end, keep
        return start[keep], end[keep], keep


_KINDS: Final = ("", "HtoD", "DtoH", "DtoD", "HtoH", "PtoP")


def _kind(name: str) -> str:
    match = _COPY.search(name)
    return f"{match[1][0]}to{match[2][0]}" if match else ""


def _api(domain: str) -> str:
    if "RCCL" in domain or "NCCL" in domain:
        return "nccl"
    return "driver" if domain.startswith("HSA") else "runtime"


def _clean(text: str) -> str:
    return text[:_MOST_TEXT].removesuffix(".kd")


def _ints(values: Sequence[Any] | AnyArray) -> IntArray:
    """Whole numbers; what is none, or does not fit, is missing."""
    if isinstance(values, np.ndarray):
        return values.astype(np.int64)
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        sound = [v if isinstance(v, int) and -(2**63) < v < 2**63 else _MISSING for v in values]
        return np.array(sound, np.int64)


def _nullable(values: IntArray) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, mask=values < 0)


def _positive(values: IntArray) -> pa.Array:
    return _nullable(np.where(values > 0, values, _MISSING))


def _small(values: IntArray) -> pa.Array:
    return _nullable(np.where(values > _SMALL, _MISSING, values))

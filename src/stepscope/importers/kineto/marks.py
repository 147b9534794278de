"""Single marks of a trace: names of processes and threads, the captured window."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from stepscope.importers.kineto.columns import Events, integers, nanoseconds, value_of
from stepscope.importers.kineto.events import MISSING
from stepscope.importers.kineto.spans import Spans
from stepscope.trace.store import TraceWriter
from stepscope.trace.text import LONGEST_JUDGED

_THREAD = re.compile(r"thread\s+\S+\s+\((.*)\)\s*\Z", re.S)
_PROFILER_SPAN = "PyTorch Profiler"


class Marks:
    """Metadata events, profiler spans and the end mark; there are few of them."""

    def __init__(self) -> None:
        self._processes: dict[Any, str] = {}
        self._labels: dict[Any, str] = {}
        self._threads: dict[tuple[Any, Any], str] = {}
        self._spans: list[tuple[int, int]] = []
        self._end: int | None = None
        self._counted: Counter[str] = Counter()

    def add(self, events: Events) -> None:
        """Take over events that are neither calls nor work."""
        for event in events:
            if event.ph == "M" and event.args is not None:
                self._name(event.name, event.pid, event.tid, event.args)
            elif event.ph == "X" and event.name.startswith(_PROFILER_SPAN):
                (start, duration), timed = nanoseconds([event.ts, event.dur])
                if timed.all():
                    self._spans.append((int(start), int(start + duration)))
            elif event.name == "Record Window End":
                time, timed = nanoseconds([event.ts])
                self._end = int(time[0]) if timed.all() else None

    def _name(self, what: str, pid: Any, tid: Any, args: Any) -> None:
        if what == "process_name":
            self._processes[pid] = self._text(args.name)
        elif what == "process_labels":
            self._labels[pid] = self._text(args.labels)
        elif what == "thread_name":
            thread = (pid, integers([tid])[0].item())
            self._threads[thread] = self._text(args.name) or self._threads.get(thread, "")

    def _text(self, raw: msgspec.Raw) -> str:
        value = value_of(raw, self._counted)
        if isinstance(value, str):
            return value
        self._counted["bad_value"] += value is not None
        return ""

    def window(self, tables: Iterable[Spans]) -> tuple[int, int] | None:
        """Begin and end of the captured window, as recorded, with every event inside.

        None when there is no event with a time.
        """
        extents = [extent for table in tables if (extent := table.extent())]
        if not extents:
            return None
        extents += self._spans
        ends = [end for _, end in extents]
        if not self._spans and self._end is not None:
            ends.append(self._end)
        return min(start for start, _ in extents), max(ends)

    def host(self, pids: Counter[int]) -> int:
        """The captured process: the one that most host events, else the labels, name."""
        known = [pid for pid, _ in pids.most_common() if pid != MISSING]
        labelled = [pid for pid, label in self._labels.items() if label == "CPU"]
        numbers = [pid for pid in known + labelled if isinstance(pid, int) and abs(pid) < -MISSING]
        return numbers[0] if numbers else 0

    def write(
        self, writer: TraceWriter, host: int, threads: set[tuple[int, int]], rank: int | None
    ) -> None:
        """Write the ``thread`` and ``process`` tables.

        Args:
            writer: the sink.
            host: the captured process.
            threads: process and thread of the host events.
            rank: rank of the captured process.
        """
        for problem, number in self._counted.items():
            writer.problems.count(problem, number, scope="thread")
        found = {(host if pid == MISSING else pid, tid) for pid, tid in threads if tid != MISSING}
        named = {key: name for key, name in self._threads.items() if key[0] == host}
        every = sorted(found | {(int(pid), tid) for pid, tid in named if tid != MISSING})
        if every:
            writer.append(
                "thread",
                {
                    "process_id": [pid for pid, _ in every],
                    "thread_id": [tid for _, tid in every],
                    "name": [_thread_name(self._threads.get(key)) for key in every],
                },
            )
        processes = sorted({host} | {pid for pid, _ in every})
        if len(processes) > 1:
            writer.problems.count(
                "unsupported_source",
                1,
                scope="process",
                detail=f"host events of {len(processes)} processes in one file; GPU work is "
                f"attributed to process {host}",
            )
        writer.append(
            "process",
            {
                "process_id": processes,
                "name": [self._processes.get(pid) or None for pid in processes],
                "rank": [rank if pid == host else None for pid in processes],
            },
        )


def _thread_name(text: str | None) -> str | None:
    """``thread 565 (pt_autograd_0)`` gives ``pt_autograd_0``."""
    match = _THREAD.match((text or "")[:LONGEST_JUDGED])
    return (match[1] if match else text) or None

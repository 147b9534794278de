"""Build small traces by hand: times in microseconds, written through the real store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stepscope.trace.meta import Meta
from stepscope.trace.problems import ProblemLog
from stepscope.trace.schema import TABLES, arrow_schema
from stepscope.trace.store import TraceWriter, write_meta
from stepscope.trace.trace import Trace

US = 1000
PID = 100
MAIN = 100
AUTOGRAD = 101


class Build:
    """Rows of canonical tables, collected one by one."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.correlation = 0

    def _add(self, table: str, **row: Any) -> None:
        self.rows.setdefault(table, []).append(row)

    def api(
        self,
        start: float,
        end: float,
        name: str,
        *,
        thread: int = MAIN,
        correlation: int | None = None,
        api: str = "runtime",
    ) -> None:
        self._add(
            "api_call",
            api=api,
            process_id=PID,
            thread_id=thread,
            start_ns=round(start * US),
            end_ns=round(end * US),
            name=name,
            raw_name=name,
            correlation_id=correlation,
        )

    def kernel(
        self,
        start: float,
        end: float,
        *,
        call: tuple[float, float] | None = None,
        name: str = "gemm",
        stream: int = 7,
        device: int = 0,
        thread: int = MAIN,
        call_name: str = "cudaLaunchKernel",
        **more: Any,
    ) -> None:
        self._op("kernel", start, end, call, name, stream, device, thread, call_name, **more)

    def copy(
        self,
        start: float,
        end: float,
        *,
        call: tuple[float, float] | None = None,
        kind: str = "HtoD",
        size: int = 1 << 20,
        src: str = "pinned",
        dst: str = "device",
        call_name: str = "cudaMemcpyAsync",
        stream: int = 7,
        thread: int = MAIN,
    ) -> None:
        self._op("memcpy", start, end, call, f"[CUDA memcpy {kind}]", stream, 0, thread, call_name,
                 bytes=size, copy_kind=kind, src_memory=src, dst_memory=dst)  # fmt: skip

    def memset(
        self, start: float, end: float, *, call: tuple[float, float] | None = None, size: int = 4096
    ) -> None:
        self._op("memset", start, end, call, "[CUDA memset]", 7, 0, MAIN, "cudaMemsetAsync",
                 bytes=size)  # fmt: skip

    def graph(
        self, start: float, end: float, *, call: tuple[float, float], number: int = 2
    ) -> None:
        """A launch of a CUDA graph that was recorded as a whole."""
        self._op("graph", start, end, call, f"[CUDA graph {number}]", 7, 0, MAIN,
                 "cudaGraphLaunch", graph_id=number)  # fmt: skip

    def _op(
        self,
        kind: str,
        start: float,
        end: float,
        call: tuple[float, float] | None,
        name: str,
        stream: int,
        device: int,
        thread: int,
        call_name: str,
        **more: Any,
    ) -> None:
        self.correlation += 1
        if call is not None:
            self.api(call[0], call[1], call_name, thread=thread, correlation=self.correlation)
        self._add(
            "gpu_op",
            kind=kind,
            process_id=PID,
            device=device,
            stream=stream,
            correlation_id=self.correlation,
            start_ns=round(start * US),
            end_ns=round(end * US),
            name=name,
            **more,
        )

    def range(
        self, start: float, end: float, name: str, *, thread: int = MAIN, **more: Any
    ) -> None:
        self._add(
            "range",
            kind="pushpop",
            process_id=PID,
            thread_id=thread,
            start_ns=round(start * US),
            end_ns=round(end * US),
            name=name,
            **{"closed": True, **more},
        )

    def operator(
        self, start: float, end: float, name: str, *, thread: int = MAIN, **more: Any
    ) -> None:
        """One framework operator; ``more`` are further columns, times in ns."""
        self._add(
            "operator",
            process_id=PID,
            thread_id=thread,
            start_ns=round(start * US),
            end_ns=round(end * US),
            name=name,
            **more,
        )

    def python(self, start: float, end: float, name: str, *, thread: int = MAIN) -> None:
        """One traced Python function, named ``file(line): function``."""
        self._add(
            "python_function",
            process_id=PID,
            thread_id=thread,
            start_ns=round(start * US),
            end_ns=round(end * US),
            name=name,
        )

    def overhead(self, start: float, end: float, name: str, *, thread: int = MAIN) -> None:
        """One row of ``overhead``: what the capturing tool says of itself."""
        self._add(
            "overhead",
            process_id=PID,
            thread_id=thread,
            start_ns=round(start * US),
            end_ns=round(end * US),
            name=name,
        )

    def gpu(self, name: str, *, sm_count: int = 132, device: int = 0, **columns: Any) -> None:
        """One row of ``device``."""
        self._add("device", process_id=PID, device=device, name=name, sm_count=sm_count, **columns)

    def trace(
        self, folder: Path, *, counted: Mapping[str, int] | None = None, **meta: Any
    ) -> Trace:
        """Write the rows as a trace.

        Args:
            folder: where to.
            counted: problem of the import, of ``gpu_op`` -> how often it was met.
            **meta: fields of the metadata.
        """
        target = folder / "built.stepscope"
        target.mkdir()
        problems = ProblemLog()
        for problem, count in (counted or {}).items():
            problems.count(problem, count, scope="gpu_op")
        writer = TraceWriter(target, problems)
        for table, rows in self.rows.items():
            columns: dict[str, Any] = {}
            for column in TABLES[table].columns:
                if any(column.name in row for row in rows):
                    kind = arrow_schema(table).field(column.name).type
                    kind = getattr(kind, "value_type", kind)  # pyarrow looks long for what it is
                    values = [row.get(column.name) for row in rows]
                    columns[column.name] = pa.array(values, type=kind)
            writer.append(table, columns)
        known = writer.close()
        ends = [row["end_ns"] for rows in self.rows.values() for row in rows if "end_ns" in row]
        write_meta(
            target,
            Meta(rows=known, window_end_ns=max(ends), problems=problems.problems(),
                 **{"source": "nsys", **meta}),
        )  # fmt: skip
        return Trace(target)


def spread(n: int, period: float, start: float = 0.0) -> list[float]:
    """Start times of ``n`` steps."""
    return (start + period * np.arange(n)).tolist()

"""What Holistic Trace Analysis itself says of a Kineto trace, as JSON.

Needs ``pip install HolisticTraceAnalysis 'pandas<3'``; that is no dependency of the project, so the
answers about the committed captures are committed too: ``python -m tests.reports.hta_oracle`` in an
environment that has it writes them again.
"""

from __future__ import annotations

import gzip
import json
import logging
import tempfile
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

KINETO = Path(__file__).parents[1] / "data" / "captures" / "kineto"
ORACLE = Path(__file__).parents[1] / "data" / "oracle" / "hta"
FULL = 10
"""Operations from which on a queue counts as full: no committed capture has 1,024 in one."""
SEQUENCES = {"cnn_disk": "aten::batch_norm", "lstm_tiny": "aten::lstm", "gpt_graph": "step"}
"""The captures, and operators whose kernel sequences are asked for."""


def prepared(capture: Path, folder: Path) -> Path:
    """The capture as HTA reads it without loss.

    Its times become whole nanoseconds since the first event: HTA takes them for microseconds, holds
    them as float64 (no nanoseconds left beside the microseconds since 1970) and cuts the parts of
    some sums to whole numbers. Waits of streams (``cuda_sync``) go, as HTA takes them for kernels;
    launches by functions that it does not know get the name of one that it knows.
    """
    with gzip.open(capture, "rt") if capture.suffix == ".gz" else capture.open() as file:
        document = json.load(file, parse_float=Decimal)
    events = [event for event in document["traceEvents"] if event.get("cat") != "cuda_sync"]
    first = min(event["ts"] for event in events if event.get("ph") == "X")
    for event in events:
        if "ts" in event:
            event["ts"] = round((event["ts"] - first) * 1000)
        if "dur" in event:
            event["dur"] = round(event["dur"] * 1000)
        if str(event.get("name")).startswith("cuLaunchKernel"):
            event["name"] = "cudaLaunchKernel"
    document["traceEvents"] = events
    target = folder / "trace.json"
    target.write_text(json.dumps(document, default=float))
    return target


def answers(capture: Path, *, last_step: bool = True) -> dict[str, Any]:
    """HTA's tables of a capture, in nanoseconds where it says microseconds.

    Args:
        capture: a Kineto trace.
        last_step: whether the last ProfilerStep counts, too.
    """
    warnings.filterwarnings("ignore")
    import plotly.graph_objects  # type: ignore[import-not-found]
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    logging.disable(logging.CRITICAL)
    plotly.graph_objects.Figure.show = lambda *_, **__: None
    with tempfile.TemporaryDirectory() as name:
        trace = prepared(capture, Path(name))
        analysis = TraceAnalysis(trace_files={0: str(trace)}, include_last_profiler_step=last_step)

        def rows(make: Callable[[], Any]) -> Any:
            try:
                frame = make()
            except KeyError:  # its own error where there is nothing to group
                return []
            if frame is None:
                return []
            frame = frame.copy()
            frame.columns = ["_".join(c) if isinstance(c, tuple) else c for c in frame.columns]
            return json.loads(frame.reset_index().to_json(orient="records", double_precision=9))

        idle, idle_stats = analysis.get_idle_time_breakdown(
            visualize=False, consecutive_kernel_delay=30_000, show_idle_interval_stats=True
        )
        types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**6)
        series = analysis.get_queue_length_time_series()
        return {
            "temporal": rows(lambda: analysis.get_temporal_breakdown(visualize=False)),
            "overlap": rows(lambda: analysis.get_comm_comp_overlap(visualize=False)),
            "types": rows(lambda: types),
            "kernels": rows(lambda: kernels),
            "annotations": rows(
                lambda: analysis.get_gpu_user_annotation_breakdown(
                    visualize=False, num_kernels=10**6
                )
            ),
            "idle": rows(lambda: idle),
            "idle_stats": rows(lambda: idle_stats),
            "launches": rows(lambda: analysis.get_cuda_kernel_launch_stats(visualize=False)[0]),
            "operators": rows(lambda: analysis.get_aten_op_kernels_and_delay()[0]),
            "queue": rows(analysis.get_queue_length_summary),
            "full": rows(lambda: analysis.get_time_spent_blocked_on_full_queue(series, FULL)),
            "bandwidth": rows(analysis.get_memory_bw_summary),
            "sequences": rows(
                lambda: analysis.get_frequent_cuda_kernel_sequences(
                    SEQUENCES[capture.name.partition(".")[0]], name, visualize=False
                )
            ),
        }


if __name__ == "__main__":
    ORACLE.mkdir(parents=True, exist_ok=True)
    for capture_ in SEQUENCES:
        text = json.dumps(answers(KINETO / f"{capture_}.json.gz"), separators=(",", ":"))
        (ORACLE / f"{capture_}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))

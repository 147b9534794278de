"""The reports that Holistic Trace Analysis has too, cell by cell against its own answers."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.reports.hta_oracle import FULL, KINETO, ORACLE, SEQUENCES, answers

from stepscope.cache.store import Cache
from stepscope.importers.registry import load
from stepscope.reports.registry import reports
from stepscope.reports.report import answer, parse
from stepscope.reports.source import Source
from stepscope.trace.trace import Trace

Rows = list[dict[str, Any]]
SPREAD = (
    *(("Mean", "mean"), ("StdDev", "std"), ("Min", "min"), ("Q1", "25%")),
    *(("Med", "50%"), ("Q3", "75%"), ("Max", "max")),
)
"""Our column, HTA's."""
GRAPHS = "gpt_graph"
"""The capture whose steps are one CUDA graph: HTA knows no queue and no operator of its kernels."""


def rows(trace: Trace, name: str) -> Rows:
    outcome = answer(parse(name, reports()), Source(trace))
    assert outcome.table is not None, outcome.missing
    found: Rows = outcome.table.to_pylist()
    return found


def oracle(capture: str) -> dict[str, Rows]:
    found: dict[str, Rows] = json.loads(
        gzip.decompress((ORACLE / f"{capture}.json.gz").read_bytes())
    )
    return found


def name_of(kernel: str) -> str:
    """HTA's name of an operation as ours."""
    for label, kind in (
        ("HtoD", "Host-to-Device"),
        ("DtoH", "Device-to-Host"),
        ("DtoD", "Device-to-Device"),
    ):
        if kernel.startswith(f"Memcpy {label}"):
            return f"[CUDA memcpy {kind}]"
    return "[CUDA memset]" if kernel.startswith("Memset") else kernel


def check(trace: Trace, hta: dict[str, Rows], capture: str) -> None:
    """Every figure of HTA is ours."""
    (temporal,) = rows(trace, "gpu_temporal_breakdown")
    (theirs,) = hta["temporal"]
    for ours, name in (("Idle", "idle"), ("Compute", "compute"), ("Non-Compute", "non_compute")):
        assert temporal[ours] == theirs[f"{name}_time(us)"]
        assert temporal[f"{ours} Share"] == pytest.approx(theirs[f"{name}_time_pctg"], abs=0.0101)
    assert temporal["Total"] == theirs["kernel_time(us)"]

    (overlap,) = rows(trace, "comm_compute_overlap")
    assert overlap["Overlap"] == pytest.approx(
        hta["overlap"][0]["comp_comm_overlap_pctg"], abs=0.0101
    )

    types = {
        row["Class"].upper().replace("OVERLAPPING", "overlapping"): row
        for row in rows(trace, "gpu_kernel_type_breakdown")
    }
    assert {key: row["Time"] for key, row in types.items()} == {
        "".join(_classes(row["kernel_type"])): row["sum"] for row in hta["types"] if row["sum"]
    }

    check_kernels(trace, hta)
    check_idle(trace, hta)
    check_launches(trace, hta)
    check_bandwidth(trace, hta)
    if GRAPHS not in capture:
        check_queue(trace, hta)
        check_operators(trace, hta)
    if capture in SEQUENCES:
        check_sequences(trace, hta, SEQUENCES[capture])


def _classes(text: str) -> str:
    """HTA's combination of classes in our order."""
    known = ("COMPUTATION", "COMMUNICATION", "MEMORY")
    return " overlapping ".join(name for name in known if name in text.split())


def check_kernels(trace: Trace, hta: dict[str, Rows]) -> None:
    ours = {}
    for row in rows(trace, "gpu_kernel_breakdown"):
        ours[row["Class"].upper(), row["Name"]] = row
    total: Counter[tuple[str, str]] = Counter()
    for row in hta["kernels"]:
        key = row["kernel_type"], name_of(row["name"])
        total[key] += row["sum (us)"]
        if name_of(row["name"]) == row["name"]:  # HTA tells copies apart by memory
            assert ours[key]["Max"] == row["max (us)"]
            assert ours[key]["Min"] == row["min (us)"]
            assert ours[key]["Avg"] == pytest.approx(row["mean (us)"], abs=0.051)
            assert ours[key]["StdDev"] == pytest.approx(row["stddev"], abs=0.051)
    assert total == {key: row["Total Time"] for key, row in ours.items()}

    annotations = {row["Name"]: row for row in rows(trace, "gpu_annotation_breakdown")}
    assert {name: row["Total Time"] for name, row in annotations.items()} == {
        row["name"]: row["sum (us)"] for row in hta["annotations"]
    }


def check_idle(trace: Trace, hta: dict[str, Rows]) -> None:
    ours = {
        (row["Strm"], row["Category"].replace(" ", "_")): row
        for row in rows(trace, "gpu_idle_breakdown")
    }
    stats = {(row["stream"], row["idle_category"]): row for row in hta["idle_stats"]}
    for row in hta["idle"]:
        key = row["stream"], row["idle_category"]
        if not stats[key]["count"]:
            assert key not in ours
            continue
        assert ours[key]["Idle"] == row["idle_time"]
        assert ours[key]["Share"] == pytest.approx(100 * row["idle_time_ratio"], abs=0.51)
        assert ours[key]["Count"] == stats[key]["count"]
        for label, name in SPREAD:
            assert ours[key][label] == pytest.approx(stats[key][name], abs=0.011), (key, label)
    assert len(ours) == sum(row["count"] > 0 for row in hta["idle_stats"])


def check_launches(trace: Trace, hta: dict[str, Rows]) -> None:
    def keyed(found: Rows, *names: str) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row[name] for name in names) for row in found)

    ours = rows(trace, "gpu_launch_trace")
    assert keyed(ours, "CorrId", "API Dur", "GPU Dur", "Launch Delay") == keyed(
        hta["launches"], "correlation", "cpu_duration", "gpu_duration", "launch_delay"
    )
    summary = rows(trace, "gpu_launch_stats:call=20000:delay=50000")
    assert sum(row["Launches"] for row in summary) == len(hta["launches"])
    assert sum(row["Short"] for row in summary) == sum(
        row["gpu_duration"] < row["cpu_duration"] <= 20_000 for row in hta["launches"]
    )
    assert sum(row["Call Outliers"] for row in summary) == sum(
        row["cpu_duration"] > 20_000 for row in hta["launches"]
    )
    assert sum(row["Delay Outliers"] for row in summary) == sum(
        row["launch_delay"] > 50_000 for row in hta["launches"]
    )


def check_queue(trace: Trace, hta: dict[str, Rows]) -> None:
    ours = {row["Strm"]: row for row in rows(trace, f"gpu_queue_length_sum:full={FULL}")}
    assert set(ours) == {row["stream"] for row in hta["queue"]}
    for row in hta["queue"]:
        for label, name in (("Count", "count"), *SPREAD):
            theirs = row[f"queue_length_{name}"]
            assert ours[row["stream"]][label] == pytest.approx(theirs, abs=0.00051), label
    full = {row["stream"]: row["duration_at_max_queue_length"] for row in hta["full"]}
    for stream, length in full.items():
        assert ours[stream]["Full"] == length


def check_bandwidth(trace: Trace, hta: dict[str, Rows]) -> None:
    ours = {row["Kind"]: row for row in rows(trace, "gpu_memory_bandwidth_sum")}
    assert set(ours) == {row["name"] for row in hta["bandwidth"]}
    for row in hta["bandwidth"]:
        for label, name in (("Count", "count"), *SPREAD):
            theirs, scale = row[f"memory_bw_gbps_{name}"], 1 if name == "count" else 1e9
            if theirs is None:
                assert ours[row["name"]][label] is None
            else:
                assert ours[row["name"]][label] == pytest.approx(theirs * scale, rel=1e-6, abs=1)


def check_operators(trace: Trace, hta: dict[str, Rows]) -> None:
    def summed(found: Rows, operator: str, count: str, *means: str) -> dict[Any, list[float]]:
        """Sums, which do not depend on how HTA breaks up sequences that lie on two threads."""
        sums: dict[Any, list[float]] = defaultdict(lambda: [0.0] * (1 + len(means)))
        for row in found:
            sums[row[operator]][0] += row[count]
            for at, mean in enumerate(means, 1):
                sums[row[operator]][at] += row[mean] * row[count]
        return sums

    ours = rows(trace, "gpu_operator_kernels:rows=-1")
    theirs = hta["operators"]
    a = summed(ours, "Operator", "Count", "Avg Launch Delay", "Avg Queue Delay")
    b = summed(
        theirs, "aten_op_name", "occurrence_count", "avg_aten_op_launch_delay", "avg_runtime_delay"
    )
    assert set(a) == set(b)
    for key, sums in a.items():
        assert sums == pytest.approx(b[key], rel=1e-3), key
    assert {(r["Operator"], r["Kernels"]) for r in ours} == {
        (r["aten_op_name"], r["kernel_sequence"]) for r in theirs
    }


def check_sequences(trace: Trace, hta: dict[str, Rows], operator: str) -> None:
    ours = {
        (row["Operator"], row["Sequence"].replace(" -> ", "|")): row
        for row in rows(trace, f"gpu_kernel_sequences:operator={operator}:rows=-1")
    }
    theirs = {}
    for row in hta["sequences"]:
        first, *names = row["pattern"].split("|")
        theirs[first, "|".join(map(name_of, names))] = row
    assert set(ours) == set(theirs)
    for key, row in ours.items():
        assert row["Count"] == theirs[key]["count"]
        assert row["GPU Time"] == theirs[key]["GPU kernel duration (us)"]
        assert row["CPU Time"] == theirs[key]["CPU op duration (us)"]


@pytest.mark.parametrize("capture", SEQUENCES)
def test_equal_to_what_hta_said(capture: str) -> None:
    trace = load(KINETO / f"{capture}.json.gz", Cache())
    check(trace, oracle(capture), capture)
    assert oracle(capture)["launches"]


@pytest.mark.skipif(not find_spec("hta"), reason="HolisticTraceAnalysis is not installed")
def test_equal_to_what_hta_says() -> None:
    capture = KINETO / "cnn_small.json.gz"
    check(load(capture, Cache()), answers(capture), "cnn_small")


def test_without_the_last_step(tmp_path: Path) -> None:
    """By hand: HTA leaves out what was launched after the last ProfilerStep began."""
    text = gzip.decompress((KINETO / "cnn_small.json.gz").read_bytes())
    document = json.loads(text, parse_float=Decimal)
    begins = []
    for event in document["traceEvents"]:
        if event.get("cat") == "user_annotation" and event["name"].startswith("iteration "):
            event["name"] = event["name"].replace("iteration ", "ProfilerStep#")
            begins.append(event["ts"])
    launched = {
        event["args"]["correlation"]
        for event in document["traceEvents"]
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and event["ts"] < max(begins)
    }
    kept = [
        event
        for event in document["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        and event["args"]["correlation"] in launched
    ]
    target = tmp_path / "steps.json"
    target.write_text(json.dumps(document, default=float))
    trace = load(target, Cache())
    (row,) = rows(trace, "gpu_temporal_breakdown:without-last-step")
    (whole,) = rows(trace, "gpu_temporal_breakdown")
    first = min(event["ts"] for event in kept)
    assert row["Total"] == max(
        round((event["ts"] - first) * 1000) + round(event["dur"] * 1000) for event in kept
    )
    assert row["Total"] < whole["Total"]
    assert sum(
        r["Instances"] for r in rows(trace, "gpu_kernel_breakdown:without-last-step")
    ) == len(kept)

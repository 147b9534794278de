"""Stores what ``job_measure.py`` left unpacked on a GPU as pairs of the exam, cut to a few steps.

usage: python benchmarks/predictions/job_store.py FOLDER [NAME...]

FOLDER holds NAME.json, NAME.kineto.ms and NAME.kineto/rankN.json. Of the traces the first steps are
kept, whole: what their calls enqueued, too. Of a fault in every k-th step there are three.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from store import CAPTURES, UNSURE, doubt, store_capture

STEPS = 5
LEFT_OUT = {
    "job_one_bucket": "another program of the exam began to use GPU 1 while it was measured",
    "job_uneven_lengths": "another program of the exam used GPU 1 while it was measured",
}


def cut(trace: dict[str, Any], steps: int) -> dict[str, Any]:
    """The first steps of a trace."""
    events = trace["traceEvents"]
    marks = sorted(e["ts"] for e in events if e.get("name") == f"step_{steps}" and "ts" in e)
    if not marks:
        return trace
    end = marks[0]
    calls = ("cuda_runtime", "cuda_driver")
    late = {
        e["args"]["correlation"]
        for e in events
        if e.get("cat") in calls and e["ts"] >= end and "correlation" in e.get("args", {})
    }
    flows = {e["id"] for e in events if e.get("ph") == "s" and e["ts"] >= end}

    def kept(e: dict[str, Any]) -> bool:
        if e.get("ph") == "M" or "ts" not in e:
            return True
        if e.get("ph") in ("s", "f"):
            return e["id"] not in flows
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            return e.get("args", {}).get("correlation") not in late
        return e["ts"] < end and e.get("cat") != "gpu_user_annotation"

    return {**trace, "traceEvents": [e for e in events if kept(e)]}


def main() -> None:
    folder, *names = sys.argv[1:]
    for file in sorted(Path(folder).glob("job_*.json")):
        truth = json.loads(file.read_text())
        name = truth["name"]
        ranks = sorted(Path(folder, f"{name}.kineto").glob("rank*.json"))
        if (names and name not in names) or len(ranks) != truth["ranks"]:
            continue
        if name in LEFT_OUT or doubt(truth) > UNSURE:
            print(f"{name}: left out, {LEFT_OUT.get(name, 'the turns differ too much')}")
            continue
        truth["recorded"] = {"kineto": float(Path(folder, f"{name}.kineto.ms").read_text())}
        steps = STEPS if truth["period"] == 1 else 3 * truth["period"]
        files = {
            rank.name: json.dumps(cut(json.loads(rank.read_text()), steps)).encode()
            for rank in ranks
        }
        size = store_capture(files, CAPTURES / f"{name}.kineto.tar.xz")
        (CAPTURES / f"{name}.json").write_text(json.dumps(truth) + "\n")
        print(f"{name}: {size / 1024:.0f} KB", flush=True)


if __name__ == "__main__":
    main()

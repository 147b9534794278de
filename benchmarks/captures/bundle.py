"""Cut captures to a few steps, small enough for the wheel: what ``stepscope demo --copy`` gives.

usage: python benchmarks/captures/bundle.py OUTPUT_FOLDER FIRST_STEP CAPTURE...

Nsight Systems exports are cut by ``tests/data/ranks/make.py``. Of a PyTorch trace, what lies before
the range ``step_<FIRST_STEP>`` is removed, and the GPU work that it launched. Both lose what they
tell of the machine they were recorded on.
"""

import json
import lzma
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "data" / "ranks"))
import make

KEPT = {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args", "id", "bp"}
REPEATED = {"ac2g", "fwdbwd", "gpu_user_annotation", "overhead"}
"""Categories that say again what correlation ids and sequence numbers say."""


def cut_kineto(trace: Path, first_step: int, target: Path) -> None:
    """Write a PyTorch trace from a step on, compressed."""
    document = json.loads(trace.read_bytes())
    events = document["traceEvents"]
    begin = min(e["ts"] for e in events if e.get("name") == f"step_{first_step}" and "ts" in e)
    late = [e for e in events if e.get("ph") != "X" or e["ts"] >= begin]
    launched = {
        e["args"]["correlation"]
        for e in late
        if e.get("cat", "").startswith("cuda_") and "correlation" in e.get("args", {})
    }
    kept = [e for e in late if _belongs(e, begin, launched)]
    for event in kept:
        for key in set(event) - KEPT:
            del event[key]
        if event.get("cat") == "cpu_op" and "Collective name" not in event["args"]:
            numbers = ("Sequence number", "Fwd thread id")
            event["args"] = {n: event["args"][n] for n in numbers if n in event["args"]}
    document["traceEvents"] = kept
    for key in ("traceName", "host_name"):
        document.pop(key, None)
    text = re.sub(r'"/[^" ]*/', '"', json.dumps(document, separators=(",", ":")))
    target.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _belongs(event: dict, begin: float, launched: set[int]) -> bool:
    """Whether an event is of the steps that stay, or names a thread or process."""
    if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
        return event["args"].get("correlation") in launched
    if event.get("cat") in REPEATED:
        return False
    return event.get("ph") == "M" or event.get("ts", begin) >= begin


def main() -> None:
    folder, first_step = Path(sys.argv[1]), int(sys.argv[2])
    for name in sys.argv[3:]:
        capture = Path(name)
        cut = make.cut if capture.suffix == ".sqlite" else cut_kineto
        cut(capture, first_step, folder / f"{capture.name}.xz")


if __name__ == "__main__":
    main()

"""How much of the package a question goes through: modules loaded, modules at work, frames deep.

Structure, not speed: who follows a kernel from the capture to an answer reads about
so many modules. Each question is asked in a process of its own, of the bundled capture, imported
before.

    python benchmarks/walk_of_a_row.py [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

QUESTIONS = {
    "query": ["query", "CAPTURE", "SELECT count(*) FROM gpu_op"],
    "stats": ["stats", "CAPTURE", "-r", "cuda_gpu_kern_sum"],
    "diagnose": ["diagnose", "CAPTURE"],
    "steps": ["steps", "CAPTURE"],
}

PROGRAM = """
import contextlib, io, json, sys
loaded_before = set(sys.modules)
working, depths = set(), [0]

def follow(frame, event, argument):
    if event != "call":
        return
    name = frame.f_globals.get("__name__", "")
    if not name.startswith("stepscope.") or frame.f_code.co_name == "<module>":
        return
    working.add(name)
    deep = 0
    while frame is not None:
        deep += frame.f_globals.get("__name__", "").startswith("stepscope.")
        frame = frame.f_back
    depths[0] = max(depths[0], deep)

from stepscope.cli.main import main
arguments = json.loads(sys.argv[1])
sys.argv = ["stepscope", *arguments]
sys.setprofile(follow)
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
sys.setprofile(None)
ours = {name for name in sys.modules if name.startswith("stepscope")}
loaded = ours - loaded_before
print(json.dumps({"loaded": len(loaded), "at_work": len(working), "frames": depths[0]}))
"""


def main() -> None:
    """Ask each question and print one row for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked_for_json = parser.parse_args().json
    find = "from stepscope.api.inputs import bundled_capture; print(bundled_capture())"
    capture = subprocess.run(
        [sys.executable, "-c", find], capture_output=True, text=True, check=True
    ).stdout.strip()
    rows = {}
    for name, arguments in QUESTIONS.items():
        given = [capture if argument == "CAPTURE" else argument for argument in arguments]
        rows[name] = ask(given)
    if asked_for_json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'question':10} {'modules loaded':>15} {'modules at work':>16} {'frames deep':>12}")
    for name, row in rows.items():
        print(f"{name:10} {row['loaded']:15} {row['at_work']:16} {row['frames']:12}")


def ask(arguments: list[str]) -> dict[str, int]:
    """Ask once so that the capture is imported, then once under the profiler."""
    program = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    subprocess.run(program, capture_output=True, check=True)
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()

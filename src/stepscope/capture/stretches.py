"""What the hook timed beside a trace of torch.profiler goes into that trace.

The steps that were not recorded are timed after the trace was written, so they come in a file of
their own, and the launcher puts both together when the program has ended.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

KEY = "stepscopeTimedStretches"
"""In the top-level object of the trace: lists of recorded (1) or not (0), begin, end, steps."""
SUFFIX = ".steps.tsv"
_TRACE = ".json.gz"


def put_into(trace: Path) -> str:
    """Put what the hook timed into a trace; that file is then removed.

    Args:
        trace: as torch.profiler wrote it, ``NAME.json.gz``.

    Returns:
        What went wrong, in one sentence; empty where nothing did.
    """
    timed = trace.with_name(trace.name.removesuffix(_TRACE) + SUFFIX)
    try:
        stretches = _in_wall_clock_time(timed.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"the times of steps in {timed} cannot be read: {error}"
    made = trace.with_name(trace.name + ".made")
    try:
        with gzip.open(trace, "rb") as source, gzip.open(made, "wb", compresslevel=5) as target:
            first = source.read(1)
            while first.isspace():
                first = source.read(1)
            if first != b"{":
                raise ValueError("it is no JSON object")
            target.write(f'{{"{KEY}": {json.dumps(stretches)},'.encode())
            shutil.copyfileobj(source, target, 1 << 20)
        made.replace(trace)
        timed.unlink()
    except (OSError, EOFError, ValueError) as error:
        made.unlink(missing_ok=True)
        return f"the times of steps could not be put into {trace}: {error}"
    return ""


def _in_wall_clock_time(text: str) -> list[list[int]]:
    """The stretches of a hook's file, which has the offset of the clocks before them."""
    offset, found = 0, []
    for line in text[: text.rfind("\n") + 1].splitlines():
        kind, *numbers = line.split("\t")
        values = [int(number) for number in numbers]
        if kind == "C" and len(values) == 2:
            offset = values[1] - values[0]
        elif len(values) == 3:
            begin, end, steps = values
            found.append([int(kind), begin + offset, end + offset, steps])
    return found

"""Open a report, whatever its form: ``.ncu-rep``, or what ``ncu --csv`` printed."""

from __future__ import annotations

import math
from pathlib import Path

from stepscope.ncu.model import Report, Wanted
from stepscope.trace.errors import InputError

_MAGIC = b"NVR\0"
_HEAD = 65536


def is_report(path: Path) -> bool:
    """Whether a file is an Nsight Compute report or its CSV, by its first bytes."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    # an empty or foreign file of this name is refused by the reader, with a better sentence
    return head.startswith(_MAGIC) or path.suffix == ".ncu-rep" or _is_csv(head)


def read_report(path: Path, wanted: Wanted | None = None) -> Report:
    """Read a report.

    Args:
        path: the file.
        wanted: launches of which everything is read; without it none.

    Raises:
        InputError: it cannot be read, is damaged, or holds no kernel.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its name and rights") from (
            error
        )
    if head.startswith(_MAGIC):
        from stepscope.ncu.read_rep import read_rep

        report = read_rep(path, wanted)
    elif _is_csv(head):
        from stepscope.ncu.read_csv import read_csv

        report = read_csv(path)
    else:
        raise InputError(
            f"{path} is no Nsight Compute report; give an .ncu-rep file, or what "
            "ncu --import REPORT.ncu-rep --csv --page raw prints"
        )
    odd = sum(value < 0 or value == math.inf for launch in report.launches
              for value in launch.values.values())  # fmt: skip
    if odd:
        report.warnings.append(
            f"{odd:,} {'figure is' if odd == 1 else 'figures are'} negative or infinite, left out: "
            "noise of the counters where it is a few, a damaged file where it is many"
        )
    if not report.launches:
        raise InputError(
            f"{path} holds no kernel; the file is incomplete, or ncu's filters matched nothing: "
            "copy it again, or profile again with ncu --set full -o REPORT"
        )
    return report


def _is_csv(head: bytes) -> bool:
    for line in head.removeprefix(b"\xef\xbb\xbf").splitlines():
        fields = line.replace(b'"', b"").split(b",")
        if fields[0] == b"ID" and b"Kernel Name" in fields:
            return True
    return False

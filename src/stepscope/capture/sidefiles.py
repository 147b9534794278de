"""Files beside the raw ones: which of their processes belong to which rank."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from stepscope.capture.threads import NAMES_FILE

MEMBERS_FILE = "members.json"
"""Process ids of a rank: those with raw files and all that these started."""
PER_PROCESS = ("stacks.{}.tsv", "frames.{}.tsv", "steps.{}.tsv")
"""Files that the hook writes, by process."""


def assign_to_ranks(folder: Path, owner: Mapping[int, str]) -> None:
    """Write each rank's members, and move the files of its processes into its folder.

    Args:
        folder: the run's raw folder; the ranks' folders are in it.
        owner: folder's name by process, for the processes with raw files.
    """
    if not owner:
        return
    parents, ranks = _parents(folder), {}
    for path in folder.glob(PER_PROCESS[1].format("*")):
        head = _numbers(path)
        if len(head) == 4:
            process, parent, rank, _ = head
            parents[process] = parent
            ranks[process] = f"rank{rank}"
    members: dict[str, list[int]] = {name: [] for name in owner.values()}
    for process in {*owner, *parents}:
        name = _owner_of(process, owner, parents)
        if name is None and ranks.get(process) in members:
            name = ranks[process]
        if name is None:
            continue
        members[name].append(process)
        for pattern in PER_PROCESS:
            path = folder / pattern.format(process)
            if path.exists():
                path.rename(folder / name / path.name)
    for name, processes in members.items():
        text = json.dumps({"processes": sorted(processes)})
        with contextlib.suppress(OSError):  # a full disk: threads of workers are then left out
            (folder / name / MEMBERS_FILE).write_text(text, encoding="utf-8")


def _owner_of(process: int, owner: Mapping[int, str], parents: Mapping[int, int]) -> str | None:
    seen: set[int] = set()
    while process and process not in seen:
        if process in owner:
            return owner[process]
        seen.add(process)
        process = parents.get(process, 0)
    return None


def _parents(folder: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        text = (folder / NAMES_FILE).read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            process, _, parent, *_ = [*line.split("\t"), "", "", ""]
            if process.isdigit() and parent.isdigit() and int(parent):
                found[int(process)] = int(parent)
    return found


def _numbers(path: Path) -> list[int]:
    """The numbers of the first line of a file of frames; none where it is damaged."""
    with contextlib.suppress(OSError, ValueError), path.open(encoding="utf-8") as stream:
        kind, *numbers = stream.readline().rstrip("\n").split("\t")
        return [int(number) for number in numbers] if kind == "P" else []
    return []

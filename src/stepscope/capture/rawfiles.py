"""Put the raw files of a run in order: rescue what killed processes left, one folder a rank.

Only the JSON blocks are read here; the layout is declared in ``importers/stepscope/layout.py``.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.capture.blocks import META, whole_blocks
from stepscope.capture.profilers import PROFILERS_FILE
from stepscope.capture.sidefiles import assign_to_ranks
from stepscope.capture.threads import NAMES_FILE, THREADS_FILE

_GPU_WORK = (4, 5, 6, 10)  # kernels, copies, memory sets, graphs
_STATE = 16
_STATE_ROW = struct.Struct("<QII")  # time, whether recording is on, reason
_LIMITS = (5, 6)  # reasons: time, size
_RANKS = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
)
SHARED_FILES = ("capture.json", "counters.csv", THREADS_FILE, NAMES_FILE, PROFILERS_FILE)
"""Files of the launcher that every rank's folder gets a copy of."""


@dataclass
class Recorded:
    """One process's files.

    Attributes:
        name: their common name.
        process: process id.
        parent: parent's process id.
        rank: rank, where its environment told.
        device: first GPU it had; None without GPU.
        work: number of blocks with GPU work.
        finished: whether it closed its capture.
        kept: whether what it held in memory survives its end.
        warnings: what went wrong, in its own words.
        begun: how often recording began.
        reached_limit: whether recording ended by its time or size.
        seen: how often ranges were opened before recording began, by name and domain.
        unlisted: how often others were, whose names are too many.
    """

    name: str
    process: int = 0
    parent: int = 0
    rank: int | None = None
    device: str | None = None
    work: int = 0
    finished: bool = False
    kept: bool = True
    warnings: list[str] = field(default_factory=list)
    begun: int = 0
    reached_limit: bool = False
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    unlisted: int = 0


def cut_short(found: list[Recorded]) -> list[Recorded]:
    """Processes that lost something by their sudden end.

    Workers without a GPU usually leave by ``os._exit``; their NVTX events outlive them.
    """
    return [one for one in found if not one.finished and (one.device is not None or not one.kept)]


def rescue(folder: Path, pool: Path | None) -> list[str]:
    """Move what processes left in memory beside their files.

    Returns:
        What went wrong with writing, in sentences.
    """
    if pool is None or not pool.is_dir():
        return []
    messages = [_failure(path) for path in sorted(pool.glob("*.failed"))]
    for left in sorted(pool.glob("*.pool")):
        if not (folder / f"{left.stem}.raw").exists():
            continue
        try:
            shutil.move(left, folder / left.name)
        except OSError as error:
            (folder / left.name).unlink(missing_ok=True)  # half a copy
            messages.append(f"the last ranges of {left.stem} are lost: {error.strerror}")
    shutil.rmtree(pool, ignore_errors=True)
    return list(dict.fromkeys(messages))


def _failure(path: Path) -> str:
    """What a process left to say why it could not write."""
    process = path.stem.partition("-")[0].lstrip("p")
    try:
        number = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        number = 0
    why = os.strerror(number) if number else "unknown error"
    advice = {
        errno.ENOSPC: "free some space, or give -o a folder on a larger disk",
        errno.EDQUOT: "your quota is used up; give -o a folder elsewhere",
        errno.EFBIG: "the program limits the size of files; record less, or raise its limit",
        errno.ENOENT: "the folder was removed while recording",
    }.get(number, "give -o a folder elsewhere")
    return f"process {process} could not write all that it recorded ({why}): {advice}"


def ranks_left_out(folder: Path) -> tuple[int, ...]:
    """Ranks of processes that were not recorded because of ``--ranks``; their signs are removed."""
    found = []
    for path in folder.glob("left-out-rank*.txt"):
        number = path.stem.removeprefix("left-out-rank")
        if number.isdigit():
            found.append(int(number))
        path.unlink(missing_ok=True)
    return tuple(sorted(found))


def recorded(folder: Path) -> list[Recorded]:
    """The processes whose files lie in a folder."""
    return [_examine(path) for path in sorted(folder.glob("*.raw")) if path.name.count(".") == 1]


def sort_by_rank(folder: Path) -> dict[str, list[Recorded]]:
    """Move each rank's files into a folder of its own (``rank0``); returns folder to processes."""
    groups: dict[str, list[Recorded]] = {}
    for name, members in group(recorded(folder)).items():
        target = folder / name
        target.mkdir(exist_ok=True)
        for member in members:
            for path in folder.glob(f"{member.name}.*"):
                path.rename(target / path.name)
        groups[name] = members
    assign_to_ranks(folder, {one.process: name for name, those in groups.items() for one in those})
    for shared in SHARED_FILES if groups else ():
        if (folder / shared).exists():
            first, *others = groups  # one rank's is moved, which takes no room
            for name in others:
                shutil.copyfile(folder / shared, folder / name / shared)
            (folder / shared).rename(folder / first / shared)
    for target in sorted(folder.glob("rank*")):
        if target.name not in groups and any(target.glob("*.raw")):
            groups[target.name] = recorded(target)  # sorted before
    return groups


def group(found: list[Recorded]) -> dict[str, list[Recorded]]:
    """Processes by rank: ``rank3`` -> its process and the workers that it started."""
    groups: dict[str, list[Recorded]] = {}
    owner: dict[int, str] = {}
    ranked = [one for one in found if one.rank is not None]
    # processes with a GPU but without a rank are counted in the order of their ids
    others = sorted(
        (one for one in found if one.rank is None and one.work), key=lambda one: one.process
    )
    free = iter(n for n in range(len(found) + 1) if n not in {one.rank for one in ranked})
    for one in (*ranked, *others):
        name = f"rank{one.rank if one.rank is not None else next(free)}"
        groups.setdefault(name, []).append(one)
        owner[one.process] = name
    parents = {one.process: one.parent for one in found}
    for one in found:
        if one.rank is not None or one.work:
            continue
        process, seen = one.parent, {one.process}
        while process and process not in owner and process not in seen:
            seen.add(process)
            process = parents.get(process, 0)
        name = owner.get(process) or min(groups, default="rank0")
        groups.setdefault(name, []).append(one)
    return groups


def _examine(path: Path) -> Recorded:
    one = Recorded(path.stem)
    environment: dict[str, Any] = {}
    for kind, content, rows in _blocks(path):
        if kind in _GPU_WORK:
            one.work += 1
        for _, on, reason in _STATE_ROW.iter_unpack(rows):
            one.begun += on
            one.reached_limit |= not on and reason in _LIMITS
        metadata = content or {}
        match metadata.get("type"):
            case "process":
                one.process, one.parent = (
                    int(metadata.get("pid", 0)),
                    int(metadata.get("parent", 0)),
                )
                environment |= metadata.get("environment", {})
                one.kept = bool(metadata.get("pool"))
            case "remark" if metadata.get("severity") in ("error", "warning"):
                one.warnings.append(str(metadata.get("text", "")))
            case "seen":  # each tells all up to then
                one.seen = _seen_in(metadata.get("ranges"))
                one.unlisted = int(metadata.get("more", 0))
            case "end":
                one.finished = True
                environment |= metadata.get("environment", {})
            case "cupti":
                one.device = str(environment.get("CUDA_VISIBLE_DEVICES", ""))
    for name in _RANKS:
        if str(environment.get(name, "")).isdigit():
            one.rank = int(environment[name])
            break
    return one


def _seen_in(ranges: Any) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for row in ranges if isinstance(ranges, list) else ():
        match row:
            case [str(name), str(domain), int(count)]:
                found[name, domain] += count
    return found


def _blocks(path: Path) -> Iterator[tuple[int, dict[str, Any] | None, bytes]]:
    """(kind, JSON object or None, state rows) of every whole block.

    A ring keeps its rows in other files.
    """
    for part in (path, *sorted(path.parent.glob(f"{path.stem}.*.raw"))):
        with part.open("rb") as stream:
            for kind, length, _ in whole_blocks(stream):
                content, rows = None, b""
                if kind == _STATE:
                    rows = stream.read(length - length % _STATE_ROW.size)
                if kind == META:
                    try:
                        content = json.loads(stream.read(length).decode("utf-8", "replace"))
                    except ValueError:
                        content = None
                yield kind, content if isinstance(content, dict) else None, rows

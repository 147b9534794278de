"""What the launcher and the hook wrote beside the raw files: members, names, other profilers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepscope.importers.own import layout
from stepscope.importers.own.about import end_of, process_of
from stepscope.importers.own.raw import Raw
from stepscope.importers.own.sink import Sink

MEMBERS_FILE = "members.json"
NAMES_FILE = "names.tsv"
PROFILERS_FILE = "profilers.json"
_OTHER = re.compile(r"other profiler (began|ended): (.+)")
_WORK = (layout.KERNEL, layout.COPY, layout.SET, layout.GRAPH)


def _json(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def members_of(folder: Path, raws: Sequence[Raw]) -> set[int]:
    """Processes that belong to a capture: those with raw files, and what they started."""
    said = _json(folder / MEMBERS_FILE)
    listed = said.get("processes", []) if isinstance(said, dict) else []
    return {process_of(raw) for raw in raws} | {one for one in listed if isinstance(one, int)}


def names_of(folder: Path) -> dict[tuple[int, int], str]:
    """Names of the threads that the launcher saw; a process's is that of its first thread."""
    try:
        text = (folder / NAMES_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        process, thread, _, name = [*line.split("\t", 3), "", "", ""][:4]
        if process.isdigit() and thread.isdigit() and name:
            found[int(process), int(thread)] = name
    return found


def periods(raw: Raw, end_ns: int) -> Iterator[tuple[str, int, int]]:
    """(profiler, begin, end) of other profilers that the hook noted, in monotonic ns."""
    open_: dict[str, int] = {}
    for remark in raw.all("remark"):
        match = _OTHER.fullmatch(str(remark.get("text", "")))
        if match is None:
            continue
        time = int(remark.get("time_ns", 0))
        if match[1] == "began":
            open_.setdefault(match[2], time)
        elif match[2] in open_:
            yield match[2], open_.pop(match[2]), time
    for name, begin in open_.items():
        yield name, begin, end_ns


def count_profilers(sink: Sink, folder: Path, raws: Sequence[Raw], processes: set[int]) -> None:
    """Count other profilers, with what was lost and from when to when.

    Rows of the raw files must still be there.
    """
    problems = sink.writer.problems
    for raw in raws:
        for name, begin, end in periods(raw, end_of(raw)):
            inside = sum(
                int(((part["start"] >= begin) & (part["start"] < end)).sum())
                for kind in _WORK
                for part in raw.parts(kind)
            )
            from_s, to_s = ((time - sink.origin_ns) / 1e9 for time in (begin, end))
            lost = (
                f"this capture went on ({inside} GPU operations within), the other one lacks them"
                if inside or not any(raw.count(kind) for kind in _WORK)
                else "no GPU work was recorded meanwhile"
            )
            problems.count(
                "other_profiler",
                1,
                scope="gpu_op",
                detail=f"{name} in process {process_of(raw)}, {from_s:.3f} to {to_s:.3f} s: {lost}",
            )
    said = _json(folder / PROFILERS_FILE)
    for one in said if isinstance(said, list) else []:
        if isinstance(one, dict) and one.get("process") in processes:
            since = (int(one.get("time_ns", 0)) - sink.origin_ns) / 1e9
            detail = f"{one.get('tool')} in process {one['process']}, seen at {since:.3f} s"
            problems.count("other_profiler", 1, scope="gpu_op", detail=detail)

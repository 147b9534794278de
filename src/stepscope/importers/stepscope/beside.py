"""What the launcher and the hook wrote beside the raw files: members, names, other profilers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepscope.importers.common.stretches import TABLE as STRETCHES
from stepscope.importers.common.stretches import columns, read_file
from stepscope.importers.stepscope import layout
from stepscope.importers.stepscope.about import end_of, process_of
from stepscope.importers.stepscope.files import Files
from stepscope.importers.stepscope.raw import Raw
from stepscope.importers.stepscope.sink import Sink

MEMBERS_FILE = "members.json"
NAMES_FILE = "names.tsv"
PROFILERS_FILE = "profilers.json"
_OTHER = re.compile(r"other profiler (began|ended): (.+)")
_WORK = (layout.KERNEL, layout.COPY, layout.SET, layout.GRAPH)


def _json(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def members_of(files: Files, raws: Sequence[Raw]) -> set[int]:
    """Processes that belong to a capture: those with raw files, and what they started."""
    said = _json(files.path(MEMBERS_FILE))
    listed = said.get("processes", []) if isinstance(said, dict) else []
    return {process_of(raw) for raw in raws} | {one for one in listed if isinstance(one, int)}


def names_of(files: Files) -> dict[tuple[int, int], str]:
    """Names of the threads that the launcher saw; a process's is that of its first thread."""
    try:
        text = files.path(NAMES_FILE).read_text(encoding="utf-8", errors="replace")
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


def read_stretches(sink: Sink, files: Files, processes: Sequence[int]) -> None:
    """Fill ``timed_stretch`` from what the hook timed in each process."""
    for process in sorted(processes):
        found = read_file(files.path(f"steps.{process}.tsv"))
        sink.put(STRETCHES, columns(found, process, sink.origin_ns))


def count_profilers(sink: Sink, files: Files, raws: Sequence[Raw], processes: set[int]) -> None:
    """Count other profilers, with what was lost and from when to when.

    Rows of the raw files must still be there.
    """
    problems = sink.writer.problems
    for raw in raws:
        process = process_of(raw)
        for name, begin, end in _refusals(raw):
            detail = f"process {process}, {_span(sink, begin, end)}: {name}"
            problems.count("cupti_taken", 1, scope="gpu_op", detail=detail)
        for name, begin, end in periods(raw, end_of(raw)):
            inside = _work_between(raw, begin, end)
            taken = not inside and any(raw.count(kind) for kind in _WORK)
            lost = (
                "no GPU work was recorded meanwhile"
                if taken
                else f"this capture went on ({inside} GPU operations within), the other one lacks "
                "them"
            )
            detail = f"{name} in process {process}, {_span(sink, begin, end)}: {lost}"
            kind = "cupti_taken" if taken else "other_profiler"
            problems.count(kind, 1, scope="gpu_op", detail=detail)
    by_process = {process_of(raw): raw for raw in raws}
    said = _json(files.path(PROFILERS_FILE))
    for one in said if isinstance(said, list) else []:
        if not isinstance(one, dict) or one.get("process") not in processes:
            continue
        since = int(one.get("time_ns", 0))
        detail = (
            f"{one.get('tool')} in process {one['process']}, seen at "
            f"{(since - sink.origin_ns) / 1e9:.3f} s"
        )
        if (owner := by_process.get(one["process"])) is not None:
            after = _work_between(owner, since, 1 << 63)
            detail += f"; {after} GPU operations were recorded after that"
        problems.count("other_profiler", 1, scope="gpu_op", detail=detail)


def _refusals(raw: Raw) -> Iterator[tuple[str, int, int]]:
    """(what the collector said, begin, end) where another tool had CUPTI before it."""
    for remark in raw.all("remark"):
        text = str(remark.get("text", ""))
        if text.startswith("another profiler already uses CUPTI"):
            yield text, int(remark.get("time_ns", 0)), end_of(raw)


def _work_between(raw: Raw, begin: int, end: int) -> int:
    """GPU operations that began within some monotonic time."""
    return sum(
        int(((part["start"] >= begin) & (part["start"] < end)).sum())
        for kind in _WORK
        for part in raw.parts(kind)
    )


def _span(sink: Sink, begin: int, end: int) -> str:
    from_s, to_s = ((time - sink.origin_ns) / 1e9 for time in (begin, end))
    return f"{from_s:.3f} to {to_s:.3f} s"

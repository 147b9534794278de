"""Dumps of PyTorch's flight recorder: the collectives that a rank enqueued last.

``TORCH_FR_BUFFER_SIZE``, ``TORCH_NCCL_DUMP_ON_TIMEOUT`` and ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``
write a pickle or JSON a rank, with ``entries``, ``pg_config`` and ``pg_status``; its layout is
documented in PyTorch's flight recorder tutorial and ``torch/distributed/flight_recorder``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from stepscope.importers.common.plain_pickle import plain
from stepscope.importers.common.stream import first_bytes
from stepscope.trace.errors import InputError
from stepscope.trace.one_job import rank_in_name
from stepscope.trace.recorded import Entry, Recorded
from stepscope.trace.text import JsonError, from_json

_HEAD: Final = 4096
_LARGEST: Final = 1 << 30


def looks_like_dump(path: Path) -> bool:
    """Whether a file is a flight recorder's dump, by its content.

    Raises:
        InputError: it cannot be read.
    """
    if not path.is_file():
        return False
    head = first_bytes(path, _HEAD)
    if head[:1] == b"\x80":
        pickled = (b"pg_config", b"nccl_version", b"pg_status", b"nccl_comm_state", b"pg_id")
        return any(key in head for key in pickled)
    text = head.lstrip()
    if text[:1] != b"{":
        return False
    keys = (b'"pg_config"', b'"pg_status"', b'"nccl_version"')
    return b"traceEvents" not in head and any(key in head for key in keys)


def read_dump(path: Path) -> Recorded:
    """What the file of one rank holds.

    Raises:
        InputError: it is damaged, or something else.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{path} is larger than any dump of collectives")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its rights") from error
    if data[:1] == b"\x80":
        return _flight_recorder(plain(data, path), path)
    try:
        return _flight_recorder(from_json(data), path)
    except JsonError as error:
        raise InputError(f"{path} is damaged: {error}") from error


def _flight_recorder(found: Any, path: Path) -> Recorded:
    if not isinstance(found, dict) or not isinstance(found.get("entries", []), list):
        raise InputError(f"{path} is no dump of a flight recorder: it has no entries")
    config = _dict(found.get("pg_config"))
    groups: dict[str, tuple[int, ...]] = {}
    named: dict[str, str] = {}
    for key, group in config.items():
        facts = _dict(group)
        ranks = _ranks(facts.get("ranks"))
        text = _group(str(facts.get("name", key)), str(facts.get("desc", "")), ranks)
        named[str(facts.get("name", key))] = named[str(key)] = text
        if ranks:
            groups[text] = ranks
    enqueued = {}
    for key, status in _dict(found.get("pg_status")).items():
        last = _int(_dict(status).get("last_enqueued_collective"), -1)
        if last >= 0:
            enqueued[named.get(str(key), str(key))] = last
    entries = [
        _entry(entry, named) for entry in found.get("entries", []) if isinstance(entry, dict)
    ]
    rank = found.get("rank")
    known = _int(rank, -1) if rank is not None else rank_in_name(path.name)
    if known is None or known < 0:
        digits = re.findall(r"\d+", path.name)
        if not digits:
            raise InputError(
                f"{path} does not tell its rank; name it as PyTorch does, nccl_trace_rank_0"
            )
        known = int(digits[-1])
    return Recorded(str(path), known, groups, entries, enqueued)


def _group(name: str, description: str, ranks: tuple[int, ...]) -> str:
    """A process group: the same name may stand for other ranks elsewhere."""
    text = f"{name} ({description})" if description not in ("", "undefined") else name
    whole = ranks == tuple(range(len(ranks)))
    return text if not ranks or (name == "0" and whole) else f"{text} of {_short(ranks)}"


def _short(ranks: tuple[int, ...]) -> str:
    shown = ",".join(map(str, ranks[:8]))
    return shown + (f",...,{ranks[-1]}" if len(ranks) > 8 else "")


def _entry(entry: dict[str, Any], named: dict[str, str]) -> Entry:
    group = entry.get("process_group")
    name = (
        str(group[0]) if isinstance(group, list | tuple) and group else str(entry.get("pg_id", "0"))
    )
    is_p2p = bool(entry.get("is_p2p", False))
    number = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))
    state, operation = str(entry.get("state", "")), str(entry.get("profiling_name", ""))
    # Gloo records no events, so its operations stay "scheduled" until they are over. Of back ends
    # with events, an operation that is retired and not "completed" was given up: it timed out.
    if entry.get("retired") and operation.startswith("gloo:"):
        state = "completed"
    duration = entry.get("duration_ms")
    return Entry(
        group=named.get(name, name),
        sequence=_int(number, -1),
        point_to_point=is_p2p,
        name=operation,
        state=state,
        created_ns=_int(entry.get("time_created_ns"), 0),
        duration_ns=round(duration * 1e6) if isinstance(duration, int | float) else -1,
        bytes=-1,
        where=_where(entry.get("frames")),
    )


def _where(frames: Any) -> str:
    """The innermost line outside PyTorch; the innermost of all where there is none."""
    lines = [
        (str(frame.get("filename", "")), frame.get("line"))
        for frame in (frames if isinstance(frames, list) else [])
        if isinstance(frame, dict)
    ]
    if not lines:
        return ""
    own = next((line for line in lines if "/torch/" not in line[0]), lines[0])
    return f"{own[0].rsplit('/', 1)[-1]}:{own[1]}"


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _int(value: Any, otherwise: int) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise


def _ranks(value: Any) -> tuple[int, ...]:
    """The ranks of a group: a list, or its text."""
    if isinstance(value, str):
        value = [part for part in re.split(r"[\[\],\s]+", value) if part]
    if not isinstance(value, list | tuple):
        return ()
    return tuple(sorted(_int(rank, -1) for rank in value))

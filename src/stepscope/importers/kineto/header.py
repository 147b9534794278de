"""What a trace says outside its events: options, versions, devices, process groups."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from stepscope.importers.kineto.columns import fitting32
from stepscope.importers.kineto.stream import truncated
from stepscope.importers.kineto.tolerant import mend
from stepscope.trace.errors import InputError
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter
from stepscope.trace.text import JsonError, from_json

_OPTIONS = frozenset(
    {
        "with_stack",
        "with_flops",
        "with_modules",
        "profile_memory",
        "record_shapes",
        "experimental_config",
        "displayTimeUnit",
    }
)
_TORCH_VERSION = ("torch_version", "pytorch_version", "PT_VERSION")
_HOST = ("hostname", "host_name", "host")
_ELSEWHERE = frozenset(
    {"schemaVersion", "traceEvents", "deviceProperties", "distributedInfo", "traceName", "trace_id"}
)
_REMARKS = {"ERROR": "error", "WARNING": "warning", "INFO": "info"}
_VERSION_KEY = re.compile(r"version$", re.I)
_LONGEST_VALUE = 1000
_MOST_RANKS = 1 << 31


def parse_header(header: bytes, trailer: bytes, path: Path) -> dict[str, Any]:
    """The top-level object without its events.

    Args:
        header: text before the events, up to their key; empty for a bare array of events.
        trailer: text after the array of events.
        path: the file, for messages.

    Raises:
        InputError: the text around the events is not JSON; mostly, the file is cut short.
    """
    if not header:
        if trailer.strip():
            raise InputError(
                f"{path} goes on after the end of its events; it was damaged or joined from "
                "several files, export it again"
            )
        return {}
    text = header + b'"traceEvents": []' + trailer
    try:
        found = from_json(text)
    except JsonError:
        try:
            found = json.loads(mend(text.decode("utf-8", "replace"))[0], strict=False)
        except RecursionError as error:
            raise InputError(
                f"{path} is nested too deeply around its events, so it is no profiler trace; "
                "check what wrote it"
            ) from error
        except ValueError as error:
            raise truncated(path) from error
    if not isinstance(found, dict) or "traceEvents" not in found:
        raise InputError(
            f"{path} holds no list of traceEvents at its top level; check what wrote it"
        )
    return found


def describe(meta: Meta, found: dict[str, Any]) -> None:
    """Fill options, versions, host, rank and world size from the header."""
    for key, value in found.items():
        if isinstance(value, dict | list) or value is None:
            continue
        text = str(value)[:_LONGEST_VALUE]
        if key in _TORCH_VERSION:
            meta.source_version = text
        elif key in _HOST:
            meta.hostname = text
        elif key in _OPTIONS:
            meta.capture_options[key] = text
        elif _VERSION_KEY.search(key) and key not in _ELSEWHERE:
            meta.environment[key] = text
    job = found.get("distributedInfo")
    if not isinstance(job, dict):
        return
    rank, world = job.get("rank"), job.get("world_size")
    if isinstance(rank, int) and 0 <= rank < _MOST_RANKS:
        meta.rank, meta.rank_source = rank, "distributedInfo"
    if isinstance(world, int) and 0 < world <= _MOST_RANKS:
        meta.world_size = world
    for key in ("nccl_version", "backend"):
        if isinstance(job.get(key), str):
            meta.environment[key] = job[key][:_LONGEST_VALUE]


def write_devices(writer: TraceWriter, process_id: int, found: dict[str, Any]) -> None:
    """Write the ``device`` table from deviceProperties."""
    devices = _list(found.get("deviceProperties"))
    numbered, _ = fitting32([_int(d, "id") for d in devices])
    devices = [d for d, number in zip(devices, numbered, strict=True) if number is not None]
    small = {
        column: fitting32([_int(d, key) for d in devices])
        for column, key in (
            ("sm_count", "numSms"), ("compute_major", "computeMajor"),
            ("compute_minor", "computeMinor"),
        )
    }  # fmt: skip
    lost = numbered.count(None) + sum(beyond for _, beyond in small.values())
    writer.problems.count("bad_value", lost, scope="device")
    if devices:
        writer.append(
            "device",
            {
                "process_id": [process_id] * len(devices),
                "device": [_int(d, "id") for d in devices],
                "name": [_text(d, "name") for d in devices],
                "uuid": [_text(d, "uuid") for d in devices],
                **{column: values for column, (values, _) in small.items()},
                "memory_bytes": [_int(d, "totalGlobalMem") for d in devices],
            },
        )


def write_communicators(writer: TraceWriter, found: dict[str, Any]) -> None:
    """Write the ``communicator`` table from the process groups of distributedInfo."""
    job = found.get("distributedInfo")
    groups = _list(job.get("pg_config")) if isinstance(job, dict) else []
    if groups:
        ranks = [group.get("ranks") for group in groups]
        writer.append(
            "communicator",
            {
                "name": [_text(group, "pg_name") for group in groups],
                "description": [_text(group, "pg_desc") for group in groups],
                "backend": [_text(group, "backend_config") for group in groups],
                "size": [_int(group, "pg_size") for group in groups],
                "ranks": [
                    r if isinstance(r, str) or r is None else msgspec.json.encode(r).decode()
                    for r in ranks
                ],
            },
        )


def write_remarks(writer: TraceWriter, process_id: int, found: dict[str, Any]) -> None:
    """Write what the profiler logged about its own capture as ``diagnostic``."""
    rows = [
        (severity, str(remark))
        for key, severity in _REMARKS.items()
        for remark in (found[key] if isinstance(found.get(key), list) else [])
    ]
    if rows:
        writer.append(
            "diagnostic",
            {
                "process_id": [process_id] * len(rows),
                "severity": [severity for severity, _ in rows],
                "text": [text for _, text in rows],
            },
        )


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _int(item: dict[str, Any], key: str) -> int | None:
    value = item.get(key)
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _text(item: dict[str, Any], key: str) -> str | None:
    value = item.get(key)
    return None if value is None else str(value)

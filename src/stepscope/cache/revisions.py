"""What artifacts depend on: the trace, the code that makes them, the libraries it computes with."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import stepscope
from stepscope.trace.errors import InputError
from stepscope.trace.store import META_NAME
from stepscope.trace.trace import Trace

ROOMS: Final = (
    *("activity", "api", "breakdown", "cache", "collectives", "compare", "derived", "diagnosis"),
    *("export", "gaps", "importers", "intervals", "jobs", "kernels", "memory", "native"),
    *("ncu", "operators", "reports", "simulation", "sql", "steps", "timeline"),
    "trace",
)
"""Whose code an answer may depend on: the facade's, and that of every room it reaches."""
_LIBRARIES = ("duckdb", "msgspec", "numpy", "pyarrow")


def digest(texts: Sequence[str]) -> str:
    """Of some texts; where one ends is part of it."""
    found = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode("utf-8", "surrogateescape")
        found.update(b"%d:" % len(data) + data)
    return found.hexdigest()


def revision_of(trace: Trace) -> str:
    """Of a trace's tables and metadata, as they are now.

    Raises:
        InputError: it is gone.
    """
    try:
        texts = [hashlib.blake2b((trace.folder / META_NAME).read_bytes()).hexdigest()]
        for file in sorted(trace.folder.glob("*.parquet")):
            stat = file.stat()  # the time of change cannot be set back, that of writing can
            texts.append(f"{file.name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}")
    except OSError as error:
        raise InputError(f"cannot read {trace.folder}: {error.strerror}; do it again") from error
    return digest(texts)


@cache
def code_digest() -> str:
    """Of the code that answers come from, and of the libraries that it computes with.

    The contents count, not the version alone: in a checkout the code changes without it. Reading
    all of it takes some hundredth of a second, looking whether it changed since (``__wrapped__``)
    a fraction of that. Where it cannot be read, each process has code of its own.
    """
    package = Path(stepscope.__file__).parent
    found = hashlib.blake2b(digest_size=16)
    try:
        about = [stepscope.__version__, sys.version, *_libraries()]
        found.update("\n".join(about).encode("utf-8", "surrogateescape"))
        for room in ROOMS:
            for path, stat in sorted(_sources(str(package / room))):
                entry = f"\n{path[len(str(package)) + 1 :]} {stat[0]}\n"
                found.update(entry.encode("utf-8", "surrogateescape"))
                found.update(_content_digest(path, stat))
    except OSError:
        return os.urandom(16).hex()
    return found.hexdigest()


@cache
def _content_digest(path: str, stat: tuple[int, ...]) -> bytes:
    """Of a file as it is while nothing about it changes; the time of change cannot be set back."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - hundreds of files
        return hashlib.blake2b(file.read(), digest_size=16).digest()


def _sources(folder: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Everything in a room that is code, or that code reads, with what shows that it changed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == "__pycache__":
                continue
            if entry.is_dir():
                yield from _sources(entry.path)
            elif not entry.name.startswith("."):
                stat = entry.stat()
                yield entry.path, (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def _libraries() -> list[str]:
    """Names and versions of the libraries, as their installers noted them.

    ``importlib.metadata`` says the same and takes longer to import than all that is done here.
    """
    found = []
    for folder in {_folder_of(name) for name in _LIBRARIES}:
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - names are all that is needed
            library, _, rest = name.partition("-")
            if library.lower() in _LIBRARIES and rest.endswith((".dist-info", ".egg-info")):
                found.append(name)
    return sorted(found)


def _folder_of(library: str) -> str:
    spec = find_spec(library)
    origin = spec.origin if spec is not None else None
    return str(Path(origin).parents[1]) if origin else "."

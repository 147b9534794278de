"""Answers about a job that took long to find, kept beside its cached trace for the next time.

An answer depends on the captures, on what the user said, on the code that found it and on the
libraries that this code computes with. All of that is in its identity, so an answer is either
that of a fresh look or absent; one that is damaged, or that cannot be written, is found again.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import stepscope
from stepscope.trace.arrays import ArrayFile, ArrayWriter, NotWholeError
from stepscope.trace.cache import Cache
from stepscope.trace.errors import InputError, StorageError
from stepscope.trace.store import META_NAME, storage_errors
from stepscope.trace.trace import RankTrace

if TYPE_CHECKING:
    import pyarrow as pa

ROOMS: Final = (
    *("activity", "api", "breakdown", "collectives", "compare", "derived", "diagnosis", "export"),
    *("gaps", "importers", "intervals", "jobs", "kernels", "ncu", "operators", "reports"),
    *("simulation", "sql", "steps", "timeline", "trace"),
)
"""Whose code an answer may depend on: the facade's, and that of every room it reaches."""
_LIBRARIES = ("duckdb", "msgspec", "numpy", "pyarrow")
_MOST_ANSWERS = 256
"""Kept of one job; the oldest are removed."""
_LARGEST_TABLE_BYTES = 1 << 28
"""A table that is larger in memory is computed again: reading it back is hardly quicker."""

Answer = TypeVar("Answer")


class Answers:
    """What is known of one job.

    Args:
        rank_traces: its traces; the first one's shelf holds the answers.
        cache_store: where they are kept.
        facts: what the answers depend on beside the traces: paths, options, remarks.
        again: nothing that was kept before is believed.
    """

    def __init__(
        self,
        rank_traces: Sequence[RankTrace],
        cache_store: Cache,
        facts: Sequence[str],
        *,
        again: bool,
    ) -> None:
        self._rank_traces = list(rank_traces)
        self._cache = cache_store
        self._told = list(facts)
        self._again = again
        self._known: dict[str, bytes] = {}
        self._has_shrunk = False
        code_digest()  # of the code that is loaded now, which an editor may change meanwhile

    def find(self, question: str, kind: type[Answer], make: Callable[[], Answer]) -> Answer:
        """A result, made when it is not known yet.

        Args:
            question: what is asked, with everything that it depends on beside the job.
            kind: type of the result, a ``msgspec.Struct``.
            make: makes it.
        """
        import msgspec

        kept = self._known.get(question) or self._kept(question)
        if kept is not None:
            with suppress(msgspec.DecodeError):
                found = msgspec.msgpack.decode(kept, type=kind)
                self._known[question] = kept
                return found
        made = make()
        with suppress(OverflowError):  # an integer of more than 64 bits
            self._known[question] = msgspec.msgpack.encode(made)
            self._keep(question, self._known[question])
        return made

    def find_table(self, name: str, make: Callable[[], pa.Table]) -> pa.Table:
        """A table, made when it is not known yet.

        Args:
            name: its name.
            make: makes it.
        """
        import pyarrow as pa

        question = f"table {name}"
        kept = self._kept(question)
        if kept is not None:
            with suppress(pa.ArrowInvalid), pa.ipc.open_stream(kept) as stream:
                return stream.read_all()
        made = make()
        if made.nbytes <= _LARGEST_TABLE_BYTES:
            sink = pa.BufferOutputStream()
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_stream(sink, made.schema, options=options) as stream:
                stream.write_table(made)
            self._keep(question, sink.getvalue().to_pybytes())
        return made

    def _kept(self, question: str) -> bytes | None:
        """What is on the disk; None where nothing whole is."""
        with suppress(NotWholeError, InputError, StorageError, OSError):
            identity = self._identity  # from before anything is read
            if self._again:
                return None
            shelf = self._cache.shelf(self._rank_traces[0].trace.folder, make=False)
            if shelf is None:
                return None
            file = ArrayFile(shelf / self._name(question))
            file.expect(identity=identity, question=_digest([question]))
            if file.verify():
                return bytes(file.buffer("answer"))
        return None

    def _keep(self, question: str, answer: bytes) -> None:
        """Keep an answer where that is possible, and it is sure what it is of."""
        import numpy as np

        with suppress(InputError, StorageError, OSError):
            if self._identified(code_digest.__wrapped__()) != self._identity:
                return  # the capture or the code changed meanwhile
            shelf = self._cache.shelf(self._rank_traces[0].trace.folder, make=True)
            assert shelf is not None
            with storage_errors(shelf):
                with ArrayWriter(shelf / self._name(question)) as writer:
                    writer.add("answer", np.frombuffer(answer, np.uint8), "|u1")
                    writer.close({"identity": self._identity, "question": _digest([question])})
                _remove_oldest(shelf)
            if not self._has_shrunk:
                self._has_shrunk = True
                self._cache.shrink()

    def _name(self, question: str) -> str:
        """Name of the file of an answer: one whose capture or code changed is replaced."""
        return f"answer-{_digest([*self._told, question])}.arrays"

    @cached_property
    def _identity(self) -> str:
        return self._identified(code_digest())

    def _identified(self, code: str) -> str:
        """What the answers depend on."""
        facts = [code, *self._told]
        for rank_trace in self._rank_traces:
            trace = rank_trace.trace
            facts += [str(rank_trace.rank), rank_trace.rank_source, ascii(str(trace.path))]
            facts.append(hashlib.blake2b((trace.folder / META_NAME).read_bytes()).hexdigest())
            for file in sorted(trace.folder.glob("*.parquet")):
                stat = file.stat()  # the time of change cannot be set back, that of writing can
                facts.append(f"{file.name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}")
        return _digest(facts)


def _digest(facts: Sequence[str]) -> str:
    """Of some texts; where one ends is part of it."""
    digest = hashlib.blake2b(digest_size=16)
    for text in facts:
        data = text.encode("utf-8", "surrogateescape")
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()


def _remove_oldest(shelf: Path) -> None:
    """Keep the number of answers of a job within its bound."""
    found = list(shelf.glob("answer-*.arrays"))
    if len(found) > _MOST_ANSWERS:
        found.sort(key=lambda file: file.stat().st_mtime_ns)
        for file in found[: len(found) - _MOST_ANSWERS]:
            file.unlink(missing_ok=True)


@cache
def code_digest() -> str:
    """Of the code that answers come from, and of the libraries that it computes with.

    The contents count, not the version alone: in a checkout the code changes without it. Reading
    all of it takes some hundredth of a second. Where it cannot be read, each process has code of
    its own.
    """
    package = Path(stepscope.__file__).parent
    digest = hashlib.blake2b(digest_size=16)
    try:
        facts = [stepscope.__version__, sys.version, *_libraries()]
        digest.update("\n".join(facts).encode("utf-8", "surrogateescape"))
        for room in ROOMS:
            for path in sorted(_sources(str(package / room))):
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - hundreds of files
                    content = file.read()
                digest.update(f"\n{os.path.relpath(path, package)} {len(content)}\n".encode())
                digest.update(content)
    except OSError:
        return os.urandom(16).hex()
    return digest.hexdigest()


def _sources(folder: str) -> Iterator[str]:
    """Everything in a room that is code, or that code reads."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == "__pycache__":
                continue
            if entry.is_dir():
                yield from _sources(entry.path)
            elif not entry.name.startswith("."):
                yield entry.path


def _libraries() -> list[str]:
    """Names and versions of the libraries, as their installers noted them.

    ``importlib.metadata`` says the same and takes longer to import than all that is told here.
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

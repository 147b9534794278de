"""Answers about a job that took long to find, kept beside its cached trace for the next time.

An answer depends on the captures, on what the user said, on the code that found it and on the
libraries that this code computes with. All of that is in the job's revision, so an answer is either
that of a fresh look or absent; one that is damaged, or that cannot be written, is found again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.cache.artifacts import Artifacts
from stepscope.cache.revisions import code_digest, digest, revision_of
from stepscope.cache.store import Cache
from stepscope.trace.errors import InputError, StorageError
from stepscope.trace.trace import RankTrace

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.cache.arrays import ArrayWriter

_LARGEST_TABLE_BYTES = 1 << 28
"""A table that is larger in memory is computed again: reading it back is hardly quicker."""

Answer = TypeVar("Answer")


class JobRevision:
    """What everything that is made of a job depends on.

    Args:
        rank_traces: its traces.
        given: what the user said: paths, options, and what was noticed when they were opened.
    """

    def __init__(self, rank_traces: Sequence[RankTrace], given: Sequence[str]) -> None:
        self.rank_traces = list(rank_traces)
        self.given = list(given)
        code_digest()  # of the code that is loaded now, which an editor may change meanwhile

    def now(self, code: str = "") -> str:
        """As the traces are now.

        Args:
            code: digest of the code; of the code that is loaded by default.

        Raises:
            InputError: a trace is gone.
        """
        texts = [code or code_digest(), *self.given]
        for rank_trace in self.rank_traces:
            texts += [
                str(rank_trace.rank),
                rank_trace.rank_source,
                ascii(str(rank_trace.trace.path)),
            ]
            texts.append(revision_of(rank_trace.trace))
        return digest(texts)


class Answers:
    """What is known of one job.

    Args:
        job: its revision.
        cache: where answers are kept, with the first trace.
        again: nothing that was kept before is believed.
    """

    def __init__(self, job: JobRevision, cache: Cache, *, again: bool) -> None:
        self._job = job
        self._artifacts = Artifacts(cache, job.rank_traces[0].trace)
        self._again = again
        self._known: dict[str, bytes] = {}
        self._asking = Lock()
        self._asked = 0
        self._unkept: dict[str, bytes] = {}

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
        with self._keeping():
            made = make()
            with suppress(OverflowError):  # an integer of more than 64 bits
                self._known[question] = self._unkept[question] = msgspec.msgpack.encode(made)
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
        with self._keeping():
            made = make()
            if made.nbytes <= _LARGEST_TABLE_BYTES:
                sink = pa.BufferOutputStream()
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                with pa.ipc.new_stream(sink, made.schema, options=options) as stream:
                    stream.write_table(made)
                self._unkept[question] = sink.getvalue().to_pybytes()
        return made

    def _kept(self, question: str) -> bytes | None:
        """What is on the disk; None where nothing whole is."""
        with suppress(InputError, StorageError):
            revision = self._revision(question)  # from before anything is read
            if not self._again and (file := self._artifacts.find(self._name(question), revision)):
                return file["answer"].tobytes()
        return None

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Keep what was found for a question, and for those that it asked, once it is answered.

        Together, because looking whether the code changed takes as long as many a small answer.
        """
        with self._asking:
            self._asked += 1
        try:
            yield
        finally:
            unkept: dict[str, bytes] = {}
            with self._asking:
                self._asked -= 1
                if not self._asked:
                    unkept, self._unkept = self._unkept, unkept
            if unkept:
                self._keep(unkept)

    def _keep(self, answers: Mapping[str, bytes]) -> None:
        """Keep answers where that is possible, and it is sure what they are of."""
        with suppress(InputError, StorageError):
            if self._job.now(code_digest.__wrapped__()) == self._before:
                for question, answer in answers.items():
                    self._artifacts.make(
                        self._name(question), self._revision(question), _writing(answer)
                    )
            # else the capture or the code changed meanwhile

    def _name(self, question: str) -> str:
        """Name of an answer: one whose capture or code changed is replaced."""
        return f"answers-{digest([*self._job.given, question])}"

    @cached_property
    def _before(self) -> str:
        return self._job.now()

    def _revision(self, question: str) -> str:
        return digest([self._before, question])


def _writing(answer: bytes) -> Callable[[ArrayWriter], Mapping[str, Any]]:
    """What writes an answer."""

    def write(writer: ArrayWriter) -> Mapping[str, Any]:
        import numpy as np

        writer.add("answer", np.frombuffer(answer, np.uint8))
        return {}

    return write

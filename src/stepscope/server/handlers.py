"""What handlers share: how they come by an explained job, and what they are asked in numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.json import encode

from stepscope.trace.errors import StorageError, UsageError

if TYPE_CHECKING:
    from stepscope.api import Job
    from stepscope.server.answers import ProblemNote, Progress
    from stepscope.server.background import Process

T = TypeVar("T")

_MOST = 1 << 61  # sums and differences of two fit 64 bits

Handlers = dict[str, tuple[Callable[[Mapping[str, str]], bytes], str]]
"""Name of a route -> its handler, and the media type of the answer."""

Lock = AbstractContextManager[Any]
"""Of either kind that ``threading`` has."""


def whole(text: str | None, before: str = "") -> int:
    """A whole number of a request.

    Args:
        text: as it was asked.
        before: begins the refusal.

    Raises:
        UsageError: it is none, or one that no sum of times reaches.
    """
    shown = f"{before}{(text or '')[:40]!r}"
    try:
        found = int(text or "")
    except ValueError as error:
        raise UsageError(f"{shown}, which is no whole number") from error
    if abs(found) > _MOST:
        raise UsageError(f"{shown}, which is out of all bounds")
    return found


def progress(doing: str) -> bytes:
    """What is being made, in words; empty for nothing."""
    found: Progress = {"doing": doing}
    return encode(found)


def page_problems(job: Job) -> list[ProblemNote]:
    """What the page says of reading the captures: the counts of the diagnosis in the terminal."""
    from stepscope.render.problems import counted_problems

    return [{"stated": what, "remedy": remedy} for what, remedy in counted_problems(job.problems)]


def spans(begin: int, bucket: int, columns: int) -> tuple[int, int, int]:
    """The columns of a picture.

    Raises:
        UsageError: there are none, or they end where no time is.
    """
    if bucket < 1 or columns < 1 or abs(begin) + bucket * columns > _MOST:
        raise UsageError("an impossible picture: it has no columns, or columns outside of all time")
    return begin, bucket, columns


class JobHandlers:
    """Handlers of what is asked about an explained job.

    Args:
        job: the opened job.
        lock: held while it is explained, which must happen once only.
        explaining: the process that explains it and stores what is shown, where it is not done in
            this one.
    """

    def __init__(
        self,
        job: Job,
        lock: Lock,
        explaining: Process | None = None,
    ) -> None:
        self._job = job
        self._views = job.views  # made here, before several threads ask for it
        self._lock = lock
        self._explaining = explaining

    def _waited(self, ask: Callable[[], T | None], name: str) -> T:
        """What is there, or will be when another process has stored it.

        Args:
            ask: gives it, or None while it is not there.
            name: the file that the process stores.

        Raises:
            InputError: the process failed.
            StorageError: it cannot be kept.
        """
        found = ask()
        if found is None and self._explaining is not None:
            self._explaining.wait(name)
            found = ask()
        if found is None:
            raise StorageError(
                "what was made of the capture could not be kept; check that the cache folder is "
                "writable, and start stepscope ui again"
            )
        return found

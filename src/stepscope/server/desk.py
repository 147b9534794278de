"""What answers questions about an explained job: how it comes by the explanation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.trace.errors import StorageError

if TYPE_CHECKING:
    from stepscope.prepared import Prepared
    from stepscope.server.background import Process
    from stepscope.session import Session

T = TypeVar("T")

Questions = dict[str, tuple[Callable[[Mapping[str, str]], bytes], str]]
"""Name -> what answers, and the answer's media type."""

Lock = AbstractContextManager[Any]
"""Of either kind that ``threading`` has."""


class Desk:
    """Answers questions about an explained job.

    Args:
        session: the opened job.
        lock: held while it is explained, which must happen once only.
        prepared: what is stored of it.
        explaining: the process that stores that, where it is not done in this one.
    """

    def __init__(
        self,
        session: Session,
        lock: Lock,
        prepared: Prepared,
        explaining: Process | None = None,
    ) -> None:
        self._session = session
        self._lock = lock
        self._prepared = prepared
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

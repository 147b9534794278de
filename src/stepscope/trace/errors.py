"""The errors a user may see: one sentence (what, where, what to do) and an exit code."""

from __future__ import annotations


class StepscopeError(Exception):
    """Base of every error that is the user's to act on.

    The command line prints the message as one line and exits with ``exit_code``; anything that is
    not a ``StepscopeError`` is a bug in Stepscope.
    """

    exit_code = 2


class InputError(StepscopeError):
    """An input cannot be read: the message says what, where, and what to do."""


class UsageError(StepscopeError):
    """The request itself cannot be answered (unknown table, impossible option)."""


class ConflictError(UsageError):
    """Somebody else has changed the same thing in between."""


class StorageError(StepscopeError):
    """The cache or an output cannot be written (full disk, missing rights)."""


class LimitError(StepscopeError):
    """A statement or a search took more time or memory than it may.

    Attributes:
        left_running: whether it heeds no interrupt, and so may still run in a thread.
    """

    left_running = False


class GivenUpError(Exception):
    """Nobody waits for the answer any more; no error."""


class DamageWarning(UserWarning):
    """A part of an input is damaged, which what does not need that part can go on without."""

"""What stops a capture."""

from __future__ import annotations


class CaptureError(Exception):
    """A capture cannot be made; the message is one sentence saying what, where and what to do."""


class LaunchError(CaptureError):
    """The program cannot be started.

    Attributes:
        exit_code: what a shell returns then: 127 it is not found, 126 it cannot be executed.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

"""What stops a capture."""

from __future__ import annotations


class CaptureError(Exception):
    """A capture cannot be made; the message is one sentence saying what, where and what to do."""


class LaunchError(CaptureError):
    """The program cannot be started."""

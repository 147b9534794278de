"""The messages of a tool that writes them to a file: how long it works, errors, how it ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from stepscope.capture.backends.base import Plan

_RAN_TO_ITS_END = re.compile(r"^==PROF== Disconnected|No kernels were profiled", re.MULTILINE)
"""What Nsight Compute says after a program that it has seen the end of."""


class ToolLog:
    """The messages of a tool that writes them to a file: how long it works, and its errors."""

    def __init__(self, plan: Plan) -> None:
        """For the tool of a plan; a plan without such a file has no messages."""
        self._path = plan.log
        self._working = plan.working
        self._limit_s = plan.limit_s
        self._since: float | None = None
        self.ended = False

    def _text(self) -> str:
        try:
            return self._path.read_text("utf-8", "replace") if self._path else ""
        except OSError:
            return ""

    def is_over(self) -> bool:
        """Whether the tool has worked for as long as it may; true once."""
        if not self._limit_s or self.ended:
            return False
        if self._since is None and self._working in self._text():
            self._since = time.monotonic()
        if self._since is not None:
            self.ended = time.monotonic() - self._since > self._limit_s
        return self.ended

    def program_code(self, code: int, say: Callable[[str], None]) -> int:
        """The program's exit code, which the tool may have replaced by one of its own.

        Args:
            code: the tool's.
            say: told where the two differ.
        """
        text = self._text()
        if found := re.findall(r"application returned an error code \((-?\d+)\)", text):
            number = int(found[-1])
            own = number if number >= 0 else 128 - number
            return own if 0 < own < 256 else code
        if code and _RAN_TO_ITS_END.search(text):
            say(f"the tool ended with exit code {code}, the program with 0")
            return 0
        return code

    def errors(self) -> list[str]:
        """Its errors and warnings; none where it was ended on purpose."""
        if self.ended:
            return []
        found = re.findall(r"^==(?:ERROR|WARNING)== *(.*)$", self._text(), re.MULTILINE)
        return list(dict.fromkeys(found))

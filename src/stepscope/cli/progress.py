"""Progress of long work on a terminal: one line on standard error, gone when the work is done."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope.trace import progress

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

PATIENCE_S = 1.0
"""Work that ends sooner shows nothing: a line that appears and goes is a flicker."""


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Show what is in work while the context lasts; nothing where no person watches."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        yield
        return
    line = _Line()
    progress.watch(line.tell)
    try:
        yield
    finally:
        progress.watch(None)
        line.tell(None)


class _Line:
    """The line: it appears when work has lasted for ``PATIENCE_S``, and follows it then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._live: Live | None = None
        self._spinner: Spinner | None = None
        self._text = ""

    def tell(self, text: str | None) -> None:
        """What is in work now; None: nothing."""
        with self._lock:
            if text is None:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                if self._live is not None:
                    self._live.stop()
                    self._live = self._spinner = None
                return
            self._text = text
            if self._spinner is not None:
                self._spinner.update(text=_plain(text))
            elif self._timer is None:
                self._timer = threading.Timer(PATIENCE_S, self._appear)
                self._timer.daemon = True
                self._timer.start()

    def _appear(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        class Steady(Console):
            def show_cursor(self, show: bool = True) -> bool:
                del show  # whatever ends this process, the terminal keeps its cursor
                return False

        with self._lock:
            if self._timer is None or threading.current_thread() is not self._timer:
                return  # the work has ended meanwhile
            console = Steady(stderr=True, highlight=False, markup=False, emoji=False)
            self._spinner = Spinner("line", text=_plain(self._text))
            self._live = Live(
                self._spinner,
                console=console,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=False,  # what else is written goes where it was to go
                redirect_stderr=False,
            )
            self._live.start()


def _plain(text: str) -> str:
    from stepscope.render.text import clean

    return clean(text, 70)

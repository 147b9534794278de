"""Samples of the Python stacks of a process, taken by a thread of its own. On request only.

The thread needs the GIL for each sample: it sees a busy thread where that one gives
the lock away, at the latest after the switch interval (5 ms). Times are those of the collector's
clock. Files are opened for each write: the program may close descriptors that it did not open.
"""

import atexit
import contextlib
import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

_FLUSH_S = 0.5
_MOST_STACKS = 100_000
"""Distinct stacks kept; further ones are counted, not recorded, so that memory stays bounded."""
_MOST_FRAMES = 256
"""Innermost frames kept of a stack; recursion goes deeper."""


def _private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read, whatever the program's umask."""
    return os.open(path, flags, 0o600)


class Sampler:
    """Writes ``stacks.PID.tsv`` and ``frames.PID.tsv`` into a folder.

    ``stacks``: monotonic time in ns, thread, number of the stack. ``frames``: first a line with the
    process, its parent, its rank (-1 without) and the period in ns; then ``F``, number, line,
    function, file; and ``S``, number, the frames' numbers, outermost first.
    """

    def __init__(self, folder: str, hertz: float) -> None:
        self._folder = folder
        self._period_s = 1 / hertz
        self._reset()

    def _reset(self) -> None:
        self._frames: dict[tuple[CodeType, int], int] = {}
        self._stacks: dict[tuple[tuple[CodeType, int], ...], int] = {}
        self._process = os.getpid()
        rank = os.environ.get("RANK", "")
        head = (self._process, os.getppid(), rank if rank.isdigit() else -1)
        period_ns = round(self._period_s * 1e9)
        self._new_frames = [f"P\t{head[0]}\t{head[1]}\t{head[2]}\t{period_ns}\n"]
        self._samples: list[str] = []
        self._ended = False

    def start(self) -> None:
        """Begin, here and in forked children."""
        os.register_at_fork(after_in_child=self._in_child)
        atexit.register(self._end)
        self._begin()

    def _begin(self) -> None:
        thread = threading.Thread(target=self._run, name="stepscope-stacks", daemon=True)
        thread.start()

    def _end(self) -> None:
        self._ended = True  # the end of the program is ours, not its own
        self._write()

    def _in_child(self) -> None:
        self._reset()
        with contextlib.suppress(RuntimeError):  # no more threads: the child goes without samples
            self._begin()

    def _run(self) -> None:
        me = threading.get_ident()
        written = time.monotonic()
        while not self._ended:
            time.sleep(self._period_s)
            now = time.monotonic_ns()
            self._take(now, me)
            if now / 1e9 - written >= _FLUSH_S:
                written = now / 1e9
                self._write()

    def _take(self, now: int, me: int) -> None:
        threads: dict[int, Any] = threading._active  # type: ignore[attr-defined]
        for ident, frame in sys._current_frames().items():
            thread = threads.get(ident)
            if ident == me or thread is None or thread.native_id is None:
                continue  # threads that Python did not start have no number known to it
            number = self._stack_of(frame)
            if number >= 0:
                self._samples.append(f"{now}\t{thread.native_id}\t{number}\n")

    def _stack_of(self, frame: "FrameType | None") -> int:
        key: list[tuple[CodeType, int]] = []
        innermost = frame
        while frame is not None and len(key) < _MOST_FRAMES:
            key.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        whole = tuple(key)
        number = self._stacks.get(whole)
        if number is not None:
            return number
        if len(self._stacks) >= _MOST_STACKS:
            return -1
        number = self._stacks[whole] = len(self._stacks)
        numbers = []
        frame = innermost
        for one in whole:
            assert frame is not None
            numbers.append(str(self._frame_of(one, frame)))
            frame = frame.f_back
        self._new_frames.append(f"S\t{number}\t{','.join(reversed(numbers))}\n")
        return number

    def _frame_of(self, key: "tuple[CodeType, int]", frame: FrameType) -> int:
        number = self._frames.get(key)
        if number is None:
            number = self._frames[key] = len(self._frames)
            code = key[0]
            name = " ".join(getattr(code, "co_qualname", code.co_name).split())
            file = " ".join(code.co_filename.split())
            line = frame.f_lineno or 0
            self._new_frames.append(f"F\t{number}\t{line}\t{name}\t{file}\n")
        return number

    def _write(self) -> None:
        frames, self._new_frames = self._new_frames, []
        samples, self._samples = self._samples, []
        for name, lines in (("frames", frames), ("stacks", samples)):
            if not lines:
                continue
            path = f"{self._folder}/{name}.{self._process}.tsv"
            try:
                with open(path, "a", encoding="utf-8", errors="replace", opener=_private) as file:
                    file.writelines(lines)
            except OSError:
                pass  # the disk is full, or the folder is gone

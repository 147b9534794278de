"""States of the program's threads, read from ``/proc`` by the launcher, not inside the program.

``schedstat`` gives, exactly, how long a thread ran and how long it waited for a CPU; ``stat`` gives
what it does at the moment of reading. A thread that has been asleep for a while is looked at less
often: its next reading still says that it did not run in between.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.capture.lines import KeptLines
from stepscope.capture.process_tree import children, members

THREADS_FILE = "threads.tsv"
"""Columns: monotonic time in ns, process, thread, state letter of proc(5), ns on a CPU since the
thread's start, ns spent waiting for one. The last two are -1 where the kernel does not tell."""
NAMES_FILE = "names.tsv"
"""Columns: process, thread, parent's process id, name; the last line of a thread counts."""
_TREE_S = 0.5
"""How often processes and threads are looked for; shorter-lived ones may be missed."""
_STRAY_S = 5.0
"""How often processes that left the tree (daemons) are looked for: it reads all of ``/proc``."""
_IDLE_PERIODS = 16
_IDLE_VISIT = 8
"""After so many periods without running, a thread is read every so many periods only."""


@dataclass
class _Thread:
    """One thread that is watched: its open files, its last reading, the last one written."""

    process: int
    thread: int
    stat: int
    schedstat: int
    seen: tuple[str, int, int] = ("", 0, 0)
    seen_ns: int = 0
    written: bool = True
    idle: int = 0

    def close(self) -> None:
        os.close(self.stat)
        if self.schedstat >= 0:
            os.close(self.schedstat)


@dataclass
class ThreadSampler:
    """Writes the states of all threads of a process tree to a file until it is stopped.

    Attributes:
        path: the file.
        hertz: readings a second.
        configuration: names the run: processes that left the tree are found by it.
        keep_s: seconds that are kept; 0: all.
        cpu_s: CPU time that the sampler itself took, s.
        polls: readings of everything.
        watched: most threads watched at once.
    """

    path: Path
    hertz: float
    configuration: Path | None = None
    keep_s: float = 0.0
    cpu_s: float = 0.0
    polls: int = 0
    watched: int = 0
    _threads: dict[tuple[int, int], _Thread] = field(default_factory=dict)
    _end: threading.Event = field(default_factory=threading.Event)
    _worker: threading.Thread | None = None
    _most: int = 0
    _unnamed: list[tuple[int, int]] = field(default_factory=list)
    _renamed: list[tuple[int, int]] = field(default_factory=list)

    def start(self, root: int) -> None:
        """Begin with a process and its descendants."""
        import resource

        # two descriptors a thread; half of what this process may open
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        self._worker = threading.Thread(
            target=self._run, args=(root,), name="stepscope-threads", daemon=True
        )
        self._worker.start()

    def stop(self) -> None:
        """End, and wait for the last line."""
        self._end.set()
        if self._worker is not None:
            self._worker.join(timeout=5)

    def _run(self, root: int) -> None:
        period, tree_at, stray_at = 1 / self.hertz, 0.0, time.monotonic() + _STRAY_S
        strays: set[int] = set()
        due = time.monotonic()
        try:
            with KeptLines(self.path, self.keep_s, self._again) as stream:
                while not self._end.is_set():
                    now = time.monotonic()
                    if now >= stray_at and self.configuration is not None:
                        strays, stray_at = set(members(self.configuration)), now + _STRAY_S
                    if now >= tree_at:
                        stream.writelines(self._look(tree_of(root) | strays))
                        self._name()
                        tree_at = now + _TREE_S
                        stream.flush()
                    stream.writelines(self._poll())
                    self.polls += 1
                    self.cpu_s = time.thread_time()
                    due = max(due + period, time.monotonic())  # a late poll is not made up for
                    self._end.wait(max(0.0, due - time.monotonic()))
                stream.writelines(self._last())
                self._name()
        except OSError:
            pass  # a full disk or a folder that is gone: the program's run matters more
        finally:
            for one in self._threads.values():
                one.close()
            self._threads.clear()
            self.cpu_s = time.thread_time()

    def _look(self, processes: set[int]) -> list[str]:
        """Find new threads, forget those that ended; returns the latter's last lines."""
        found = {(p, t) for p in processes for t in threads_of(p)}
        ended = [self._threads.pop(key) for key in self._threads.keys() - found]
        for one in ended:
            one.close()
        for process, thread in sorted(found - self._threads.keys()):
            if len(self._threads) >= self._most:
                break
            folder = f"/proc/{process}/task/{thread}"
            try:
                stat = os.open(f"{folder}/stat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                schedstat = os.open(f"{folder}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                schedstat = -1
            self._threads[process, thread] = _Thread(process, thread, stat, schedstat)
            self._unnamed.append((process, thread))
        self.watched = max(self.watched, len(self._threads))
        return [_line(one, one.seen_ns) for one in ended if not one.written]

    def _name(self) -> None:
        """Write the names of new threads, now and one look later: most get theirs after a while."""
        lines = [*self._renamed, *self._unnamed]
        self._renamed, self._unnamed = self._unnamed, []
        if not lines:
            return
        with (self.path.parent / NAMES_FILE).open("a", encoding="utf-8", errors="replace") as names:
            for process, thread in lines:
                name, parent = name_of(process, thread)
                if name:
                    names.write(f"{process}\t{thread}\t{parent}\t{name}\n")

    def _poll(self) -> list[str]:
        lines: list[str] = []
        for number, one in enumerate(self._threads.values()):
            if one.idle >= _IDLE_PERIODS and (self.polls + number) % _IDLE_VISIT:
                continue
            now = time.monotonic_ns()
            found = _read(one)
            if found is None:
                continue  # it has just ended
            if found == one.seen:
                one.seen_ns, one.written = now, False
                one.idle += 1
                continue
            if not one.written:  # up to here nothing had changed
                lines.append(_line(one, one.seen_ns))
            one.seen, one.seen_ns, one.written, one.idle = found, now, True, 0
            lines.append(_line(one, now))
        return lines

    def _again(self) -> list[str]:
        """The last reading of every thread, where older lines are dropped."""
        return [_line(one, one.seen_ns) for one in self._threads.values() if one.seen_ns]

    def _last(self) -> list[str]:
        return [_line(one, one.seen_ns) for one in self._threads.values() if not one.written]


def _line(one: _Thread, time_ns: int) -> str:
    state, run, wait = one.seen
    return f"{time_ns}\t{one.process}\t{one.thread}\t{state}\t{run}\t{wait}\n"


def _read(one: _Thread) -> tuple[str, int, int] | None:
    try:
        text = os.pread(one.stat, 512, 0)
        run, wait = -1, -1
        if one.schedstat >= 0:
            run_text, wait_text, _ = os.pread(one.schedstat, 128, 0).split()
            run, wait = int(run_text), int(wait_text)
        at = text.rindex(b")") + 2  # the name before it may hold anything
        return text[at : at + 1].decode("ascii", "replace"), run, wait
    except (OSError, ValueError):
        return None


def name_of(process: int, thread: int) -> tuple[str, int]:
    """(name, parent's process id) of a thread; ("", 0) where it has ended."""
    try:
        stat = Path(f"/proc/{process}/task/{thread}/stat").read_bytes()
        end = stat.rindex(b")")
        name = stat[stat.index(b"(") + 1 : end].decode("utf-8", "replace")
        return " ".join(name.split()), int(stat[end + 2 :].split()[1])
    except (OSError, ValueError, IndexError):
        return "", 0


def tree_of(root: int) -> set[int]:
    """A process and its descendants."""
    found, pending = set(), [root]
    while pending:
        process = pending.pop()
        if process not in found:
            found.add(process)
            pending += children(process)
    return found


def threads_of(process: int) -> list[int]:
    """Thread ids of a process; none where it has ended."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]  # noqa: PTH208 - speed
    except OSError:
        return []

"""Many programs are prepared at the same time, and then each has the machine for itself.

A program in a process of its own says that it is prepared, is stopped (its children, too), and goes
on alone when it is its turn. When it was measured it is stopped again, and writes what it recorded
when no other one is measured.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import os
import select
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

GATE = "EXAM_GATE"


# ---- in the program


class Gate:
    """Where a program waits for its turn; open where nobody keeps it.

    Args:
        rank: of a job's process.
    """

    def __init__(self, rank: int = 0) -> None:
        path = os.environ.get(GATE, "")
        self._up = os.open(f"{path}.up", os.O_WRONLY) if path else -1
        self._down = os.open(f"{path}.{rank}", os.O_RDONLY) if path else -1

    def reached(self) -> None:
        """Prepared, or measured: return when the program may go on."""
        if self._up >= 0:
            os.write(self._up, b".")
            os.read(self._down, 1)


# ---- outside


@dataclass
class Task:
    """A program to be measured.

    Attributes:
        name: the pair.
        mode: what is done with it.
        words: its command.
        log: where its output goes.
        ranks: processes that meet the gate.
        patience_s: how long it may prepare itself.
        measure_s: how long it may be measured.
        ended: called with why it failed, empty if it did not.
    """

    name: str
    mode: str
    words: list[str]
    log: Path
    ended: Callable[[Task, str], object]
    ranks: int = 1
    patience_s: float = 90.0
    measure_s: float = 60.0
    process: subprocess.Popen[bytes] | None = None
    fifos: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    _begun: float = 0.0

    def start(self) -> None:
        path = self.log.with_suffix(".gate")
        for end in ("up", *map(str, range(self.ranks))):
            fifo = Path(f"{path}.{end}")
            fifo.unlink(missing_ok=True)
            os.mkfifo(fifo)
            self.fifos.append(os.open(fifo, os.O_RDWR))
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, GATE: str(path)},
                start_new_session=True,
            )
        self._begun = time.monotonic()

    def wait(self, until: float) -> bool:
        """Wait until all ranks are at the gate, whether they came."""
        assert self.process is not None
        came = 0
        while came < self.ranks:
            left = until - time.monotonic()
            if left <= 0 or self.process.poll() is not None:
                return False
            if select.select(self.fifos[:1], [], [], min(left, 0.2))[0]:
                came += len(os.read(self.fifos[0], self.ranks - came))
        self.took_s.append(round(time.monotonic() - self._begun, 1))
        return True

    def go(self) -> None:
        self._begun = time.monotonic()
        for fifo in self.fifos[1:]:
            os.write(fifo, b".")

    def signal(self, number: signal.Signals) -> None:
        """To the process and all below it."""
        assert self.process is not None
        if self.process.poll() is None:
            for pid in tree(self.process.pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, number)

    def finish(self, why: str) -> None:
        """End it, and tell."""
        assert self.process is not None
        if why and (code := self.process.poll()) is not None:
            why = f"ended with {code}"
        elif why:
            self.signal(signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)  # workers that were left
        for fifo in self.fifos:
            os.close(fifo)
        for fifo in self.log.parent.glob(f"{self.log.stem}.gate.*"):
            fifo.unlink()
        self.fifos = []
        self.ended(self, why)


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                parents.setdefault(int(parent), []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def in_batches(
    batches: Sequence[Sequence[Task]], seconds: float, first: Callable[[], object]
) -> list[Task]:
    """Prepare the tasks of a batch together, then measure them one by one.

    Args:
        batches: the tasks.
        seconds: after so many no task is measured any more.
        first: done while the first batch is prepared.

    Returns:
        The tasks that were left out.
    """
    begin = time.monotonic()
    left: list[Task] = []
    writing: list[Task] = []
    for number, batch in enumerate(batches):
        if time.monotonic() - begin > seconds:
            left += batch
            continue
        started = time.monotonic()
        for task in batch:
            if number == 0 and task.mode == "own" and first is not None:
                first()
                first = lambda: None  # noqa: E731 - once
            task.start()
        ready = [task for task in batch if prepared(task)]
        writing = [task for task in writing if not written(task, 0.0)]
        for task in writing:
            task.signal(signal.SIGSTOP)
        prepared_s = time.monotonic() - started
        measured = []
        for task in ready:
            if time.monotonic() - begin > seconds:
                task.finish("no time left")
                left.append(task)
            elif alone(task):
                measured.append(task)
        for task in (*writing, *measured):
            task.signal(signal.SIGCONT)
        for task in measured:
            task.go()
        writing += measured
        spent = time.monotonic() - started - prepared_s
        print(
            f"-- {len(ready)} of {len(batch)} prepared in {prepared_s:.0f} s, measured in "
            f"{spent:.0f} s; {time.monotonic() - begin:.0f} s",
            flush=True,
        )
    deadline = time.monotonic() + WRITE_S
    for task in writing:
        if not written(task, deadline - time.monotonic()):
            task.finish("did not write its trace in time")
    return left


WRITE_S = 40.0


def prepared(task: Task) -> bool:
    """Wait until a task is prepared, and stop it."""
    if task.wait(task._begun + task.patience_s):
        task.signal(signal.SIGSTOP)
        return True
    task.finish("was not prepared in time")
    return False


def alone(task: Task) -> bool:
    """Measure a task, whether it came to its end."""
    task.signal(signal.SIGCONT)
    task.go()
    if task.wait(time.monotonic() + task.measure_s):
        task.signal(signal.SIGSTOP)
        return True
    task.finish("was not measured in time")
    return False


def written(task: Task, patience_s: float) -> bool:
    """Whether a task has written what it recorded; it is finished then."""
    assert task.process is not None
    try:
        task.process.wait(max(patience_s, 0.01))
    except subprocess.TimeoutExpired:
        return False
    task.finish("")
    return True


# ---- what comes back

ARCHIVES, ARCHIVE_BYTES = 7, 15_500_000


def pack(out: Path) -> None:
    """All files in a few archives below OUT/packed, each file compressed by itself."""
    files = [f for f in sorted(out.iterdir()) if f.suffix in (".json", ".tar", ".log")]

    def compressed(file: Path) -> tuple[str, bytes]:
        return f"{file.name}.xz", lzma.compress(file.read_bytes(), preset=2)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # lzma lets other threads run
        small = sorted(pool.map(compressed, files), key=lambda f: len(f[1]))
    folder = out / "packed"
    folder.mkdir(exist_ok=True)
    room = [ARCHIVE_BYTES] * ARCHIVES
    parts: list[list[tuple[str, bytes]]] = [[] for _ in room]
    for name, data in small:
        place = max(range(ARCHIVES), key=lambda i: room[i])
        takes = len(data) + 2048
        if takes > room[place]:
            print(f"no room for {name}: {len(data)} bytes", flush=True)
            continue
        room[place] -= takes
        parts[place].append((name, data))
    for number, part in enumerate(parts):
        with tarfile.open(folder / f"part{number}.tar", "w") as archive:
            for name, data in part:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))

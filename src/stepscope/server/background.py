"""Work that takes much memory, in a process of its own: storing tracks, and the diagnosis.

What such work has allocated would stay with the server, which runs for hours. The other process
writes into the cache, from where the server reads; it says on its standard output how far it is,
ends when its standard input ends, and so never outlives the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from stepscope.trace.errors import InputError, StepscopeError, StorageError

if TYPE_CHECKING:
    from stepscope.api import Job
    from stepscope.server.answers import Diagnosed

TRACKS, DIAGNOSIS = "tracks", "diagnosis"
HERE_EVENTS = 400_000
"""Up to so many events the work is done in the server: some 500 bytes an event, 200 MB."""


_NOT_KEPT = 3


class Process:
    """A process that works for the server.

    Args:
        job: the opened job; the process opens the same.
        what: ``tracks`` or ``diagnosis``.
        progress: is told the share that is done.
    """

    def __init__(
        self, job: Job, what: str, progress: Callable[[float], None] = lambda _: None
    ) -> None:
        paths = [os.fspath(path) for path in job.given]
        self._progress = progress
        self._changed = threading.Condition()
        self._job = job
        self._stored: set[str] = set()
        self._ended = False
        self.doing = ""
        """What it is doing, in words."""
        options = json.dumps(job.open_options)
        module = "stepscope.server.background"
        self._command = [sys.executable, "-P", "-m", module, what, options, *paths]
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: list[str] = []

    def wait(self, stored: str = "") -> None:
        """Start it if it was not started, and wait until it has ended.

        Args:
            stored: name of a file; wait only until it says that this is there.

        Raises:
            InputError: it failed; the message is its own.
            StorageError: what it made cannot be kept.
        """
        with self._changed:
            if self._process is None:
                self._start()
            self._changed.wait_for(lambda: self._ended or stored in self._stored)
            if stored in self._stored:
                return
        assert self._process
        code = self._process.wait()
        if code == _NOT_KEPT:
            raise StorageError(self._messages[0])
        if code != 0:
            how = "it ran out of memory or was ended"
            raise InputError(
                self._messages[0] if self._messages else f"the work was not finished: {how}"
            )

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "STEPSCOPE_CACHE_DIR": str(self._job.cache_folder)},
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Hear what it says until it has ended."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        for line in process.stdout:
            word, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
            if word == "done":
                self._progress(float(rest))
            elif word == "doing":
                self.doing = rest
            elif word == "error":
                self._messages.append(rest)
            elif word == "stored":
                with self._changed:
                    self._stored.add(rest)
                    self._changed.notify_all()
        process.wait()
        self.doing = ""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """End it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()


def prepare(job: Job, progress: Callable[[float], None]) -> None:
    """Store the tracks of a job that are not stored yet, in another process if there are many.

    Args:
        job: the opened job.
        progress: is told the share that is done, 0 to 1.

    Raises:
        InputError: a table is damaged.
    """
    if not job.views.stored_timeline_is_missing():
        return
    try:
        if job.events() > HERE_EVENTS:
            Process(job, TRACKS, progress).wait()
        else:
            job.views.store_timeline(progress)
    except StorageError:
        return  # without a cache, tracks are built in memory


def explaining_beside(job: Job) -> Process | None:
    """The process that explains a large job whose timeline is stored; None for the others."""
    if job.events() <= HERE_EVENTS or job.views.stored_timeline_is_missing():
        return None
    job.views.explains_elsewhere = True
    return Process(job, DIAGNOSIS)


def main(arguments: list[str]) -> int:
    """Do some work; called in the process."""
    from stepscope.api import Job

    threading.Thread(target=_end_with_parent, daemon=True).start()
    what, options, *paths = arguments
    try:
        job = Job(paths, **json.loads(options))
        if what == TRACKS:
            job.views.store_timeline(lambda share: print("done", share, flush=True))
        else:
            _diagnose(job)
    except StepscopeError as error:
        print("error", " ".join(str(error).split()), flush=True)
        return _NOT_KEPT if isinstance(error, StorageError) else 2
    return 0


def diagnosis_of(job: Job) -> bytes:
    """Diagnosis, instances of its findings, and how far the timeline can show them, as JSON."""
    diagnosis = job.diagnose()
    found: Diagnosed = {
        "diagnosis": diagnosis,
        "instances": [
            job.views.instances(finding.cause, finding.ranks) for finding in diagnosis.findings
        ],
    }
    return msgspec.json.encode(found)


def _diagnose(job: Job) -> None:
    """Store what tables, the step view and the diagnosis show, as far as that is not done."""
    _nice(5)  # the page, which is there already, comes first
    print(f"doing explaining {job.events():,} events, once for this capture", flush=True)
    job.views.store_tables_and_steps(lambda name: print("stored", name, flush=True))
    if job.views.diagnosed() is None:
        _nice(10)  # nobody waits for it as for a table
        print("doing diagnosing", flush=True)
        job.views.store_diagnosis(diagnosis_of(job))


def _nice(more: int) -> None:
    with contextlib.suppress(OSError):
        os.nice(more)


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin: a buffered reader cannot be left at the end
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the launcher does beside the program while it runs: counters, thread states, other tools."""

from __future__ import annotations

from pathlib import Path

from stepscope.capture import nvml
from stepscope.capture.options import Options
from stepscope.capture.profilers import PROFILERS_FILE, ProfilerWatch
from stepscope.capture.threads import THREADS_FILE, ThreadSampler

COUNTERS_FILE = "counters.csv"


class Sidecar:
    """The samplers of one run.

    Args:
        raw: folder of the raw files.
        configuration: names the run, for processes that leave the program's tree.
        options: what is wanted.
    """

    def __init__(self, raw: Path, configuration: Path, options: Options) -> None:
        self._counters = (
            nvml.Sampler(raw / COUNTERS_FILE, 1 / options.counters_hz, options.ring_s)
            if options.counters and options.counters_hz
            else None
        )
        self._threads = (
            ThreadSampler(raw / THREADS_FILE, options.threads_hz, configuration, options.ring_s)
            if options.threads_hz
            else None
        )
        self._profilers = ProfilerWatch(raw / PROFILERS_FILE)

    def start(self, root: int) -> None:
        """Begin, with the program's first process."""
        if self._counters:
            self._counters.start()
        if self._threads:
            self._threads.start(root)
        self._profilers.start(root)

    def stop(self) -> None:
        """End, and wait for the last lines."""
        if self._counters:
            self._counters.stop()
        if self._threads:
            self._threads.stop()
        self._profilers.stop()

    def warnings(self) -> list[str]:
        """What the user should know, in sentences."""
        return list(dict.fromkeys(one.message() for one in self._profilers.all()))

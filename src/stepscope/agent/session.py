"""What one server keeps for its clients: the folders that it may read, and the opened captures."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepscope.render.text import clean
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    from stepscope.api import Job

_MOST_OPEN: Final = 4
"""An explained job holds its columns; the one that was used longest ago is closed."""
_MOST_ENTRIES: Final = 100_000


class Session:
    """Opens captures inside allowed folders, and gives each an id.

    Args:
        allowed: the folders; relative paths begin at the first.

    Raises:
        UsageError: one of them is no folder.
    """

    def __init__(self, allowed: Sequence[str | Path]) -> None:
        self._allowed = [Path(folder).expanduser().resolve() for folder in allowed]
        for folder, given in zip(self._allowed, allowed, strict=True):
            if not folder.is_dir():
                raise UsageError(f"{given} is no folder; name one with --allow DIR")
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._ids: dict[tuple[str, ...], str] = {}
        self._paths: dict[str, tuple[tuple[str, ...], str, str]] = {}

    def open(self, given: str | Sequence[str], step: str = "", step_kernel: str = "") -> str:
        """Open captures as one job; returns the id by which tools know it.

        Args:
            given: a path, several, or the id of an opened capture.
            step: what a step is, as ``--step`` says it.
            step_kernel: at which kernels steps begin, as ``--step-kernel`` says it.

        Raises:
            UsageError: a path is outside the allowed folders.
            InputError: it cannot be read as a capture.
        """
        words = [given] if isinstance(given, str) else list(given)
        if len(words) == 1 and words[0] in self._paths and not (step or step_kernel):
            return words[0]
        paths = tuple(str(self.resolved(word)) for word in words)
        key = (*paths, "\0", step, step_kernel)
        if key not in self._ids:
            self._ids[key] = f"c{len(self._ids) + 1}"
            self._paths[self._ids[key]] = paths, step, step_kernel
        found = self._ids[key]
        self._job(found)
        return found

    def job(self, given: str | Sequence[str]) -> Job:
        """The job of an id or of paths, which are opened.

        Raises:
            UsageError: a path is outside the allowed folders.
            InputError: it cannot be read as a capture.
        """
        return self._job(self.open(given))

    @property
    def opened(self) -> list[str]:
        """Ids of the captures that have been opened."""
        return list(self._paths)

    def resolved(self, given: str) -> Path:
        """A path with its links followed, inside the allowed folders.

        Raises:
            UsageError: it is outside, or a link below it leads outside.
        """
        if "\0" in given or not given:
            raise UsageError("the path is empty or damaged; name a capture")
        path = (self._allowed[0] / Path(given).expanduser()).resolve()
        if not self._is_allowed(path):
            raise UsageError(f"{clean(given, 300)} is outside of what may be read: {self._names()}")
        for link in _links(path):
            if not self._is_allowed(link.resolve()):
                name = clean(str(link), 300)
                raise UsageError(f"{name} leads outside of what may be read: {self._names()}")
        return path

    def _job(self, id_: str) -> Job:
        from stepscope.api import Job

        if id_ not in self._jobs:
            paths, step, step_kernel = self._paths[id_]
            for path in paths:
                self.resolved(path)  # what lay there may have been replaced since
            self._jobs[id_] = Job(paths, step=step, step_kernel=step_kernel)
            while len(self._jobs) > _MOST_OPEN:
                self._jobs.popitem(last=False)
        self._jobs.move_to_end(id_)
        return self._jobs[id_]

    def _is_allowed(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._allowed)

    def _names(self) -> str:
        named = ", ".join(clean(str(folder), 200) for folder in self._allowed)
        return f"{named} (the server's --allow)"


def _links(path: Path) -> Iterator[Path]:
    """Symbolic links below a folder, without following them."""
    seen = 0
    for folder, folders, files in os.walk(path) if path.is_dir() else ():
        for name in (*folders, *files):
            seen += 1
            if seen > _MOST_ENTRIES:
                raise UsageError(
                    f"{clean(str(path), 300)} holds more than {_MOST_ENTRIES:,} files; name the "
                    "capture itself"
                )
            entry = Path(folder, name)
            if entry.is_symlink():
                yield entry

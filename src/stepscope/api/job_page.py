"""A job of digests as its page asks about it: diagnosis, heat map, ranks, and their captures."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.api.digest_files import SUFFIX, read_digests
from stepscope.api.digests import gather, read_topology
from stepscope.api.inputs import expand
from stepscope.api.job import Job, OpenOptions
from stepscope.trace.errors import InputError, UsageError

if TYPE_CHECKING:
    from stepscope.jobs.digest import Digest
    from stepscope.jobs.job import JobAnalysis
    from stepscope.jobs.job_grid import GridCells, JobGrid
    from stepscope.jobs.job_result import JobDiagnosis
    from stepscope.jobs.rank_detail import RankDetail

_NO_NAMES = frozenset({"", ".", ".."})


def shows_a_job(paths: Sequence[str | Path]) -> bool:
    """Whether these paths are shown as a job of digests, rather than as captures on one timeline.

    They are where a path is a digest, or a folder with digests in it or in the folders right below;
    of a folder of captures whose digests lie below, the captures count.
    """
    return any(map(_is_of_digests, map(Path, paths)))


def _is_of_digests(path: Path) -> bool:
    try:
        if not path.is_dir():
            return path.name.endswith(SUFFIX) and path.is_file()
        if next(path.glob(f"*{SUFFIX}"), None) is not None:
            return True
        # as nodes leave them, a folder each; deeper ones would take long to find in a large tree
        below = next(path.glob(f"*/*{SUFFIX}"), None) is not None
    except (OSError, ValueError):  # whoever opens it says what is wrong
        return False
    return below and not _holds_captures(path)


def _holds_captures(folder: Path) -> bool:
    try:
        return bool(expand(folder, []))
    except InputError:
        return False


class JobPage:
    """A job of digests, and the full captures of its ranks as far as they are here.

    A digest names its capture, but digests come from elsewhere: a file is opened only where it lies
    in a path that the user gave.

    Args:
        paths: digests, folders of digests, captures; of a folder that holds digests, captures that
            one of them names can be opened.
        topology: a topology file; empty for none.
        options: how captures are opened.

    Attributes:
        paths: the inputs as the user named them.

    Raises:
        InputError: nothing can be read.
        UsageError: there are no digests.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        topology: str | Path = "",
        options: OpenOptions | None = None,
    ) -> None:
        self.paths = [str(path).encode("utf-8", "replace").decode() for path in paths]
        self._options: OpenOptions = options or {}
        self._topology = read_topology(topology) if topology else None
        self._given = [Path(path).resolve() for path in paths]
        self._captures: list[Path] = []
        self._found = gather(paths, options=options, known=self._known)
        if not self._found.digests:
            raise UsageError(
                "these are records of collectives without digests, which have no timeline; "
                "stepscope job PATH says what they tell"
            )
        self._lock = threading.Lock()

    def _known(self, capture: Path, digests: Sequence[Digest]) -> bool:
        """Whether a digest is of this capture: it is named the same."""
        self._captures.append(capture)
        return any(_name(digest) == capture.name for digest in digests)

    @property
    def ranks(self) -> int:
        """How many ranks there are digests of."""
        return len({digest.rank for digest in self._found.digests})

    @property
    def analysis(self) -> JobAnalysis:
        """The job looked at together, once.

        Raises:
            InputError: the digests share no step.
        """
        with self._lock:
            return self._analysis

    @cached_property
    def _analysis(self) -> JobAnalysis:
        from stepscope.jobs.job import analysed

        return analysed(self._found.digests, self._topology)

    def diagnosis(self) -> JobDiagnosis:
        """What ``stepscope job`` says."""
        from stepscope.jobs.job import diagnosis_of

        found = self._found
        return diagnosis_of(
            self.analysis,
            skipped=found.skipped,
            warnings=found.warnings,
            stuck=found.stuck,
            logs=found.answer.logs if found.answer is not None else None,
        )

    def grid(self) -> JobGrid:
        """The axes of the heat map."""
        from stepscope.jobs.job_grid import grid

        return grid(self.analysis)

    def cells(self, value: str) -> GridCells:
        """One value of each rank in each step.

        Raises:
            UsageError: there is no such value.
        """
        from stepscope.jobs.job_grid import cells

        found = cells(self.analysis, value)
        if found is None:
            raise UsageError(f"the heat map has no value {value[:60]!r}")
        return found

    def rank(self, row: int) -> RankDetail:
        """One rank.

        Args:
            row: its position among the ranks of the diagnosis.

        Raises:
            UsageError: there is no such rank.
            InputError: its digest cannot be read any more.
        """
        from stepscope.jobs.rank_detail import RankCapture, rank_detail

        digest = self._digest(row)
        here = self._reachable[row]
        named = str(here) if here is not None else digest.facts["capture"] or ""
        # a file that came from elsewhere is named by its last part: where it will lie is not known
        file = named if here is not None else Path(named).name
        capture = RankCapture(
            path=digest.facts["capture"] or "",
            hostname=digest.hostname,
            timeline=f"rank/{row}/" if here is not None else "",
            command=f"stepscope ui {shlex.quote(file)}" if file else "",
        )
        return rank_detail(self.analysis, row, self._whole(digest), capture)

    def reachable(self) -> list[int]:
        """Positions of the ranks whose full capture is here."""
        return [row for row, path in enumerate(self._reachable) if path is not None]

    def name_of(self, row: int) -> str:
        """The rank at a position, with its device where the rank has several, as links name it."""
        digest = self._digest(row)
        same = [other for other in self.analysis.digests if other.rank == digest.rank]
        return f"{digest.rank}" + (f".{digest.facts['device'] or 0}" if len(same) > 1 else "")

    def open(self, row: int) -> Job:
        """Open the full capture of a rank.

        Raises:
            UsageError: there is no such rank.
            InputError: its capture is not here, or is another one than the digest was made of.
        """
        digest = self._digest(row)
        path = self._reachable[row]
        if path is None:
            raise InputError(
                f"the capture of rank {digest.rank} is not here; fetch {_name(digest) or 'it'} "
                f"from {digest.hostname or 'its machine'} and name it beside the digests"
            )
        job = Job([path], **self._options)
        stated = digest.facts["capture_digest"]
        if stated and stated not in {trace.meta.input_digest for trace in job.traces}:
            raise InputError(
                f"{path} is another capture than the digest of rank {digest.rank} was made of; "
                f"stepscope ui {shlex.quote(str(path))} shows it by itself"
            )
        return job

    def _digest(self, row: int) -> Digest:
        digests = self.analysis.digests
        if not 0 <= row < len(digests):
            raise UsageError(f"the job has no rank at position {row}; it has {len(digests)}")
        return digests[row]

    def _whole(self, digest: Digest) -> Digest:
        """The digest with the lists that the diagnosis leaves out, too."""
        if not digest.path:
            return digest  # made on the way
        for one in read_digests(Path(digest.path), whole=True):
            same = ("process_id", "device", "capture_digest")
            if all(one.facts[name] == digest.facts[name] for name in same):
                return one
        raise InputError(f"{digest.path} has changed; start stepscope ui again")

    @cached_property
    def _reachable(self) -> list[Path | None]:
        by_name: dict[str, list[Path]] = {}
        names = {_name(digest) for digest in self.analysis.digests} - _NO_NAMES
        for path in dict.fromkeys([*self._captures, *self._beside()]):
            if path.name in names:
                by_name.setdefault(path.name, []).append(path)
        return [self._file(digest, by_name) for digest in self.analysis.digests]

    def _beside(self) -> Iterator[Path]:
        """What lies in the folders that were given, and beside the digests in them."""
        folders = [path for path in self._given if path.is_dir()]
        folders += [Path(digest.path).resolve().parent for digest in self.analysis.digests]
        for folder in dict.fromkeys(folders):
            if self._is_given(folder):
                yield from sorted(folder.iterdir())

    def _is_given(self, path: Path) -> bool:
        return any(path == given or given in path.parents for given in self._given)

    def _file(self, digest: Digest, by_name: dict[str, list[Path]]) -> Path | None:
        """The capture that a digest names, where it lies in what the user gave."""
        named = Path(digest.facts["capture"] or "")
        found = by_name.get(named.name, [])
        if len(found) == 1:
            return found[0]
        if found:
            ranked = sorted(found, key=lambda path: -_shared_end(path, named))
            clear = _shared_end(ranked[0], named) > _shared_end(ranked[1], named)
            beside = [path for path in found if path.parent == Path(digest.path).resolve().parent]
            return ranked[0] if clear else beside[0] if len(beside) == 1 else None
        if named.name in _NO_NAMES:
            return None
        try:
            place = (Path(digest.path).parent / named).resolve()
            return place if self._is_given(place) and place.exists() else None
        except (OSError, ValueError):  # a path that no file system knows
            return None


def _name(digest: Digest) -> str:
    return Path(digest.facts["capture"] or "").name


def _shared_end(one: Path, other: Path) -> int:
    """How many of the last parts two paths share."""
    pairs: Any = zip(reversed(one.resolve().parts), reversed(other.parts), strict=False)
    count = 0
    for mine, theirs in pairs:
        if mine != theirs:
            break
        count += 1
    return count

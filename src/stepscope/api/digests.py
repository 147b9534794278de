"""Digests of ranks, diagnosed as one job: those that are there, and those of captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from stepscope.api.digest_files import SUFFIX, read_digests
from stepscope.api.inputs import CAPTURE_SUFFIXES, expand
from stepscope.api.job import OpenOptions
from stepscope.jobs.engine.remote import fetched, is_remote, listed, without_secret
from stepscope.trace import progress
from stepscope.trace.errors import InputError, StepscopeError, UsageError
from stepscope.trace.recorded import LoggedOperations, Recorded

if TYPE_CHECKING:
    from stepscope.jobs.digest import Digest
    from stepscope.jobs.engine.run import Engine
    from stepscope.jobs.job_result import JobDiagnosis, Skipped, Stuck
    from stepscope.jobs.logs import LogAnswer

MANY_RANKS = 32
"""So many captures are diagnosed together, each read as a whole; of more, their digests are."""

_READERS = 2
"""Files that are read at the same time."""


def inputs_of(paths: Sequence[str | Path]) -> Iterator[str | Path]:
    """The files that the paths of a job stand for; folders are looked through, with those below.

    A URL stands for the digests of its folder, or for the captures where there is none.

    Raises:
        InputError: a path is not there, or holds nothing.
        UsageError: what reads a URL is not installed.
    """
    for given in paths:
        if is_remote(str(given)):
            found = [url for url, _, _ in listed(str(given), {SUFFIX, *CAPTURE_SUFFIXES})]
            yield from [url for url in found if url.endswith(SUFFIX)] or found
            continue
        path = Path(given)
        try:
            there = path.exists()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "its name is no path"
            raise InputError(f"cannot read {path}: {why}; check the path and its rights") from error
        if not there:
            raise InputError(f"{path} does not exist; check the path")
        if path.is_file():
            yield path
            continue
        digests = sorted(path.rglob(f"*{SUFFIX}"))
        if digests:
            yield from digests
            yield from sorted(f for f in path.iterdir() if f.is_file() and _is_dump(f))
            continue
        dumps = sorted(f for f in path.iterdir() if f.is_file() and _is_dump(f))
        yield from dumps or expand(path, [])


def goes_by_digests(paths: Sequence[str | Path]) -> bool:
    """Whether a diagnosis of these paths compares digests: digests, many captures, URLs."""
    captures = 0
    for given in filter(None, map(str, paths)):
        path = Path(given)
        if is_remote(given) or path.name.endswith(SUFFIX):
            return True
        try:
            captures += len(expand(path, []))
        except InputError:  # no capture is in it; what reads it says so
            if _holds_digests(path):
                return True
    return captures > MANY_RANKS


def _holds_digests(path: Path) -> bool:
    try:
        return next(path.glob(f"*{SUFFIX}"), None) is not None
    except OSError:
        return False


def _is_dump(path: Path) -> bool:
    """Whether a file is a record of collectives, of whichever recorder."""
    from stepscope.importers.flight_recorder import looks_like_dump

    return looks_like_dump(path) or _is_log(path)


def _is_log(path: Path) -> bool:
    from stepscope.importers.nccl_inspector import looks_like_log

    return looks_like_log(path)


def diagnose_digests(
    paths: Sequence[str | Path],
    *,
    topology: str | Path = "",
    strict: bool = False,
    options: OpenOptions | None = None,
    engine: Engine | None = None,
) -> JobDiagnosis:
    """Name the causes of a job's step time from digests of its ranks.

    Args:
        paths: digests, folders of them, captures (whose digests are made on the way), dumps of
            PyTorch's flight recorder, logs of NCCL Inspector.
        topology: a topology file; empty for none.
        strict: an input that cannot be used ends it; else it is left out and named.
        options: how captures are opened.
        engine: where digests of captures are made; by default the processes of this machine.

    Raises:
        InputError: nothing is left to look at, or with ``strict`` an input cannot be used.
        UsageError: no path is given.
    """
    from stepscope.jobs.hangs import only_recorded
    from stepscope.jobs.job import diagnose_job

    known = read_topology(topology) if topology else None
    found = gather(paths, strict=strict, options=options, engine=engine)
    if not found.digests:
        return only_recorded(found.dumps, found.answer, found.stuck, found.warnings, found.skipped)
    return diagnose_job(
        found.digests,
        topology=known,
        skipped=found.skipped,
        warnings=found.warnings,
        stuck=found.stuck,
        logs=found.answer.logs if found.answer is not None else None,
    )


@dataclass(frozen=True)
class Gathered:
    """What the paths of a job hold.

    Attributes:
        digests: of its ranks, each device of a rank once; none where there are only records of
            collectives.
        dumps: of PyTorch's flight recorder.
        answer: what logs of NCCL Inspector tell; None without such.
        stuck: collectives that did not complete.
        skipped: inputs that were left out.
        warnings: what was assumed.
    """

    digests: list[Digest]
    dumps: list[Recorded]
    answer: LogAnswer | None
    stuck: list[Stuck]
    skipped: list[Skipped]
    warnings: list[str]


def gather(
    paths: Sequence[str | Path],
    *,
    strict: bool = False,
    options: OpenOptions | None = None,
    engine: Engine | None = None,
    known: Callable[[Path, Sequence[Digest]], bool] = lambda path, digests: False,
) -> Gathered:
    """Read the digests of a job, and make those of its captures.

    Args:
        paths: as for :func:`diagnose_digests`.
        strict: likewise.
        options: likewise.
        engine: likewise.
        known: of a capture and the digests that were read: whether one of them is of the capture,
            which then needs no further digest.

    Raises:
        InputError: nothing is left to look at, or with ``strict`` an input cannot be used.
        UsageError: no path is given.
    """
    from stepscope.jobs.digest_check import of_one_job
    from stepscope.jobs.hangs import on_timelines, stuck_collectives
    from stepscope.jobs.logs import answer_of_logs

    if not paths:
        raise UsageError("no path is given; name digests, or a folder of them")
    files = list(dict.fromkeys(inputs_of(paths)))
    found = _read_all(files, strict, options, engine, known)
    kept, out, warnings = of_one_job(found.digests)
    skipped = [*found.skipped, *out]
    if strict and out:
        raise InputError(f"{out[0].path} cannot be used: {out[0].reason}")
    stuck, stated = stuck_collectives(found.dumps, kept)
    answer = answer_of_logs(found.logs, kept) if found.logs else None
    if answer is not None:
        stuck = [*stuck, *on_timelines(answer.stuck, kept)]
        stated = [*stated, *answer.warnings]
    if not kept and not found.dumps and not found.logs:
        why = f": {skipped[0].path}: {skipped[0].reason}" if skipped else ""
        raise InputError(f"none of {len(files)} inputs could be used{why}")
    return Gathered(kept, found.dumps, answer, stuck, skipped, [*warnings, *stated])


@dataclass
class _Found:
    """What the inputs of a job are."""

    digests: list[Digest] = field(default_factory=list)
    dumps: list[Recorded] = field(default_factory=list)
    logs: list[LoggedOperations] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def leave_out(self, file: str | Path, why: str) -> None:
        from stepscope.api.items import shown_place
        from stepscope.jobs.job_result import Skipped

        self.skipped.append(Skipped(shown_place(str(file)), why))

    def add(self, read: Sequence[Digest | Recorded | LoggedOperations]) -> None:
        for one in read:
            if isinstance(one, Recorded):
                self.dumps.append(one)
            elif isinstance(one, LoggedOperations):
                self.logs.append(one)
            else:
                self.digests.append(one)


def _read_all(
    files: Sequence[str | Path],
    strict: bool,
    options: OpenOptions | None,
    engine: Engine | None,
    known: Callable[[Path, Sequence[Digest]], bool],
) -> _Found:
    """Read the inputs of a job; digests of captures are made last.

    Raises:
        StepscopeError: the only input cannot be read, or with ``strict`` one of them.
    """
    from concurrent.futures import ThreadPoolExecutor

    found = _Found()

    def left_out(file: str | Path, error: StepscopeError) -> None:
        if strict or len(files) == 1:
            raise error
        found.leave_out(file, str(error))

    captures: list[str | Path] = []
    with ThreadPoolExecutor(_READERS) as pool:  # Arrow decodes without Python's lock
        reads = [(file, pool.submit(_read, file)) for file in files]
        for file, read in progress.each(reads, "Reading", lambda pair: Path(pair[0]).name):
            try:
                inputs = read.result()
            except StepscopeError as error:
                left_out(file, error)
                continue
            if inputs is None:
                captures.append(file)
            else:
                found.add(inputs)
    _summarise(
        [f for f in captures if is_remote(str(f)) or not known(Path(f), found.digests)],
        found,
        left_out,
        options,
        engine,
    )
    return found


def _summarise(
    captures: Sequence[str | Path],
    found: _Found,
    left_out: Callable[[str | Path, StepscopeError], None],
    options: OpenOptions | None,
    engine: Engine | None,
) -> None:
    """Make the digests of captures on the way, in several processes where that is faster."""
    from stepscope.api.digest_making import of_item, summarise
    from stepscope.api.items import asked_of
    from stepscope.jobs.engine.work import DONE

    if not captures:
        return
    with TemporaryDirectory(prefix="stepscope-") as folder:
        for item, file, outcome in summarise(asked_of(captures), Path(folder), options, engine):
            try:
                if outcome.state != DONE:
                    raise InputError(outcome.message)
                made = of_item(file, item, whole=True)
                for digest in made:
                    digest.path = ""  # no file keeps it
                found.add(made)
            except StepscopeError as error:
                left_out(item.place, error)


def _read(place: str | Path) -> Sequence[Digest | Recorded | LoggedOperations] | None:
    """What a file holds; None for a capture, whose digest is still to be made."""
    from stepscope.importers.flight_recorder import looks_like_dump, read_dump
    from stepscope.importers.nccl_inspector import read_log

    if is_remote(str(place)):
        return _read_away(str(place))
    file = Path(place)
    if _is_parquet(file):
        return read_digests(file)
    if looks_like_dump(file):
        return [read_dump(file)]
    return [read_log(file)] if _is_log(file) else None


def _read_away(place: str) -> list[Digest] | None:
    """The digests behind a URL; None for a capture."""
    if not without_secret(place).endswith(SUFFIX):
        return None
    with TemporaryDirectory(prefix="stepscope-") as folder:
        found = read_digests(fetched(place, Path(folder)))
    for digest in found:
        digest.path = without_secret(place)
    return found


def _is_parquet(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return stream.read(4) == b"PAR1" or path.name.endswith(SUFFIX)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its rights") from error


def read_topology(given: str | Path) -> dict[str, Any]:
    """What a topology file holds.

    Raises:
        InputError: it cannot be read.
    """
    from stepscope.trace.text import JsonError, from_json

    path = Path(given)
    try:
        found: dict[str, Any] = from_json(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot read the topology file {path}: {error.strerror}; check its name and rights"
        ) from error
    except JsonError as error:
        raise InputError(
            f"the topology file {path} is no JSON: {error}; correct it, or leave --topology out"
        ) from error
    return found

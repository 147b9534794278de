"""Digests of ranks: made from captures, written, read, diagnosed as one job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.api.inputs import expand
from stepscope.api.job import Job, OpenOptions
from stepscope.trace import progress
from stepscope.trace.errors import InputError, StepscopeError, StorageError, UsageError
from stepscope.trace.one_job import rank_in_name
from stepscope.trace.recorded import LoggedOperations, Recorded

if TYPE_CHECKING:
    from stepscope.diagnosis.ranking import Ranked
    from stepscope.jobs.digest import Digest
    from stepscope.jobs.job_result import JobDiagnosis, Skipped, Stuck
    from stepscope.jobs.logs import LogAnswer
    from stepscope.jobs.view import Device

MANY_RANKS = 32
"""So many captures are diagnosed together, each read as a whole; of more, their digests are."""

SUFFIX = ".digest.parquet"
"""How files of digests are named."""

_READERS = 2
"""Files that are read at the same time."""

_NOT_OF_A_JOB = ("phases", "waits", "evidence", "categories")
"""Lists that a job's diagnosis does not look at: they are for people, and for queries."""


def digests_of(job: Job) -> list[Digest]:
    """The digests of a job's devices, each looked at without the other ranks.

    Raises:
        InputError: a trace holds no GPU work.
    """
    from stepscope import __version__
    from stepscope.jobs.digest_make import Extras, digest_of
    from stepscope.jobs.view import JobView
    from stepscope.operators.phases import phases

    found = []
    stated = {one.rank: one.trace.meta.rank is not None for one in job.ranks}
    for device in job.explained.devices:
        ranked = _ranked_alone(device)
        steady = device.explanation.n_steady
        times = phases(JobView([device]), job.paths).phases
        extras = Extras(
            made_by=__version__,
            capture=job.paths[0] if len(job.paths) == 1 else "",
            verdict=ranked[0].cause.id if ranked else "gpu_bound_healthy",
            findings=[_row(item) for item in ranked],
            phases=[
                {
                    "phase": one.phase,
                    "host_ns": (one.host_ns or 0) // steady,
                    "gpu_ns": one.gpu_ns // steady,
                }
                for one in times
            ],
        )
        digest = digest_of(device, extras)
        if len(job.ranks) == 1 and len(job.explained.devices) == 1 and not any(stated.values()):
            digest.facts["rank"] = rank_in_name(job.ranks[0].trace.path.name)
        found.append(digest)
    return found


def _ranked_alone(device: Device) -> list[Ranked]:
    """The causes that one device shows, without what only several ranks together can show."""
    from stepscope.diagnosis.cause import Case, Detection, JobCase
    from stepscope.diagnosis.predictions import Predicted, simulated
    from stepscope.diagnosis.ranking import ranked
    from stepscope.jobs.view import AloneView
    from stepscope.simulation import Simulation

    job = JobCase(AloneView([device]))
    job.cases.append(Case(device, job))
    simulation = Simulation([(device.rank, device.explanation)], {device.rank: device.read}, None)

    def predict(case: Case, cause: str, detection: Detection) -> Predicted | None:
        return simulated(simulation, case, cause, detection)

    return ranked(job.cases, predict)


def _row(item: Ranked) -> dict[str, Any]:
    """One row of a digest's findings."""
    where = item.detection.where
    named = where.range or where.operator or where.source or where.function
    return {
        "cause": item.cause.id,
        "time_ns": item.detection.time_ns,
        "predicted_ns": item.predicted.step_ns,
        "sure_gain_ns": item.sure_gain_ns,
        "of_program": item.cause.of_program,
        "range": where.range or "",
        "operator": where.operator or "",
        "place": where.source or where.function or "",
        "message": item.cause.title + (f" in {named!r}" if named else ""),
        "advice": next(iter(item.detection.recommendations), ""),
    }


def make_digest(capture: str | Path, options: OpenOptions | None = None) -> list[Digest]:
    """The digests of one capture.

    Raises:
        StepscopeError: it cannot be read, or holds no GPU work.
    """
    return digests_of(Job([capture], **(options or {})))


def write_digests(digests: list[Digest], path: Path) -> None:
    """Write digests as one Parquet file, a row each.

    Raises:
        StorageError: it cannot be written.
    """
    import pyarrow.parquet as pq

    from stepscope.jobs.digest import as_table, integer_leaves, text_leaves

    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            as_table(digests),
            partial,
            compression="zstd",
            compression_level=9,
            use_dictionary=text_leaves(),
            column_encoding=dict.fromkeys(integer_leaves(), "DELTA_BINARY_PACKED"),
            write_statistics=False,
            store_schema=False,
        )
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; make room, or choose another folder"
        ) from error


def read_digests(path: Path, *, whole: bool = False) -> list[Digest]:
    """The digests of one file.

    Args:
        path: the file.
        whole: with the lists that the diagnosis of a job does not look at.

    Raises:
        InputError: it is damaged, no file of digests, or of a newer version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stepscope.jobs.digest import VERSION, from_table

    try:
        file = pq.ParquetFile(path, pre_buffer=False)
        wanted = [name for name in file.schema_arrow.names if whole or name not in _NOT_OF_A_JOB]
        table = file.read(columns=wanted, use_threads=False)
        if "version" not in table.column_names or "steps" not in table.column_names:
            raise InputError(f"{path} is a Parquet file, but no digest of a rank")
        newest = max(table.column("version").to_pylist(), default=0)
        if newest is not None and newest > VERSION:
            raise InputError(
                f"{path} is a digest of version {newest}; this Stepscope reads up to {VERSION}: "
                "update it"
            )
        found = from_table(table, str(path))
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} cannot be read as a digest: {why}") from error
    if not found:
        raise InputError(f"{path} holds no digest; make it again with stepscope digest")
    return found


def digest_captures(
    paths: Sequence[str], folder: Path, options: OpenOptions, *, strict: bool = False
) -> tuple[list[Path], list[Skipped]]:
    """Write the digest of each capture into a folder: one file a capture.

    Args:
        paths: captures, or folders of them.
        folder: where the files go.
        options: how captures are opened.
        strict: a capture that cannot be read ends it; else it is left out.

    Returns:
        The files, and the captures that were left out.

    Raises:
        StepscopeError: nothing can be read, or with ``strict`` one capture cannot.
        StorageError: a file cannot be written.
    """
    from stepscope.jobs.job_result import Skipped

    left_out: list[str] = []
    captures = [capture for path in paths for capture in expand(Path(path), left_out)]
    written: list[Path] = []
    skipped = [Skipped(name, "it looks like a capture by its name only") for name in left_out]
    names: set[str] = set()
    for capture in progress.each(captures, "Summarising", lambda path: path.name):
        name = _file_name(capture, names)
        try:
            write_digests(make_digest(capture, options), folder / name)
        except StorageError:
            raise
        except StepscopeError as error:
            if strict or len(captures) == 1:
                raise
            skipped.append(Skipped(str(capture), str(error)))
            continue
        written.append(folder / name)
    if not written:
        raise InputError(f"none of {len(captures)} captures could be read: {skipped[0].reason}")
    return written, skipped


def _file_name(capture: Path, taken: set[str]) -> str:
    """A name for the digest of a capture that no other one has."""
    stem = capture.name or capture.resolve().name
    name, number = f"{stem}{SUFFIX}", 1
    while name in taken:
        number += 1
        name = f"{stem}.{number}{SUFFIX}"
    taken.add(name)
    return name


def inputs_of(paths: Sequence[str | Path]) -> Iterator[Path]:
    """The files that the paths of a job stand for; folders are looked through, with those below.

    Raises:
        InputError: a path is not there, or holds nothing.
    """
    for path in map(Path, paths):
        try:
            there = path.exists()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "its name is no path"
            raise InputError(f"cannot read {path}: {why}; check the path and its rights") from error
        if not there:
            raise InputError(f"there is no file or folder {path}")
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
    """Whether a diagnosis of these paths compares digests: they are digests, or many captures."""
    captures = 0
    for path in map(Path, filter(None, map(str, paths))):
        if path.name.endswith(SUFFIX):
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
) -> JobDiagnosis:
    """Name the causes of a job's step time from digests of its ranks.

    Args:
        paths: digests, folders of them, captures (whose digests are made on the way), dumps of
            PyTorch's flight recorder, logs of NCCL Inspector.
        topology: a topology file; empty for none.
        strict: an input that cannot be used ends it; else it is left out and named.
        options: how captures are opened.

    Raises:
        InputError: nothing is left to look at, or with ``strict`` an input cannot be used.
        UsageError: no path is given.
    """
    from stepscope.jobs.hangs import only_recorded
    from stepscope.jobs.job import diagnose_job

    known = read_topology(topology) if topology else None
    found = gather(paths, strict=strict, options=options)
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
    known: Callable[[Path, Sequence[Digest]], bool] = lambda path, digests: False,
) -> Gathered:
    """Read the digests of a job, and make those of its captures.

    Args:
        paths: as for :func:`diagnose_digests`.
        strict: likewise.
        options: likewise.
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
    found = _read_all(files, strict, options, known)
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

    def add(self, read: Sequence[Digest | Recorded | LoggedOperations]) -> None:
        for one in read:
            if isinstance(one, Recorded):
                self.dumps.append(one)
            elif isinstance(one, LoggedOperations):
                self.logs.append(one)
            else:
                self.digests.append(one)


def _read_all(
    files: Sequence[Path],
    strict: bool,
    options: OpenOptions | None,
    known: Callable[[Path, Sequence[Digest]], bool],
) -> _Found:
    """Read the inputs of a job; digests of captures are made last.

    Raises:
        StepscopeError: the only input cannot be read, or with ``strict`` one of them.
    """
    from concurrent.futures import ThreadPoolExecutor

    from stepscope.jobs.job_result import Skipped

    found = _Found()

    def left_out(file: Path, error: StepscopeError) -> None:
        if strict or len(files) == 1:
            raise error
        found.skipped.append(Skipped(str(file), str(error)))

    captures: list[Path] = []
    with ThreadPoolExecutor(_READERS) as pool:  # Arrow decodes without Python's lock
        reads = [(file, pool.submit(_read, file)) for file in files]
        for file, read in progress.each(reads, "Reading", lambda pair: pair[0].name):
            try:
                inputs = read.result()
            except StepscopeError as error:
                left_out(file, error)
                continue
            if inputs is None:
                captures.append(file)
            else:
                found.add(inputs)
    wanted = [file for file in captures if not known(file, found.digests)]
    for file in progress.each(wanted, "Summarising", lambda path: path.name):
        try:
            found.add(make_digest(file, options))
        except StepscopeError as error:
            left_out(file, error)
    return found


def _read(file: Path) -> Sequence[Digest | Recorded | LoggedOperations] | None:
    """What a file holds; None for a capture, whose digest is still to be made."""
    from stepscope.importers.flight_recorder import looks_like_dump, read_dump
    from stepscope.importers.nccl_inspector import read_log

    if _is_parquet(file):
        return read_digests(file)
    if looks_like_dump(file):
        return [read_dump(file)]
    return [read_log(file)] if _is_log(file) else None


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
        raise InputError(f"cannot read the topology file {path}: {error.strerror}") from error
    except JsonError as error:
        raise InputError(f"the topology file {path} is no JSON: {error}") from error
    return found

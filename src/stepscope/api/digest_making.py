"""Digests made from captures: of each by itself, in processes of this machine or on a cluster."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from stepscope.api.digest_files import SUFFIX, read_digests, write_digests
from stepscope.api.items import Asked, asked_of, shown_place
from stepscope.api.job import Job, OpenOptions
from stepscope.jobs.engine.remote import is_remote, without_secret
from stepscope.jobs.engine.run import Engine, mapped
from stepscope.jobs.engine.work import DONE, FULL, Item, Outcome, Task
from stepscope.trace.errors import InputError, StorageError
from stepscope.trace.one_job import rank_in_name

if TYPE_CHECKING:
    from stepscope.diagnosis.ranking import Ranked
    from stepscope.jobs.digest import Digest
    from stepscope.jobs.job_result import Skipped
    from stepscope.jobs.view import Device

_PARTIAL: Final = ".partial"


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


def summarised(source: Path, output: Path, options: dict[str, Any]) -> None:
    """Task: the digest of one capture.

    Args:
        source: the capture.
        output: the Parquet file.
        options: how captures are opened.

    Raises:
        StepscopeError: it cannot be read, or holds no GPU work.
    """
    write_digests(make_digest(source, cast("OpenOptions", options)), output)


def summarise(
    asked: Asked, folder: Path, options: OpenOptions | None, engine: Engine | None = None
) -> Iterator[tuple[Item, Path, Outcome]]:
    """The digest of each capture as a file, or why there is none, in the order of the captures.

    Args:
        asked: the captures; those that cannot be read are known by now.
        folder: where the files are; those of an interrupted run are used.
        options: how captures are opened.
        engine: where the work is done; by default the processes of this machine.

    Raises:
        StorageError: the folder cannot be written, or a cluster went away.
    """
    task = Task("stepscope.api.digest_making:summarised", dict(options or {}))
    ends = list(zip(asked.items, asked.outcomes, strict=True))
    todo = [item for item, known in ends if known is None]
    done = mapped(task, todo, folder, engine or Engine(), doing="Summarising")
    made = iter(zip(done.files, done.outcomes, strict=True))
    for item, known in ends:
        yield item, *(next(made) if known is None else (folder, known))


def of_item(file: Path, item: Item, *, whole: bool = False) -> list[Digest]:
    """The digests that were made of a capture; they name it as it was given.

    Raises:
        InputError: the file is damaged.
    """
    found = read_digests(file, whole=whole)
    for digest in found:
        digest.path = item.place
        if is_remote(item.place):  # it was read from a copy
            digest.facts["capture"] = without_secret(item.place)
    return found


def digest_captures(
    paths: Sequence[str | Path],
    folder: Path,
    options: OpenOptions,
    *,
    strict: bool = False,
    engine: Engine | None = None,
) -> tuple[list[Path], list[Skipped]]:
    """Write the digest of each capture into a folder: one file a capture.

    What an interrupted run has made is kept in the folder and not made again.

    Args:
        paths: captures, folders of them, patterns or URLs of fsspec.
        folder: where the files go.
        options: how captures are opened.
        strict: a capture that cannot be read ends it; else it is left out.
        engine: where the work is done; by default the processes of this machine.

    Returns:
        The files, and the captures that were left out.

    Raises:
        StepscopeError: nothing can be read, or with ``strict`` one capture cannot.
        StorageError: a file cannot be written, or a cluster went away.
    """
    from stepscope.jobs.job_result import Skipped

    asked = asked_of(paths)
    partial = folder / _PARTIAL
    if options.get("again"):
        shutil.rmtree(partial, ignore_errors=True)
    written: list[Path] = []
    skipped: list[Skipped] = []
    names: set[str] = set()
    for item, made, outcome in summarise(asked, partial, options, engine):
        if outcome.state != DONE:
            skipped.append(Skipped(shown_place(item.place), outcome.message))
            continue
        target = folder / _file_name(item.place, names)
        _put(made, target, item)
        written.append(target)
    if skipped and (strict or not written):
        first, rest = skipped[0], len(skipped) - 1
        more = f" (and {rest} more)" if rest else ""
        where = "" if Path(first.path).name in first.reason else f"{first.path}: "
        raise InputError(f"{where}{first.reason}{more}")
    with suppress(OSError):
        shutil.rmtree(partial)
    return written, skipped


def _put(made: Path, target: Path, item: Item) -> None:
    """Give a digest its place and name."""
    if is_remote(item.place):
        write_digests(of_item(made, item, whole=True), target)
        return
    try:
        made.replace(target)
    except OSError as error:
        room = "make room, then " if error.errno in FULL else ""
        raise StorageError(
            f"cannot write {target}: {error.strerror}; {room}run the same again"
        ) from error


def _file_name(place: str, taken: set[str]) -> str:
    """A name for the digest of a capture that no other one has."""
    plain = Path(shown_place(place))
    stem = plain.name or plain.resolve().name
    name, number = f"{stem}{SUFFIX}", 1
    while name in taken:
        number += 1
        name = f"{stem}.{number}{SUFFIX}"
    taken.add(name)
    return name

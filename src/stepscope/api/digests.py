"""Digests of ranks: made from captures, written, read, diagnosed as one job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.api.job import Job, OpenOptions
from stepscope.trace.errors import InputError, StorageError
from stepscope.trace.one_job import rank_in_name

if TYPE_CHECKING:
    from stepscope.diagnosis.ranking import Ranked
    from stepscope.jobs.digest import Digest
    from stepscope.jobs.view import Device

SUFFIX = ".digest.parquet"
"""How files of digests are named."""


def digests_of(job: Job) -> list[Digest]:
    """The digests of a job's devices, each looked at without the other ranks.

    Raises:
        InputError: a trace holds no GPU work.
    """
    from stepscope import __version__
    from stepscope.jobs.digest_make import Beside, digest_of
    from stepscope.jobs.view import JobView
    from stepscope.operators.phases import phases

    found = []
    stated = {one.rank: one.trace.meta.rank is not None for one in job.ranks}
    for device in job.explained.devices:
        ranked = _ranked_alone(device)
        steady = device.explanation.n_steady
        times = phases(JobView([device]), job.paths).phases
        beside = Beside(
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
        digest = digest_of(device, beside)
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
        partial.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def read_digests(path: Path) -> list[Digest]:
    """The digests of one file.

    Raises:
        InputError: it is damaged, no file of digests, or of a newer version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stepscope.jobs.digest import VERSION, from_table

    try:
        table = pq.ParquetFile(path, pre_buffer=False).read(use_threads=False)
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

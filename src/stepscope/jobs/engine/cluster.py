"""A Dask cluster that exists: it schedules inputs, and results of a few kB come back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from stepscope.jobs.engine.pool import Work
from stepscope.jobs.engine.work import (
    DONE,
    FAILED,
    KILLED,
    NO_ROOM,
    Outcome,
    Task,
    perform_away,
)
from stepscope.trace.errors import StorageError, UsageError
from stepscope.trace.text import JsonError, from_json

_CONNECT_S: Final = 15
_ANSWER_S: Final = 5
_RETRIES: Final = 2
_GONE = (
    "what was done is kept, so the same command goes on from there, without --cluster on this "
    "machine"
)


def perform_all(
    task: Task, works: Sequence[Work], address: str = "", scheduler_file: str = ""
) -> Iterator[tuple[int, Outcome]]:
    """(number, outcome) of every input, as they end.

    Args:
        task: the task; its function must be importable on the workers.
        works: inputs, whose places the workers must be able to read.
        address: of the scheduler, as ``tcp://host:8786``.
        scheduler_file: instead of it, the file that the scheduler wrote.

    Raises:
        UsageError: Dask is not installed, or no scheduler answers.
        StorageError: the scheduler went away before the end.
    """
    client = _client(address, scheduler_file)
    where = address or scheduler_file
    try:
        yield from _collected(client, task, works, where)
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=2)


def _client(address: str, scheduler_file: str) -> Any:
    try:
        client = import_module("distributed").Client
    except ImportError as error:
        raise UsageError(
            "a cluster needs Dask; pip install dask distributed, here and on the workers"
        ) from error
    import logging

    for name in ("distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong is said once, below
    try:
        if scheduler_file:
            _check_scheduler_file(Path(scheduler_file))
            return client(scheduler_file=scheduler_file, timeout=_CONNECT_S, set_as_default=False)
        return client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {address or scheduler_file} "
            f"({' '.join(str(error).split())[:200]}); check the address, or leave --cluster out"
        ) from error


def _check_scheduler_file(path: Path) -> None:
    """Refuse a file of which Dask would only say that an assertion failed.

    Raises:
        UsageError: it is not there, or no scheduler wrote it to its end.
    """
    do = "start dask scheduler --scheduler-file with it"
    if not path.is_file():
        raise UsageError(f"{path} does not exist; {do}")
    try:
        held = from_json(path.read_bytes())
    except (OSError, JsonError) as error:
        raise UsageError(f"{path} cannot be read as a scheduler file: {error}; {do}") from error
    if not isinstance(held, dict) or not isinstance(held.get("address"), str):
        raise UsageError(f"{path} holds no address of a scheduler; {do}")


def _collected(
    client: Any, task: Task, works: Sequence[Work], where: str
) -> Iterator[tuple[int, Outcome]]:
    dask = import_module("distributed")
    futures: dict[Any, Work] = {}
    tries: dict[int, int] = {}

    def submitted(work: Work) -> Any:
        future = client.submit(perform_away, task, work[1], pure=False, retries=_RETRIES)
        futures[future] = work
        tries[work[0]] = tries.get(work[0], 0) + 1
        return future

    left = len(works)
    try:
        waiting = dask.as_completed([submitted(work) for work in works], loop=client.loop)
        for future in waiting:
            work = futures.pop(future)
            number, _, output = work
            if future.status == "error":
                yield number, _failure(future.exception())
            else:
                try:
                    if future.status in ("cancelled", "lost"):
                        raise dask.CancelledError
                    outcome, content = future.result()
                except (dask.CancelledError, OSError, TimeoutError):
                    # the worker that had done it died before the answer was fetched
                    if tries[number] > _RETRIES or not _answers(client):
                        raise
                    waiting.add(submitted(work))
                    continue
                yield number, _kept(outcome, content, output)
            future.release()
            left -= 1
    except (dask.CancelledError, OSError, TimeoutError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise _gone(where, left) from error


def _answers(client: Any) -> bool:
    """Whether the scheduler is still there."""
    try:
        if client.status != "running":
            return False
        client.sync(client.scheduler.identity, callback_timeout=_ANSWER_S)
    except Exception:  # whatever Dask raises: it says nothing
        return False
    return True


def _gone(where: str, left: int) -> StorageError:
    return StorageError(
        f"the scheduler at {where} is gone, {left} of the captures were not done; {_GONE}"
    )


def _failure(error: BaseException | None) -> Outcome:
    killed = import_module("distributed.scheduler").KilledWorker
    if isinstance(error, killed):
        return Outcome(KILLED, "the workers that had it were killed; give them more memory")
    text = f"{type(error).__name__}: {error}"
    return Outcome(FAILED, f"the cluster failed: {' '.join(text.split())[:300]}")


def _kept(outcome: Outcome, content: bytes, output: Path) -> Outcome:
    """Keep the result here, as a process of this machine would have done."""
    if outcome.state != DONE:
        return outcome
    partial = output.with_suffix(".part")
    try:
        partial.write_bytes(content)
        partial.replace(output)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        return Outcome(NO_ROOM, f"cannot write {output}: {error.strerror}")
    return outcome

"""Run a program once with fixes applied, or without, and time its steps; nothing is recorded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.capture import hooknotes, tries
from stepscope.capture.backends.base import configuration, with_hook
from stepscope.capture.errors import CaptureError
from stepscope.capture.launcher import passing_signals
from stepscope.capture.private import only_owner, umask_of_user
from stepscope.capture.process_tree import VARIABLE, members
from stepscope.capture.program import start_failure

CONFIGURATION = "trial.conf"
OUTPUT = "output.txt"
TOLD = "STEPSCOPE_TRY"
"""Tells the program that it runs for a trial: the fixes, or ``before``."""
WARMUP = 5
_ENDING_S = 20.0
"""How long a program whose steps are over may take to end, before it is asked to by a signal."""
_GRACE_S = 10.0


@dataclass(frozen=True)
class Runs:
    """What all runs of a session have in common.

    Attributes:
        command: program and arguments.
        folder: where the session keeps what it finds; each run gets a folder in it.
        steps: steps to time; the program is ended then. 0: to the program's own end.
        warmup: steps to let pass first.
    """

    command: tuple[str, ...]
    folder: Path
    steps: int
    warmup: int


@dataclass(frozen=True)
class TrialRun:
    """One run.

    Attributes:
        exit_code: the program's, as a shell would say it; 0 where its steps were over.
        seconds: how long it ran.
        processes: what each process that made steps has found, as the hook wrote it.
        made: optimizer steps that any process had counted when last seen.
        loaded: whether a Python loaded the hook.
        output: file with what the program printed; None where it went where it goes.
    """

    exit_code: int
    seconds: float
    processes: list[dict[str, Any]] = field(default_factory=list)
    made: int = 0
    loaded: bool = False
    output: Path | None = None


def checked(names: str) -> str:
    """A list of fixes as the program is given it.

    Raises:
        CaptureError: it names none, one that there is not, or a value that one does not take.
    """
    try:
        found = tries.chosen(names)
    except tries.UnknownTryError as error:
        raise CaptureError(str(error)) from error
    return ",".join(f"{m.TRY.name}={value}" if value else str(m.TRY.name) for m, value in found)


def warmup_for(names: Sequence[str], wanted: int | None) -> int:
    """Steps to let pass: as many as asked for, else what the fixes need, 5 at least.

    Raises:
        CaptureError: fewer than one are asked for: steps are timed from the end of one.
    """
    if wanted is not None:
        if wanted < 1:
            raise CaptureError(f"--warmup is {wanted}; steps are timed from the end of one: give 1")
        return wanted
    found: list[int] = [module.TRY.warmup for text in names for module, _ in tries.chosen(text)]
    return max([WARMUP, *found])


def run_once(runs: Runs, label: str, names: str, *, shown: bool) -> TrialRun:
    """Run the program once.

    Args:
        runs: what all runs have in common.
        label: name of the run's folder.
        names: fixes, as :func:`checked` gives them; empty for none.
        shown: whether the program's output goes where it goes; else it is kept in the run's
            folder, and the program reads nothing.

    Raises:
        LaunchError: the program cannot be started.
        CaptureError: nothing can be written.
    """
    with only_owner():
        folder = runs.folder / label
        plan = folder / CONFIGURATION
        values = {"hook": "trial", "folder": folder.resolve(), "tries": names,
                  "steps": runs.steps, "warmup": runs.warmup}  # fmt: skip
        try:
            folder.mkdir(parents=True)
            plan.write_text(configuration(values), encoding="utf-8")
            output = None if shown else folder / OUTPUT
            stream = output.open("wb") if output else None
        except OSError as error:
            raise CaptureError(
                f"cannot write {folder}: {error.strerror}; give another folder with -o"
            ) from error
        environment = {**os.environ, VARIABLE: str(plan.resolve()), TOLD: names or "before"}
        began = time.monotonic()
        try:
            code = _run(runs, folder, with_hook(environment), stream)
        finally:
            if stream:
                stream.close()
        seconds = time.monotonic() - began
        notes = hooknotes.take(folder)
        found = _processes(folder)
        made = max([notes.most, *(one["steps"] for one in found)])
        return TrialRun(code, seconds, found, made, notes.loaded, output)


def _processes(folder: Path) -> list[dict[str, Any]]:
    """What the processes of a run have written, by rank."""
    found = []
    for path in folder.glob("trial.*.json"):
        with contextlib.suppress(OSError, ValueError):
            found.append(json.loads(path.read_text(encoding="utf-8")))
    return sorted(found, key=lambda one: (len(one["rank"]), one["rank"]))


def _run(runs: Runs, folder: Path, environment: dict[str, str], stream: Any) -> int:
    """Run the program to its end, or until its steps are over; returns its exit code."""
    with passing_signals() as receivers:
        try:
            child = subprocess.Popen(
                runs.command,
                env=environment,
                close_fds=False,
                umask=umask_of_user(),
                stdin=subprocess.DEVNULL if stream else None,
                stdout=stream,
                stderr=stream,
            )
        except OSError as error:
            raise start_failure(runs.command[0], error) from error
        receivers.append(child)
        over_since = 0.0
        while True:
            try:
                code = child.wait(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                if not runs.steps or not any(folder.glob("trial.*.json")):
                    continue
                now = time.monotonic()
                over_since = over_since or now
                if (late := now - over_since - _ENDING_S) > 0:
                    _end(folder / CONFIGURATION, killing=late > _GRACE_S)
        by_us = over_since > 0 and time.monotonic() - over_since > _ENDING_S
        _end_rest(folder / CONFIGURATION, by_us)
    if by_us:
        return 0
    return code if code >= 0 else 128 - code


def _end(plan: Path, *, killing: bool) -> None:
    """End all processes of a run."""
    for process in members(plan.resolve()):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL if killing else signal.SIGTERM)


def _end_rest(plan: Path, by_us: bool) -> None:
    """Processes that outlive the first one would disturb the next run: they are waited for.

    Where we have ended the program, they are ended, too.
    """
    limit = time.monotonic() + _GRACE_S
    while members(plan.resolve()) and time.monotonic() < limit:
        time.sleep(0.05)
    if by_us:
        _end(plan, killing=True)

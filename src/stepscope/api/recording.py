"""Run a program under a recorder, and turn what it left into traces."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.trace.errors import InputError, StepscopeError, UsageError

if TYPE_CHECKING:
    from stepscope.capture.options import Options


@contextmanager
def capture_errors() -> Iterator[None]:
    """Captures know nothing of this package's errors; here theirs become ours."""
    from stepscope.capture.errors import CaptureError, LaunchError

    try:
        yield
    except LaunchError as error:
        raise ProgramError(str(error)) from error
    except CaptureError as error:
        raise UsageError(str(error)) from error


class ProgramError(UsageError):
    """The program to be recorded cannot be started."""


@dataclass(frozen=True)
class PlannedCommand:
    """How a capture would be made.

    Attributes:
        why: the back-end, and why it is that one.
        text: the exact command, as it could be typed.
        arguments: the same without the variables, word by word.
        environment: variables that are set for it.
        files: text of the files that are written before it, by path.
        notes: what the user should know, in sentences.
    """

    why: str
    text: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, str]
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "schema": "stepscope.plan/1",
            "backend": self.why,
            "command": self.text,
            "arguments": list(self.arguments),
            "environment": self.environment,
            "files": self.files,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Captured:
    """What ``stepscope run`` made.

    Attributes:
        folder: the capture's folder.
        exit_code: the program's.
        traces: Stepscope traces in it, one a rank.
        results: captures in another tool's format in it.
        is_whole: whether there is all that was asked for: something was recorded, and all of it
            could be read. A process that other ranks were asked of has nothing to record.
    """

    folder: Path
    exit_code: int
    traces: list[Path]
    results: list[Path]
    is_whole: bool = True

    @property
    def is_kernel_report(self) -> bool:
        """Whether it is an Nsight Compute report rather than a trace."""
        return not self.traces and any(path.suffix == ".ncu-rep" for path in self.results)

    def digest(self) -> int:
        """Write the digests of its ranks in a process of its own; returns its code."""
        command = [sys.executable, "-m", "stepscope", "digest", *map(str, self.traces)]
        command += ["-o", str(Path(self.folder) / "digests")]
        return subprocess.run(command, check=False, stdout=2).returncode

    def diagnose(self, format_: str = "text", beside: str = "") -> int:
        """Diagnose it in a process of its own, on this process's output; returns its code.

        A report about kernels alone is shown as a table of what limits them.

        Args:
            format_: as of ``stepscope diagnose``.
            beside: a trace of the same program, which a report about kernels explains.
        """
        paths = list(map(str, self.traces or self.results))
        command = [sys.executable, "-m", "stepscope"]
        if not self.is_kernel_report:
            command += ["diagnose", "--format", format_, *paths]
        elif beside:
            command += ["diagnose", "--format", format_, beside]
            command += [part for path in paths for part in ("--ncu", path)]
        else:
            command += ["kernels", "--format", format_, *paths[:1]]
        return subprocess.run(command, check=False).returncode


def capture_options(**options: Any) -> Options:
    """What a capture shall record, by the names of :class:`~stepscope.capture.options.Options`.

    Raises:
        UsageError: the folder's name asks for a variable that is not set.
    """
    from stepscope.capture.facade import make_options

    with capture_errors():
        return make_options(**options)


def refuse_used_folder(name: str) -> None:
    """Refuse a folder for a capture that holds something already.

    Args:
        name: as ``run --output`` has it.

    Raises:
        UsageError: it does, or its name asks for a variable that is not set.
    """
    from stepscope.capture.facade import expanded
    from stepscope.capture.launcher import refuse_used

    with capture_errors():
        refuse_used(Path(expanded(name)))


def planned_command(options: Options) -> PlannedCommand:
    """The exact command of a capture, without making it; ``nsys`` and ``ncu`` need not be here.

    Raises:
        UsageError: it cannot be made here.
    """
    from stepscope.capture.launcher import prepare

    with capture_errors():
        _, why, plan = prepare(options, shown=True)
    files = {str(path): text for path, text in plan.files.items()}
    return PlannedCommand(why, plan.text(), plan.command, plan.environment, files, plan.notes)


def capture_program(options: Options, say: Callable[[str], None]) -> Captured:
    """Run a program, record it, and turn what was recorded into traces.

    What fails after the program has ended is said, and never raised: its exit code is known then.

    Raises:
        ProgramError: it cannot be started.
        UsageError: it cannot be recorded here.
    """
    from stepscope import __version__
    from stepscope.capture.launcher import record

    with capture_errors():
        outcome = record(options, __version__, say)
    traces: list[Path] = []
    failures: list[str] = []
    try:
        for dumped in outcome.dumps:
            _finalise_dump(dumped, say)
        traces, failures = _finalised(outcome.raw, keep=options.keep_raw)
    except Exception as error:
        if os.environ.get("STEPSCOPE_DEBUG"):
            raise
        failures = [
            f"what was recorded cannot be read ({type(error).__name__}: {error}); the raw files "
            f"are in {outcome.folder}: stepscope capture finalise {outcome.folder} reads them"
        ]
    for warning in (*outcome.warnings, *failures):
        say(warning)
    some = bool(traces or outcome.results)
    is_whole = outcome.not_asked or (some and not failures)
    return Captured(outcome.folder, outcome.exit_code, traces, outcome.results, is_whole)


def _finalise_dump(folder: Path, say: Callable[[str], None]) -> None:
    """Read a dump, unless whoever asked for it has done so."""
    from stepscope.capture.backends.collector import RAW_FOLDER

    if (folder / RAW_FOLDER).is_dir():
        try:
            finalise_capture(folder, say)
        except StepscopeError as error:
            say(f"the dump {folder} cannot be read: {error}")


def dump_capture(target: str, say: Callable[[str], None]) -> tuple[list[Path], bool]:
    """Read what a running capture has recorded up to now; with a ring, the last seconds.

    Args:
        target: a process of the program, the launcher's process, or the run's folder.
        say: takes what went wrong with single ranks or files.

    Returns:
        The traces, and whether every rank has one.

    Raises:
        UsageError: nothing is recorded there.
        InputError: nothing has been recorded yet.
    """
    from stepscope.capture.facade import dump

    with capture_errors():
        folder = dump(target)
    return finalise_capture(folder, say)


def finalise_capture(folder: str | Path, say: Callable[[str], None]) -> tuple[list[Path], bool]:
    """Turn the raw files of a run into traces, beside them.

    The raw files are removed then, unless the run was asked to keep them or one cannot be read.

    Args:
        folder: the run's folder.
        say: takes what went wrong with single ranks or files.

    Returns:
        The traces, and whether every rank has one.

    Raises:
        UsageError: the folder is none of a run, or it is still being recorded.
        InputError: nothing in it can be read.
    """
    from stepscope.capture.launcher import order

    with capture_errors():
        outcome = order(Path(folder))
    traces, failures = _finalised(outcome.raw, keep=outcome.keep_raw)
    if not traces:
        raise InputError(failures[0] if failures else f"{folder} holds no recorded process")
    for warning in (*outcome.warnings, *failures):
        say(warning)
    return traces, not failures


def _finalised(folders: Sequence[Path], *, keep: bool) -> tuple[list[Path], list[str]]:
    """Read each rank's raw folder into a trace beside it; raw files of those that fail stay."""
    from stepscope.importers.registry import convert
    from stepscope.importers.stepscope.raw import write_list

    traces, failures = [], []
    for raw in folders:
        target = raw.parents[1] / f"{raw.name}.stepscope"
        try:
            convert(raw, target)
        except StepscopeError as error:
            failures.append(str(error))
            continue
        traces.append(target)
    if folders and not failures:
        for raw in folders if keep else ():
            with contextlib.suppress(OSError):  # the disk is full: it is read all the same
                write_list(raw)
        everything = folders[0].parent
        if keep:
            # a hidden name: the folder's captures are its traces, and this is the same again
            everything.rename(everything.with_name(f".{everything.name}"))
        else:
            shutil.rmtree(everything, ignore_errors=True)
    return traces, failures


def order_capture(order: str, target: str) -> None:
    """Begin ("start") or end ("stop") recording in a program that is being recorded.

    Args:
        order: what to do.
        target: a process of the program, the launcher's process, or the run's folder.

    Raises:
        UsageError: nothing is recorded there.
    """
    from stepscope.capture.facade import steer

    with capture_errors():
        steer(order, target)


_UNCOMPILED = (
    "large captures take longer and are replayed in part; install a C++ compiler (Debian, Ubuntu: "
    "apt-get install g++; conda: gxx), or a Stepscope wheel built with one"
)


def examine_machine(command: Sequence[str] = ()) -> list[dict[str, str]]:
    """What can be captured and compiled here: checks with name, status, what was found, remedy."""
    from stepscope.capture.doctor import examine
    from stepscope.native.library import load, names

    checks = [check.document() for check in examine(tuple(command))]
    for name in names():
        loaded = load(name)
        there = loaded.library is not None
        checks.append(
            {
                "name": f"compiled {name}",
                "status": "ok" if there else "warning",
                "message": loaded.where if there else f"Python does it: {loaded.why}",
                "remedy": "" if there else _UNCOMPILED,
            }
        )
    return checks


def measure_ceilings(device: int, say: Callable[[str], None]) -> dict[str, Any]:
    """What a GPU of this machine achieves: ``stepscope.ceilings/2`` as a document.

    Args:
        device: number of the GPU.
        say: told what is measured.

    Raises:
        UsageError: there is no such GPU here.
    """
    from stepscope.capture.ceilings.measure import measure

    with capture_errors():
        return measure(device, say)

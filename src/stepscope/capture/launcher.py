"""Run the program under a plan, watch it, and leave its files in order whatever its end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from stepscope.capture import control, hooknotes, nvml, rawfiles, stretches
from stepscope.capture.backends.base import Backend, Plan
from stepscope.capture.backends.collector import CONFIGURATION, RAW_FOLDER
from stepscope.capture.backends.registry import choose
from stepscope.capture.backends.torch import STEPS, WARMUP
from stepscope.capture.dumps import Dumps
from stepscope.capture.errors import CaptureError, LaunchError
from stepscope.capture.options import PROFILER_RANGE, Options
from stepscope.capture.private import close_results, only_owner, umask_of_user
from stepscope.capture.process_tree import VARIABLE, members
from stepscope.capture.program import check_program, start_failure
from stepscope.capture.sidecar import Sidecar
from stepscope.capture.toollog import ToolLog
from stepscope.capture.unrecorded import (
    Circumstances,
    no_gpu_work,
    why_less,
    why_no_steps,
    why_nothing,
)

MANIFEST = "capture.json"
_PROGRESS_S = 5.0
_GRACE_S = 10.0
"""How long processes that outlive the program's first one are waited for."""
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_TYPED = (signal.SIGINT, signal.SIGQUIT)
_DUMP = signal.SIGUSR2
"""Dumps a ring instead of reaching the program."""
Say = Callable[[str], None]


@dataclass
class Outcome:
    """What a capture came to.

    Attributes:
        folder: the capture's folder.
        backend: which tool made it.
        exit_code: of the program, as a shell would say it.
        seconds: how long the program ran.
        raw: folders of raw files by rank, still to be read (collector).
        results: files that another tool wrote.
        warnings: what the user should know, in sentences.
        keep_raw: whether the raw files shall stay after they were read.
        dumps: folders of dumps that were made meanwhile, each like a run's.
        not_asked: whether nothing was to be recorded here: the processes have other ranks.
    """

    folder: Path
    backend: str
    exit_code: int
    seconds: float
    raw: list[Path] = field(default_factory=list)
    results: list[Path] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    keep_raw: bool = False
    dumps: list[Path] = field(default_factory=list)
    not_asked: bool = False


def prepare(options: Options, *, shown: bool = False) -> tuple[Backend, str, Plan]:
    """Choose the back-end and plan the capture; changes nothing.

    Args:
        options: what to record.
        shown: the plan is only shown, perhaps for another machine: neither the program nor the
            tool need be here.

    Raises:
        LaunchError: there is no such program.
        CaptureError: the options make no sense, or nothing works here.
    """
    options.check()
    refuse_used(options.output)
    note = ""
    try:
        check_program(options.command[0])
    except LaunchError as error:
        if not shown:
            raise
        note = str(error)
    backend, why = choose(options)
    plan = backend.plan(options, shown)
    return backend, why, replace(plan, notes=(*plan.notes, note)) if note else plan


def refuse_used(folder: Path) -> None:
    """Refuse a folder that holds something: it is asked before anything else is said or done.

    Raises:
        CaptureError: it is not empty, or no folder.
    """
    try:
        used = folder.exists() and any(folder.iterdir())
    except OSError as error:
        raise CaptureError(
            f"cannot use {folder}: {error.strerror}; give another folder with -o"
        ) from error
    if used:
        raise CaptureError(f"{folder} exists and is not empty; give another folder with -o")


def record(options: Options, version: str, say: Say) -> Outcome:
    """Make a capture.

    Args:
        options: what to record.
        version: Stepscope's version, for the capture's metadata.
        say: shows a line to the user.

    Raises:
        LaunchError: the program cannot be started.
        CaptureError: it could not begin for another reason.
    """
    backend, why, plan = prepare(options)
    say(f"recording with the back-end {why}")
    for note in plan.notes:
        say(note)
    with contextlib.suppress(OSError):  # said below, where the folder itself is made
        options.output.parent.mkdir(parents=True, exist_ok=True)
    with only_owner():
        return _record(options, version, say, backend, plan)


def _record(options: Options, version: str, say: Say, backend: Backend, plan: Plan) -> Outcome:
    """Make a capture whose back-end is ready."""
    raw = _make_folders(options, plan, version)
    ours = backend.name == "collector"
    sidecar = Sidecar(raw, _configuration(raw), options) if ours else None
    dumps = Dumps(raw, plan.pool, options.flush_ms / 1e3, options.ring_s, say) if ours else None
    outcome = Outcome(options.output, backend.name, 0, 0.0)
    began = time.monotonic()
    try:
        outcome.exit_code = _run(plan, raw, say, sidecar, dumps)
    except LaunchError:
        _remove_unused(options.output)
        raise
    finally:
        outcome.seconds = time.monotonic() - began
        orders = control.orders(raw) if ours else 0
        try:
            if dumps:
                dumps.poll(ended=True)
            if sidecar:
                sidecar.stop()
        finally:
            if ours:
                control.close(raw)
                outcome.warnings += rawfiles.rescue(raw, plan.pool)
    try:
        _settle(raw, options, plan, outcome, orders)
        if dumps:
            outcome.dumps = dumps.folders
        if sidecar:
            outcome.warnings += sidecar.warnings()
    except Exception as error:  # the program has ended: its exit code is told whatever happens
        if os.environ.get("STEPSCOPE_DEBUG"):
            raise
        outcome.warnings.append(
            f"what was recorded in {options.output} could not be put in order "
            f"({type(error).__name__}: {error})"
        )
    return outcome


def _settle(raw: Path, options: Options, plan: Plan, outcome: Outcome, orders: int) -> None:
    """Put in order what a program has left, and say what is missing."""
    ours = outcome.backend == "collector"
    folder = raw if ours else options.output
    left_out = rawfiles.ranks_left_out(folder)
    known = Circumstances(outcome.seconds, orders, hooknotes.take(folder), left_out)
    if ours:
        _order_raw(raw, options, outcome, known)
    else:
        _collect(options, plan, outcome, known)


def _collect(options: Options, plan: Plan, outcome: Outcome, known: Circumstances) -> None:
    """Find what another tool wrote, and say where it is less than asked for."""
    outcome.results = sorted(options.output.glob(plan.results))
    outcome.warnings += filter(None, map(stretches.put_into, outcome.results))
    close_results([path for path in options.output.rglob("*") if path.is_file()])
    by_steps = bool(options.steps) or outcome.backend == "torch"
    steps, warmup = (options.steps, options.warmup) if options.steps else (STEPS, WARMUP)
    if outcome.results:
        asked = replace(options, steps=steps, warmup=warmup) if by_steps else options
        outcome.warnings += why_less(replace(asked, duration_s=0.0), (), known)
        return
    outcome.not_asked = bool(known.left_out) and not known.notes.loaded
    if outcome.not_asked:
        outcome.warnings.append(why_nothing(options, (), known))
        return
    why = why_no_steps(options, steps, warmup, known) if by_steps else ""
    outcome.warnings.append(why or _no_result(options, plan, known))


def _remove_unused(folder: Path) -> None:
    """Remove the folder of a run that has not begun: the next one may have the same name."""
    for path in (folder / RAW_FOLDER, *folder.glob("*.conf")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def order(folder: Path) -> Outcome:
    """Put the raw files of a run whose launcher did not live to do it in order.

    Args:
        folder: the run's folder, or its raw folder.

    Raises:
        CaptureError: there is nothing of the kind in it.
    """
    run = folder.parent if folder.name == RAW_FOLDER else folder
    raw = run / RAW_FOLDER
    if not raw.is_dir():
        raise CaptureError(f"{folder} holds no raw capture; name the folder of a stepscope run")
    pool = None
    with contextlib.suppress(OSError, ValueError):
        stated = json.loads((raw / MANIFEST).read_text(encoding="utf-8")).get("pool")
        pool = Path(stated) if stated else None
    running = members(_configuration(raw))
    if running:
        raise CaptureError(
            f"{folder} is still being recorded by process {running[0]}; wait for its end"
        )
    with only_owner():
        failures = rawfiles.rescue(raw, pool)
        outcome = Outcome(run, "collector", 0, 0.0, warnings=failures, keep_raw=_keeps_raw(raw))
        hooknotes.take(raw)
        _order_raw(raw, None, outcome, Circumstances())
    return outcome


def _keeps_raw(raw: Path) -> bool:
    """Whether the run was asked to keep its raw files; sorted by rank, each rank has a manifest."""
    for path in (raw / MANIFEST, *raw.glob(f"rank*/{MANIFEST}")):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            options = json.loads(path.read_text(encoding="utf-8")).get("options", {})
            return bool(options.get("keep_raw") == str(True))
    return False


def _configuration(raw: Path) -> Path:
    return raw.resolve() / CONFIGURATION


def _make_folders(options: Options, plan: Plan, version: str) -> Path:
    """Make the run's folders and files; returns the raw folder."""
    output = options.output
    raw = output / RAW_FOLDER
    try:
        (raw if _writes_raw(plan) else output).mkdir(parents=True, exist_ok=True)
        for path, text in plan.files.items():
            path.write_text(text, encoding="utf-8")
        if raw.is_dir():
            control.prepare(raw)
            manifest = {
                "stepscope": version,
                "origin_monotonic_ns": time.monotonic_ns(),
                "origin_epoch_ns": time.time_ns(),
                "command": [_readable(word) for word in options.command],
                "options": {name: _readable(text) for name, text in options.summary().items()},
                "pool": str(plan.pool) if plan.pool else None,
                **_machine(),
            }
            (raw / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if plan.pool:
            plan.pool.mkdir(mode=0o700)
    except OSError as error:
        raise CaptureError(
            f"cannot write {output}: {error.strerror}; give another folder with -o"
        ) from error
    return raw if raw.is_dir() else output


def _readable(text: str) -> str:
    """Text without what is no UTF-8, as names of files may be: JSON cannot hold it."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _writes_raw(plan: Plan) -> bool:
    return any(path.parent.name == RAW_FOLDER for path in plan.files)


def _machine() -> dict[str, str]:
    """Versions that belong to the capture's metadata; empty without a driver."""
    try:
        library = nvml.Nvml()
        return {"driver": library.driver(), "cuda_driver": library.cuda()}
    except OSError:
        return {}


def _run(
    plan: Plan, raw: Path, say: Say, sidecar: Sidecar | None, dumps: Dumps | None = None
) -> int:
    """Run the program to its end; returns its exit code as a shell would."""
    environment = {**os.environ, **plan.environment}
    instead = {}
    if dumps and dumps.of_ring:
        instead[_DUMP] = lambda: dumps.ask(f"{_DUMP.name} to stepscope run")
    with passing_signals(instead) as receivers:
        try:
            # what this process was given (a shell's <(...), a job server's pipe) is the program's
            child = subprocess.Popen(
                plan.command, env=environment, close_fds=False, umask=umask_of_user()
            )
        except OSError as error:
            if plan.outside:
                raise CaptureError(f"cannot run {plan.command[0]}: {error.strerror}") from error
            raise start_failure(plan.command[0], error) from error
        receivers.append(child)
        if sidecar:
            sidecar.start(child.pid)
        shown = time.monotonic()
        log = ToolLog(plan)
        while True:
            try:
                code = child.wait(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                if log.is_over():
                    say(f"ended after {plan.limit_s:.0f} seconds; what was recorded is kept")
                    child.send_signal(signal.SIGINT)
                if dumps:
                    dumps.poll()
                if sys.stderr.isatty() and time.monotonic() - shown > _PROGRESS_S:
                    shown = time.monotonic()
                    say(f"recording: {_megabytes(raw):.1f} MB so far")
        for problem in log.errors():
            say(f"{Path(plan.command[0]).name}: {problem}")
        if VARIABLE in plan.environment:
            _await_others(Path(plan.environment[VARIABLE]), say)
    if log.ended:
        return 0  # by us: its own code says no more than that
    return log.program_code(code if code >= 0 else 128 - code, say)


def _await_others(configuration: Path, say: Say) -> None:
    """Wait for processes that outlive the first one: their files are still being written."""
    limit = time.monotonic() + _GRACE_S
    while (left := members(configuration)) and time.monotonic() < limit:
        time.sleep(0.1)
    if left:
        say(f"{len(left)} processes still run, such as {left[0]}; what they record is left out")


@contextlib.contextmanager
def passing_signals(
    instead: Mapping[signal.Signals, Callable[[], None]] = MappingProxyType({}),
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Pass signals on to the programs in the list that this gives, but for some.

    What is typed (Ctrl+C, Ctrl+Backslash) reaches the program by itself, which is in the same
    process group; this process lives on to read what was recorded.
    """
    receivers: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: object) -> None:
        if number in instead:
            instead[signal.Signals(number)]()
            return
        if number in _TYPED and _in_foreground():
            return
        for child in receivers:
            with contextlib.suppress(OSError):
                child.send_signal(number)

    before = {
        number: signal.signal(number, forward)
        for number in (*_FORWARDED, *_TYPED)
        # what is ignored (by nohup, by a shell for its background) the program shall ignore, too
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield receivers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether a terminal's keys send signals to this process and to the program alike."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _megabytes(folder: Path) -> float:
    total = 0
    for path in folder.glob("*.raw"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total / 1e6


def _order_raw(raw: Path, options: Options | None, outcome: Outcome, known: Circumstances) -> None:
    if not raw.is_dir():
        outcome.warnings.append(f"{raw} was removed while the program ran: nothing is left to read")
        return
    try:
        groups = rawfiles.sort_by_rank(raw)
    except OSError as error:
        outcome.warnings.append(
            f"the raw files in {raw} could not be put in order ({error.strerror}); make room, "
            f"then: stepscope capture finalise {outcome.folder}"
        )
        return
    found = [one for members_ in groups.values() for one in members_]
    metadata = list(dict.fromkeys(text for one in found for text in one.warnings))
    outcome.warnings += metadata
    cut = len(rawfiles.cut_short(found))
    if cut:
        outcome.warnings.append(
            f"{cut} of {len(found)} processes did not close their capture (killed, crashed or left "
            "by os._exit); what they had written was kept"
        )
    outcome.raw = [raw / name for name in sorted(groups, key=lambda n: int(n[4:]))]
    if options is None:
        return  # read later
    empty = [name for name, members_ in groups.items() if _is_empty(options, members_)]
    if len(empty) == len(groups):
        outcome.raw = []
        outcome.not_asked = bool(known.left_out) and not found
        outcome.warnings.append(why_nothing(options, found, known))
        if not options.keep_raw and not members(_configuration(raw)):
            # empty of records: it would only stand in the way of the next run with the same -o
            shutil.rmtree(raw, ignore_errors=True)
            with contextlib.suppress(OSError):
                outcome.folder.rmdir()
        return
    for name in empty:
        outcome.raw.remove(raw / name)
        outcome.warnings.append(f"{name}: {why_nothing(options, groups[name], known)}")
        if not options.keep_raw:
            shutil.rmtree(raw / name, ignore_errors=True)
    outcome.warnings += why_less(options, found, known)
    if not any(one.work for one in found) and not metadata:
        outcome.warnings.append(no_gpu_work(options, found))


def _is_empty(options: Options, found: list[rawfiles.Recorded]) -> bool:
    """Whether recording waited for something that never came."""
    waited = options.range or options.steps or options.paused or options.delay_s
    return bool(waited) and not any(one.begun or one.work for one in found)


def _no_result(options: Options, plan: Plan, known: Circumstances) -> str:
    """Why a tool wrote nothing, as far as it can be told."""
    stream = sorted(options.output.glob("*.qdstrm"))
    if stream:
        return (
            f"nsys wrote {stream[0].name} but no report: this installation cannot import its own "
            f"stream; import it where Nsight Systems is whole, with nsys import {stream[0].name}"
        )
    if options.delay_s and known.seconds < options.delay_s:
        return why_nothing(options, (), known)
    metadata = f"the tool wrote no {plan.results}; see its messages above"
    reasons = []
    if options.range and options.range != PROFILER_RANGE:
        reasons.append(
            f"the range {options.range} may never have been opened: with --backend collector it "
            "is said which ones were"
        )
    elif options.range:
        reasons.append("the program may never have called cudaProfilerStart")
    if options.kernel:
        reasons.append("--kernel may match none of its kernels, or none often enough")
    return "; ".join([metadata, *reasons])

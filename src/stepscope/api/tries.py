"""Try fixes on a program: runs with them and without take turns, and are compared."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.api.recording import (
    ProgramError,
    capture_errors,
    capture_options,
    capture_program,
)
from stepscope.trace.errors import InputError, StepscopeError, UsageError

if TYPE_CHECKING:
    from stepscope.capture.trying import Runs, TrialRun
    from stepscope.compare.tried import Applied, Run, Tried, TriedPrediction, TrySession

Say = Callable[[str], None]
AUTO = "auto"
RESULT = "try.json"
"""The session's result, in its folder."""
_RECORDED_STEPS = 10
_MOST_WORKERS = 8
_LONGEST_LABEL = 60
_INTERRUPTED = (129, 130, 143)
"""Exit codes of programs that were ended from outside: the session ends with them."""


@dataclass(frozen=True)
class TryOptions:
    """What to try.

    Attributes:
        command: program and arguments.
        names: lists of fixes, as ``--try`` has them, or ``auto``.
        output: folder for what is found; a new one where empty.
        each: whether each fix is tried by itself instead of all together.
        rounds: how often the runs take turns.
        steps: steps to time in each run; 0: to the program's end.
        warmup: steps to let pass before; None for what the fixes need.
        against: a capture or a stored diagnosis that predicts; empty to record one.
        backend: what records it.
        diagnosed: whether a run may be recorded for that.
    """

    command: tuple[str, ...]
    names: tuple[str, ...]
    output: str = ""
    each: bool = False
    rounds: int = 2
    steps: int = 0
    warmup: int | None = None
    against: str = ""
    backend: str = "auto"
    diagnosed: bool = True


@dataclass(frozen=True)
class _Predicted:
    """What a diagnosis says of repairs: by cause, the ratio of the step and its bounds.

    Attributes:
        ratios: by cause: the step after its repair over the step today, least and most of it.
        order: the causes in their order; None where nothing was diagnosed.
        further: the same of further repairs that findings tell beside the first one.
    """

    ratios: dict[str, tuple[float, float, float]]
    order: tuple[str, ...] | None
    further: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def of(self, causes: Sequence[str], further: Sequence[str] = ()) -> TriedPrediction | None:
        """The largest gain that it predicts for one of some causes, for a step of 1e9 ns.

        Args:
            causes: those whose repair it is.
            further: those whose further repair it is.
        """
        from stepscope.compare.tried import TriedPrediction

        found = [(self.ratios[cause], cause) for cause in causes if cause in self.ratios]
        found += [(self.further[cause], cause) for cause in further if cause in self.further]
        if not found:
            return None
        ratios, cause = min(found)
        middle, low, high = (round(ratio * 1e9) for ratio in ratios)
        return TriedPrediction(cause, middle, low, high)


def plan_of_tries(options: TryOptions) -> list[str]:
    """What :func:`try_fixes` would run, in order, a line each.

    Raises:
        UsageError: the options make no sense.
    """
    sets, _ = _sets(options, _Predicted({}, None), planning=True)
    command = shlex.join(options.command)
    lines = []
    if _records(options):
        lines.append(f"recorded, {_RECORDED_STEPS} steps: {command}")
    for number in range(1, options.rounds + 1):
        lines.append(f"round {number}, as it is: {command}")
        lines += [f"round {number}, with {names}: {command}" for names in sets]
    return lines


def try_fixes(options: TryOptions, say: Say) -> tuple[TrySession, int]:
    """Try fixes on a program.

    Args:
        options: what to try.
        say: shows a line to the user.

    Returns:
        The result, and the program's exit code: the first of a run without any fix that is not 0.

    Raises:
        ProgramError: the program cannot be started.
        UsageError: the options make no sense, or nothing is left to try.
        InputError: ``against`` cannot be read.
    """
    return _Session(options, say).run()


class _Session:
    """One session; see :func:`try_fixes`."""

    def __init__(self, options: TryOptions, say: Say) -> None:
        self._options = options
        self._say = say
        self._warnings: list[str] = []
        self._before: list[TrialRun] = []
        self._codes: list[int] = []
        self._shown = False

    def run(self) -> tuple[TrySession, int]:
        from stepscope.capture.launcher import refuse_used

        options = self._options
        _check(options)
        if AUTO not in options.names:
            _sets(options, _Predicted({}, None), planning=True)  # refused before anything runs
        folder = capture_options(command=options.command, output=options.output).output
        with capture_errors():
            refuse_used(folder)
        # what cannot be read is refused before anything else is said
        predicted = predicted_by(options.against) if options.against else None
        self._announce(folder)
        if predicted is None:
            predicted = self._recorded(folder)
        if any(self._codes):
            return self._result(folder, 0, []), self._codes[0]
        sets, warmup = _sets(options, predicted)
        if not sets:
            named = ", ".join(predicted.order or ()) or "nothing"
            self._warnings.append(
                f"the diagnosis names {named}, which no fix that can be tried repairs"
            )
            return self._result(folder, warmup, []), 0
        self._say(f"trying {', and '.join(sets)}")
        from stepscope.capture.trying import Runs

        runs = Runs(options.command, folder, options.steps, warmup)
        after = self._take_turns(runs, sets)
        tried = [self._judged(names, found, predicted) for names, found in after.items() if found]
        result = self._result(folder, warmup, tried)
        return result, next((code for code in self._codes if code), 0)

    def _announce(self, folder: Path) -> None:
        options = self._options
        ends = (
            f"each is ended (by SystemExit) after {options.steps} timed steps"
            if options.steps
            else "each to its end; --steps 30 would end them earlier"
        )
        self._say(
            f"the program is run several times in this folder, {ends}. What it writes, such as "
            "checkpoints and logs, it writes each time; STEPSCOPE_TRY tells it. The output of the "
            f"first run is its own, that of the others is kept in {folder}"
        )

    def _recorded(self, folder: Path) -> _Predicted:
        """What is predicted by the diagnosis of a run that is recorded now."""
        options = self._options
        if not _records(options):
            return _Predicted({}, None)
        wanted = capture_options(
            command=options.command,
            output=str(folder / "recorded"),
            backend=options.backend,
            steps=_RECORDED_STEPS,
            warmup=max(options.warmup or 0, 5),
            settle=options.warmup is None,
            stop_program=bool(options.steps),
        )
        os.environ["STEPSCOPE_TRY"] = "recorded"
        try:
            captured = capture_program(wanted, self._say)
        except ProgramError:
            raise
        except UsageError as error:
            return self._unpredicted(error)
        finally:
            del os.environ["STEPSCOPE_TRY"]
        self._shown = True
        code = captured.exit_code
        if code and not (code == 143 and options.steps):
            self._codes.append(code)
            self._warnings.append(f"the program ended with {code}, so nothing was tried")
            return _Predicted({}, None)
        try:
            traces = captured.traces or captured.results
            if not traces:
                raise InputError("nothing was recorded")
            return predicted_by(*map(str, traces))
        except (InputError, UsageError) as error:
            return self._unpredicted(error)

    def _unpredicted(self, error: StepscopeError) -> _Predicted:
        """Nothing is predicted, which is no reason not to try; but what auto takes comes of it."""
        if AUTO in self._options.names:
            raise error
        self._warnings.append(f"nothing is predicted: {error}")
        return _Predicted({}, None)

    def _take_turns(self, runs: Runs, sets: list[str]) -> dict[str, list[TrialRun]]:
        """Run without and with each set of fixes, again and again; sets that did nothing stop."""
        after: dict[str, list[TrialRun]] = {names: [] for names in sets}
        left = list(sets)
        for number in range(1, self._options.rounds + 1):
            if not left or not self._run_before(runs, number, left):
                break
            for names in list(left):
                run = self._once(runs, f"round{number}-{_label(names, sets)}", names)
                after[names].append(run)
                if run.exit_code in _INTERRUPTED:
                    self._codes.append(run.exit_code)
                    return after
                if run.exit_code or not _was_applied(names, run) or _only_looks(names):
                    left.remove(names)
        return after

    def _run_before(self, runs: Runs, number: int, left: list[str]) -> bool:
        """Run the program as it is; False where going on makes no sense."""
        if all(map(_only_looks, left)):
            return True
        run = self._once(runs, f"round{number}-before", "")
        self._before.append(run)
        self._codes.append(run.exit_code)
        if run.exit_code:
            self._warnings.append(
                f"the program ended with {run.exit_code} without any fix, so no more was run"
            )
            return False
        if not run.processes:
            self._warnings.append(_why_no_steps(run))
            return False
        return True

    def _once(self, runs: Runs, label: str, names: str) -> TrialRun:
        from stepscope.capture.trying import run_once

        shown, self._shown = not self._shown, True
        with capture_errors():
            run = run_once(runs, label, names, shown=shown)
        self._say(f"{label}: {_step_of(run)}")
        if run.exit_code and run.output is not None:
            self._say(f"exit code {run.exit_code}; its output is in {run.output}, which ends with:")
            for line in _last_lines(run.output):
                self._say(f"  {line}")
        return run

    def _judged(self, names: str, after: list[TrialRun], predicted: _Predicted) -> Tried:
        from stepscope.compare.tried import Wait, judge

        files = _chosen(names)
        applied = _applied(names, after)
        waits: dict[str, int] = {}
        for process in after[0].processes:
            for place, count in process["waits"].items():
                waits[place] = waits.get(place, 0) + count
        prediction = predicted.of(
            [cause for one, _ in files for cause in one.repairs],
            [cause for one, _ in files for cause in one.further],
        )
        if prediction is None and predicted.order is not None:
            named = ", ".join(predicted.order or ()) or "nothing"
            self._warnings.append(f"the diagnosis predicts nothing for {names}; it names {named}")
        return judge(
            [_as_run(run) for run in self._before],
            [_as_run(run) for run in after],
            applied,
            rounding=any(one.rounding for one, _ in files),
            looks=all(one.looks for one, _ in files),
            prediction=prediction,
            waits=[Wait(place, count) for place, count in waits.items()],
        )

    def _result(self, folder: Path, warmup: int, tried: list[Tried]) -> TrySession:
        import msgspec

        from stepscope.compare.tried import SCHEMA, TrySession

        steps = [one.step for one in tried if one.step]
        if steps and not all(step.run_noise_measured for step in steps):
            self._warnings.append(
                "the variation between runs is unknown with so few of them: up to 5 % is assumed; "
                "--rounds 3 measures it"
            )
        result = TrySession(
            schema=SCHEMA,
            command=[word.encode("utf-8", "replace").decode() for word in self._options.command],
            folder=str(folder),
            rounds=self._options.rounds,
            steps=self._options.steps,
            warmup=warmup,
            exit_codes=self._codes,
            tried=tried,
            warnings=self._warnings,
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / RESULT).write_bytes(msgspec.json.encode(result))
        except OSError as error:
            self._say(f"the result could not be written to {folder}: {error.strerror}")
        return result


def predicted_by(*paths: str) -> _Predicted:
    """What a stored diagnosis, or that of a capture, predicts.

    Raises:
        InputError: it can be read as neither.
    """
    import msgspec

    from stepscope.api.job import Job

    if len(paths) == 1 and (found := _stored(Path(paths[0]))) is not None:
        return found
    result = Job(list(paths)).diagnose()
    both = msgspec.to_builtins([*result.findings, *result.levers])
    return _predicted(both, result.step_ns.mean)


def _stored(path: Path) -> _Predicted | None:
    """What a stored diagnosis predicts; None where the file is none."""
    import msgspec

    try:
        if path.suffix != ".json" or not path.is_file():
            return None
        found = msgspec.json.decode(path.read_bytes())
        if not str(found["schema"]).startswith("stepscope.diagnosis/"):
            return None
        both = [*found["findings"], *found.get("levers", [])]
        return _predicted(both, found["step_ns"]["mean"])
    except (OSError, KeyError, TypeError, msgspec.DecodeError):
        return None  # read as a capture, whose importer says what is wrong with it


def _predicted(both: Sequence[dict[str, Any]], step_ns: float) -> _Predicted:
    """What findings and levers say of their first and of their further repairs."""
    names = ("predicted_step_ns", "prediction_low_ns", "prediction_high_ns")
    rows, further = [], []
    for one in both:
        other = one.get("further")
        repairs = [(one["cause"], *(of.get(name) for name in names)) for of in (one, other) if of]
        is_first = bool(other and other.get("is_first"))
        rows.append(repairs[-1] if is_first else repairs[0])
        further += repairs[:1] if is_first else repairs[1:]
    order = tuple(dict.fromkeys(cause for cause, *_ in rows))
    return _Predicted(_ratios(rows, step_ns), order, _ratios(further, step_ns))


def _ratios(
    rows: Sequence[tuple[Any, ...]], step_ns: float
) -> dict[str, tuple[float, float, float]]:
    """By cause, the first of several: predicted steps over today's."""
    ratios = {}
    for cause, *times in rows:
        if cause not in ratios and step_ns and all(times):
            middle, low, high = (ns / step_ns for ns in times)
            ratios[cause] = middle, low, high
    return ratios


def _check(options: TryOptions) -> None:
    from stepscope.capture.program import check_program

    for name, number, least in (("--rounds", options.rounds, 1), ("--steps", options.steps, 0)):
        if number < least:
            raise UsageError(f"{name} is {number}; give a number from {least} on")
    if 0 < options.steps < 3:
        raise UsageError(f"--steps is {options.steps}; a comparison needs 3 steps at least")
    if AUTO in options.names and (len(options.names) > 1 or not _diagnosis_known(options)):
        raise UsageError(
            "--try auto takes the fixes that a diagnosis names: give it alone, and not with "
            "--no-diagnose unless there is --against"
        )
    with capture_errors():
        check_program(options.command[0])


def _diagnosis_known(options: TryOptions) -> bool:
    return bool(options.against) or options.diagnosed


def _records(options: TryOptions) -> bool:
    return options.diagnosed and not options.against


def _sets(
    options: TryOptions, predicted: _Predicted, *, planning: bool = False
) -> tuple[list[str], int]:
    """The sets of fixes that are tried, and how many steps are let pass."""
    from stepscope.capture.trying import checked, warmup_for

    with capture_errors():
        if AUTO in options.names:
            names = [AUTO] if planning else _automatic(predicted)
            if planning or not names:
                return names, options.warmup or 0
        else:
            names = [name for name in ",".join(options.names).split(",") if name.strip()]
        together = checked(",".join(names))
        sets = [checked(name) for name in names] if options.each else [together]
        return sets, warmup_for(sets, options.warmup)


def _automatic(predicted: _Predicted) -> list[str]:
    """The fixes for what a diagnosis names, the first of its findings first."""
    from stepscope.capture.tries import declared

    found = []
    for cause in predicted.order or ():
        for one in declared().values():
            if (
                cause in (*one.repairs, *one.eases)
                and one.automatic is not None
                and one.name not in found
            ):
                found.append(one.name)
    looking = [name for name in found if declared()[name].looks]
    # what only looks would be in the way of times
    kept = [name for name in found if name not in looking] or looking
    return [_with_value(name) for name in kept]


def _with_value(name: str) -> str:
    from stepscope.capture.tries import declared

    value = declared()[name].automatic
    if value == AUTO:
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        value = str(max(1, min(_MOST_WORKERS, usable - 1)))
    return f"{name}={value}" if value else name


def _chosen(names: str) -> list[tuple[Any, str]]:
    from stepscope.capture.tries import chosen

    return [(module.TRY, value) for module, value in chosen(names)]


def _label(names: str, sets: list[str]) -> str:
    """A folder's name for a set of fixes; long ones have a number."""
    name = names.replace(",", "+").replace("=", "")
    return name if len(name) <= _LONGEST_LABEL else f"fixes{sets.index(names) + 1}"


def _only_looks(names: str) -> bool:
    return all(one.looks for one, _ in _chosen(names))


def _was_applied(names: str, run: TrialRun) -> bool:
    """Whether a fix of a set was applied: else there is nothing to compare."""
    applied = _applied(names, [run])
    return any(one.count for one in applied)


def _applied(names: str, runs: Sequence[TrialRun]) -> list[Applied]:
    """What each fix of a set did, in the first run with it: all processes together."""
    from stepscope.compare.tried import Applied

    found = []
    changes = [change for process in runs[0].processes for change in process["changes"]]
    for one, value in _chosen(names):
        here = [change for change in changes if change["name"] == one.name]
        refused = next((c["refused"] for c in here if c["refused"]), "")
        found.append(
            Applied(
                name=f"{one.name}={value}" if value else one.name,
                # one that is refused on the way was not applied as it should be
                count=0 if refused else sum(change["applied"] for change in here),
                places=_sum(change["places"] for change in here),
                lines=one.to_write(value),
                refused=refused,
                left=_sum(change["left"] for change in here),
                notes=list(dict.fromkeys(note for change in here for note in change["notes"])),
            )
        )
    return found


def _sum(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for key, count in one.items():
            total[key] = total.get(key, 0) + count
    return total


def _as_run(run: TrialRun) -> Run:
    """A run as it is judged: the steps of its slowest process, the losses of its first rank."""
    from stepscope.compare.tried import Run

    timed = [one for one in run.processes if one["lengths_ns"]]
    slowest = max(timed, key=lambda one: sum(one["lengths_ns"]) / len(one["lengths_ns"]),
                  default=None)  # fmt: skip
    first = next((one for one in run.processes if one["losses"]), None)
    return Run(
        exit_code=run.exit_code,
        lengths_ns=slowest["lengths_ns"] if slowest else [],
        losses=_by_step(first["losses"]) if first else {},
        clock=slowest["clock"] if slowest else "host",
        made=run.made,
    )


def _by_step(losses: list[list[float]]) -> dict[int, float]:
    """Mean loss of each step; a step has several backward passes where gradients add up."""
    found: dict[int, list[float]] = {}
    for step, value in losses:
        found.setdefault(int(step), []).append(value)
    return {step: sum(values) / len(values) for step, values in found.items()}


def _why_no_steps(run: TrialRun) -> str:
    if run.made:
        return (
            "the program made optimizer steps and left no times (it was killed, or left by "
            "os._exit); give --steps, which ends it earlier"
        )
    if run.loaded:
        return "the program made no optimizer steps of torch.optim, which are what is timed"
    return "no Python of the program loaded the hook (it is no Python, or ignores PYTHONPATH)"


def _step_of(run: TrialRun) -> str:
    from stepscope.trace.units import milliseconds

    lengths = _as_run(run).lengths_ns
    if not lengths:
        return f"{run.made} steps, none timed"
    mean = milliseconds(sum(lengths) / len(lengths))
    return f"{mean} a step, {len(lengths)} steps, {run.seconds:.0f} s"


def _last_lines(path: Path) -> list[str]:
    try:
        text = path.read_bytes()[-4000:].decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-5:]

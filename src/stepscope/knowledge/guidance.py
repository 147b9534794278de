"""The contract ``stepscope.guide/1``: the ways to reach a goal, on a machine or with a capture."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from stepscope.knowledge.entry import entries
from stepscope.knowledge.goal import ANNOTATION, METHOD, Goal, Way, goals

SCHEMA: Final = "stepscope.guide/1"
LIST_SCHEMA: Final = "stepscope.goals/1"

PROGRAM: Final = ("python", "train.py")
"""Stands for the user's program where none is named."""

_LAUNCHERS: Final = ("torchrun", "srun", "mpirun", "mpiexec", "accelerate", "deepspeed")
_DEFAULT_GPUS: Final = 8
"""GPUs in a command where the machine is not the one of the job."""

_NEW_CAPTURE: Final = {"capture": "run1", "snapshot": "run1/memory/rank0.pickle"}
"""Names of what a command records."""

NO_GPU: Final = "there is no GPU here; record where the job runs"
"""What stands in ``Route.missing`` of a machine without a GPU."""

_PLAIN_WORD: Final = re.compile(r"[\w@%+=:,./-]+")


@dataclass(frozen=True)
class Machine:
    """What is known of the machine, from ``stepscope doctor``.

    Attributes:
        checks: name of a check -> its status (``ok``, ``warning`` or ``missing``), the best one
            where several have the name.
        remedies: name of a check that is missing -> what was found, and what to do.
        gpus: how many GPUs there are.
    """

    checks: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0


@dataclass(frozen=True)
class Capture:
    """A capture at hand.

    Attributes:
        paths: as the user named them.
        command: the program that it recorded, as one line; empty where that is not known.
        rows: table -> rows.
        missing: table -> why it is not there, and how to get it.
    """

    paths: Sequence[str]
    command: str = ""
    rows: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


class Route(msgspec.Struct, frozen=True):
    """One way to reach the goal.

    Attributes:
        tool: id of the tool; ``stepscope explain`` tells more.
        title: the tool, as people write it.
        when: when it is the right one.
        ready: whether the commands to record can run on this machine.
        missing: what this machine lacks for that, with the remedy.
        answered: whether the capture at hand already holds what ``read`` needs; null without one.
        lacks: what the capture at hand lacks for that.
        record: commands to type, in order; empty where the capture at hand answers.
        read: commands that read the capture.
        look_for: what in the result answers the question.
        overhead: what recording costs.
        source: where that figure is from.
        next: what comes then.
    """

    tool: str
    title: str
    when: str
    ready: bool
    missing: list[str]
    answered: bool | None
    lacks: list[str]
    record: list[str]
    read: list[str]
    look_for: str
    overhead: str
    source: str
    next: str


class Guidance(msgspec.Struct, frozen=True):
    """The answer to ``stepscope guide --goal GOAL``.

    Attributes:
        schema: name and version of this contract.
        goal: id of the goal.
        title: the question.
        meaning: what is behind it.
        here: what the machine or the capture has to do with the order of the ways; may be empty.
        routes: the ways, those first that can be gone here.
        method: how to find out why a step is slow, whatever the goal is.
        see: terms to look at with ``stepscope explain``.
    """

    schema: str
    goal: str
    title: str
    meaning: str
    here: str
    routes: list[Route]
    method: list[str]
    see: list[str]


class GoalName(msgspec.Struct, frozen=True):
    """A goal in a list.

    Attributes:
        id: value of ``--goal``.
        title: the question.
    """

    id: str
    title: str


class GoalList(msgspec.Struct, frozen=True):
    """The answer to ``stepscope guide`` without a goal.

    Attributes:
        schema: name and version of this contract.
        goals: every goal, in order.
        method: how to find out why a step is slow, whatever the goal is.
    """

    schema: str
    goals: list[GoalName]
    method: list[str]


class GuideBook(msgspec.Struct, frozen=True):
    """Everything at once, for a page.

    Attributes:
        goals: every goal, in order.
        answers: id of a goal -> its answer.
    """

    goals: list[GoalName]
    answers: dict[str, Guidance]


def guide_book(machine: Machine, capture: Capture | None = None) -> GuideBook:
    """The answers to all goals."""
    answers = {goal.id: advise(goal, machine, (), capture) for goal in goals().values()}
    return GuideBook(goal_list().goals, answers)


def goal_list() -> GoalList:
    """All goals."""
    names = [GoalName(goal.id, goal.title) for goal in goals().values()]
    return GoalList(LIST_SCHEMA, names, [*METHOD, ANNOTATION])


def machine_of(checks: Sequence[Mapping[str, str]]) -> Machine:
    """What the checks of ``stepscope doctor`` say, by name."""
    best = {"missing": 0, "warning": 1, "ok": 2}
    status: dict[str, str] = {}
    remedies: dict[str, str] = {}
    for check in checks:
        name = check["name"]
        if best[check["status"]] > best.get(status.get(name, ""), -1):
            status[name] = check["status"]
        if check["remedy"] or check["status"] != "ok":
            remedies.setdefault(name, "; ".join(filter(None, (check["message"], check["remedy"]))))
    gpus = sum(1 for check in checks if re.fullmatch(r"gpu \d+", check["name"]))
    return Machine(status, remedies, gpus)


def advise(
    goal: Goal, machine: Machine, program: Sequence[str] = (), capture: Capture | None = None
) -> Guidance:
    """The ways to a goal, with commands for this machine, this program and this capture.

    Args:
        goal: what is asked for.
        machine: what ``stepscope doctor`` found.
        program: the user's program; that of the capture, else a stand-in, where none is named.
        capture: a capture at hand: what it answers comes first, without recording anything.
    """
    values = _values(machine, program, capture)
    routes = [_route(way, machine, values, capture) for way in goal.ways]
    routes.sort(key=lambda r: (not r.answered, not r.ready))  # stable: else as declared
    return Guidance(
        schema=SCHEMA,
        goal=goal.id,
        title=goal.title,
        meaning=" ".join(goal.meaning.split()),
        here=_here(machine, capture, routes),
        routes=routes,
        method=[*METHOD, ANNOTATION],
        see=goal.see,
    )


def _values(machine: Machine, program: Sequence[str], capture: Capture | None) -> dict[str, str]:
    words = list(program) or _program_of(capture) or list(PROGRAM)
    line = shlex.join(words)
    gpus = machine.gpus or _DEFAULT_GPUS
    launcher = line
    if words[0].rpartition("/")[2] not in _LAUNCHERS:
        script = words[1:] if words[0].rpartition("/")[2].startswith("python") else words
        launcher = f"torchrun --nproc-per-node {gpus} {shlex.join(script)}"
    paths = "" if capture is None else shlex.join(capture.paths)
    return {
        "program": line,
        "launcher": launcher,
        "gpus": str(gpus),
        "capture": paths,
        "snapshot": paths,
        "pid": "PID",
    }


def _program_of(capture: Capture | None) -> list[str]:
    """The program of a capture; nothing where its words could mean more to a shell than words."""
    words = capture.command.split() if capture is not None else []
    return words if all(map(_PLAIN_WORD.fullmatch, words)) else []


def _route(way: Way, machine: Machine, values: Mapping[str, str], capture: Capture | None) -> Route:
    tool = entries()[way.tool]
    missing = [_lack(machine, need) for need in way.needs if not _has(machine, need)]
    if missing and not machine.gpus:
        missing = [NO_GPU]  # the job runs elsewhere: what this machine has says nothing of that one
    answered: bool | None = None
    lacks: list[str] = []
    if capture is not None:
        lacks = [
            capture.missing.get(table, f"the capture has no rows of {table}")
            for table in way.tables
            if not capture.rows.get(table)
        ]
        answered = bool(way.tables and way.read) and not lacks
    fresh = values if answered else {**values, **_NEW_CAPTURE}
    return Route(
        tool=way.tool,
        title=tool.title,
        when=_flat(way.when),
        ready=not missing,
        missing=missing,
        answered=answered,
        lacks=lacks,
        record=[] if answered else [_filled(line, fresh) for line in way.record],
        read=[_filled(line, fresh) for line in way.read],
        look_for=_flat(way.look_for),
        overhead=_flat(way.overhead or tool.overhead),
        source=_flat(way.source or tool.reference),
        next=_filled(_flat(way.next), fresh),
    )


def _has(machine: Machine, need: str) -> bool:
    if need == "gpus":
        return machine.gpus > 1
    status = machine.checks.get(need, "missing")
    # a back-end may be installed where no GPU is: what it records would be empty
    gpu = machine.gpus > 0 or not need.startswith("backend")
    return gpu and status != "missing" and not (need == "hardware counters" and status != "ok")


def _lack(machine: Machine, need: str) -> str:
    if need == "gpus":
        return "there is one GPU here, and it takes two"
    return machine.remedies.get(need, f"{need} was not found")


def _here(machine: Machine, capture: Capture | None, routes: Sequence[Route]) -> str:
    if capture is not None:
        count = sum(1 for route in routes if route.answered)
        if count:
            ways = "first way needs" if count == 1 else f"first {count} ways need"
            return f"The capture answers it: the {ways} no further recording."
        return "The capture does not hold what answers it; each way says what is missing."
    if not machine.gpus:
        return (
            "There is no GPU here: record where the job runs (`stepscope doctor` there says what "
            "works), and read anywhere."
        )
    if not any(route.ready for route in routes):
        return "No way can be gone here as it is; each says what it lacks."
    return ""


def _filled(line: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        line = line.replace(f"{{{name}}}", value)
    return line


def _flat(text: str) -> str:
    return " ".join(text.split())

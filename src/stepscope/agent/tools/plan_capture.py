"""``plan_capture``: what to record for a question."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from stepscope.agent.answers import BUDGET, Answer, Detail, page
from stepscope.agent.session import Session
from stepscope.agent.tool import Capture, Offset, Tool
from stepscope.render.text import clean
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    from stepscope.knowledge.guidance import Route

_PROGRAM: Final = "python train.py"
_FIRST_GOAL: Final = "slow_step"


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """What it takes; the types say what each is."""

    goal: Annotated[str, msgspec.Meta(description="what you want to know")] = _FIRST_GOAL
    program: Annotated[
        str, msgspec.Meta(max_length=2000, description="how the training is started")
    ] = _PROGRAM
    capture: Capture | None = None
    detail: Detail = "concise"
    offset: Offset = 0


def ask(session: Session, arguments: Arguments) -> Answer:
    """The ways to find out, with commands for this machine; nothing of them is run here."""
    from stepscope.api.guide import guide

    try:
        program = shlex.split(arguments.program)
    except ValueError as error:
        raise UsageError(f"program is no command line: {error}") from error
    answer: Answer = {}
    paths: list[str] = []
    if arguments.capture is not None:
        job = session.job(arguments.capture)
        paths = list(job.paths)
        asked = {f.next_capture: f.cause for f in job.diagnose().findings if f.next_capture}
        answer["for_findings"] = {
            cause: command.replace(_PROGRAM, shlex.join(program))
            for command, cause in asked.items()
        }
    found = guide(arguments.goal, program, paths)
    answer = {"question": clean(found.title), "here": clean(found.here), **answer}
    answer = {name: value for name, value in answer.items() if value}
    long = arguments.detail == "detailed"
    routes = found.routes if long else found.routes[:2]

    def shown(route: Route) -> Answer:
        row: Answer = {
            "tool": route.title,
            "when": clean(route.when, 200),
            "ready_here": route.ready,
            "record": [clean(line, 400) for line in route.record],
            "read": [clean(line, 400) for line in route.read],
            "look_for": clean(route.look_for, 300),
        }
        if long:
            row |= {
                "missing": [clean(text, 200) for text in route.missing],
                "lacks": [clean(text, 200) for text in route.lacks],
                "overhead": clean(route.overhead, 200),
                "next": clean(route.next, 200),
            }
        return {name: value for name, value in row.items() if value not in ([], "")}

    return page(answer, "ways", routes, arguments.offset, BUDGET[arguments.detail], shown)


def _goals() -> Mapping[str, list[str]]:
    from stepscope.api.guide import guide_goals

    return {"goal": [goal.id for goal in guide_goals().goals]}


TOOL = Tool(
    name="plan_capture",
    title="What to record",
    description="Which tool answers a question, with the commands to record and to read for this "
    "machine. With a capture: what it already answers, and what its findings lack. Runs nothing.",
    arguments=Arguments,
    ask=ask,
    choices=_goals,
)

"""``plan_capture``: what to record for a question."""

from __future__ import annotations

import shlex
from typing import Annotated, Final

import msgspec

from stepscope.agent.answers import Answer, Detail
from stepscope.agent.session import Session
from stepscope.agent.tool import Capture, Tool
from stepscope.render.text import clean

_PROGRAM: Final = "python train.py"
_FIRST: Final = "stepscope run -- {program}"
_UNUSABLE: Final = "missing"


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """What it takes; the types say what each is."""

    program: Annotated[
        str, msgspec.Meta(max_length=2000, description="how the training is started")
    ] = _PROGRAM
    capture: Capture | None = None
    detail: Detail = "concise"


def ask(session: Session, arguments: Arguments) -> Answer:
    """Commands for this machine, nothing of which is run here."""
    from stepscope.api.recording import examine_machine

    program = " ".join(shlex.split(arguments.program)) and arguments.program
    checks = examine_machine()
    limits = [
        {"what": check["name"], "found": clean(check["message"], 200), "do": clean(check["remedy"])}
        for check in checks
        if check["status"] == _UNUSABLE or arguments.detail == "detailed"
    ]
    answer: Answer = {"commands": [], "not_run": True}
    if arguments.capture is not None:
        diagnosis = session.job(arguments.capture).diagnose()
        asked = {f.next_capture: f.cause for f in diagnosis.findings if f.next_capture}
        lacks = {
            lack.table: clean(lack.flag)
            for trace in session.job(arguments.capture).traces[:1]
            for lack in trace.meta.missing
        }
        answer["commands"] += [
            {"for": cause, "command": command.replace(_PROGRAM, program)}
            for command, cause in asked.items()
        ]
        if lacks and arguments.detail == "detailed":
            answer["lacks"] = lacks
    if not answer["commands"]:
        answer["commands"].append(
            {"for": "a first look, or the same again", "command": _FIRST.format(program=program)}
        )
    answer["limits_here"] = limits
    return answer


TOOL = Tool(
    name="plan_capture",
    title="What to record",
    description="The command that records what a question needs, for this machine: the first "
    "capture of a program, or what a finding of an earlier capture lacks. Runs nothing.",
    arguments=Arguments,
    ask=ask,
)

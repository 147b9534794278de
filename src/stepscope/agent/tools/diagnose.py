"""``diagnose``: the causes of the step time."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from stepscope.agent.answers import BUDGET, Answer, Detail, ms, page
from stepscope.agent.session import Session
from stepscope.agent.tool import Capture, Offset, Tool
from stepscope.render.brief import brief, sentence
from stepscope.render.text import clean

_FEWEST: Final = 400


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """What it takes; the types say what each is."""

    capture: Capture
    detail: Detail = "concise"
    max_tokens: (
        Annotated[int, msgspec.Meta(ge=_FEWEST, description="most tokens of the answer")] | None
    ) = None
    offset: Offset = 0


def ask(session: Session, arguments: Arguments) -> Answer:
    """The brief; detailed: also all advice and what is left in the kernels."""
    diagnosis = session.job(arguments.capture).diagnose()
    budget = arguments.max_tokens or BUDGET[arguments.detail]
    if arguments.detail == "concise":
        found: Answer = msgspec.to_builtins(brief(diagnosis, budget))
        return found
    answer: Answer = msgspec.to_builtins(brief(diagnosis, max(budget // 2, _FEWEST)))
    more = [
        *((f, "finding") for f in diagnosis.findings),
        *((f, "lever") for f in diagnosis.levers),
    ]
    rows = [
        {
            "id": f.cause,
            "kind": kind,
            "predicted_step_ms": ms(f.predicted_step_ns),
            "message": sentence(f.message, f.names, 1000),
            "do": [clean(text, 300) for text in f.recommendations],
            "figures": [e.figure for e in f.evidence],
            **({"includes_gain_of": f.includes_gain_of} if f.includes_gain_of else {}),
            **({"after_findings": True} if f.after_findings else {}),
        }
        for f, kind in more
    ]
    return page(answer, "more", rows, arguments.offset, budget)


TOOL = Tool(
    name="diagnose",
    title="Name the causes of the step time",
    description="Why a training step is slow: root causes with what they cost, the predicted mean "
    "step without each, where they are and what to change; or that the run is healthy, or that "
    "the capture does not tell. Times are ms of the mean steady step. Begin here. Ids of findings "
    "go to `explain` for the evidence.",
    arguments=Arguments,
    ask=ask,
)

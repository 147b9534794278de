"""``compare``: whether a run got faster, by how much, and why."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepscope.agent.answers import BUDGET, Answer, Detail, ms, named, page, sentence
from stepscope.agent.session import Session
from stepscope.agent.tool import Offset, Tool

_LEAST_NS = 1000


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """What it takes; the types say what each is."""

    before: Annotated[
        str | list[str],
        msgspec.Meta(description="the earlier run: id, path, or paths of its ranks"),
    ]
    after: Annotated[str | list[str], msgspec.Meta(description="the later run, likewise")]
    detail: Detail = "concise"
    offset: Offset = 0


def ask(session: Session, arguments: Arguments) -> Answer:
    """The verdict, what moved the step, and whether predictions came true."""
    earlier = session.job(arguments.before)
    c = earlier.compare(session.job(arguments.after))
    answer: Answer = {
        "verdict": c.verdict,
        "message": sentence(c.message, (), 400),
        "mean_step_ms": [ms(c.step.before_ns), ms(c.step.after_ns)],
        "ratio": round(c.step.ratio, 4),
        "ratio_range": [round(c.step.ratio_low, 4), round(c.step.ratio_high, 4)],
        "moved_by_ms": {cause.name: ms(cause.difference_ns) for cause in c.causes},
        "findings": {f.cause: f.fate for f in c.findings},
        "predictions": [
            {
                "id": p.cause,
                "predicted_step_ms": ms(p.predicted_ns),
                "measured_step_ms": ms(p.measured_ns),
                "came_true": p.came_true,
            }
            for p in c.predictions
        ],
        "setup": [
            {"name": s.name, "weight": s.weight, "before": named(s.before), "after": named(s.after)}
            for s in c.setup[:4]
        ],
        "warnings": [sentence(text, (), 200) for text in c.warnings[:3]],
    }
    answer = {name: value for name, value in answer.items() if value not in ([], {})}
    if arguments.detail == "concise":
        return answer
    rows = [
        [k.relation, [named(name, 60) for name in (*k.before, *k.after)][:2], ms(k.difference_ns)]
        for k in c.kernels
        if abs(k.difference_ns) >= _LEAST_NS
    ]
    answer["parts_ms"] = {p.part: ms(p.difference_ns) for p in c.parts if p.difference_ns}
    return page(answer, "kernels", rows, arguments.offset, BUDGET["detailed"])


TOOL = Tool(
    name="compare",
    title="Whether a run got faster, and why",
    description="Compares two captures of the same program: faster, slower or within the noise, "
    "what moved the step, which findings went, and whether the prediction came true. Confirm every "
    "repair with it.",
    arguments=Arguments,
    ask=ask,
)

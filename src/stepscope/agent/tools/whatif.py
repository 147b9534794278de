"""``whatif``: the step after a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from stepscope.agent.answers import Answer, Detail, ms, sentence
from stepscope.agent.session import Session
from stepscope.agent.tool import Capture, Tool
from stepscope.render.text import clean


class Arguments(msgspec.Struct, forbid_unknown_fields=True, rename={"settings": "set"}):
    """What it takes; the types say what each is."""

    capture: Capture
    settings: Annotated[
        list[str],
        msgspec.Meta(description="settings of the program as NAME=VALUE; explain knows each name"),
    ] = []
    free: Annotated[list[str], msgspec.Meta(description="causes of idle time that are gone")] = []
    scale_kernels: Annotated[
        list[str], msgspec.Meta(description="REGEX=FACTOR: kernels that take another time")
    ] = []
    launches_free: Annotated[
        bool, msgspec.Meta(description="launches cost nothing, as in one CUDA graph")
    ] = False
    overlap_communication: Annotated[
        bool, msgspec.Meta(description="communication is hidden as far as dependencies allow")
    ] = False
    ranks_like_median: Annotated[
        list[int], msgspec.Meta(description="ranks that become as fast as the median rank")
    ] = []
    detail: Detail = "concise"


def ask(session: Session, arguments: Arguments) -> Answer:
    """The step with all changes together, and with each alone."""
    from stepscope.api.explained import changes_of

    job = session.job(arguments.capture)
    found = job.whatif(
        changes_of(
            free=arguments.free,
            scale_kernels=arguments.scale_kernels,
            launches_free=arguments.launches_free,
            overlap_communication=arguments.overlap_communication,
            ranks_like_median=arguments.ranks_like_median,
            settings=arguments.settings,
        )
    )
    answer: Answer = {
        "changes": [sentence(text, (), 200) for text in found.changes],
        "mean_step_ms": ms(found.measured_step_ns),
        "predicted_step_ms": ms(found.predicted_step_ns),
        "range_ms": [ms(found.prediction_low_ns), ms(found.prediction_high_ns)],
        "status": f"inferred ({found.validity})",
        "replay_error": round(found.replay_error, 4),
        "throughput_factor": round(found.throughput_factor, 3),
    }
    if len(found.alone) > 1:
        answer["alone_step_ms"] = {
            clean(one.change, 120): ms(one.predicted_step_ns) for one in found.alone
        }
    several = 6 if arguments.detail == "detailed" else 2
    answer["assumptions"] = [
        sentence(text, (), 300) for text in (*found.assumptions, *found.warnings)[:several]
    ]
    return answer


def _choices() -> Mapping[str, list[str]]:
    from stepscope.api.explained import idle_causes

    return {"free": idle_causes()}


TOOL = Tool(
    name="whatif",
    title="The step after a change",
    description="Replays the run with changes, all together, and predicts the mean step: a setting "
    "(batch=2x, precision=bf16, workers=4:8, graphs=on, ...), a cause of idle time that is gone, "
    "faster kernels. A prediction is inferred until a new capture confirms it.",
    arguments=Arguments,
    ask=ask,
    choices=_choices,
)

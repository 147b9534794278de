"""``kernels``: what the GPU executes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepscope.agent.answers import BUDGET, Answer, Detail, ms, named, page
from stepscope.agent.session import Session
from stepscope.agent.tool import Capture, Offset, Tool


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """What it takes; the types say what each is."""

    capture: Capture
    category: Annotated[str, msgspec.Meta(description="only kernels of this category")] = ""
    detail: Detail = "concise"
    offset: Offset = 0


def ask(session: Session, arguments: Arguments) -> Answer:
    """Kernels of the steady steps, the longest time first."""
    job = session.job(arguments.capture)
    rows = [row for row in job.kernels.to_pylist() if arguments.category in ("", row["category"])]
    answer: Answer = {
        "statistic": "of the steady steps of all devices; ms_a_step is the sum in a mean step, "
        "median_us of one launch",
        "columns": [
            "category",
            "kernel",
            "arithmetic",
            "a_step",
            "ms_a_step",
            "share",
            "median_us",
        ],
    }

    def shown(row: dict[str, object]) -> list[object]:
        times = [row[name] for name in ("time_ns_per_step", "median_ns")]
        each, median = (float(str(ns or 0)) for ns in times)
        return [
            row["category"],
            named(str(row["kernel"]), 100),
            row["math"],
            row["calls_per_step"],
            ms(each),
            row["share_of_step"],
            round(median / 1e3, 1),
        ]

    return page(answer, "rows", rows, arguments.offset, BUDGET[arguments.detail], shown)


def _categories() -> dict[str, list[str]]:
    from stepscope.api.terms import terms

    return {"category": ["", *(m.id for m in terms() if m.kind == "kernel category")]}


TOOL = Tool(
    name="kernels",
    title="What the GPU executes",
    description="Kernels by category and name: how often, how long, how much of the step, with "
    "which arithmetic. For the inside of one kernel plan a capture with Nsight Compute.",
    arguments=Arguments,
    ask=ask,
    choices=_categories,
)

"""``open``: what a capture holds and lacks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepscope.agent.answers import BUDGET, Answer, Detail, ms, named, page, sentence
from stepscope.agent.session import Session
from stepscope.agent.tool import Tool
from stepscope.render.text import clean


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """What it takes; the types say what each is."""

    capture: Annotated[
        str | list[str],
        msgspec.Meta(description="path of a capture, a folder of them, or the paths of its ranks"),
    ]
    step: Annotated[
        str,
        msgspec.Meta(
            description="what a step is: the name of its ranges, a regular expression that finds "
            "them, or none for the whole capture; by default the capture tells"
        ),
    ] = ""
    step_kernel: Annotated[
        str, msgspec.Meta(description="regular expression of the kernels at which steps begin")
    ] = ""
    detail: Detail = "concise"


def ask(session: Session, arguments: Arguments) -> Answer:
    """Its id, source, ranks and tables; detailed: what it lacks, and how to capture that."""
    id_ = session.open(arguments.capture, arguments.step, arguments.step_kernel)
    job = session.job(id_)
    if arguments.step or arguments.step_kernel:
        _ = job.steps  # a step that is not there is refused here, not by the next tool
    first = job.traces[0].meta
    rows: dict[str, int] = {}
    for trace in job.traces:
        for table, count in trace.meta.rows.items():
            rows[table] = rows.get(table, 0) + count
    answer: Answer = {
        "id": id_,
        "source": first.source,
        "ranks": len(job.ranks),
        "length_ms": ms(max(t.meta.window_end_ns - t.meta.window_start_ns for t in job.traces)),
        "command": named(first.command, 200) if first.command else None,
        "rows_by_table": {table: count for table, count in sorted(rows.items()) if count},
        "problems": [
            f"{p.severity}: {p.count} x {sentence(p.message, (), 200)}" for p in job.problems[:4]
        ],
        "warnings": [sentence(text, (), 200) for text in job.warnings[:4]],
    }
    if arguments.detail == "concise":
        return answer
    lacks = [[lack.table, f"{clean(lack.reason)}; {clean(lack.flag)}"] for lack in first.missing]
    return page(answer, "lacks", lacks, 0, BUDGET["detailed"])


TOOL = Tool(
    name="open",
    title="Open a capture",
    description="Opens a capture and says what it holds; detailed: what it lacks and which option "
    "would record that. Not needed before other tools, which take paths as well.",
    arguments=Arguments,
    ask=ask,
)

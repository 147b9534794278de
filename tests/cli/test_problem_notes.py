"""Problems of imports and ranks, as the formats for people say them."""

from __future__ import annotations

from stepscope.render.budget import ranks_text
from stepscope.render.problems import problem_notes
from stepscope.trace.problems import Problem


def problem(kind: str, severity: str, count: int, *scope: str) -> Problem:
    return Problem(kind, severity, count, list(scope), f"{kind} happened", "look")  # type: ignore[arg-type]


def test_the_captures_of_a_job_are_counted_together() -> None:
    found = problem_notes(
        [
            problem("lost", "data_loss", 900, "gpu_op"),
            problem("odd", "notice", 1, "range"),
            problem("lost", "data_loss", 200, "gpu_op", "sync"),
            problem("fine", "info", 7, "range"),
        ]
    )
    assert found == [
        "data_loss: 1,100 x lost happened (gpu_op, sync) in 2 captures: look",
        "notice: 1 x odd happened (range): look",
    ]


def test_ranks_are_named_by_number() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([0, 1]) == "ranks 0, 1"
    assert ranks_text(list(range(9))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ..."

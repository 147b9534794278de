"""What an agent may use, counted: tools in this process, and what their answers take."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from cases import Case

from stepscope.agent.session import Session
from stepscope.agent.tool import tools
from stepscope.render.brief import tokens
from stepscope.trace.errors import StepscopeError

MOST_CALLS, MOST_TOKENS = 3, 1500
NEAR = 0.1


@dataclass
class Desk:
    """The tools over one case.

    Attributes:
        session: what may be read.
        calls: names of the tools called so far.
        tokens: what their arguments and answers took: bytes over four.
    """

    session: Session
    calls: list[str] = field(default_factory=list)
    tokens: int = 0

    def call(self, name: str, **arguments: object) -> dict[str, Any]:
        """A tool's answer; ``{"error": ...}`` where it refuses."""
        self.calls.append(name)
        try:
            if name not in tools():
                raise StepscopeError(f"no tool {name}")
            text = tools()[name].answer(self.session, arguments)
        except StepscopeError as error:
            text = json.dumps({"error": str(error)})
        # paths are as long as their folders, which is no property of the tools
        given = json.dumps({k: v for k, v in arguments.items() if k != "capture"})
        self.tokens += tokens(given) + tokens(text)
        found: dict[str, Any] = json.loads(text)
        return found


@dataclass(frozen=True)
class Answer:
    """What an agent concludes.

    Attributes:
        verdict: a cause, ``healthy`` or ``unknown``.
        ratio: predicted over present mean step; None for no prediction.
        reach: lower and upper bound of that; None for no prediction.
        unreliable: whether it says that the prediction is unreliable.
        claims: (claim, its status).
    """

    verdict: str
    ratio: float | None = None
    reach: tuple[float, float] | None = None
    unreliable: bool = False
    claims: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Score:
    """One case answered.

    Attributes:
        name: of the case.
        kind: its set.
        expected: the answer.
        verdict: what the agent said.
        error: of the predicted ratio; None where there is no prediction or no truth, or where the
            prediction is about another cause.
        holds: whether the measured ratio is in the range that the agent gave; None likewise.
        unreliable: whether the agent said that its prediction is.
        calls: how many.
        tokens: what they took.
        right: whether the verdict is right.
    """

    name: str
    kind: str
    expected: str
    verdict: str
    error: float | None
    holds: bool | None
    unreliable: bool
    calls: int
    tokens: int
    right: bool

    @property
    def near(self) -> bool | None:
        """Whether the prediction is within a tenth; None where that is open."""
        return None if self.error is None else abs(self.error) <= NEAR

    @property
    def within_budget(self) -> bool:
        """Whether calls and tokens are."""
        return self.calls <= MOST_CALLS and self.tokens <= MOST_TOKENS


def desk_for(case: Case) -> Desk:
    """Tools that may read a case's folders only."""
    return Desk(Session(sorted({path.parent for path in case.paths})))


def given(case: Case) -> str | list[str]:
    """The capture as an agent names it."""
    names = [str(path) for path in case.paths]
    return names[0] if len(names) == 1 else names


def scored(case: Case, answer: Answer, desk: Desk) -> Score:
    """The answer against the truth."""
    error = holds = None
    right = answer.verdict in (case.answer, *case.others)
    if right and case.ratio is not None and answer.ratio is not None:
        error = answer.ratio / case.ratio - 1
        if answer.reach is not None:
            holds = answer.reach[0] <= case.ratio <= answer.reach[1]
    return Score(
        name=case.name,
        kind=case.kind,
        expected=case.answer,
        verdict=answer.verdict,
        error=error,
        holds=holds,
        unreliable=answer.unreliable,
        calls=len(desk.calls),
        tokens=desk.tokens,
        right=right,
    )

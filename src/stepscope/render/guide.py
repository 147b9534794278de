"""The guide on the terminal: one block a way, its commands ready to be copied."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.knowledge.guidance import NO_GPU, GoalList, Guidance, Route
from stepscope.render.knowledge import plain_markdown
from stepscope.render.text import clean

_LONGEST = 1000


def goals_text(known: GoalList, width: int) -> str:
    """The numbered goals, and the method."""
    lines = ["What do you want to know?", ""]
    for number, goal in enumerate(known.goals, 1):
        lines += _wrapped(f"{number:2}  {goal.title}", width, 0, 4)
        lines.append(f"    --goal {goal.id}")
    lines += ["", "The method, whatever the goal is:"]
    for step in known.method:
        lines += _wrapped(f"· {step}", width, 0, 2)
    return "\n".join(lines) + "\n"


def guidance_text(answer: Guidance, width: int) -> str:
    """One goal: what is behind it, the ways with their commands, what comes next."""
    lines = [answer.title, *_wrapped(answer.meaning, width, 2, 2)]
    if answer.here:
        lines += ["", *_wrapped(answer.here, width, 2, 2)]
    for number, route in enumerate(answer.routes, 1):
        lines += ["", *_route(number, route, width)]
    lines += ["", *_wrapped("Then one change, and the same capture again: stepscope guide "
                            "--goal before_after", width, 0, 0)]  # fmt: skip
    if answer.see:
        lines += _wrapped(f"Terms: stepscope explain {' | '.join(answer.see)}", width, 0, 2)
    return "\n".join(lines) + "\n"


def _route(number: int, route: Route, width: int) -> Iterator[str]:
    yield from _wrapped(f"{number}. {route.title}: {route.when}", width, 0, 3)
    for lack in route.lacks:
        yield from _wrapped(f"the capture lacks it: {lack}", width, 3, 5)
    if route.record:
        for lack in [lack for lack in route.missing if lack != NO_GPU]:  # said above
            yield from _wrapped(f"not here: {lack}", width, 3, 5)
    for command in (*route.record, *route.read):
        yield f"   $ {clean(command, _LONGEST)}"
    yield from _wrapped(f"look for: {route.look_for}", width, 3, 5)
    if route.record and route.overhead:
        source = f" [{route.source}]" if route.source else ""
        yield from _wrapped(f"overhead: {route.overhead}{source}", width, 3, 5)
    yield from _wrapped(f"next: {route.next}", width, 3, 5)


def _wrapped(text: str, width: int, indent: int, hang: int) -> list[str]:
    import textwrap

    return textwrap.wrap(
        plain_markdown(clean(text, 4 * _LONGEST)),
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )

"""What fixes that were tried came to, as text."""

from __future__ import annotations

from pathlib import PurePath

from stepscope.compare.tried import Applied, Tried, TrySession
from stepscope.render.text import clean, plural

_MOST_PLACES = 4
_MOST_WAITS = 20


def tried_text(result: TrySession) -> str:
    """For the terminal: a verdict for each fix, and the lines to change."""
    parts = []
    for one in result.tried:
        parts.append(f"{', '.join(map(clean, one.names))}: {clean(one.message, 600)}")
        parts += [f"  {line}" for line in _details(one)]
    parts += [f"· {clean(text, 600)}" for text in result.warnings]
    return "\n".join(parts) + "\n"


def tried_markdown(result: TrySession) -> str:
    """The same for a merge request."""
    parts = ["# Fixes tried", ""]
    for one in result.tried:
        names = ", ".join(map(_plain, one.names))
        parts.append(f"- {names}: **{one.verdict.replace('_', ' ')}**. {_plain(one.message)}")
        parts += [f"  - {_plain(line)}" for line in _details(one)]
    if result.warnings:
        parts += ["", *(f"- {_plain(text)}" for text in result.warnings)]
    return "\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Text in Markdown that comes from a program: nothing in it is markup."""
    cleaned = clean(text, 600).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in cleaned)


def _details(one: Tried) -> list[str]:
    if one.verdict in ("refused", "changed_nothing", "failed"):
        return []
    lines = []
    for fix in one.applied:
        lines += _fix(fix, alone=len(one.applied) == 1)
    if one.verdict == "looked":
        lines += [
            f"{clean(_place(wait.place))} waits {plural(wait.count, 'time')}"
            for wait in one.waits[:_MOST_WAITS]
        ]
        return lines
    if one.prediction is not None and one.prediction.came_true is not None:
        stated = "came true" if one.prediction.came_true else "did not come true"
        lines.append(f"the prediction (without {one.prediction.cause}) {stated}")
    lines.append(clean(one.losses.message, 400))
    return lines


def _fix(fix: Applied, *, alone: bool) -> list[str]:
    """Where to write what, and what to know of it."""
    name = "" if alone else f"{clean(fix.name)}: "
    if fix.refused:
        return [f"{name}refused: {clean(fix.refused, 400)}"]
    if not fix.count:
        reasons = " and ".join(fix.left) or "the program does nothing that it applies to"
        return [f"{name}changed nothing: {clean(reasons, 400)}"]
    places = [clean(_place(place)) for place in fix.places if place]
    where = ", ".join(places[:_MOST_PLACES]) or "the program"
    more = f" and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    notes = "".join(f"; {clean(note, 400)}" for note in fix.notes)
    return [f"{name}in {where}{more} write {clean(fix.lines, 400)}{notes}"]


def _place(place: str) -> str:
    """File and line without the folder; the innermost lines may be a library's."""
    return PurePath(place).name if place else "a line of a library"

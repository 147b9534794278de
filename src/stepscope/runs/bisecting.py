"""Between which recorded runs a figure changed, and which revision to measure next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.compare.history import Entry, Mark

_REPEATS = "history add with several captures of each revision"


def history_bisect(
    place: str | Path,
    name: str,
    figure: str,
    good: str = "",
    bad: str = "",
    skip: Sequence[str] = (),
) -> str:
    """Between which recorded runs a figure changed, what moved, and what to measure next, in words.

    Args:
        place: the history.
        name: what was run; may be empty where there is only one name.
        figure: a figure of the budgets.
        good: revision of the earlier end; the first run where empty.
        bad: revision of the later end; the last run where empty.
        skip: revisions that cannot be measured.

    Raises:
        InputError: the history cannot be read.
        UsageError: a revision was not recorded.
    """
    from stepscope.compare.changepoints import ENOUGH, FEW
    from stepscope.compare.comparison import compare
    from stepscope.compare.history import History, suspects
    from stepscope.compare.history.git import by_commit
    from stepscope.render.compare import compare_text
    from stepscope.render.history import mark_says

    with History(place) as history:
        plot = history.plot(name, figure, by_commit)
        found = suspects(plot.marks, good, bad, plot.entries)
        if found is None:
            runs = len(plot.entries)
            few = "" if runs >= ENOUGH else f"; {FEW}, and there are {runs}"
            return f"No change of level of {figure} is between these runs{few}.\n"
        sides = [
            [history.profile(entry.id) for entry in _alike(plot.entries, end)]
            for end in (found.previous, found.entry)
        ]
    said = [mark_says(found, figure) + ".", *_next(found, skip)]
    return "\n".join(said) + "\n\n" + compare_text(compare(*sides, repeats=_REPEATS))


def _alike(entries: Sequence[Entry], end: Entry) -> list[Entry]:
    """Runs of the revision of one, so that their spread is measured; that one alone without any."""
    from stepscope.compare.stored import KEPT_RUNS

    alike = [e for e in entries if e.revision == end.revision] if end.revision else [end]
    return alike[-KEPT_RUNS:]


def _next(mark: Mark, skip: Sequence[str]) -> list[str]:
    """Which revision made the change, or which to measure to find it."""
    from stepscope.compare.history import git
    from stepscope.render.text import clean

    def named(commit: str) -> str:
        return clean(f"{commit[:12]} ({git.subject(commit)})", 120)

    old, new = mark.previous.revision, mark.entry.revision
    if not old or not new or old == new:
        return ["The runs name no two revisions, so nothing lies between them to be measured."]
    commits = git.between(old, new)
    if not commits:
        return [f"Git, in this directory, knows nothing between {clean(old)} and {clean(new)}."]
    unknown = git.known(skip)
    left = [commit for commit in commits[:-1] if commit not in unknown]
    if left:
        # the one nearest the middle of all that lie between: skipped ones may be the culprit, too
        middle = (len(commits) - 2) / 2
        nearest = min(left, key=lambda commit: abs(commits.index(commit) - middle))
        count = len(commits) - 1
        said = f"Measure {named(nearest)} next: it halves the {count} revisions between them."
        return [said, f"Where it cannot be measured: --skip {nearest[:12]}."]
    if len(commits) == 1:
        return [f"It came with {named(commits[0])}."]
    return ["It came with one of these, of which only the last was measured:", *(
        f"  {named(commit)}" for commit in commits
    )]  # fmt: skip

"""What Git knows of recorded revisions: their order, and what lies between two."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from stepscope.compare.history.model import Entry

WAIT_S = 20
"""How long Git may take; without an answer everything goes on without it."""


def head() -> str:
    """The revision of the working directory; empty where there is none."""
    lines = _git("rev-parse", "HEAD")
    return lines[0] if lines else ""


def by_commit(entries: Sequence[Entry]) -> list[Entry]:
    """Entries in the order of their commits, runs of one commit in the order of adding.

    Only where Git, in the working directory, knows every one of them: else in the order of adding.
    """
    commits = _commits([entry.revision for entry in entries])
    if not all(commits):
        return list(entries)
    order = _git("rev-list", "--topo-order", "--reverse", "--stdin", stated="\n".join(commits))
    place = {commit: number for number, commit in enumerate(order)}
    if not all(commit in place for commit in commits):
        return list(entries)
    numbered = zip(entries, commits, strict=True)
    return [entry for entry, _ in sorted(numbered, key=lambda item: place[item[1]])]


def between(earlier: str, later: str) -> list[str] | None:
    """Commits after the one up to the other, the earliest first; None where Git does not know.

    Along first parents: a merge counts as one commit.
    """
    first, last = _commits([earlier, later])
    if not first or not last:
        return None
    span = f"{first}..{last}"
    return _git("rev-list", "--first-parent", "--reverse", "--end-of-options", span)


def known(revisions: Sequence[str]) -> set[str]:
    """Full names of those revisions that Git knows."""
    return {commit for commit in _commits(revisions) if commit}


def subject(commit: str) -> str:
    """First line of a commit's message."""
    lines = _git("show", "--no-patch", "--format=%s", "--end-of-options", commit)
    return lines[0] if lines else ""


def _commits(revisions: Sequence[str]) -> list[str]:
    """Full names of revisions; empty for those that Git does not know."""
    # one a line: anything else is no revision
    asked = [text if text and len(text.split()) == 1 else "" for text in revisions]
    stated = "".join(f"{text or '(none)'}^{{commit}}\n" for text in asked)
    lines = _git("cat-file", "--batch-check=%(objectname)", stated=stated)
    if len(lines) != len(asked):
        return [""] * len(asked)
    return ["" if " " in line else line for line in lines]


def _git(*arguments: str, stated: str | None = None) -> list[str]:
    """Lines that Git answers in the working directory; none where it cannot."""
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=False, timeout=WAIT_S,
            input=stated,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, UnicodeError):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []

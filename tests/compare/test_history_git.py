"""Bisecting over a real repository with a planted slow commit, merges and commits that fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.compare.profiles import profile

from stepscope.api.history import history_bisect, history_plot
from stepscope.compare.history import History, git

SLOW = 13  # the commit from which on the step takes 10 % longer


class Repository:
    """A repository of 20 commits on a line, the 8th being a merge of a side branch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.run("init", "-q", "-b", "main")
        self.commits = []
        for number in range(20):
            if number == 8:
                self.run("checkout", "-q", "-b", "side")
                for part in range(3):
                    self.commit(f"side {part}")
                self.run("checkout", "-q", "main")
                self.run("merge", "-q", "--no-ff", "-m", "c8", "side")
                self.commits.append(self.run("rev-parse", "HEAD"))
            else:
                self.commits.append(self.commit(f"c{number}"))

    def run(self, *arguments: str) -> str:
        settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *settings, *arguments], cwd=self.folder, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.run("commit", "-q", "--allow-empty", "-m", message)
        return self.run("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    made = Repository(tmp_path / "code")
    monkeypatch.chdir(made.folder)
    return made


class Measured:
    """A history of runs of these commits, and what each would take."""

    def __init__(self, repository: Repository, path: Path) -> None:
        self.repository, self.path = repository, path
        self._noise = np.random.default_rng(7)

    def add(self, number: int, times: int = 1, *, short: bool = False) -> None:
        commit = self.repository.commits[number]
        with History(self.path, create=True) as history:
            for _ in range(times):
                ms = (22 if number >= SLOW else 20) * (1 + self._noise.normal(0, 0.004))
                history.add(
                    profile([round(ms * 1e6)] * 6), name="gpt",
                    revision=commit[:10] if short else commit,
                )  # fmt: skip

    def bisect(self, **more: object) -> str:
        return history_bisect(str(self.path), "gpt", "step_ms", **more)  # type: ignore[arg-type]


@pytest.fixture
def measured(repository: Repository, tmp_path: Path) -> Measured:
    found = Measured(repository, tmp_path / "h.sqlite")
    for number in (0, 2, 5, 7, 17, 18, 19):
        found.add(number, 2)
    return found


def next_of(output: str, repository: Repository) -> int | None:
    """Number of the commit that is to be measured next."""
    for line in output.splitlines():
        if line.startswith("Measure "):
            name = line.split()[1]
            (number,) = (n for n, c in enumerate(repository.commits) if c.startswith(name))
            assert f"(c{number})" in line
            return number
    return None


def test_following_it_ends_at_the_slow_commit(measured: Measured) -> None:
    asked = []
    for _ in range(8):
        output = measured.bisect()
        number = next_of(output, measured.repository)
        if number is None:
            break
        asked.append(number)
        # measured late, and named by a shortened hash: it counts at its commit's place
        measured.add(number, 2, short=True)
    assert asked == [12, 14, 13]
    slow = measured.repository.commits[SLOW]
    assert f"It came with {slow[:12]} (c{SLOW})." in output
    assert "% longer" in output  # and the runs of both are compared


def test_commits_that_cannot_be_measured_are_gone_around(measured: Measured) -> None:
    commits = measured.repository.commits
    skipped = [commits[12]]
    asked = []
    for _ in range(12):
        output = measured.bisect(skip=skipped)
        number = next_of(output, measured.repository)
        if number is None:
            break
        asked.append(number)
        if number == SLOW - 2:  # this one does not build either
            skipped.append(commits[number][:9])
        else:
            measured.add(number, 2)
    assert 12 not in asked
    assert asked.count(SLOW - 2) == 1
    tail = output.splitlines()
    at = tail.index("It came with one of these, of which only the last was measured:")
    assert [line.split()[1] for line in tail[at + 1 : at + 4]] == ["(c11)", "(c12)", "(c13)"]


def test_ends_may_be_named(measured: Measured) -> None:
    commits = measured.repository.commits
    output = measured.bisect(bad=commits[7])
    assert output == "No change of level of step_ms is between these runs.\n"
    assert next_of(measured.bisect(good=commits[5][:8]), measured.repository) == 12


def test_a_series_is_in_the_order_of_commits_where_git_knows_them(measured: Measured) -> None:
    measured.add(1)  # the last to be added
    commits = measured.repository.commits

    def order(*, added: bool = False) -> list[int]:
        plot = history_plot(str(measured.path), "gpt", "step_ms", added=added)
        return list(dict.fromkeys(commits.index(e.revision) for e in plot.entries))

    assert order() == [0, 1, 2, 5, 7, 17, 18, 19]
    assert order(added=True) == [0, 2, 5, 7, 17, 18, 19, 1]
    with History(measured.path) as history:
        history.add(profile([20_000_000] * 6), name="gpt", revision="no such thing")
        history.add(profile([20_000_000] * 6), name="gpt", revision="--help")
    plot = history_plot(str(measured.path), "gpt", "step_ms")
    assert [e.id for e in plot.entries] == sorted(e.id for e in plot.entries)


def test_elsewhere_git_knows_nothing(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Git, in this directory, knows nothing between" in measured.bisect()


def test_what_git_knows(repository: Repository) -> None:
    commits = repository.commits
    assert git.head() == commits[-1]
    assert git.between(commits[7], commits[9]) == commits[8:10]  # a merge is one commit
    assert git.between(commits[3], "--output=evil") is None
    assert git.between("$(touch evil)", commits[3]) is None
    assert git.known([commits[2][:9], "none", "", "a b"]) == {commits[2]}
    assert git.subject(commits[8]) == "c8"
    assert not list(repository.folder.glob("evil*"))


def test_without_git_the_order_is_that_of_adding(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert git.head() == ""
    assert "knows nothing between" in measured.bisect()

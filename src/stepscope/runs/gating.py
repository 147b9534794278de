"""Judge runs against budgets and a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from stepscope.runs.comparing import Paths, profiles_of
from stepscope.session import OpenOptions, Session
from stepscope.trace import progress
from stepscope.trace.errors import UsageError
from stepscope.trace.given import listed
from stepscope.trace.one_job import refuse_ranks_as_runs

if TYPE_CHECKING:
    from stepscope.compare.budgets import CellLimit, SqlLimit
    from stepscope.compare.gate import GateResult
    from stepscope.compare.profile import Profile


def gate_runs(
    paths: Paths,
    *,
    baseline: Paths = (),
    budgets: str | Sequence[str] = (),
    config: str | Path | None = None,
    allow_missing: bool = False,
    save_baseline: str | Path | None = None,
    **opening: Unpack[OpenOptions],
) -> GateResult:
    """Judge captures of one state of the code against budgets and a baseline.

    Args:
        paths: captures of the code under test; each is one run, a folder being the ranks of one.
        baseline: stored baselines, or captures of the code to compare with.
        budgets: limits, written ``NAME=VALUE``.
        config: a TOML file with a ``[gate]`` table; by default ``stepscope.toml`` in the working
            directory, where there is one.
        allow_missing: whether what cannot be told passes.
        save_baseline: file that receives the captures as a baseline, added to the runs in it.
        opening: how captures are opened.

    Raises:
        InputError: a path cannot be read.
        UsageError: nothing was asked, or something unknown.
        StorageError: the baseline cannot be written.
    """
    from dataclasses import replace

    from msgspec import structs

    from stepscope import __version__
    from stepscope.compare.budgets import Rules, read_rules, with_limits
    from stepscope.compare.gate import NOTHING_ASKED, Saved, gate
    from stepscope.compare.stored import add_to_baseline

    usual = Path("stepscope.toml")
    file = Path(config) if config else usual if usual.is_file() else None
    rules = with_limits(read_rules(file) if file else Rules(), listed(budgets))
    if allow_missing:
        rules = replace(rules, allow_missing=True)
    if not (baseline or rules.limits or rules.figures or rules.cells or save_baseline):
        raise UsageError(NOTHING_ASKED)  # before anything is read
    before = profiles_of(baseline, **opening) if listed(baseline) else []
    sessions = [Session([path], **opening) for path in listed(paths)]
    refuse_ranks_as_runs([session.job.traces for session in sessions])
    numbered = progress.each(range(len(sessions)), "Run", lambda number: str(number + 1))
    runs = [sessions[number].profile() for number in numbered]

    def compute(item: SqlLimit | CellLimit) -> float:
        return max(session.limited(item) for session in sessions)

    asked = before or rules.limits or rules.figures or rules.cells or not save_baseline
    result = gate(runs, before, rules, compute) if asked else nothing_asked(runs)
    if save_baseline:
        held = add_to_baseline(Path(save_baseline), runs, __version__)
        place = str(save_baseline).encode("utf-8", "replace").decode()
        result = structs.replace(result, saved=Saved(place, len(runs), held))
    return result


def nothing_asked(runs: Sequence[Profile]) -> GateResult:
    """The verdict where only a baseline is to be written."""
    from stepscope.compare.comparison import merged
    from stepscope.compare.gate import SCHEMA, GateResult

    step = round(merged(runs).step_ns)
    return GateResult(SCHEMA, True, [run.paths for run in runs], step, [], [], [], [], "")

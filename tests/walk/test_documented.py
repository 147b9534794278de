"""What the walk takes from the pages, without a GPU."""

from __future__ import annotations

import shlex

from tests.walk.documented import documented

from stepscope.cli.registry import commands as all_commands
from stepscope.diagnosis import captures


def test_the_walk_knows_what_pages_and_findings_name() -> None:
    walked = {shlex.join(one.words) for one in documented() if not one.why_not}
    assert {shlex.join(shlex.split(text)) for text in captures.RECORDS} <= walked
    for text in (
        "stepscope run --steps 10 --warmup 20 -- python train.py",
        "stepscope run --graph node -- python train.py",
        "stepscope diagnose run.sqlite",
        "stepscope operators run.json.gz --by source",
        "stepscope doctor -- python train.py",
        "stepscope run --backend ncu --kernel 'nvjet|flash' -- python train.py",
        "stepscope diagnose run.sqlite --format json > report.json",
    ):
        assert shlex.join(shlex.split(text)) in walked


def test_every_named_command_exists() -> None:
    assert {one.verb for one in documented()} <= set(all_commands())


def test_most_of_what_is_named_is_walked() -> None:
    every = documented()
    assert sum(not one.why_not for one in every) > 0.6 * len(every)

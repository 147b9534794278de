"""The guide: every goal is found, its commands run, and what a machine lacks is said."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import subprocess

import click
import pytest
from tests.cli.command import Stepscope, all_that_comes, python

from stepscope.api.guide import guide, guide_goals
from stepscope.api.inputs import bundled_capture
from stepscope.api.terms import terms
from stepscope.cli.main import cli
from stepscope.cli.registry import find
from stepscope.knowledge.entry import entries
from stepscope.knowledge.goal import Goal, find_goal, goals
from stepscope.knowledge.guidance import NO_GPU, Capture, Machine, Route, advise, machine_of
from stepscope.trace.errors import UsageError

GOALS = list(goals().values())
WORKING = (
    *("driver", "nsys", "perf", "py-spy", "attach", "cpu sampling", "nccl-tests"),
    *("hardware counters", "backend collector", "backend torch", "backend ncu"),
)
FULL = Machine(dict.fromkeys(WORKING, "ok"), gpus=2)
"""A machine on which everything works."""


def all_routes(goal: Goal) -> list[Route]:
    whole = Capture(["c"], rows=dict.fromkeys(("ranks", *table_names()), 1))
    return [*advise(goal, FULL).routes, *advise(goal, FULL, ["a.out"], whole).routes]


def table_names() -> set[str]:
    return {table for goal in GOALS for way in goal.ways for table in way.tables}


def commands_in(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def runs(command: str) -> None:
    """Whether a command parses: ours with our parser, foreign ones against their declared flags."""
    program, *arguments = shlex.split(command)
    assert "{" not in command, "every placeholder is filled in"
    if program != "stepscope":
        (tool,) = (entry for entry in entries().values() if program in entry.programs)
        assert tool.flags_from, "where the flags are documented"
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        for end in ("python", "a.out"):
            own = own[: own.index(end)] if end in own else own
        values = re.compile(r"[\w.,/][\w.,/-]*")
        unknown = [w for w in own if w.startswith("-") and w not in tool.flags]
        assert not unknown, f"{command}: {unknown}"
        assert all(w in tool.flags or values.fullmatch(w) for w in own)
        return
    one = find(arguments[0])
    assert one is not None, command
    above = click.Context(cli, info_name="stepscope", **cli.context_settings)
    with contextlib.suppress(click.exceptions.Exit):
        one.make_context(arguments[0], arguments[1:], parent=above)


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.id)
def test_a_goal_is_whole_and_its_commands_parse(goal: Goal) -> None:
    assert goal.title
    assert goal.meaning.rstrip().endswith(".")
    assert not set(goal.see) - {m.id for m in terms()}, "what it refers to exists"
    assert find_goal(goal.id) is find_goal(goal.id.replace("_", "-")) is goal
    for way in goal.ways:
        assert way.record, "a way begins with a command"
        assert way.when
        assert way.look_for
    for route in all_routes(goal):
        assert route.overhead, f"{way.tool} has no overhead"
        assert commands_in(route.next), f"what comes next is a command: {route.next}"
        for command in (*route.record, *route.read, *commands_in(route.next)):
            runs(command)
    assert table_names() - {"ranks"} <= {m.id for m in terms() if m.kind == "table"}
    every = " ".join(n for way in goal.ways for n in way.needs)
    assert set(every.split()) <= set(" ".join([*FULL.checks, "gpus"]).split())


READ = {
    (goal.id, command)
    for goal in GOALS
    for route in advise(
        goal, FULL, (), Capture(["CAPTURE"], rows={"gpu_op": 1, "api_call": 1, "range": 1})
    ).routes
    if route.answered
    for command in route.read
    if not command.startswith("stepscope ui")
}
"""What the guide lets somebody type who has the bundled capture."""


@pytest.mark.parametrize("command", sorted({command for _, command in READ}))
def test_what_only_reads_runs_on_the_bundled_capture(command: str, reader: Stepscope) -> None:
    words = shlex.split(command.replace("CAPTURE", str(bundled_capture())))
    assert reader(*words[1:]).stdout


def test_a_goal_is_found_by_what_a_user_types() -> None:
    for asked, wanted in {
        "Why is my GPU idle?": "idle_gpu",
        "ddp scaling": "scaling",
        "out of memory": "memory",
        "a production job without disturbing it": "production",
        "python gil": "cpu_suspicion",
        "6": "idle_gpu",
    }.items():
        assert find_goal(asked).id == wanted
    for asked, message in {
        "kernel": "several goals; choose one of: slow_operator, kernel_to_source",
        "weather": "names no goal; choose one of: slow_step",
        "99": "goals 1 to 14",
        "": "names no goal",
    }.items():
        with pytest.raises(UsageError, match=message):
            find_goal(asked)


def test_what_a_machine_lacks_is_said_and_comes_last() -> None:
    checks = [
        {"name": "gpu 0", "status": "ok", "message": "H200", "remedy": ""},
        {"name": "driver", "status": "ok", "message": "580", "remedy": ""},
        {"name": "backend collector", "status": "ok", "message": "ready", "remedy": ""},
        {"name": "nsys", "status": "missing", "message": "none", "remedy": "install it"},
    ]
    machine = machine_of(checks)
    assert machine.gpus == 1
    routes = advise(goals()["slow_step"], machine).routes
    assert [(r.tool, r.ready) for r in routes] == [
        ("stepscope_run", True),
        ("stepscope_try", True),
        ("nsys", False),
    ]
    assert routes[2].missing == ["none; install it"]
    scaling = advise(goals()["scaling"], machine, ["python", "a b.py"])
    assert scaling.here == "No way can be gone here as it is; each says what it lacks."
    assert scaling.routes[0].missing == ["there is one GPU here, and it takes two"]
    assert scaling.routes[0].record[0].endswith("-- torchrun --nproc-per-node 1 'a b.py'")
    nowhere = advise(goals()["idle_gpu"], Machine())
    assert {tuple(route.missing) for route in nowhere.routes} == {(NO_GPU,)}


def test_a_capture_answers_or_says_what_it_lacks() -> None:
    held = Capture(
        ["my run"], "python train.py --size 8", {"gpu_op": 5}, {"operator": "nsys has none"}
    )
    answer = advise(goals()["expensive_operator"], FULL, (), held)
    first, second = answer.routes
    assert answer.here == "The capture answers it: the first way needs no further recording."
    assert (first.answered, first.record) == (True, [])
    assert first.read[0] == "stepscope kernels 'my run'"
    assert second.lacks == ["nsys has none"]
    assert second.record[0].endswith("-- python train.py --size 8")
    # a command in a trace is text of strangers: nothing of it may mean more than a word
    held = Capture(["c"], "python x.py; rm -rf ~", {}, {})
    (*_, last) = advise(goals()["expensive_operator"], FULL, (), held).routes
    assert last.record[0].endswith("-- python train.py")


def test_the_command(reader: Stepscope) -> None:
    capture = bundled_capture()
    listed = reader("guide").stdout
    assert all(goal.id in listed for goal in GOALS)
    known = json.loads(reader("guide", "--json").stdout)
    assert known == json.loads(reader("guide", "--format", "json").stdout)
    assert [g["id"] for g in known["goals"]] == list(goals())
    answer = json.loads(
        reader("guide", "--goal", "idle_gpu", "--capture", capture, "--json").stdout
    )
    assert answer["schema"] == "stepscope.guide/1"
    assert answer["routes"][0]["answered"]
    assert str(capture) in answer["routes"][0]["read"][0]
    shown = reader("guide", "--goal", "slow step", "--", "torchrun", "a.py").stdout
    assert "$ stepscope run -o run1 --warmup 20 --steps 20 -- torchrun a.py" in shown
    refused = reader("guide", "--goal", "1", "--capture", "none.sqlite", expect=2).stderr
    assert refused.startswith("stepscope: none.sqlite")
    refused = reader("guide", "run.sqlite", "--goal", "1", expect=2).stderr
    assert "give a capture as --capture run.sqlite" in refused


def test_the_conversation(reader: Stepscope) -> None:
    ours, theirs = pty.openpty()
    env = reader.environment(TERM="xterm", COLUMNS="60")
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    talk = subprocess.Popen(python("guide"), env=env, **streams)
    os.close(theirs)
    os.write(ours, b"weather\nidle gpu\n\n")
    text = all_that_comes(ours).decode()
    assert talk.wait() == 0, text
    os.close(ours)
    assert "names no goal" in text
    assert "$ stepscope gaps run1" in text
    assert max(map(len, text.replace("\r", "").split("\n"))) < 90


def test_from_python() -> None:
    assert len(guide_goals().goals) == len(GOALS)
    found = guide("idle gpu", machine=FULL)
    assert found.goal == "idle_gpu"
    assert found.method[0].startswith("Baseline")

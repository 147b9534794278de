"""Tracks of thread states, CPUs and samples; their absence is normal."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build import AUTOGRAD, MAIN, PID, Build

from stepscope.api import Job
from stepscope.timeline.track import Slices
from stepscope.trace.schema import TABLES


def content(job: Job, title: str, thread: int) -> Slices:
    track = next(t for t in job.timeline.tracks if (t.title, t.thread_id) == (title, thread))
    return job.timeline.track(track.id).slices


def named(job: Job, title: str, thread: int = MAIN) -> list[tuple[str, int, int]]:
    found = content(job, title, thread)
    texts = job.timeline.names.texts
    columns = (found.name.tolist(), found.start.tolist(), found.end.tolist())
    return [(texts[name], start, end) for name, start, end in zip(*columns, strict=True)]


def started() -> Build:
    b = Build()
    b.kernel(50, 60, call=(10, 20))
    return b


def test_none_of_them_without_their_tables(tmp_path: Path) -> None:
    job = Job([started().trace(tmp_path).folder])
    titles = {track.title for track in job.timeline.tracks}
    assert not titles & {"Thread state", "On CPU", "CPU samples"}


def test_a_thread_on_its_cpus(tmp_path: Path) -> None:
    b = started()
    for thread, start, end, cpu in ((MAIN, 0, 30, 3), (MAIN, 40, 50, None), (AUTOGRAD, 5, 9, 1)):
        b._add("sched", process_id=PID, thread_id=thread, start_ns=start * 1000,
               end_ns=end * 1000, cpu=cpu)  # fmt: skip
    job = Job([b.trace(tmp_path).folder])
    assert named(job, "On CPU") == [("CPU 3", 0, 30_000), ("running", 40_000, 50_000)]
    assert named(job, "On CPU", AUTOGRAD) == [("CPU 1", 5_000, 9_000)]
    track = next(t for t in job.timeline.tracks if t.title == "On CPU")
    assert ("cpu", 3) in job.views.asker.row(track.id, 0)["facts"]


def test_samples_last_until_the_next_but_not_through_a_pause(tmp_path: Path) -> None:
    b = started()
    for at in (0, 10, 20, 90):
        b._add("cpu_sample", process_id=PID, thread_id=MAIN, time_ns=at * 1000)
    job = Job([b.trace(tmp_path).folder])
    assert named(job, "CPU samples") == [
        ("sample", 0, 10_000),
        ("sample", 10_000, 20_000),
        ("sample", 20_000, 40_000),
        ("sample", 90_000, 100_000),
    ]
    if "stack_frame" not in TABLES:
        assert "samples" not in job.views.panels._stacks.kinds


@pytest.mark.skipif("thread_state" not in TABLES, reason="needs the table thread_state")
def test_states_have_colours_of_their_own(tmp_path: Path) -> None:
    b = started()
    states = ("running", "runnable", "sleeping", "disk", "stopped")
    for i, state in enumerate(states):
        b._add("thread_state", process_id=PID, thread_id=MAIN, start_ns=i * 10_000,
               end_ns=i * 10_000 + 10_000, state=state)  # fmt: skip
    job = Job([b.trace(tmp_path).folder])
    assert [name for name, _, _ in named(job, "Thread state")] == list(states)
    assert len(set(content(job, "Thread state", MAIN).code.tolist())) == len(states)


@pytest.mark.skipif("stack_frame" not in TABLES, reason="needs the table stack_frame")
def test_sampled_stacks_make_a_flame_graph(tmp_path: Path) -> None:
    b = started()
    stacks = {1: ("main", "train", "forward"), 2: ("main", "train"), 3: ("main", "load")}
    for stack, functions in stacks.items():
        for depth, function in enumerate(functions):
            b._add("stack_frame", stack_id=stack, depth=depth, function=function)
    for at, stack in ((0, 1), (10, 1), (20, 2), (30, 3), (40, None), (50, 99)):
        b._add("cpu_sample", process_id=PID, thread_id=MAIN, time_ns=at * 1000, stack_id=stack)
    job = Job([b.trace(tmp_path).folder])
    assert [name for name, _, _ in named(job, "CPU samples")] == [
        *("forward", "forward", "train", "load", "sample", "sample")
    ]
    found = job.views.panels.flame("samples", "cpu", 0, 100_000, reverse=False)
    nodes = found["nodes"]
    figures = {
        found["names"][name]: (total, own)
        for name, total, own in zip(nodes["name"], nodes["total"], nodes["own"], strict=True)
    }
    assert figures == {"main": (4, 0), "train": (3, 1), "forward": (2, 2), "load": (1, 1)}
    assert (found["unit"], found["total"]) == ("samples", 4)
    cut = job.views.panels.flame("samples", "cpu", 5_000, 25_000, reverse=True)
    assert cut["total"] == 2

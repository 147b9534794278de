"""The compiled replay against the one in Python, and against programs that cannot be."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tests.support.programs import Item, jobs, mark, program, programs, wait

from stepscope.native import library
from stepscope.simulation import engine, reference
from stepscope.simulation.links import Depends, Waits, columns_of
from stepscope.simulation.program import Program, Replay

needs_compiler = pytest.mark.skipif(not engine.compiled(), reason="nothing compiled, no compiler")


def assert_same(ours: list[Replay], theirs: list[Replay]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for name in (field.name for field in fields(Replay)):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name


@needs_compiler
@settings(max_examples=300, deadline=None)
@given(jobs())
def test_compiled_is_the_reference(random: list[Program]):
    for passes in (1, 2, 3):
        theirs = reference.replay(random, passes)
        assert_same(engine.replay(random, passes), theirs)
        (steps,) = engine.steps_of([random], passes)
        assert all(
            np.array_equal(a.bounds_ns, b.bounds_ns) for a, b in zip(steps, theirs, strict=True)
        )


@needs_compiler
@settings(max_examples=30, deadline=None)
@given(programs(6), jobs(4))
def test_jobs_side_by_side_do_not_see_each_other(one: Program, several: list[Program]):
    found = engine.steps_of([[one], several, [one]])
    alone = [engine.replay([one]), engine.replay(several), engine.replay([one])]
    assert [[r.bounds_ns.tolist() for r in job] for job in found] == [
        [r.bounds_ns.tolist() for r in job] for job in alone
    ]


@needs_compiler
def test_threads_give_what_one_gives(monkeypatch: pytest.MonkeyPatch):
    base = [mark(), *(Item(work=3, call=2, duration=n, stream=n % 3) for n in range(50))]
    variants = [[program([*base, Item(duration=d)])] for d in range(6)]
    alone = [r[0].bounds_ns.tolist() for r in engine.steps_of(variants)]
    monkeypatch.setattr(engine, "_WORTH_THREADS", 1)
    monkeypatch.setattr(engine, "cores", lambda: 4)
    assert [r[0].bounds_ns.tolist() for r in engine.steps_of(variants)] == alone


SMALL = program([mark(), Item(duration=5), Item(stream=1, depends=((1, 2),)), wait(2)])
M = len(SMALL)
WRONG: dict[str, dict[str, Any]] = {
    "dependency after the end": {"depends": {2: ((M, 0),)}},
    "dependency long before": {"depends": {2: ((-2 * M - 1, 0),)}},
    "depending item": {"depends": {M: ((1, 0),)}},
    "negative item": {"waits": {-1: (1,)}},
    "wait after the end": {"waits": {3: (1 << 60,)}},
    "waiting item": {"waits": {10**9: (1,)}},
    "queue": {"behind": np.array([0, 0, M, 0])},
    "queue long before": {"behind": np.array([0, -(1 << 62), 0, 0])},
    "stream": {"stream": np.array([-1, 1 << 50, 0, -1])},
    "stream below": {"stream": np.array([-1, -2, 0, -1])},
    "kind": {"kind": np.array([2, 3, 0, 1])},
    "ends before": {"before_end_ns": np.zeros(M, np.int64)},
    "short ends before": {n: np.zeros(1, np.int64) for n in ("before_start_ns", "before_end_ns")},
    "posts": {"posts": np.zeros(M + 1, bool)},
    "short column": {"latency_ns": np.zeros(M - 1, np.int64)},
    "short work": {"work_ns": np.zeros((M - 1, 3), np.int64)},
    "flat work": {"work_ns": np.zeros(M, np.int64)},
    "unsorted columns": {
        "waits": Waits(replace(columns_of({3: (1,)}), items=np.array([3, 2]), begin=np.arange(3)))
    },
    "columns that end elsewhere": {
        "depends": Depends(replace(columns_of({2: ((1, 0),)}), begin=np.array([0, 9])))
    },
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("by", ["compiled", "python"])
def test_impossible_references_are_refused(name: str, by: str, monkeypatch: pytest.MonkeyPatch):
    if by == "python":
        monkeypatch.setattr(engine, "load", lambda name: library.Loaded(None, "not here"))
    with pytest.raises(ValueError, match="a program"):
        engine.replay([SMALL, replace(SMALL, **WRONG[name])])


def test_columns_and_dictionaries_say_the_same():
    depends = {5: ((1, 4), (-2, 0)), 2: ((1, 7),)}
    waits = {3: (1, 2), 9: (4,)}
    assert dict(Depends(columns_of(depends))) == depends
    assert dict(Waits(columns_of(waits))) == waits
    assert 4 not in Waits(columns_of(waits))
    assert len(Depends(columns_of({}))) == len(columns_of({}).on) == 0
    kept = columns_of(depends).kept(np.array([False, True, False]))
    assert dict(Depends(kept)) == {5: ((1, 4),)}


def test_lists_of_items_of_another_kind_mean_nothing():
    odd = replace(SMALL, depends={**SMALL.depends, 3: ((2, 99),)}, waits={**SMALL.waits, 1: (2,)})
    assert_same(engine.replay([odd]), reference.replay([SMALL]))


def test_no_rank_and_no_item():
    assert engine.replay([]) == []
    (empty,) = engine.replay([replace(SMALL, **{
        f.name: getattr(SMALL, f.name)[:0] for f in fields(Program)
        if isinstance(getattr(SMALL, f.name), np.ndarray)
    }, depends={}, waits={})])  # fmt: skip
    assert empty.bounds_ns.tolist() == [0]


class TestLibrary:
    """Where the compiled code comes from, and what happens where it does not come."""

    def test_every_library_compiles_where_there_is_a_compiler(self, tmp_path: Path):
        if library.compiler() is None:
            pytest.skip("no C++ compiler")
        for name in library.names():
            found = library.compile_into(tmp_path / "native", name)
            assert found.path is not None, found.why
            assert library.compile_into(tmp_path / "native", name) == found
        assert {p.name for p in (tmp_path / "native").iterdir()} == {
            library.file_name(name) for name in library.names()
        }

    def test_another_source_is_another_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        before = library.file_name("replay")
        source = (library.SOURCES / "replay.cpp").read_text() + "\n// changed\n"
        (tmp_path / "replay.cpp").write_text(source)
        monkeypatch.setattr(library, "SOURCES", tmp_path)
        assert library.file_name("replay") != before

    @pytest.mark.parametrize("broken", ["absent", "fails", "lies", "no folder", "not a library"])
    def test_without_it_python_replays(
        self, broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(library, "HERE", tmp_path / "nothing installed")
        monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "cache"))
        if broken == "absent":
            monkeypatch.setattr(library, "compiler", lambda: None)
        if broken in ("fails", "lies"):
            cxx = tmp_path / "cxx"
            cxx.write_text(f"#!/bin/sh\necho error: broken >&2\nexit {int(broken == 'fails')}\n")
            cxx.chmod(0o755)
            monkeypatch.setenv("CXX", str(cxx))
        if broken == "no folder":
            (tmp_path / "cache").write_text("a file")
        if broken == "not a library":
            (tmp_path / "cache/native").mkdir(parents=True)
            (tmp_path / "cache/native" / library.file_name("replay")).write_text("no library")
        monkeypatch.setattr(engine, "load", library.load.__wrapped__)
        loaded = library.load.__wrapped__("replay")
        assert loaded.library is None
        assert loaded.why
        assert not engine.compiled()
        assert_same(engine.replay([SMALL]), reference.replay([SMALL]))
        assert engine.steps_of([[SMALL]])[0][0].step_ns == reference.replay([SMALL])[0].step_ns

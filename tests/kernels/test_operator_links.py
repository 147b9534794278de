"""Which forward operator a backward operator belongs to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.build import AUTOGRAD, Build

from stepscope.api import Job
from stepscope.timeline.links import forward_of
from stepscope.trace.frame import Frame


@st.composite
def tables(draw: st.DrawFn) -> Frame:
    size = draw(st.integers(0, 25))
    starts = sorted(draw(st.lists(st.integers(0, 60), min_size=size, max_size=size)))
    column = st.lists(st.integers(-1, 4), min_size=size, max_size=size)
    links = st.lists(st.sampled_from([-1, -1, *range(0, 60, 3)]), min_size=size, max_size=size)
    process = st.lists(st.integers(1, 2), min_size=size, max_size=size)
    made = {
        "start_ns": starts,
        "sequence_number": draw(column),
        "forward_thread_id": draw(column),
        "forward_start_ns": draw(links),
        "process_id": draw(process),
    }
    return Frame({key: np.array(values, np.int64) for key, values in made.items()})


@given(tables())
@settings(max_examples=300, deadline=None)
def test_links_are_those_of_a_search_one_by_one(table: Frame) -> None:
    expected = []
    n = len(table)
    col = {key: table[key].tolist() for key in table.columns}
    backward = [
        col["forward_thread_id"][i] > 0 or col["forward_start_ns"][i] >= 0 for i in range(n)
    ]
    for i in range(n):
        alike = [
            j for j in range(n) if not backward[j] and col["process_id"][j] == col["process_id"][i]
        ]
        linked = [
            j
            for j in alike
            if col["forward_start_ns"][i] == col["start_ns"][j] and col["forward_start_ns"][i] >= 0
        ]
        numbered = [
            j
            for j in alike
            if backward[i] and j < i and col["sequence_number"][j] == col["sequence_number"][i] >= 0
        ]
        expected.append(linked[0] if linked else numbered[-1] if numbered else -1)
    assert forward_of(table).tolist() == expected


def test_a_selection_names_both_ends(tmp_path: Path) -> None:
    b = Build()
    b.operator(0, 10, "aten::linear", sequence_number=7)
    b.operator(2, 8, "aten::addmm", sequence_number=7)
    b.operator(20, 30, "AddmmBackward0", thread=AUTOGRAD, sequence_number=7, forward_thread_id=1)
    b.operator(40, 45, "alone")
    b.kernel(5, 6, call=(3, 4))
    job = Job([b.trace(tmp_path).folder])
    tracks = {t.thread_id: t.id for t in job.timeline.tracks if t.title == "Operators"}
    main, autograd = tracks[100], tracks[AUTOGRAD]
    back = job.views.asker.row(autograd, 0)["links"]
    assert [(link["message"], link["forward"]) for link in back] == [("Forward operator", False)]
    assert [end["name"] for end in back[0]["ends"]] == ["aten::addmm"]
    ahead = job.views.asker.row(main, 1)["links"]
    assert [(link["message"], link["forward"], link["more"]) for link in ahead] == [
        ("Backward operators", True, 0)
    ]
    assert [end["name"] for end in ahead[0]["ends"]] == ["AddmmBackward0"]
    assert job.views.asker.row(main, 2)["links"] == []

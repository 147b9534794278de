"""Whether what a rank has more of is a share of a whole, on kernels that are written down here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.build import Build

from stepscope.api import Job
from stepscope.collectives.shares import larger_share
from stepscope.kernels.kernels import Kernels

STEPS = 4

Launch = tuple[str, int, float]
"""Name, blocks and length, us."""

GATHER, NORM, ADDS = (
    "vectorized_gather_kernel",
    "vectorized_layer_norm_kernel",
    "index_add_kernel",
)
LAYER: list[Launch] = [("gemm", 132, 300.0), (NORM, 400, 200.0), ("gemm", 132, 300.0)]


def kernels_of(folder: Path, launches: list[Launch]) -> Kernels:
    """The kernels of a device that launches the same in each step."""
    build = Build()
    at = 0.0
    for step in range(STEPS):
        begin = at
        for name, blocks, length in launches:
            build.kernel(at, at + length, call=(at, at + 1), name=name, grid_x=blocks)
            at += length + 1
        build.range(begin, at, f"step {step}")
        at += 1
    folder.mkdir()
    build.trace(folder)
    job = Job([folder / "built.stepscope"])
    return job.explained.cases[0].explanation.kernels


def larger(blocks: float, length: float, launches: list[Launch]) -> list[Launch]:
    """Launches of as many times the blocks, of as many times the length."""
    return [(name, round(blocks * n), length * us) for name, n, us in launches]


EDGES: list[Launch] = [(GATHER, 1000, 200.0), (ADDS, 132, 500.0)]


@pytest.mark.parametrize(
    ("late", "other", "share"),
    [
        pytest.param(
            [*LAYER, (GATHER, 2000, 400.0), (ADDS, 132, 1000.0)], [*LAYER, *EDGES], True,
            id="twice the edges: products and norms of nodes take as long",
        ),
        pytest.param(
            [*LAYER, (GATHER, 3138, 620.0), (ADDS, 132, 1550.0)], [*LAYER, *EDGES], True,
            id="edges by no simple ratio",
        ),
        pytest.param(
            larger(2.0, 2.0, [*LAYER, *EDGES]), [*LAYER, *EDGES], False,
            id="twice the samples: all of it takes longer",
        ),
        pytest.param(
            larger(1.297, 1.3, [*LAYER, *EDGES]), [*LAYER, *EDGES], True,
            id="cells of a mesh by no simple ratio",
        ),
        pytest.param(
            [("gemm", 4, 6.0), *larger(1.5, 1.5, [(NORM, 400, 200.0), (GATHER, 1000, 200.0)])],
            [("gemm", 4, 6.0), (NORM, 400, 200.0), (GATHER, 1000, 200.0)], False,
            id="half more samples, of which small products tell nothing",
        ),
        pytest.param(
            [*LAYER, *EDGES, ("histogram", 77, 900.0)], [*LAYER, *EDGES], False,
            id="a kernel that the others do not launch",
        ),
        pytest.param(
            [*LAYER, *EDGES, *[(NORM, 400, 200.0)] * 4], [*LAYER, *EDGES], False,
            id="more launches of a kernel that they launch",
        ),
    ],
)  # fmt: skip
def test_a_share_is_told_from_what_is_given_besides(
    tmp_path: Path, late: list[Launch], other: list[Launch], share: bool
) -> None:
    mine, theirs = (
        kernels_of(tmp_path / name, launches) for name, launches in (("late", late), ("o", other))
    )
    assert larger_share([mine], [theirs]) == share
    assert larger_share([mine, mine], [theirs, theirs]) == share

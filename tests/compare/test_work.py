"""Whether two runs do the same work: fixes of one program, and another program."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import msgspec
import pytest
from tests.compare.profiles import kernel, profile
from tests.support.captures import unpack

from stepscope.api import Job
from stepscope.compare.budgets import Rules
from stepscope.compare.comparison import compare
from stepscope.compare.gate import gate
from stepscope.compare.profile import KernelUse, Profile
from stepscope.compare.result import SetupDifference
from stepscope.compare.trend import trend
from stepscope.compare.work import does_other_work, work_of
from stepscope.render.compare import compare_text
from stepscope.render.gate import gate_text
from stepscope.trace.errors import UsageError

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
SLOW, FAST = (9_000_000,) * 40, (4_000_000,) * 40


def kernels(prefix: str, products: float, category: str = "matmul") -> list[KernelUse]:
    """Products and pointwise kernels with names of their own."""
    return [
        kernel(f"{prefix}_product", 3000.0, calls=products, category=category),
        kernel(f"{prefix}_add", 1000.0, calls=products, category="elementwise"),
    ]


GPT = profile(SLOW, kernels=kernels("gpt", 100.0))
"""Of 100 GEMMs and as many sums."""


@pytest.mark.parametrize(
    ("after", "judged"),
    [
        # a quarter of the time keeps its names, and there are no GEMMs any more
        ([*kernels("gpt", 0.0)[1:], *kernels("cnn", 24.0, "convolution")], "other"),
        # all names are others, with 100 to 81 and to 79 GEMMs, and to 49
        (kernels("bf16", 81.0), "same"),
        (kernels("bf16", 79.0), "doubtful"),
        (kernels("mlp", 49.0), "other"),
        # three times the layers, or micro-batches
        (kernels("gpt", 300.0), "same"),
        # attention that was written out, in another precision
        (
            [*kernels("bf16", 60.0), kernel("flash", 900.0, calls=24.0, category="attention")],
            "same",
        ),
        # another optimizer, of which most of the time is
        ([*kernels("gpt", 100.0), kernel("adam", 9e5, calls=1.0, category="optimizer")], "same"),
        # communication is no work
        ([*kernels("gpt", 100.0), kernel("nccl", 9e5, category="communication")], "same"),
    ],
)
def test_names_and_products_tell_another_program(after: list[KernelUse], judged: str) -> None:
    for pair in ((GPT, profile(FAST, kernels=after)), (profile(FAST, kernels=after), GPT)):
        work = work_of(*pair)
        assert work is not None
        assert work.judged == judged


@pytest.mark.parametrize(
    "after",
    [
        profile(FAST, kernels=[kernel("graph", 9e5, category="graph")]),
        profile(FAST, kernels=[kernel("triton", 9e5, category="compiled"), *kernels("new", 3.0)]),
        profile(FAST),
    ],
)
def test_what_kernels_hide_is_not_judged(after: Profile) -> None:
    assert work_of(GPT, after) is None
    assert compare([GPT], [after]).verdict == "faster"


def test_runs_that_are_fed_alike_are_of_one_program() -> None:
    fed = {"copied_bytes_per_step": 65_536.0}
    sides = [
        profile(SLOW, kernels=GPT.kernels, figures=fed),
        profile(FAST, kernels=kernels("cnn", 24.0, "convolution"), figures=fed),
    ]
    assert work_of(*sides) is None


CNN = profile(FAST, kernels=kernels("cnn", 24.0, "convolution"))


def test_another_program_is_neither_faster_nor_slower() -> None:
    for sides in ((GPT, CNN), (CNN, GPT)):
        found = compare([sides[0]], [sides[1]])
        assert (found.verdict, found.causes, found.predictions) == ("not_comparable", [], [])
        assert found.message.startswith("Not comparable, the runs do different work: kernels whose")
        assert [(item.name, item.sure) for item in found.setup] == [("work", True)]
        text = compare_text(found)
        assert text.count("different work") == 1
        assert "Kernels that changed" not in text
    told = compare([GPT], [CNN]).message
    assert "take 0 % of the kernel time before and 0 % after" in told
    assert (
        "100 GEMMs and attention kernels before and 0 after, 0 convolutions before and 24" in told
    )


def test_what_may_be_another_program_says_so_before_the_verdict() -> None:
    found = compare([GPT], [profile(FAST, kernels=kernels("bf16", 70.0))])
    assert found.verdict == "faster"
    assert [(item.name, item.sure) for item in found.setup] == [("work", False)]
    assert found.message.startswith("Perhaps different work: kernels whose names occur in both")
    assert ". If they do the same: Faster: the step is 2.3 times as fast" in found.message


def test_another_program_is_known_by_a_field_not_by_its_sentence() -> None:
    stated = SetupDifference("work", "", "", "confounds", "another sentence")
    assert does_other_work([stated])
    assert not does_other_work([msgspec.structs.replace(stated, sure=False)])
    assert not does_other_work([msgspec.structs.replace(stated, name="gpu")])


def test_a_trend_names_what_is_another_program() -> None:
    found = trend([GPT, CNN])
    assert [row.since_first for row in found.rows] == ["no_difference", "not_comparable"]
    assert sum("different work" in warning for warning in found.warnings) == 1


def test_a_baseline_of_another_program_cannot_judge() -> None:
    found = gate([GPT], [CNN], Rules(), lambda _: 0.0)
    assert (found.passed, found.causes, found.kernels) == (True, [], [])
    (check,) = found.checks
    assert check.status == "cannot_tell"
    assert "no baseline for this run, which does different work" in check.message
    assert gate_text(found).startswith("Nothing failed, 1 cannot be told; the step takes 9.0 ms")
    # what is asked of the run alone still fails
    found = gate([GPT], [CNN], Rules(limits={"step_ms": 5.0}), lambda _: 0.0)
    assert not found.passed


def test_captures_of_one_side_are_of_one_program() -> None:
    for judge in (
        lambda: compare([GPT, CNN], [GPT]),
        lambda: compare([GPT], [GPT, CNN]),
        lambda: gate([GPT, CNN], [], Rules(limits={"step_ms": 9.0}), lambda _: 0.0),
    ):
        with pytest.raises(UsageError, match="as runs of the same code, and do different work"):
            judge()


def profiles(*names: str) -> dict[str, Profile]:
    return {name: Job([unpack(CAPTURES / name)]).profile() for name in names}


def test_faults_and_fixes_of_one_program_are_one_program() -> None:
    runs = profiles(
        "nsys/gpt1024_healthy.sqlite.xz",
        "nsys/gpt1024_fp32_no_tf32.sqlite.xz",  # another batch, too
        "nsys/gpt1024_unfused_optimizer.sqlite.xz",
        "kineto/gpt1024_unfused_attention.json.xz",
    )
    for (name, a), (other, b) in combinations(runs.items(), 2):
        work = work_of(a, b)
        assert work is None or work.judged == "same", (name, other, work)


def test_models_of_other_kinds_are_other_programs() -> None:
    runs = profiles(
        "nsys/gpt1024_healthy.sqlite.xz", "nsys/cnn_small.sqlite.xz", "nsys/lstm_tiny.sqlite.xz"
    )
    for (name, a), (other, b) in combinations(runs.items(), 2):
        work = work_of(a, b)
        assert work is not None, (name, other)
        assert work.judged != "same", (name, other, work)

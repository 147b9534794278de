"""Settings against programs whose answer is known by hand, and against measured pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from tests.diagnosis.test_kernel_causes import BF16, FP32, STEPS, Steps, elementwise
from tests.support.captures import unpack
from tests.support.pipeline import gpipe, played, step_us
from tests.support.programs import Item, mark, naive_bounds, program, programs, wait

from stepscope.api import Job
from stepscope.api.explained import changes_of
from stepscope.kernels.ceilings import peaks_of
from stepscope.simulation.engine import replay
from stepscope.simulation.program import Program
from stepscope.simulation.settings import autocast, precision
from stepscope.simulation.settings.accumulate import repeated
from stepscope.simulation.settings.base import Facts, setting_of, settings, steps_of
from stepscope.simulation.settings.graphs import GRAPH_LAUNCH_NS, graphed
from stepscope.simulation.settings.items import arranged
from stepscope.simulation.settings.links import Link, by_datasheet, fit
from stepscope.simulation.settings.micro_batches import Stage, schedule
from stepscope.simulation.settings.reduction import Bucket, Ready, buckets, regrouped
from stepscope.simulation.settings.workers import fed
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError

PAIRS = Path(__file__).parents[1] / "data" / "levers"
LINK = Link(10, 2.0, "", measured=True)  # 10 ns, and 2 bytes a ns


def subject(made: Program) -> Subject:
    """A program whose operations are no copies."""
    ops = _NoCopies(int(made.op.max(initial=-1)) + 1)
    return Subject(0, cast("Any", SimpleNamespace(ops=ops)), made)


class _NoCopies:
    """So many operations that are kernels, and move no bytes by themselves."""

    def __init__(self, count: int) -> None:
        self._count = count

    def equals(self, *_: str) -> np.ndarray:
        return np.zeros(self._count, bool)

    def __getitem__(self, column: str) -> np.ndarray:
        return np.zeros(self._count, np.int64)


def step_ns(*subjects: Subject) -> float:
    return max(r.step_ns for r in replay([s.program for s in subjects], 8))


def unbound(random: Program) -> Program:
    """Without the launch queue, which random programs do not have one depth of."""
    return replace(random, behind=np.full(len(random), -2 * len(random)))


@examples(max_examples=30, deadline=None)
@given(programs(largest=10))
def test_the_same_items_are_the_same_program(drawn: Program) -> None:
    random = unbound(drawn)
    same = arranged(subject(random), np.arange(len(random))).program
    assert naive_bounds(same, 2) == naive_bounds(random, 2)


@examples(max_examples=30, deadline=None)
@given(programs(largest=8))
def test_two_steps_written_out_are_two_passes(drawn: Program) -> None:
    random = unbound(drawn)
    twice = arranged(subject(random), np.tile(np.arange(len(random)), 2), stride=100).program
    # what the host does after the last item stands before the first: of a copy as well
    assert naive_bounds(twice, 1)[:-1] == naive_bounds(random, 2)[:-1]


def test_the_launch_queue_keeps_its_depth() -> None:
    ops = [Item(call=1, latency=1, duration=100, behind=2) for _ in range(6)]
    one = subject(program([mark(), *ops]))
    behind = np.array([-14, -1, 0, 1, 2, 3, 4])
    behind[1:3] = [5 - 7, 6 - 7]
    one = one.becomes(behind=behind)
    after = arranged(one, np.array([0, 1, 2, 3, 4, 5, 6, 1, 2])).program
    assert after.behind.tolist() == [-18, 7 - 9, 8 - 9, 1, 2, 3, 4, 5, 6]


def test_references_go_to_the_latest_copy() -> None:
    items = [mark(), Item(duration=5), Item(duration=7, stream=1, depends=((1, 3), (-1, 0)))]
    after = arranged(subject(program(items)), np.array([0, 1, 2, 1, 2])).program
    assert after.depends == {2: ((1, 3), (-1, 0)), 4: ((3, 3), (2, 0))}
    gone = arranged(subject(program(items)), np.array([0, 2])).program
    assert gone.depends == {1: ((-1, 0),)}
    instead = arranged(subject(program(items)), np.array([0, 2]), instead={1: 2}).program
    assert instead.depends == {1: ((-1, 3), (-1, 0))}


def facts_of(phases: list[str], parameters: int = 0, tensors: int = 0) -> Facts:
    """Facts of a device whose operations are all compute, in the phases given one by one."""
    mask = {p: np.array([q == p for q in phases]) for p in ("forward", "backward", "optimizer")}
    n = len(phases)
    gpu = SimpleNamespace(
        is_compute=np.ones(n, bool),
        is_communication=np.array([p == "all_reduce" for p in phases]),
        ops=_Named(np.arange(n), ["ncclDevKernel_AllReduce_Sum_f32" if p == "all_reduce" else "k"
                                  for p in phases]),
    )  # fmt: skip
    mask["backward"] |= gpu.is_communication
    kernels = SimpleNamespace(gpu=gpu, in_phase=mask.__getitem__, attainable_bandwidth=4e9)
    known = SimpleNamespace(count=parameters, tensors=tensors)
    made = SimpleNamespace(
        rank=0, kernels=kernels, gpu=gpu, parameters=known, bandwidth=4.0, explanation=None
    )
    return cast("Facts", made)


class _Named:
    """Operations with names."""

    def __init__(self, codes: np.ndarray, names: list[str]) -> None:
        self.texts, self._codes = {"name": names}, codes

    def __getitem__(self, column: str) -> np.ndarray:
        return self._codes


def test_bf16_is_refused_where_tensor_cores_multiply_fp16_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = facts_of(["forward"])
    kernels = cast("Any", facts.kernels)
    kernels.steady, kernels.peaks = np.ones(1, bool), peaks_of("Tesla V100-SXM2-32GB")
    kernels.device = ("Tesla V100-SXM2-32GB",)
    single = (np.ones(1, bool), np.zeros(1, np.int64))
    monkeypatch.setattr(precision, "products", lambda facts, target: single)
    with pytest.raises(UsageError, match="do not multiply BF16; those of Volta and Turing"):
        precision.lengths(facts, "bf16")
    with pytest.raises(UsageError, match=r"do not multiply TF32$"):
        precision.lengths(facts, "tf32")


def test_in_bf16_what_lies_between_products_of_that_type_already_stays(tmp_path: Path) -> None:
    """A layer in FP32, and one in BF16: of the kernels between them the half is halved."""
    steps = Steps()
    light = elementwise("gelu")
    for number in range(STEPS):
        work = [(FP32, 200.0), (light, 100.0), (FP32, 200.0), (light, 80.0), (BF16, 50.0)]
        steps.step(number, ("forward", [*work, (light, 60.0), (BF16, 50.0), (light, 40.0)]))
    _, job = steps.diagnose(tmp_path)
    facts = job.explained.simulation.facts[0]
    new = precision.lengths(facts, "bf16")[facts.kernels.steady]
    usual = autocast.FUNCTIONS[1]
    half = (1 + usual) / 2
    gelus = new[facts.kernels.in_category("elementwise")[facts.kernels.steady]].reshape(-1, 4)
    assert gelus[0].tolist() == [100_000 * usual, 80_000 * half, 60_000, 40_000 * half]


def test_accumulation_repeats_what_comes_before_the_update() -> None:
    # forward 20, backward 30, all-reduce 50 behind it on its own stream, update 10 after that
    items = [
        mark(),
        Item(duration=20),
        Item(duration=30),
        Item(duration=50, stream=1, depends=((2, 0),), instance=4),
        Item(duration=10, depends=((3, 0),)),
    ]
    one = subject(program(items))
    facts = facts_of(["forward", "backward", "all_reduce", "optimizer"])
    assert step_ns(one) == 20 + 30 + 50 + 10
    assert step_ns(repeated(one, facts, 3, 10)) == 3 * (20 + 30) + 50 + 10
    # sums of gradients: 12 bytes each at 4 bytes a ns, from the second batch on
    summed = repeated(one, facts_of(["forward", "backward", "all_reduce", "optimizer"], 8), 3, 10)
    assert step_ns(summed) == 3 * (20 + 30) + 2 * 8 * 12 / 4 + 50 + 10
    assert steps_of(summed).max() == 0
    with pytest.raises(UsageError, match="where the backward pass of rank 0 ends"):
        repeated(one, facts_of(["forward", "forward", "forward", "optimizer"]), 2, 10)


def test_graphs_launch_once_between_waits() -> None:
    items = [mark(), *[Item(work=900, call=100, latency=0, duration=200)] * 3, wait(3)]
    items += [Item(work=900, call=100, duration=200)] * 2
    one = subject(program(items))
    # five launches; the third kernel starts with its call and ends 100 ns after it, waited for
    assert step_ns(one) == 5 * 1000 + 100
    # a graph of n kernels of 1000 ns a launch costs no more than they did
    after = graphed(one, "expected")
    assert after.program.call_ns.tolist() == [0, 3000, 0, 0, 0, 2000, 0]
    slow = subject(program([mark(), *[Item(call=30_000, duration=10)] * 4]))
    assert graphed(slow, "expected").program.call_ns.sum() == GRAPH_LAUNCH_NS
    assert step_ns(graphed(slow, "expected")) == GRAPH_LAUNCH_NS


@pytest.mark.parametrize(("period", "expected"), [(0, 100), (80, 100), (100, 100), (250, 250)])
def test_a_loader_brings_a_batch_each_period(period: int, expected: int) -> None:
    items = [mark(), Item(work=300, cause="input_starvation", duration=100), Item(work=5)]
    items = [*items, mark(), Item(work=300, cause="input_starvation", duration=100), Item(work=5)]
    one = subject(program(items))
    assert step_ns(one) == 305
    assert step_ns(fed(one, period)) == pytest.approx(expected, abs=1)


def test_buckets_close_with_the_gradient_that_reaches_the_limit() -> None:
    ready = Ready(np.arange(1, 7), np.array([4, 4, 4, 10, 1, 1]), np.full(6, -1))
    step = np.zeros(8, np.int64)
    assert [(b.item, b.bytes) for b in buckets(ready, step, 8, 8)] == [(2, 8), (4, 14), (6, 2)]
    assert [(b.item, b.bytes) for b in buckets(ready, step, 8, 1)] == [
        *((1, 4), (3, 8), (4, 10), (6, 2)),
    ]
    # a step begins with a bucket of its own
    step[4:] = 1
    assert [(b.item, b.bytes) for b in buckets(ready, step, 100, 1)] == [
        *((1, 4), (3, 8), (4, 10), (6, 2)),
    ]


def test_all_reduces_are_grouped_otherwise() -> None:
    # two kernels of the backward pass, each followed by an all-reduce of 40 bytes: 10 + 40/2 ns
    def ranks(name: int) -> Subject:
        reduces = [
            Item(duration=30, stream=1, depends=((at, 0),), instance=10 * at + name)
            for at in (1, 3)
        ]
        items = [mark(), Item(duration=50), reduces[0], Item(duration=50), reduces[1]]
        return subject(program([*items, Item(duration=5, depends=((4, 0),))]))

    one = ranks(0)
    assert step_ns(one) == 50 + 50 + 30 + 5
    captured = np.array([2, 4])
    # together, when the last is ready: 10 + 80/2 ns
    merged, earlier = regrouped(one, captured, [Bucket(4, 80, 4)], LINK, 2)
    assert step_ns(merged) == 50 + 50 + 50 + 5
    assert len(earlier) == 0
    # in four pieces, each when the kernel before it is done; the last two follow one another
    pieces = [Bucket(1, 20, 2), Bucket(2, 20, 2), Bucket(3, 20, 4), Bucket(4, 20, 4)]
    split, earlier = regrouped(one, captured, pieces, LINK, 2)
    assert step_ns(split) == 50 + 50 + 2 * 20 + 5
    assert len(earlier) == 2
    # the same ids on every rank: the later one is waited for
    late = ranks(0)
    work = late.program.work_ns.copy()
    work[1] += 70
    late = late.becomes(work_ns=work)
    both = [regrouped(s, captured, [Bucket(4, 80, 4)], LINK, 2)[0] for s in (one, late)]
    assert step_ns(*both) == step_ns(both[1])


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_pipeline_has_its_bubble(stages: int, count: int) -> None:
    # equal stages: every micro-batch, and one for each further stage to fill and drain
    made = schedule([Stage(100, 200, 0, 0, 50, 0)] * stages, count)
    passes = replay(made, 4)
    assert max(r.step_ns for r in passes) == (count + stages - 1) * 300 + 50
    assert max(r.step_ns for r in replay(schedule([Stage(100, 200, 0, 0, 50, 0)], 4, 2.0))) == 2500
    # a host that needs longer than its kernels sets the pace
    slow = schedule([Stage(100, 200, 400, 400, 0, 0)] * stages, count)
    assert max(r.step_ns for r in replay(slow, 4)) >= count * 800


@pytest.mark.parametrize(("now", "then", "within"), [(4, 4, 0.002), (4, 8, 0.06), (8, 4, 0.06)])
def test_a_pipeline_is_cut_otherwise(now: int, then: int, within: float, tmp_path: Path) -> None:
    # all forward, then all backward, messages that take time: another schedule than the model's
    job = played(tmp_path, gpipe(4, now, lambda _: 1000.0), ahead=True)
    truth_us = step_us(gpipe(4, then, lambda _: 1000.0 * now / then))
    found = job.whatif([f"micro_batches={now}:{then}"])
    assert found.predicted_step_ns / 1e3 == pytest.approx(truth_us, rel=within)
    assert found.validity == "extrapolated"


def test_a_pipeline_has_a_message_for_each_micro_batch(tmp_path: Path) -> None:
    # the first stage sends four micro-batches on, and gets four gradients
    job = played(tmp_path, gpipe(4, 4, lambda _: 1000.0), ahead=True)
    with pytest.raises(UsageError, match=r"rank 0 has 8 messages .* too few for 9 micro-batches"):
        job.whatif(["micro_batches=9:16"])


def test_a_link_is_fitted_through_its_messages() -> None:
    size = np.array([1 << 20, 1 << 20, 1 << 24, 1 << 24, 1 << 26])
    link = Link(5_000, 250.0, "", measured=True)
    time = np.array([link.all_reduce_ns(s, 4) for s in size.tolist()]).astype(np.int64)
    found = fit(size, time, 4)
    assert found is not None
    assert found.latency_ns == pytest.approx(5_000, rel=0.01)
    assert found.bus_bytes_a_ns == pytest.approx(250.0, rel=0.01)
    # 2 (n - 1) / n of the bytes go over the bus
    assert link.all_reduce_ns(1e9, 4) == 5_000 + 1.5 * 1e9 / 250
    assert link.all_reduce_ns(1e9, 1) == 0
    assert by_datasheet("NVIDIA H200").bus_bytes_a_ns == pytest.approx(0.85 * 450)
    assert by_datasheet("NVIDIA L4").bus_bytes_a_ns == 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch=2x", "2 times the batch"),
        ("batch=16:24", "a batch of 24 instead of 16"),
        ("workers=4:8", "8 DataLoader workers instead of 4"),
        ("precision=bf16", "autocast to BF16 for GEMMs, convolutions and attention"),
        ("ranks=4", "4 ranks with the captured batch each"),
        ("bucket=100", "gradients in buckets of 100 MiB (bucket_cap_mb)"),
        ("accumulate=4", "gradients of 4 batches accumulated for each update"),
    ],
)
def test_settings_are_read(text: str, words: str) -> None:
    assert setting_of(text).text == words


@pytest.mark.parametrize("name", settings())
def test_every_setting_reads_its_example(name: str) -> None:
    one = settings()[name]
    assert setting_of(f"{name}={one.example}").text
    for bad in ("", "tea", "-1", "0", "nan", "1e9"):
        with pytest.raises(UsageError, match=rf"is not {name}=|from .* can be tried, not"):
            setting_of(f"{name}={bad}")


def test_a_bucket_size_goes_to_the_ranks_that_are_put_in() -> None:
    (both,) = changes_of(settings=["bucket=50", "ranks=4"])
    assert getattr(both, "text", "") == "4 ranks with the captured batch each, buckets of 50 MiB"
    with pytest.raises(UsageError, match="batch is set twice"):
        changes_of(settings=["batch=2x", "batch=4x"])


@pytest.mark.parametrize(
    ("pair", "sets", "measured_ms", "within"),
    [
        # untraced steps (H100, benchmarks/levers.py), with launches free: the traced host was slow
        ("bf16", ["graphs=on"], 30.883, 0.02),
        ("bf16", ["precision=bf16", "graphs=on"], 16.998, 0.05),
        ("optimizer", ["graphs=on"], 23.969, 0.03),
        ("optimizer", ["optimizer=fused", "graphs=on"], 21.393, 0.03),
    ],
)
def test_measured_pairs_are_predicted(
    pair: str, sets: list[str], measured_ms: float, within: float
) -> None:
    found = Job([unpack(PAIRS / f"{pair}.json.xz")]).whatif(sets)
    assert found.unrecorded_step_ns is not None
    assert found.unrecorded_step_ns[1] / 1e6 == pytest.approx(measured_ms, rel=within)
    assert found.validity == "modelled"
    assert len(found.assumptions) == len(sets) + ("precision=bf16" in sets)
    assert [one.change for one in found.alone] == (found.changes if len(sets) > 1 else [])


def test_ranks_of_a_job_reduce_as_captured() -> None:
    folder = PAIRS.parent / "ranks"
    job = Job([unpack(folder / f"ddp_imbalance.rank{n}.sqlite.xz") for n in (0, 1)])
    same = job.whatif(["ranks=2"])
    assert same.predicted_step_ns == pytest.approx(same.measured_step_ns, rel=1e-3)
    assert (same.samples_factor, same.validity) == (1.0, "at least")
    more = job.whatif(["ranks=64"])
    assert (more.samples_factor, more.validity) == (32.0, "extrapolated")
    assert more.predicted_step_ns >= same.predicted_step_ns
    for text, refused in (
        ("bucket=100", "does not tell the sizes of all-reduces"),
        ("micro_batches=4:8", "rank 0 sends nothing to a neighbour"),
    ):
        with pytest.raises(UsageError, match=refused):
            job.whatif([text])

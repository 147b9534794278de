"""Functions that are written out, by hand: what is found, and what the library takes instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.kernels.test_merging import (
    COLUMNS,
    CONCATENATED,
    GEMM,
    STEPS,
    SUM,
    Device,
    pointwise,
)
from tests.support.build import AUTOGRAD, MAIN

from stepscope.kernels.written_out import WrittenOut, _norm_ns, written_out

MUL, ADD, DIV = (pointwise(name, 3) for name in ("mul", "add", "div"))
SCALE, POW, EXP, LOG = (pointwise(name, 2) for name in ("mul", "pow_tensor_scalar", "exp", "log"))
SIGMOID, TANH, ROOT = (pointwise(name, 2) for name in ("sigmoid", "tanh", "rsqrt"))
SIGMOID_BACK, TANH_BACK = (pointwise(f"{name}_backward", 3) for name in ("sigmoid", "tanh"))
LARGEST = SUM.replace("<float>", "<at::native::MaxNanFunctor<float> >")
LESS, CLAMP, COMPARE = (pointwise(name, 2) for name in ("add", "clamp_scalar", "compare_scalar"))
COSINE, NEG = pointwise("cos", 2), pointwise("neg", 2)
WHERE, FILL = pointwise("where", 3), pointwise("Fill", 1)
WIDEN, NARROW = pointwise("direct_copy", 2), pointwise("bfloat16_copy", 2)
DRAW = (
    "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, "
    "at::native::templates::cuda::{}<float> >(long)"
)
NORMAL = DRAW.format("normal_and_transform")
DRAW, BERNOULLI = (DRAW.format(name) for name in ("uniform_and_transform", "bernoulli_kernel"))
SILU_BACK = [MUL, MUL, SIGMOID_BACK, ADD]


def found(
    folder: Path, forward: list[str], backward: list[str], blocks: dict[str, int] | None = None
) -> tuple[WrittenOut | None, int]:
    """What is found in steps of a GEMM and a run, forward and backward; and the steady steps.

    Args:
        folder: where the trace is written.
        forward: names of kernels.
        backward: those of the backward pass.
        blocks: of a kernel's launch by its name, where these are not 1000.
    """
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for names, thread in ((forward, MAIN), (backward, AUTOGRAD)):
            device.kernel(GEMM, thread=thread)
            device.kernel(GEMM, thread=thread)
            for name in names:
                device.kernel(name, thread=thread, blocks=(blocks or {}).get(name, 1000))
        device.build.range(begin, device.at, f"step_{number}")
    kernels = device.kernels(folder)
    none = np.zeros(len(kernels.gpu.ops), bool)
    return written_out(kernels, none), kernels.n_steady


@pytest.mark.parametrize(
    ("forward", "backward", "name", "passes"),
    [
        # 200 us for five tensors, 400 us for twelve: two passes of the former, three of the latter
        pytest.param([SIGMOID, MUL], SILU_BACK, "silu", [(200, 5, 2), (400, 12, 3)], id="silu"),
        pytest.param(
            [SIGMOID, MUL],
            [MUL, MUL, SIGMOID_BACK, CONCATENATED],
            "glu",
            [(200, 5, 3), (300, 9, 5)],  # the name of what puts them side by side tells nothing
            id="glu of two chunks",
        ),
        pytest.param(
            [POW, SCALE, ADD, SCALE, TANH, pointwise("add", 2), MUL],
            [TANH_BACK, SCALE, MUL, ADD],
            "gelu",
            [(700, 16, 2), (400, 11, 3)],
            id="gelu by its tanh",
        ),
        pytest.param(
            [SCALE, EXP, pointwise("add", 2), LOG, SCALE],
            [SCALE, DIV, MUL, SCALE],
            "softplus",
            [(500, 10, 2), (400, 10, 3)],
            id="softplus",
        ),
        pytest.param(
            [pointwise("add", 2), pointwise("clamp_scalar", 2), MUL, SCALE],
            [SCALE, MUL, MUL, pointwise("hardtanh_backward", 3), ADD],
            "hardswish",
            [(400, 9, 2), (500, 14, 3)],
            id="hardswish",
        ),
        pytest.param(
            [pointwise("softplus", 2), TANH, MUL],
            [MUL, MUL, TANH_BACK, pointwise("softplus_backward", 3), ADD],
            "mish",
            [(300, 7, 2), (500, 15, 3)],
            id="mish",
        ),
        pytest.param(
            [EXP, pointwise("add", 2), LOG, TANH, MUL],
            [MUL, MUL, TANH_BACK, DIV, MUL, ADD],
            "mish",
            [(500, 11, 2), (600, 18, 3)],
            id="mish by exponentials",
        ),
        pytest.param(
            [COMPARE, EXP, LESS, SCALE, WHERE, SCALE],
            [SCALE, FILL, WHERE, FILL, WHERE, SCALE, MUL, ADD],
            "selu/elu",
            # a number is filled in as quickly as a tensor here, and its name tells one pass
            [(600, 13, 2), (800, 18, 3)],
            id="selu by where",
        ),
        pytest.param(
            [COMPARE, CLAMP, EXP, LESS, SCALE, WHERE],
            [FILL, WHERE, FILL, WHERE, SCALE, MUL, FILL, COMPARE, WHERE, ADD],
            "selu/elu",
            [(600, 13, 2), (1000, 22, 3)],
            id="elu by where of what is limited",
        ),
        pytest.param(
            [CLAMP, EXP, LESS, SCALE, CLAMP, ADD],
            [COMPARE, WHERE, MUL, SCALE, FILL, COMPARE, WHERE, ADD],
            "selu/elu",
            [(600, 13, 2), (800, 19, 3)],
            id="elu by clamp",
        ),
        pytest.param(
            [COMPARE, SCALE, WHERE],
            [FILL, WHERE, FILL, WHERE, SCALE, ADD],
            "leaky_relu",
            [(300, 7, 2), (600, 13, 3)],
            id="leaky relu by where",
        ),
        pytest.param(
            [CLAMP, CLAMP, SCALE, ADD],
            [SCALE, FILL, COMPARE, WHERE, FILL, COMPARE, WHERE, ADD],
            "leaky_relu",
            [(400, 9, 2), (800, 17, 3)],
            id="leaky relu by clamp",
        ),
        pytest.param(
            [CLAMP, CLAMP, MUL, ADD],
            [MUL, MUL, SUM, FILL, COMPARE, WHERE, FILL, COMPARE, WHERE, ADD],
            "prelu",
            [(400, 10, 4), (900, 21, 7.5)],  # the sum's name tells no pass
            id="prelu",
        ),
        pytest.param(
            [pointwise("sign", 2), pointwise("abs", 2), LESS, CLAMP, MUL],
            [MUL, MUL, pointwise("threshold", 3), pointwise("sign", 2), MUL, FILL, ADD],
            "softshrink",
            [(500, 11, 2), (700, 18, 3)],
            id="soft shrinkage",
        ),
        pytest.param(
            [pointwise("abs", 2), COMPARE, LESS, POW, SCALE, WHERE],
            [WHERE, FILL, WHERE, SCALE, SCALE, MUL, pointwise("sign", 2), MUL, ADD],
            "smooth_l1_loss/huber_loss",
            [(600, 13, 2.5), (900, 22, 4.4)],
            id="huber by where",
        ),
        pytest.param(
            [DRAW, COMPARE, WIDEN, MUL, SCALE],
            [SCALE, MUL],
            "dropout",
            [(400, 9, 2.7), (200, 5, 2.4)],  # the name of what draws tells no pass
            id="dropout",
        ),
        pytest.param(
            [BERNOULLI, MUL, SCALE],
            [SCALE, MUL],
            "dropout",
            [(200, 5, 2.7), (200, 5, 2.4)],
            id="dropout by bernoulli",
        ),
        pytest.param(
            [LARGEST, ADD, EXP, SUM, LOG, ADD],
            [],
            "log_softmax",
            [(400, 10, 2.6)],
            id="log_softmax",
        ),
        pytest.param(
            [LARGEST, ADD, EXP, SUM, LOG, ADD, MUL, COSINE],  # the last two are other ones
            [MUL, COSINE, NEG, SUM, DIV, MUL, ADD],
            "log_softmax",
            [(400, 10, 2.6), (400, 11, 3.1)],
            id="log_softmax and its gradient",
        ),
    ],
)
def test_passes_of_the_library(
    tmp_path: Path,
    forward: list[str],
    backward: list[str],
    name: str,
    passes: list[tuple[int, int, float]],
) -> None:
    result, steps = found(tmp_path, forward, backward)
    assert result is not None
    assert result.names == (name,)
    # kernels without a number of tensors in their name tell nothing of a pass
    expected = sum(us / tensors * count for us, tensors, count in passes)
    repair = result.repair
    assert repair.new_ns.sum() / steps == pytest.approx(expected * 1000, rel=0.01)
    others = 4 if COSINE in forward else 0
    assert len(repair.rows) == (len(forward) + len(backward) - others) * steps
    assert (~repair.merged).sum() == steps * (2 if backward else 1)
    assert repair.low_ns <= repair.new_ns.sum() <= repair.high_ns
    assert (np.diff(repair.rows) > 0).all()


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        pytest.param([SIGMOID, MUL], [MUL, MUL, SIGMOID_BACK], id="a gate of another tensor"),
        pytest.param([SIGMOID, MUL], [], id="inference does not tell silu from a gate"),
        pytest.param([EXP, SUM, LOG, ADD], [], id="a sum of exponentials"),
        pytest.param([SUM, pointwise("clamp", 2), DIV], [], id="normalize, which is the library's"),
        pytest.param([MUL, ADD, SCALE], [SCALE, DIV, MUL], id="gradients of something else"),
        pytest.param([NORMAL, SCALE, MUL], [SCALE, MUL], id="noise that is scaled"),
    ],
)
def test_what_is_no_such_function(tmp_path: Path, forward: list[str], backward: list[str]) -> None:
    assert found(tmp_path, forward, backward)[0] is None


def test_dropout_has_as_many_gradients_as_calls(tmp_path: Path) -> None:
    """A gate's gradients are two products, too."""
    result, steps = found(tmp_path, [DRAW, COMPARE, MUL, SCALE], [MUL, SCALE, COSINE, DIV, DIV])
    assert result is not None
    assert result.names == ("dropout",)
    assert len(result.repair.rows) == (4 + 2) * steps


@pytest.mark.parametrize(
    ("more", "launched", "gradients"),
    [
        ([], 500, 5),
        ([ADD, pointwise("copy", 2)], 500, 5),
        ([COSINE], 500, 0),
        ([COSINE], 1000, 5),  # as the norm's own sums are
    ],
)
def test_a_norms_gradient_is_what_is_left(
    tmp_path: Path, more: list[str], launched: int, gradients: int
) -> None:
    """Of the backward pass, where nothing else is written out or by a sum that is launched alike.

    A bias's, behind a GEMM, is none of it.
    """
    norm = [SUM, ADD, POW, SUM, pointwise("add", 2), ROOT, MUL, MUL, ADD]
    back = [COLUMNS, MUL, MUL, SCALE, COLUMNS, ADD]
    result, steps = found(tmp_path, [*norm, *more], back, {COLUMNS: launched})
    assert result is not None
    assert result.names == ("layer_norm/group_norm",)
    repair = result.repair
    assert len(repair.rows) == (len(norm) + gradients) * steps
    # 1000 sums of 1024 values: 700 us of the named kernels for 18 tensors, 1.1 us for the rows
    one = 700 / 18
    ahead = 2 * one + 1.1
    behind = (3 + 2) * one + 0.4
    expected = ahead + (behind if gradients else 0)
    assert repair.new_ns.sum() / steps == pytest.approx(expected * 1000, rel=0.01)
    if not gradients:  # where they are is not known, but they go, too
        assert repair.low_ns == 0


@pytest.mark.parametrize(
    "norm",
    [
        [SUM, ADD, POW, SUM, LESS, ROOT, MUL],
        [SUM, SUM, LESS, ADD, ROOT, MUL],  # mean and variance, the difference, the root
        [SUM, SUM, LESS, ROOT, ADD, DIV],  # the difference behind the root
    ],
)
def test_a_norm_by_formula_whatever_comes_first(tmp_path: Path, norm: list[str]) -> None:
    result, steps = found(tmp_path, norm, [])
    assert result is not None
    assert result.names == ("layer_norm/group_norm",)
    assert len(result.repair.rows) == len(norm) * steps


@pytest.mark.parametrize(
    ("sums", "roots", "cast", "name", "passes"),
    [
        (COLUMNS, 1, False, "batch_norm", 3 + 5),
        (COLUMNS, 1, True, "batch_norm", (3 + 5) / 2),  # which autocast leaves in half precision
        (COLUMNS, 4000, False, "layer_norm/group_norm", None),  # of channels that stand apart
        (SUM, 1, False, "layer_norm/group_norm", None),
    ],
)
def test_means_over_the_batch_are_a_batch_norms(
    tmp_path: Path, sums: str, roots: int, cast: bool, name: str, passes: float | None
) -> None:
    norm = [WIDEN] * cast + [sums, ADD, POW, sums, LESS, ROOT, MUL, MUL, ADD] + [NARROW] * cast
    blocks = {ROOT: roots} | dict.fromkeys((MUL, ADD, NARROW), 4000)
    result, steps = found(tmp_path, norm, [sums, MUL, MUL, SCALE, ADD], blocks)
    assert result is not None
    assert result.names == (name,)
    if passes:
        one = 700 / 18
        assert result.repair.new_ns.sum() / steps == pytest.approx(passes * one * 1000, rel=0.03)


@pytest.mark.parametrize(
    ("layer", "gradient", "told"),
    [
        ("gelu", "GeluBackward", True),
        ("clamp_scalar", "threshold", True),  # ReLU
        ("gelu", "mul", False),
        ("cos", "GeluBackward", False),
    ],
)
def test_layers_with_a_gradient_of_their_own_hide_no_norms(
    tmp_path: Path, layer: str, gradient: str, told: bool
) -> None:
    norm = [SUM, ADD, POW, SUM, pointwise("add", 2), ROOT, MUL, MUL, ADD]
    back = [pointwise(gradient, 3), MUL, MUL, SCALE, ADD]
    result, steps = found(tmp_path, [*norm, pointwise(layer, 2)], back)
    assert result is not None
    assert len(result.repair.rows) == (len(norm) + 4 * told) * steps


@pytest.mark.parametrize(
    ("widened", "cast", "half"),
    [
        ([WIDEN], [NARROW], True),
        ([WIDEN], [NARROW, NARROW], True),  # a weight's as well, of which one is taken
        ([], [NARROW], False),  # behind a norm, whose results are in single precision
        ([WIDEN], [], False),
    ],
)
def test_what_autocast_widens_is_half_as_much_in_the_library(
    tmp_path: Path, widened: list[str], cast: list[str], half: bool
) -> None:
    forward = [COMPARE, *widened, EXP, LESS, SCALE, WHERE, SCALE]
    backward = [SCALE, WHERE, WHERE, SCALE, MUL, ADD]
    whole, _ = found(subfolder(tmp_path, "whole"), forward, backward)
    result, steps = found(subfolder(tmp_path, "cast"), [*forward, *cast], [*widened, *backward])
    assert result is not None
    assert whole is not None
    ratio = result.repair.new_ns.sum() / whole.repair.new_ns.sum()
    assert ratio == pytest.approx(0.5 if half else 1.0, rel=0.03)
    beside = (1 + len(widened)) if half else 0
    assert len(result.repair.rows) == len(whole.repair.rows) + beside * steps


@pytest.mark.parametrize(
    ("casts", "half"),
    [
        ([], True),
        ([NARROW], False),  # of weights: under autocast the library's norm is in single precision
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_norms_of_a_model_in_half_precision_move_half(
    tmp_path: Path, casts: list[str], inside: bool, half: bool
) -> None:
    """The result is cast before it is multiplied by the weight, or behind that."""
    end = [NARROW, MUL] if inside else [MUL, NARROW]
    norm = [POW, SUM, LESS, ROOT, SCALE, *end]
    blocks = {LESS: 1, ROOT: 1}
    whole, _ = found(subfolder(tmp_path, "whole"), [MUL, *norm], [], blocks)
    result, steps = found(subfolder(tmp_path, "cast"), [*casts, MUL, WIDEN, *norm], [], blocks)
    assert result is not None
    assert whole is not None
    assert result.names == ("rms_norm",)
    ratio = result.repair.new_ns.sum() / whole.repair.new_ns.sum()
    assert ratio == pytest.approx(0.5 if half else 1.0, rel=0.05)
    beside = 1 + (not inside) if half else 0  # what widens, and what narrows behind it
    assert len(result.repair.rows) == len(whole.repair.rows) + beside * steps


def test_the_gradient_of_a_root_mean_square_is_no_norm(tmp_path: Path) -> None:
    """It sums and raises to a power, too, but has a value for each row behind that."""
    norm = [POW, SUM, LESS, ROOT, MUL, MUL]
    alone, _ = found(subfolder(tmp_path, "alone"), norm, [], {LESS: 1, ROOT: 1})
    back = [MUL, SUM, POW, DIV, DIV, ADD]
    result, steps = found(subfolder(tmp_path, "both"), norm, back, {LESS: 1, ROOT: 1, DIV: 1})
    assert result is not None
    assert alone is not None
    assert len(result.repair.rows) == (len(norm) + len(back)) * steps
    # the gradient is two kernels in the library, which take no longer than two of these
    expected = alone.repair.new_ns.sum() + 2 * 100_000 * steps
    assert result.repair.new_ns.sum() == pytest.approx(expected, rel=0.05)


def subfolder(place: Path, name: str) -> Path:
    (place / name).mkdir()
    return place / name


# what PyTorch 2.11's kernels took on an H100, us: a pass, forward, backward
MEASURED = [
    ((16, 128, 64, 64), 32, 11.6, 52.5, 82.6),
    ((16, 128, 64, 64), 8, 5.6, 77.5, 71.4),  # bfloat16
    ((1, 32, 96, 96, 96), 8, 37.6, 2913.4, 902.3),
    ((2, 64, 64, 64, 64), 16, 22.3, 952.5, 364.1),  # bfloat16
    ((16384, 1024), 0, 22.5, 57.6, 158.8),
    ((65536, 256), 0, 11.6, 87.8, 337.5),  # bfloat16
    ((8192, 4096), 0, 44.4, 137.0, 316.6),
]


@pytest.mark.parametrize(("shape", "groups", "one", "forward", "backward"), MEASURED)
def test_norms_take_what_was_measured(
    shape: tuple[int, ...], groups: int, one: float, forward: float, backward: float
) -> None:
    elements = float(np.prod(shape))
    means = shape[0] * groups if groups else elements / shape[-1]
    size, rows, pass_ns = (np.array([x]) for x in (elements, float(means), one * 1e3))
    took = _norm_ns(size, rows, pass_ns, np.array([True]), 1.0)
    for found_ns, us in zip(took, (forward, backward), strict=True):
        assert float(found_ns[0]) == pytest.approx(us * 1e3, rel=0.2)

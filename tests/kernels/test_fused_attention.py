"""What fused attention takes for attention that is written out: by sizes, masks and dropout."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kernels.test_merging import (
    GEMM,
    SGEMM,
    SOFTMAX,
    STEPS,
    STRIDED,
    SUM,
    TF32,
    UNALIGNED,
    Device,
    folder,
    pointwise,
)
from tests.support.build import AUTOGRAD

from stepscope.kernels.attention import UnfusedAttention
from stepscope.kernels.fused_attention import (
    BACKWARD_RATE,
    BIASED,
    CAUSAL,
    DROPPED,
    GIVEN,
    MASKED,
    OPERANDS,
    OPERANDS_BANDWIDTH,
    RATES,
    SHARE_DROPPED,
    SHARES,
    SINGLE_RATES,
    SINGLE_SHARES,
    UNMASKED,
)

DROPS = "at::native::fused_dropout_kernel_vec<float>"
SCALED = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::AUnaryFunctor<float, float, "
    "float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int)"
)


def written_out(
    place: Path,
    head: int,
    length: int,
    *,
    gemm: str = GEMM,
    mask: str = "triu_tril",
    softmax: str = SOFTMAX,
    shapes: bool = True,
    of_mask: tuple[str, str] = ("", ""),
    backward: tuple[str, ...] = (),
    before: tuple[str, ...] = (),
    between: tuple[str, ...] = (),
    behind: tuple[str, ...] = (),
) -> UnfusedAttention | None:
    """Attention of 256 heads, each of its kernels 100 us, with a backward pass or without."""
    device = Device()
    scores = f"[[256,{length},{head}],[256,{head},{length}]]"
    values = f"[[256,{length},{length}],[256,{length},{head}]]"
    for number in range(STEPS):
        begin = device.at
        for name in before:
            device.kernel(name)
        if shapes:
            device.operator("aten::bmm", scores)
        device.kernel(gemm)
        if of_mask[0]:
            device.operator(*of_mask)
        device.kernel(pointwise(mask, 2))
        for name in (softmax, *between):
            device.kernel(name)
        if shapes:
            device.operator("aten::bmm", values)
        device.kernel(gemm)
        for name in behind:
            device.kernel(name)
        for name in backward:
            device.kernel(name, thread=AUTOGRAD)
        device.build.range(begin, device.at, f"step_{number}")
    return attention_of(device, place)


def attention_of(device: Device, place: Path) -> UnfusedAttention | None:
    return device.job(place).explained.cases[0].explanation.inside_kernels.attention


OF_FORWARD = (1 + 2.5 / BACKWARD_RATE) / 3.5
CAUSAL_RATES = [2 * rate for rate in RATES[CAUSAL]]  # of all of the arithmetic


def fused_us(head: int, length: int, rate: float, made_up: int = 0) -> float:
    """Two products of the forward pass of 256 heads, at a share of the peak of an H200."""
    blocks = -(-length // 128) * 128
    flop = 2 * 2 * 256 * blocks * blocks * head
    moved = 2 * OPERANDS * 256 * length * (head + (made_up or head)) / 2 * 2
    seconds = flop / (989.5e12 * rate * OF_FORWARD) + moved / (OPERANDS_BANDWIDTH * 4.8e12)
    return seconds * 1e6


def us_per_softmax(found: UnfusedAttention | None) -> float:
    assert found is not None
    return found.repair.new_ns.sum() / found.softmaxes / 1e3


@pytest.mark.parametrize(
    ("head", "length", "mask", "expected"),
    [
        (64, 512, "triu_tril", fused_us(64, 512, CAUSAL_RATES[0])),
        (128, 512, "mul", fused_us(128, 512, RATES[UNMASKED][1])),
        (64, 500, "mul", fused_us(64, 500, RATES[UNMASKED][0])),  # four blocks of 128, too
        (80, 512, "mul", fused_us(80, 512, RATES[UNMASKED][1] * 80 / 128, 128)),
        # causal or read
        (64, 512, "masked_fill", (fused_us(64, 512, CAUSAL_RATES[0])
                                  * fused_us(64, 512, RATES[GIVEN][0])) ** 0.5),
    ],
)  # fmt: skip
def test_fused_attention_by_its_shapes(
    tmp_path: Path, head: int, length: int, mask: str, expected: float
) -> None:
    found = written_out(tmp_path, head, length, mask=mask)
    assert found is not None
    assert found.by_sizes
    assert us_per_softmax(found) == pytest.approx(expected, rel=1e-3)
    assert found.repair.low_ns < found.repair.new_ns.sum() < found.repair.high_ns


@pytest.mark.parametrize(
    ("operator", "shapes", "kind"),
    [
        ("aten::masked_fill", "[[4,64,512,512],[4,1,1,512]]", GIVEN),  # keys of each sample
        ("aten::masked_fill", "[[4,64,512,512],[1,1,512,512]]", CAUSAL),
        ("aten::masked_fill", "[[256,512,512],[512,512]]", CAUSAL),
        ("aten::where", "[[1,1,512,512],[4,64,512,512],[]]", CAUSAL),
        ("aten::add", "[[4,64,512,512],[1,64,512,512]]", GIVEN),  # a slope for each head
        ("aten::add", "[[4,64,512,512],[4,64,512,512]]", GIVEN),
        ("aten::sub", "[[4,64,512,512],[4,64,512,1]]", UNMASKED),  # the largest of each row
    ],
)
def test_the_shape_of_a_mask_tells_whether_it_has_to_be_read(
    tmp_path: Path, operator: str, shapes: str, kind: str
) -> None:
    adds = operator in ("aten::add", "aten::sub")
    mask = "CUDAFunctor_add" if adds else "masked_fill"
    found = written_out(tmp_path, 64, 512, mask=mask, of_mask=(operator, shapes))
    rate = CAUSAL_RATES[0] if kind == CAUSAL else RATES[kind][0]
    assert us_per_softmax(found) == pytest.approx(fused_us(64, 512, rate), rel=1e-3)


@pytest.mark.parametrize(("warps", "length", "by_sizes"), [(4, 512, True), (0, 512, False)])
def test_launches_tell_the_sizes(tmp_path: Path, warps: int, length: int, by_sizes: bool) -> None:
    """A warp for each row, eight scores a thread, four elements of an operand a thread."""
    rows = 256 * length
    device = Device()
    for number in range(STEPS):
        begin = device.at
        for _ in range(2):
            device.kernel(STRIDED, blocks=rows * 64 // 512)
        device.kernel(GEMM)
        device.kernel(SCALED, blocks=rows * length // 1024)
        device.kernel(SOFTMAX, blocks=rows // 4, warps=warps)
        device.kernel(STRIDED, blocks=rows * 64 // 512)
        device.kernel(GEMM)
        device.build.range(begin, device.at, f"step_{number}")
    found = attention_of(device, tmp_path)
    assert found is not None
    assert found.by_sizes == by_sizes
    expected = fused_us(64, 512, RATES[UNMASKED][0]) if by_sizes else 200 * SHARES[UNMASKED][2]
    assert us_per_softmax(found) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("behind", "goes"),
    [
        ([STRIDED, GEMM] * 4, 3),
        ([GEMM, STRIDED, GEMM], 0),  # queries, keys and values have one layer
        ([SCALED, GEMM], 0),
    ],
)
def test_what_lays_out_results_and_gradients_goes_too(
    tmp_path: Path, behind: list[str], goes: int
) -> None:
    """One copy behind the forward pass, and those of three layers behind the backward pass."""
    backward = (GEMM, GEMM, SOFTMAX.replace("forward", "backward"), GEMM, GEMM, *behind)
    counts = []
    for name, copies in (("with", (STRIDED,)), ("without", ())):
        place = folder(tmp_path, name)
        found = written_out(place, 64, 512, shapes=False, before=copies, behind=copies,
                            backward=backward)  # fmt: skip
        assert found is not None
        counts.append(len(found.repair.rows) / (found.softmaxes / 2))
    assert counts[0] - counts[1] == 2 + goes


def test_fused_attention_in_single_precision_does_without_tensor_cores(tmp_path: Path) -> None:
    found = written_out(tmp_path, 64, 128, gemm=SGEMM.format("nn"), mask="mul")
    assert found is not None
    assert found.by_sizes
    expected = 2 * 2 * 256 * 128 * 128 * 64 / (67e12 * SINGLE_RATES[1] * OF_FORWARD) * 1e9
    assert found.repair.new_ns.sum() / found.softmaxes == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("gemm", "mask", "share"),
    [
        (GEMM, "mul", SHARES[UNMASKED][2]),  # 2 to the 9th positions
        (GEMM, "masked_fill", SHARES[MASKED][2]),
        (GEMM, "CUDAFunctor_add", SHARES[MASKED][2]),  # a bias, or a mask of large numbers
        (SGEMM.format("nn"), "triu_tril", SINGLE_SHARES["fp32"][0][CAUSAL]),
    ],
)
def test_fused_attention_as_a_share_of_the_products(
    tmp_path: Path, gemm: str, mask: str, share: float
) -> None:
    found = written_out(tmp_path, 64, 512, gemm=gemm, mask=mask, shapes=False)
    assert found is not None
    assert not found.by_sizes
    assert found.repair.new_ns.sum() / found.softmaxes == pytest.approx(200_000 * share)


@pytest.mark.parametrize("shapes", [True, False])
def test_dropout_of_the_weights_costs_the_fused_kernel(tmp_path: Path, shapes: bool) -> None:
    found = written_out(tmp_path, 64, 512, mask="triu_tril", shapes=shapes, between=(DROPS,))
    dropped = fused_us(64, 512, CAUSAL_RATES[0] / DROPPED)
    share = 200 * SHARES[CAUSAL][2] * SHARE_DROPPED
    assert us_per_softmax(found) == pytest.approx(dropped if shapes else share, rel=1e-3)


def test_a_learnt_bias_may_not_be_taken(tmp_path: Path) -> None:
    """Its gradient is a sum over the batch between the softmax and the products."""
    summed = SUM.replace("ReduceOp<float>", "ReduceOp<float, sum_functor<float> >")
    softmax = SOFTMAX.replace("forward", "backward")
    gradient = (GEMM, GEMM, *[pointwise("mul", 2)] * 10, softmax, summed, GEMM, GEMM)
    found = written_out(tmp_path, 64, 512, mask="CUDAFunctor_add", shapes=False, backward=gradient)
    assert found is not None
    spent = found.repair.old_ns.sum()
    steps = found.softmaxes / 2
    # two products, an addition and a softmax; then four, ten, a softmax and a sum
    assert spent / steps == pytest.approx((4 + 16) * 100_000)
    expected = 6 * 100_000 * SHARES[BIASED][2]
    assert found.biased
    assert found.repair.new_ns.sum() / steps == pytest.approx(expected, rel=1e-3)
    assert found.repair.high_ns >= spent  # nothing may be gained


def test_a_learnt_scale_is_no_learnt_bias(tmp_path: Path) -> None:
    """Its gradient is a sum of products: that of the scores times the scores, after the scale's."""
    summed = SUM.replace("ReduceOp<float>", "ReduceOp<float, sum_functor<float> >")
    product = "at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<MulFunctor> >"
    softmax = SOFTMAX.replace("forward", "backward")

    def found(*between: str) -> UnfusedAttention:
        folder = tmp_path / str(len(between))
        folder.mkdir()
        gradient = (GEMM, GEMM, *[pointwise("mul", 2)] * 10, softmax, *between, GEMM, GEMM)
        one = written_out(folder, 64, 512, mask="mul", shapes=False, backward=gradient)
        assert one is not None
        return one

    assert not found(product, product, summed).biased
    assert found(product, summed).biased  # only scaled
    assert found(summed, product, product, summed).biased  # both


def test_products_of_odd_lengths_take_longer_than_their_fused_kernel(tmp_path: Path) -> None:
    plain, unaligned = (
        written_out(folder(tmp_path, name[:3]), 64, 197, gemm=name, shapes=False)
        for name in (GEMM, UNALIGNED)
    )
    assert plain is not None
    assert unaligned is not None
    assert unaligned.repair.new_ns.sum() < 0.5 * plain.repair.new_ns.sum()


def test_attention_whose_products_are_quicker_than_a_fused_kernel_stays(tmp_path: Path) -> None:
    """Products in TF32 use tensor cores, fused attention in single precision does not."""
    assert written_out(tmp_path, 64, 512, gemm=TF32.format("nn"), shapes=False) is None

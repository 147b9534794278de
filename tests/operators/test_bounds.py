"""What ceilings allow for a kernel: whose work the FLOP of an operator are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.build import Build

from stepscope.breakdown.explain import explain
from stepscope.operators.bounds import kernel_bounds

FLOP = 2 * 512 * 512 * 512
GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_TNT"
COPY = "void at::native::elementwise_kernel<direct_copy_kernel_cuda(at::TensorIteratorBase&)>"


@pytest.mark.parametrize(
    ("names", "shares"),
    [
        ((GEMM, COPY), (1.0, 0.0)),
        ((COPY, GEMM, GEMM), (0.0, 0.25, 0.75)),  # as their times of 20 and 60 us
        (("a_kernel_of_unknown_kind", COPY), (1.0, 0.0)),
        ((COPY, COPY), (0.25, 0.75)),  # something must have done it
    ],
)
def test_flop_of_an_operator_are_those_of_its_products(
    names: tuple[str, ...], shares: tuple[float, ...], tmp_path: Path
) -> None:
    """One product of 512 x 512 matrices a step, by several kernels."""
    build = Build()
    build.gpu("NVIDIA H200")
    lengths = (20, 20, 60)[-len(names) :]
    for step in range(4):
        at = 1_000 * step
        build.range(at, at + 900, f"step_{step}")
        build.operator(
            at + 5, at + 300, "aten::mm", input_shapes="[[512,512],[512,512]]",
            input_types='["c10::BFloat16","c10::BFloat16"]',
        )  # fmt: skip
        begin = at + 50
        for k, (name, length) in enumerate(zip(names, lengths, strict=True)):
            called = at + 10 + 5 * k
            build.kernel(begin, begin + length, call=(called, called + 3), name=name)
            begin += length + 10
    trace = build.trace(tmp_path)
    (e,) = explain(trace.frame, trace.meta)
    bounds = kernel_bounds(e.kernels, trace.frame)
    steady = e.kernels.steady
    assert bounds.flop[steady].sum() == pytest.approx(FLOP * e.n_steady)
    each = bounds.flop[steady].reshape(e.n_steady, len(names))
    assert each == pytest.approx(np.tile(np.array(shares) * FLOP, (e.n_steady, 1)))
    assert (bounds.known[steady].reshape(each.shape) == (each > 0)).all()

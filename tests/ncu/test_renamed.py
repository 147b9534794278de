"""Kernels whose names changed, between two Nsight Compute reports: paired, or left apart."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.cli.command import Stepscope
from tests.support.ncu import Row, bundled, changed, written

from stepscope.ncu.model import Launch
from stepscope.ncu.renamed import renamed

# (before, after) of libraries' kernels for the same product, other versions or shapes
PAIRS = [
    ("ampere_sgemm_128x64_tn", "ampere_sgemm_32x32_sliced1x4_tn"),
    (
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8",
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x3_tn_align8",
    ),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopA_TNT", "nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNT"),
    (
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>, 0>(Flash_fwd_params)",
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64, 256, 4>, 0>(Params)",
    ),
    ("triton_poi_fused_add_gelu_0", "triton_poi_fused_add_gelu_mul_3"),
]


def launch(number: int, name: str, grid: int = 1024, block: int = 256) -> Launch:
    function = name.removeprefix("void ").partition("<")[0].partition("(")[0]
    return Launch(number, name, function, (grid, 1, 1), (block, 1, 1))


def report(names: list[str]) -> dict[str, list[Launch]]:
    found: dict[str, list[Launch]] = {}
    for number, name in enumerate(names):
        found.setdefault(name, []).append(launch(number, name))
    return found


def test_every_kernel_of_a_step_finds_itself() -> None:
    common = [f"void layer_norm_{n}(float*)" for n in range(len(PAIRS) + 1)]
    before, after = [common[0]], [common[0]]
    for (was, now), between in zip(PAIRS, common[1:], strict=True):
        before += [was, between]
        after += [now, between]
    found = renamed(report(before), report(after))
    assert [(one.before, one.after) for one in found] == PAIRS
    for one in found:
        assert 0.6 <= one.confidence < 1
        assert "the same launch shape" in one.evidence
        assert "between the same kernels" in one.evidence
    # the order of the kernels alone decides nothing here
    backwards = renamed(report(before), report(after[::-1]))
    assert {(o.before, o.after) for o in backwards} <= set(PAIRS)
    assert len(backwards) >= 3


def test_kernels_of_no_common_word_stay_apart() -> None:
    before = report(["a_gemm(float*)", "softmax_warp_forward(float*)", "z_norm(float*)"])
    after = report(["a_gemm(float*)", "scatter_gather_index(float*)", "z_norm(float*)"])
    assert renamed(before, after) == []


def test_equally_similar_kernels_stay_apart() -> None:
    # two that could each be the one: nothing tells which
    before = report(["sgemm_128x64_tn"])
    after = report(["sgemm_64x64_tn", "sgemm_32x32_tn"])
    assert renamed(before, after) == []
    # the launch shape tells
    after["sgemm_32x32_tn"] = [launch(1, "sgemm_32x32_tn", grid=8, block=64)]
    (one,) = renamed(before, after)
    assert one.after == "sgemm_64x64_tn"
    assert "other template arguments or tile sizes" in one.evidence


def test_no_kernel_is_paired_twice() -> None:
    chance = random.Random(7)
    words = ["gemm", "relu", "norm", "copy", "add", "tn", "nt", "bf16", "f32"]
    for _ in range(40):
        sides = [
            report([
                "_".join(chance.choices(words, k=3)) + f"_{chance.randrange(4)}"
                for _ in range(chance.randrange(1, 12))
            ])
            for _ in range(2)
        ]  # fmt: skip
        found = renamed(*sides)
        assert len({one.before for one in found}) == len({one.after for one in found}) == len(found)
        for one in found:
            assert one.before in sides[0].keys() - sides[1].keys()
            assert one.after in sides[1].keys() - sides[0].keys()


@pytest.fixture
def stepscope(tmp_path: Path) -> Stepscope:
    return Stepscope(tmp_path / "cache")


def test_compare_says_what_it_took_for_what(stepscope: Stepscope, tmp_path: Path) -> None:
    before = written(tmp_path / "before.csv", *bundled())

    def other(row: Row) -> None:
        row["Kernel Name"] = row["Kernel Name"].replace(
            "k_bank_conflict", "k_bank_conflict_free_v2"
        )

    after = changed(tmp_path / "after.csv", other)
    found = stepscope.json("compare", before, after)
    assert not [*found["only_before"], *found["only_after"]]
    (pair,) = [p for p in found["pairs"] if p["confidence"] < 1]
    assert pair["name"].startswith("k_bank_conflict")
    assert pair["name_after"].startswith("k_bank_conflict_free_v2")
    for form in ("terminal", "markdown", "html"):
        text = stepscope("compare", before, after, "-f", form).stdout.replace("\\", "")
        assert "k_bank_conflict_free_v2" in text
        assert "taken for the same kernel" in text
    assert all(p["name_after"] == p["name"] for p in found["pairs"] if p["confidence"] == 1)

"""Kernels matched by name, shape and place; which of them changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.compare.profiles import kernel, profile

from stepscope.compare.kernels import kernel_differences
from stepscope.compare.matching import RELATIONS, Match, match_kernels
from stepscope.compare.profile import KernelUse

A, B, C = kernel("a"), kernel("b"), kernel("c")


def relations(before: list[KernelUse], after: list[KernelUse], first: list[int], then: list[int]
              ) -> list[Match]:  # fmt: skip
    return match_kernels(
        profile(kernels=before, sequence=first), profile(kernels=after, sequence=then)
    )


def test_the_same_name_and_shape_is_the_same() -> None:
    assert relations([A, B], [B, A], [0, 1], [1, 0]) == [
        Match("same", (0,), (1,)),
        Match("same", (1,), (0,)),
    ]


def test_another_spelling_of_the_name_is_the_same() -> None:
    before, after = kernel("f", name="void f<(int)4>()"), kernel("f", name="void f<4>()")
    assert relations([before], [after], [0], [0]) == [Match("same", (0,), (0,))]


def test_another_shape_is_matched_in_the_order_of_the_step() -> None:
    before = [kernel("f", grid=1), kernel("f", grid=2)]
    after = [kernel("f", grid=20), kernel("f", grid=10)]
    assert relations(before, after, [0, 1], [1, 0]) == [
        Match("other_shape", (0,), (1,)),
        Match("other_shape", (1,), (0,)),
    ]


def test_shapes_that_became_fewer_are_one_group() -> None:
    before = [kernel("f", grid=1), kernel("f", grid=2)]
    found = relations(before, [kernel("f", grid=9)], [0, 1], [0])
    assert found == [Match("other_shape", (0, 1), (0,))]


def test_a_kernel_in_the_place_of_another_is_renamed() -> None:
    new = kernel("tuned")
    assert Match("renamed", (1,), (1,)) in relations([A, B, C], [A, new, C], [0, 1, 2], [0, 1, 2])


def test_several_kernels_in_one_place_are_fused_or_split() -> None:
    parts = [kernel("mul", calls=2), kernel("add", category="elementwise")]
    fused = kernel("triton", category="compiled")
    before, after = [A, *parts, C], [A, fused, C]
    order = [0, 1, 1, 2, 3]
    assert Match("fused", (1, 2), (1,)) in relations(before, after, order, [0, 1, 2])
    assert Match("split", (1,), (1, 2)) in relations(after, before, [0, 1, 2], order)


def test_kernels_in_other_places_are_gone_and_new() -> None:
    found = relations([A, B, C], [A, C, kernel("d")], [0, 1, 2], [0, 1, 2])
    assert Match("gone", (1,), ()) in found
    assert Match("new", (), (2,)) in found


labels = st.sampled_from("abcdef")
shapes = st.integers(1, 3)
some = st.lists(st.tuples(labels, shapes), unique=True, max_size=8)


@given(some, some, st.data())
def test_every_kernel_is_in_exactly_one_match(
    ours: list[tuple[str, int]], theirs: list[tuple[str, int]], data: st.DataObject
) -> None:
    sides = []
    for keys in (ours, theirs):
        kernels = [kernel(label, grid=grid) for label, grid in keys]
        order = st.lists(st.integers(0, len(keys) - 1), max_size=20) if keys else st.just([])
        sides.append(profile(kernels=kernels, sequence=data.draw(order)))
    found = match_kernels(*sides)
    assert sorted(i for m in found for i in m.before) == list(range(len(ours)))
    assert sorted(j for m in found for j in m.after) == list(range(len(theirs)))
    assert {m.relation for m in found} <= RELATIONS.keys()


def many(factor: float, only: str = "", **more: float) -> list[KernelUse]:
    """Twenty kernels of 20 us; all slower by a factor, or one of them."""
    return [
        kernel(f"k{i}", 20_000 * (factor if only in ("", f"k{i}") else 1) * (1 + 0.001 * (i % 5)),
               **more)
        for i in range(20)
    ]  # fmt: skip


def changed(before: list[KernelUse], after: list[KernelUse]) -> tuple[list[str], float]:
    found, _, shift = kernel_differences(profile(kernels=before), profile(kernels=after))
    return [k.after[0] for k in found if k.changed], shift


def test_one_kernel_that_takes_longer_is_named() -> None:
    assert changed(many(1.0), many(1.05, "k3")) == (["k3"], 1.0)
    assert changed(many(1.0), many(0.95, "k3")) == (["k3"], 1.0)
    assert changed(many(1.0), many(1.02, "k3"))[0] == []  # under the floor


def test_other_clocks_change_no_kernel() -> None:
    assert changed(many(1.0), many(1.06)) == ([], 1.06)


def test_a_kernel_that_varies_by_itself_is_not_called() -> None:
    assert changed(many(1.0, error=0.03), many(1.06, "k3", error=0.03))[0] == []


def test_what_is_too_small_to_matter_is_not_called() -> None:
    small = [kernel("tiny", 100)]
    assert changed([*many(1.0), *small], [*many(1.0), kernel("tiny", 200)])[0] == []


def test_more_calls_of_a_kernel_are_a_change() -> None:
    more = [kernel("k0", 40_000, calls=2.0), *many(1.0)[1:]]
    assert changed(many(1.0), more)[0] == ["k0"]

"""Which kernel of one run is which of the other: by name, by shape, by place in the step.

In this order, each tier with what the earlier ones left:

1. the same name and launch shape;
2. the same short name and launch shape (two capture tools write one name differently);
3. the same short name in the order of the step, whatever the shape (another batch size);
4. the same place in the step: kernels that only one run has, between the same neighbours that
   both have. One for one of a category is *renamed*, several for fewer are *fused*, the reverse is
   *split*.

What is left is *gone* or *new*.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Literal

from stepscope.compare.profile import KernelUse, Profile

Relation = Literal["same", "other_shape", "renamed", "fused", "split", "replaced", "gone", "new"]

RELATIONS: Final[dict[str, str]] = {
    "same": "the same kernel with the same launch shape",
    "other_shape": "the same kernel, launched with another shape",
    "renamed": "another kernel of the same category in the same place of the step",
    "fused": "fewer kernels do the work of several in the same place of the step",
    "split": "several kernels do the work of fewer in the same place of the step",
    "replaced": "other kernels, as many, in the same place of the step",
    "gone": "only before",
    "new": "only after",
}
"""Every relation and what it means."""

_SAME_CALLS = 0.02  # calls per step may differ by this share in an anchor: cut steps
_SHARED = 0.5
"""Part of a kernel's calls that must lie in places where the other run has something else."""


@dataclass(frozen=True)
class Match:
    """Kernels before and after that do the same work; indices into the profiles' ``kernels``."""

    relation: Relation
    before: tuple[int, ...]
    after: tuple[int, ...]


def match_kernels(before: Profile, after: Profile) -> list[Match]:
    """Match the kernels of two runs; every kernel is in exactly one match."""
    left = dict(enumerate(before.kernels))
    right = dict(enumerate(after.kernels))
    found: list[Match] = []
    tiers: tuple[tuple[Relation, Callable[[KernelUse], Hashable]], ...] = (
        ("same", lambda k: (k.name, k.grid, k.block)),
        ("same", lambda k: (k.label, k.category, k.grid, k.block)),
        ("other_shape", lambda k: (k.label, k.category)),
    )
    order = [_first_places(profile) for profile in (before, after)]
    for relation, key in tiers:
        grouped = [_by_key(left, key, order[0]), _by_key(right, key, order[1])]
        for shared in [k for k in grouped[0] if k in grouped[1]]:
            ours, theirs = grouped[0][shared], grouped[1][shared]
            if relation == "other_shape" and len(ours) != len(theirs):
                # which shape became which is not known: the work as a whole is the same
                found.append(Match(relation, tuple(ours), tuple(theirs)))
            else:
                pairs = list(zip(ours, theirs, strict=False))
                found += [Match(relation, (i,), (j,)) for i, j in pairs]
                ours, theirs = [i for i, _ in pairs], [j for _, j in pairs]
            for i in ours:
                del left[i]
            for j in theirs:
                del right[j]
    for match in _by_place(before, after, found, set(left), set(right)):
        found.append(match)
        for i in match.before:
            del left[i]
        for j in match.after:
            del right[j]
    found += [Match("gone", (i,), ()) for i in left]
    found += [Match("new", (), (j,)) for j in right]
    return found


def _first_places(profile: Profile) -> dict[int, int]:
    """First position in the typical step of each kernel that is in it."""
    places: dict[int, int] = {}
    for position, kernel in enumerate(profile.sequence):
        places.setdefault(kernel, position)
    return places


def _by_key(
    kernels: dict[int, KernelUse], key: Callable[[KernelUse], Hashable], order: dict[int, int]
) -> dict[Hashable, list[int]]:
    """Kernels by key, each list in the order of the step."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for i in sorted(kernels, key=lambda i: order.get(i, len(order))):
        found[key(kernels[i])].append(i)
    return found


def _by_place(
    before: Profile, after: Profile, known: list[Match], left: set[int], right: set[int]
) -> list[Match]:
    """Match what is left by the slots between anchors that both runs have."""
    anchors: list[dict[int, int]] = [{}, {}]
    for number, match in enumerate(known):
        if len(match.before) == len(match.after) == 1:
            calls = (
                before.kernels[match.before[0]].calls_per_step,
                after.kernels[match.after[0]].calls_per_step,
            )
            if abs(calls[0] - calls[1]) <= _SAME_CALLS * max(calls):
                anchors[0][match.before[0]] = number
                anchors[1][match.after[0]] = number
    slots = [
        _slots(profile.sequence, mine, wanted)
        for profile, mine, wanted in zip((before, after), anchors, (left, right), strict=True)
    ]
    joint: Counter[tuple[int, int]] = Counter()
    for slot, ours in slots[0].items():
        for i in set(ours):
            for j in set(slots[1].get(slot, ())):
                joint[i, j] += 1
    share = [_shared(mine, other) for mine, other in (slots, slots[::-1])]
    group: dict[tuple[str, int], tuple[str, int]] = {}

    def root(node: tuple[str, int]) -> tuple[str, int]:
        while group.setdefault(node, node) != node:
            node = group[node]
        return node

    for (i, j), _ in joint.most_common():
        if share[0].get(i, 0.0) >= _SHARED and share[1].get(j, 0.0) >= _SHARED:
            group[root(("before", i))] = root(("after", j))
    together: dict[tuple[str, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for node in sorted(group):
        together[root(node)][node[0] == "after"].append(node[1])
    found = []
    for ours, theirs in together.values():
        if ours and theirs:
            relation = _relation(before, after, ours, theirs)
            found.append(Match(relation, tuple(ours), tuple(theirs)))
    return found


def _slots(
    sequence: list[int], anchors: dict[int, int], wanted: set[int]
) -> dict[tuple[int, int], list[int]]:
    """Wanted kernels by the anchor before them: its number and which call of it."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    counts: Counter[int] = Counter()
    at = (-1, 0)
    for kernel in sequence:
        if kernel in anchors:
            number = anchors[kernel]
            at = (number, counts[number])
            counts[number] += 1
        elif kernel in wanted:
            found[at].append(kernel)
    return found


def _shared(
    mine: dict[tuple[int, int], list[int]], other: dict[tuple[int, int], list[int]]
) -> dict[int, float]:
    """Part of each kernel's calls that lies in slots where the other run has something too."""
    total: Counter[int] = Counter()
    inside: Counter[int] = Counter()
    for slot, kernels in mine.items():
        total.update(kernels)
        if slot in other:
            inside.update(kernels)
    return {kernel: inside[kernel] / count for kernel, count in total.items()}


def _relation(before: Profile, after: Profile, ours: list[int], theirs: list[int]) -> Relation:
    a = sum(before.kernels[i].calls_per_step for i in ours)
    b = sum(after.kernels[j].calls_per_step for j in theirs)
    if abs(a - b) > 0.1 * max(a, b):
        return "fused" if b < a else "split"
    categories = {before.kernels[i].category for i in ours} | {
        after.kernels[j].category for j in theirs
    }
    return "renamed" if len(categories) == 1 else "replaced"

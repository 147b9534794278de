"""What items depend on and wait for, as columns that look like a dictionary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np

from stepscope.trace.frame import BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class Lists:
    """A list of references for each of some items.

    Attributes:
        items: the items, in order.
        begin: where the list of each begins in ``on``, and at the end where the last one ends.
        on: the items referred to; negative for those of the pass before.
        between_ns: turnaround from each; zeros where there is none.
    """

    items: IntArray
    begin: IntArray
    on: IntArray
    between_ns: IntArray

    @cached_property
    def owner(self) -> IntArray:
        """The item that each reference is of."""
        return np.repeat(self.items, np.diff(self.begin))

    def kept(self, references: BoolArray) -> Lists:
        """With some of the references only; items that are left without any go."""
        return lists(self.owner[references], self.on[references], self.between_ns[references])


def lists(owner: IntArray, on: IntArray, between_ns: IntArray | None = None) -> Lists:
    """Lists of references that are in the order of their owners."""
    first = np.flatnonzero(np.diff(owner, prepend=-1)) if len(owner) else np.empty(0, np.int64)
    return Lists(
        owner[first],
        np.append(first, len(owner)).astype(np.int64),
        on.astype(np.int64),
        np.zeros(len(on), np.int64) if between_ns is None else between_ns.astype(np.int64),
    )


_NOTHING: Final = np.empty(0, np.int64)


class Depends(Mapping[int, tuple[tuple[int, int], ...]]):
    """Item -> pairs of an item that it depends on and the turnaround.

    Args:
        columns: the same as columns.
    """

    def __init__(self, columns: Lists) -> None:
        self.columns = columns

    @cached_property
    def _known(self) -> dict[int, tuple[tuple[int, int], ...]]:
        c = self.columns
        pairs = list(zip(c.on.tolist(), c.between_ns.tolist(), strict=True))
        bounds = c.begin.tolist()
        return {
            item: tuple(pairs[a:b])
            for item, a, b in zip(c.items.tolist(), bounds[:-1], bounds[1:], strict=True)
        }

    def __getitem__(self, item: int) -> tuple[tuple[int, int], ...]:
        return self._known[item]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self.columns.items)


class Waits(Mapping[int, tuple[int, ...]]):
    """Item -> items that it waits for.

    Args:
        columns: the same as columns.
    """

    def __init__(self, columns: Lists) -> None:
        self.columns = columns

    @cached_property
    def _known(self) -> dict[int, tuple[int, ...]]:
        on, bounds = self.columns.on.tolist(), self.columns.begin.tolist()
        return {
            item: tuple(on[a:b])
            for item, a, b in zip(self.columns.items.tolist(), bounds[:-1], bounds[1:], strict=True)
        }

    def __getitem__(self, item: int) -> tuple[int, ...]:
        return self._known[item]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self.columns.items)


def columns_of(mapping: Mapping[int, Any]) -> Lists:
    """The columns of what a program depends on or waits for, whatever kind of mapping it is."""
    if isinstance(mapping, Depends | Waits):
        return mapping.columns
    if not mapping:
        return Lists(_NOTHING, np.zeros(1, np.int64), _NOTHING, _NOTHING)
    keys = sorted(mapping)
    values: list[Sequence[Any]] = [mapping[key] for key in keys]
    counts = np.fromiter(map(len, values), np.int64, len(values))
    owner = np.repeat(np.array(keys, np.int64), counts)
    flat = list(chain.from_iterable(values))
    if flat and isinstance(flat[0], tuple):
        pairs = np.array(flat, np.int64)
        return lists(owner, pairs[:, 0], pairs[:, 1])
    return lists(owner, np.array(flat, np.int64))


def without(waits: Mapping[int, tuple[int, ...]], gone: BoolArray) -> Waits:
    """The waits of the other items.

    Args:
        waits: what items wait for.
        gone: mask over the items.
    """
    columns = columns_of(waits)
    return Waits(columns.kept(~gone[columns.owner]))

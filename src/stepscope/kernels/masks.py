"""Masks that are given to fused attention as tensors, though it might do without.

A mask of positions by positions may only say "causal"; one of keys may hide nothing, where no
sample is padded.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.kernels.fused_attention import CAUSAL, RATE_SPREAD, UNMASKED, share_of_masked
from stepscope.kernels.kernels import Kernels, Repair, changed
from stepscope.kernels.written_out import HALF_CASTS, made_elements
from stepscope.trace.frame import BoolArray, IntArray
from stepscope.trace.shapes import shapes_of

_FUSED: Final = re.compile(r"^aten::_.*(cudnn|efficient).*attention")
"""Operators of fused attention that take a mask; FlashAttention's take none."""
_AHEAD: Final = re.compile(r"sdpa\w*fprop|fmha_cutlassF_(bf16|f16)")
_BACK: Final = re.compile(r"sdpa\w*bprop|fmha_cutlassB_(bf16|f16)")
_ROW_SUMS: Final = re.compile(r"compute_dot_do_o_specialized<\w+, ?(?:\(\w+\))?(\d+)>")
"""cuDNN's kernel before the backward one, by the heads' width: a block for some positions of each
sample and head."""
_OF_BLOCK: Final = 1024  # elements of a head in a block of it
_CUTLASS: Final = re.compile(r"fmha_cutlassF_\w*?_(?:aligned_)?(\d+)x(\d+)")
"""CUTLASS's kernels: positions of queries in a block, and of keys, which heads are as wide as."""
_LONG: Final = 256
"""Positions from which on half of the arithmetic is worth a remark."""
_SPARE: Final = 2
"""Rows of such a mask that a block of 1024 elements may add to it."""


FOR_ALL, EACH, KEYS = range(3)
"""Kinds of masks: of positions by positions, for all samples or for each of them; of the keys."""


@dataclass(frozen=True)
class GivenMask:
    """Fused attention under masks.

    Attributes:
        repair: its kernels, and what they take where the mask is causal and said to be so, or of
            keys and left out; at most nothing changes. The kernels that convert the mask go.
        positions: how many positions the longest sequences have.
        kind: of the masks under which it takes most: ``FOR_ALL``, ``EACH`` or ``KEYS``.
    """

    repair: Repair
    positions: int
    kind: int


@dataclass(frozen=True)
class _Masked:
    """Kernels of attention under masks; arrays have one value for each.

    Attributes:
        rows: the kernels.
        positions: of the sequence.
        heads: width of a head.
        kind: of the mask.
        made: rows of kernels that convert the masks.
    """

    rows: IntArray
    positions: IntArray
    heads: IntArray
    kind: IntArray
    made: IntArray


def given_mask(kernels: Kernels, mine: BoolArray) -> GivenMask | None:
    """Fused attention whose mask, by its recorded shape or its conversion, may be spared.

    Args:
        kernels: the device's kernels.
        mine: operations that are looked at.
    """
    found = _by_shapes(kernels, mine) or _by_launches(kernels, mine)
    if found is None:
        return None
    old = kernels.duration_ns[found.rows]
    sizes = found.positions.astype(float), found.heads.astype(float)
    causal, bare = (share_of_masked(kernels, *sizes, mask) for mask in (CAUSAL, UNMASKED))
    new = old * np.minimum(np.where(found.kind == KEYS, bare, causal), 1.0)
    total = float(new.sum())
    rows = np.concatenate((found.rows, found.made))
    after = np.concatenate((np.rint(new), np.zeros(len(found.made)))).astype(np.int64)
    of_all = kernels.duration_ns[rows]
    high = float(of_all.sum())
    repair = changed(rows, of_all, after, total / RATE_SPREAD, high, stay=True)
    most = int(np.bincount(found.kind, old).argmax())
    return GivenMask(repair, int(found.positions.max()), most)


def _by_shapes(kernels: Kernels, mine: BoolArray) -> _Masked | None:
    """Attention under masks by the shapes of its operators; None where none is recorded."""
    table, operator = kernels.attribution.operators, kernels.attribution.operator
    rows = np.flatnonzero(kernels.in_category("attention") & mine & (operator >= 0))
    if not len(rows) or "input_shapes" not in table:
        return None
    codes = [table[name][operator[rows]].tolist() for name in ("name", "input_shapes")]
    keys = list(zip(*codes, strict=True))
    found = {key: _mask_of(kernels, *key) for key in set(keys)}
    positions, heads, kind = np.array([found[key] for key in keys]).T
    known = positions > 0
    if not known.any():
        return None
    return _Masked(rows[known], positions[known], heads[known], kind[known], rows[:0])


def _mask_of(kernels: Kernels, name: int, shapes: int) -> tuple[int, int, int]:
    """Positions under a mask, the heads' width, and the kind of the mask; zeros of none.

    A mask for all heads alike: those of positions relative to each other have one for each.
    """
    texts = kernels.attribution.operators.texts
    if shapes < 0 or not _FUSED.search(texts["name"][name]):
        return 0, 0, 0
    tensors = [shape for shape in shapes_of(texts["input_shapes"][shapes]) if len(shape) == 4]
    if len(tensors) < 2:
        return 0, 0, 0
    queries, keys = tensors[:2]
    for shape in tensors[2:]:
        each = math.prod(shape[:-2])
        alike = shape[1] == 1 and each in (1, queries[0])
        if (
            not alike
            or shape[-1] != keys[-2]
            or shape[-1] < _LONG
            or shape[-2] not in (1, shape[-1])
        ):
            continue
        if shape[-2] == 1:
            return shape[-1], queries[-1], KEYS
        if shape[-1] == queries[-2]:
            return shape[-1], queries[-1], FOR_ALL if each == 1 else EACH
    return 0, 0, 0


def _by_launches(kernels: Kernels, mine: BoolArray) -> _Masked | None:
    """Attention right behind the kernel that converts its mask.

    PyTorch makes numbers of a mask of booleans (``where``), and casts one in single precision, in
    each call. How many positions there are is told by what is launched for them: cuDNN's backward
    pass, or CUTLASS's forward kernel.
    """
    order = kernels.order[(kernels.gpu.is_compute & mine)[kernels.order]]
    ops = kernels.gpu.ops
    ahead, back = (ops.matches("name", pattern)[order] for pattern in (_AHEAD, _BACK))
    at = np.flatnonzero(ahead[1:]) + 1
    converts = kernels.of_operation("where", *HALF_CASTS)[order[at - 1]]
    at = at[converts]
    if not len(at):
        return None
    elements = made_elements(kernels, order[at - 1])
    in_block = elements // np.maximum(kernels.blocks[order[at - 1]], 1)
    positions, heads, kind = np.zeros((3, len(at)), np.int64)
    for samples, block, most, head, cutlass in _geometries(kernels, order):
        of_kernel = ops.matches("name", _CUTLASS)[order[at]] == cutlass
        for each, of_mask in ((1, FOR_ALL), (samples, EACH), (samples, KEYS)):
            size = elements / each
            length = np.floor(size if of_mask == KEYS else np.sqrt(size)).astype(np.int64)
            # launches are made up to whole blocks
            spare = in_block // each if of_mask == KEYS else _SPARE
            fits = of_kernel & (positions == 0) & (length >= _LONG)
            fits &= (length > most - block) & (length <= most + spare)
            positions[fits] = np.minimum(length[fits], most)
            heads[fits], kind[fits] = head, of_mask
    known = positions > 0
    if not known.any():
        return None
    of_row = np.full(len(order), -1, np.int64)
    of_row[at[known]] = np.flatnonzero(known)
    forward, backward = _pairs(ahead, back)
    of_row[backward] = of_row[forward]
    masked = np.flatnonzero(of_row >= 0)
    which = of_row[masked]
    return _Masked(
        rows=order[masked],
        positions=positions[which],
        heads=heads[which],
        kind=kind[which],
        made=order[at[known] - 1],
    )


def _geometries(kernels: Kernels, order: IntArray) -> list[tuple[int, int, int, int, bool]]:
    """Kinds of attention by their launches.

    Returns:
        Samples, positions in a block, the most positions, the heads' width, and whether they are
        CUTLASS's kernels.
    """
    names = kernels.gpu.ops.texts["name"]
    codes = kernels.gpu.ops["name"][order]
    grid = np.column_stack([kernels.grid[f"grid_{axis}"][order] for axis in "xyz"])
    found = set()
    for code in set(codes.tolist()):
        sums, cutlass = _ROW_SUMS.search(names[code]), _CUTLASS.search(names[code])
        if not (sums or cutlass):
            continue
        for x, y, z in set(map(tuple, grid[codes == code].tolist())):
            if sums:
                head = int(sums.group(1))
                block = _OF_BLOCK // head
                found.add((y, block, x * block, head, False))
            elif cutlass:
                block, head = map(int, cutlass.groups())
                found.add((z, block, x * block, head, True))
    return sorted(found)


def _pairs(ahead: BoolArray, back: BoolArray) -> tuple[IntArray, IntArray]:
    """Forward kernels and the backward one of each: the last that has none yet, as brackets are."""
    place = np.flatnonzero(ahead | back)
    opens = ahead[place]
    depth = np.cumsum(np.where(opens, 1, -1)) + ~opens
    by_depth = np.argsort(depth, kind="stable")
    first, second = by_depth[:-1], by_depth[1:]
    pair = opens[first] & ~opens[second] & (depth[first] == depth[second])
    return place[first[pair]], place[second[pair]]

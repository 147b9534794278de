"""Sizes of GEMMs by the tiles that they are launched for, and what they then move.

A GEMM's kernel computes its result in tiles, a block for each: the name tells their size, the grid
how many there are. Where the grid has a dimension for each of the result's (kernels whose name says
``tilesize``), both sides are known. Others, as those of CUTLASS, may number their tiles along one
dimension: they have the sides of another product of the step with as large a result, as a layer's
forward product and the gradient of its input are.
How much is summed over for each element follows from the FLOP.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.intervals.distinct import distinct_rows
from stepscope.kernels.efficiency import product_elements
from stepscope.kernels.kernels import Kernels
from stepscope.trace.frame import FloatArray, IntArray

SLOWEST: Final = 0.67
"""Share of the peak that GEMMs in single precision achieve at least where they fill the device:
they do no less arithmetic than this in the time that they take."""

_TILE: Final = re.compile(r"tilesize(\d+)x(\d+)x|gemm_(\d+)x(\d+)_")
_BY_SIDES: Final = re.compile("tilesize")  # the grid has a dimension for each side of the result
_AS_LARGE: Final = 0.03  # results of pairs differ by what is missing in the last tiles
_AS_LONG: Final = 2.0
_PADDED: Final = 2.0  # tiles over the elements that they hold

RESIDENT_BYTES: Final = 50_000_000
"""An operand beyond this is gone from the L2 cache when all of its rows were read (40 MB on A100,
50 on H100)."""

FLOAT_BYTES: Final = 4

COLUMNS: Final = 128
"""Columns of the result that TF32 kernels of Hopper compute while they read the first operand
once (tiles of 128 by 128)."""


def result_sizes(kernels: Kernels, rows: IntArray) -> tuple[FloatArray, FloatArray]:
    """Longer and shorter side of the results of GEMMs; 0 where neither name nor grid tells.

    Where only their product is known, both sides are its root: operands are then no smaller.

    Args:
        kernels: the device's kernels.
        rows: the GEMMs.
    """
    x, y = (np.maximum(kernels.grid[f"grid_{axis}"][rows], 0).astype(np.int64) for axis in "xy")
    first, launch = distinct_rows((kernels.gpu.ops["name"][rows], x, y))
    length = np.bincount(launch, kernels.duration_ns[rows]) / np.maximum(np.bincount(launch), 1) + 1
    texts = kernels.gpu.ops.texts["name"]
    names = [texts[code] for code in kernels.gpu.ops["name"][rows[first]].tolist()]
    tile = np.array([_tile(name) for name in names], np.float64).reshape(-1, 2)
    one, other = x[first] * tile[:, 0], y[first] * tile[:, 1]
    long_, short = np.maximum(one, other), np.minimum(one, other)
    sided = np.array([bool(_BY_SIDES.search(name)) for name in names], bool)
    tiled = one * other
    at, known = (np.flatnonzero(mask & (tiled > 0)) for mask in (~sided, sided))
    like = _alike(tiled, length, at, known)
    root = np.sqrt(tiled[at])
    long_[at] = np.where(like >= 0, long_[like], root)
    short[at] = np.where(like >= 0, short[like], root)
    # a kernel may be launched for other work than one tile a block
    result = product_elements(kernels)[1][rows]
    size = (long_ * short)[launch]
    fits = (result == 0) | ((size >= result) & (size <= _PADDED * result))
    return np.where(fits, long_[launch], 0.0), np.where(fits, short[launch], 0.0)


def _tile(name: str) -> tuple[int, int]:
    found = _TILE.search(name)
    if found is None:
        return 0, 0
    one, other = (found.group(1), found.group(2)) if found.group(1) else found.group(3, 4)
    return int(one), int(other)


def _alike(size: FloatArray, length: FloatArray, wanted: IntArray, known: IntArray) -> IntArray:
    """For each wanted launch a known one with as large a result that takes about as long; or -1."""
    if not len(known):
        return np.full(len(wanted), -1, np.int64)
    apart = np.abs(np.log(length[known][None, :] / length[wanted][:, None]))
    larger = np.abs(size[known][None, :] / size[wanted][:, None] - 1) > _AS_LARGE
    apart[larger] = np.inf
    nearest = np.argmin(apart, axis=1)
    fits = apart[np.arange(len(wanted)), nearest] <= np.log(_AS_LONG)
    found: IntArray = np.where(fits, known[nearest], -1)
    return found


def traffic_bytes(kernels: Kernels, rows: IntArray, flop: FloatArray, rate: float) -> FloatArray:
    """Bytes that GEMMs move at least, in single precision; 0 where their tiles are not known.

    Several layers of blocks are parts of one sum, or products that may share an operand: the one of
    the shorter side is then the least that is read.

    Args:
        kernels: the device's kernels.
        rows: GEMMs on the CUDA cores.
        flop: FLOP of each by recorded shapes; 0 where none are.
        rate: the device's peak of single precision, FLOP/s.
    """
    long_, short = result_sizes(kernels, rows)
    read = np.where(kernels.grid["grid_z"][rows] > 1, short, long_ + short)
    operands = read * _summed(kernels, rows, flop, rate, long_ * short)
    return FLOAT_BYTES * (long_ * short + operands)


def read_again_bytes(kernels: Kernels, rows: IntArray, flop: FloatArray, rate: float) -> FloatArray:
    """Bytes that TF32 kernels read once more for each further column of tiles of the result.

    Blocks go down a column first. Where that has more tiles than the device has SMs, no two columns
    are computed at a time, and an operand that exceeds the L2 cache comes from memory for each.
    Kernels for operands that both lie along the sum (tn) and those of weight gradients (nt) go
    through it in other orders.

    Args:
        kernels: the device's kernels.
        rows: GEMMs on the CUDA cores whose operands lie as in ``nn``.
        flop: FLOP of each by recorded shapes; 0 where none are.
        rate: the device's peak of single precision, FLOP/s.
    """
    long_, short = result_sizes(kernels, rows)
    size = FLOAT_BYTES * long_ * _summed(kernels, rows, flop, rate, long_ * short)
    sms = kernels.device[1]
    alone = (sms > 0) & (long_ > COLUMNS * sms) & (size > RESIDENT_BYTES)
    again = np.maximum(np.ceil(short / COLUMNS) - 1, 0)
    return np.where(alone & (kernels.grid["grid_z"][rows] == 1), size * again, 0.0)


def _summed(
    kernels: Kernels, rows: IntArray, flop: FloatArray, rate: float, size: FloatArray
) -> FloatArray:
    """Products that are summed for each element of results of some sizes."""
    filling = kernels.blocks[rows] >= kernels.device[1]
    by_time = np.where(filling, kernels.own_ns[rows] * 1e-9 * rate * SLOWEST, 0.0)
    done = np.where(flop > 0, flop, by_time)
    return np.where(size > 0, done / np.maximum(2 * size, 1.0), 0.0)

"""Kernels whose last wave of blocks leaves most of the device idle."""

from __future__ import annotations

from typing import Final

import numpy as np

from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.lever import Found, Lever, of_lever
from stepscope.kernels.efficiency import LONG_ENOUGH_NS
from stepscope.kernels.kernels import Kernels, changed
from stepscope.trace.frame import BoolArray, IntArray

_ID: Final = "wave_quantisation"
MOST_WAVES = 8
"""With more waves the last one is little of the whole."""
PART: Final = (0.0, 0.5, 1.0)
"""Share of the loss that other tiles or sizes recover: least, usual, most. Blocks do not take equal
time, so that part of the loss is none."""

_REGISTERS = 65536
_REGISTER_UNIT = 256
_RESERVED = 1024  # bytes of shared memory that CUDA keeps of each block
_WARP = 32
_BLOCKS = {(7, 5): 16, (8, 0): 32, (8, 6): 16, (8, 7): 16, (8, 9): 24}
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
_SHARED = {(7, 0): 96, (7, 5): 64, (8, 0): 164, (8, 6): 100, (8, 7): 164, (8, 9): 100,
           (9, 0): 228, (10, 0): 228, (10, 3): 228, (12, 0): 100, (12, 1): 100}  # fmt: skip
"""Limits of an SM by compute capability (CUDA programming guide): blocks, threads, KiB of shared
memory. Others have 32 blocks and 2048 threads."""


def find(case: Case, taken: BoolArray) -> Found | None:
    """GEMMs and convolutions in tiles, by their grid and what an SM holds of their blocks."""
    kernels = case.explanation.kernels
    resident = resident_blocks(kernels, case)
    sms = kernels.device[1]
    if resident is None or not sms:
        return None
    slots = resident * sms
    waves = kernels.blocks / np.maximum(slots, 1)
    tiled = kernels.in_category("matmul", "convolution") & kernels.steady & ~taken
    # one wave or less is no matter of the last one: the grid is persistent, or too small
    tiled &= (slots > 0) & (waves > 1) & (waves < MOST_WAVES)
    tiled &= kernels.duration_ns >= LONG_ENOUGH_NS
    lost = np.where(tiled, 1 - waves / np.maximum(np.ceil(waves), 1), 0)
    rows = np.flatnonzero(lost > 0)
    if not len(rows):
        return None
    old = kernels.duration_ns[rows]
    loss = old * lost[rows]
    total, whole = float(old.sum()), float(loss.sum())
    least, usual, most = PART
    return Found(
        repair=changed(
            rows, old, np.rint(old - usual * loss), total - most * whole, total - least * whole
        ),
        message=(
            "GEMMs and convolutions of {kernels_ns_per_step} per step have grids that fill the GPU "
            "a few times and then a part of it: SMs without a block in the last wave; with grids "
            "that fill it they take some {changed_ns_per_step}"
        ),
        recommendations=[
            "choose batch size, sequence length or width so that tiles times batch make whole "
            "waves: try the sizes just below and above",
            "torch.compile(model, mode='max-autotune') tries other tiles",
            "let GEMMs of one shape run together (grouped or batched), which shares one last wave",
        ],
        figures=[
            Figure(
                "median_blocks",
                "count",
                f"SELECT median(blocks)::BIGINT FROM kernel_category WHERE {of_lever(_ID)} "
                "AND {gpu}",
            )
        ],
    )


def resident_blocks(kernels: Kernels, case: Case) -> IntArray | None:
    """Blocks of each kernel that an SM holds at once; 0 where resources are not recorded.

    None for a device of another kind.
    """
    read = case.device.read
    devices = read("device", "process_id", "device", "compute_major", "compute_minor")
    gpu = kernels.gpu
    mine = devices["device"] == gpu.device if len(devices) else np.zeros(0, bool)
    if not mine.any():
        return None
    row = int(np.argmax(mine))
    capability = int(devices["compute_major"][row]), int(devices["compute_minor"][row])
    if capability not in _SHARED:
        return None
    columns = ("registers", "static_shared_bytes", "dynamic_shared_bytes")
    frame = read("gpu_op", "id", *columns)
    if any(name not in frame for name in columns):
        return None
    frame = frame.take(np.searchsorted(frame["id"], gpu.ops["id"]))
    threads = kernels.threads
    warps = -(-threads // _WARP)
    registers = np.maximum(frame["registers"], 0)
    of_warp = -(-registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    static, dynamic = (np.maximum(frame[name].astype(np.int64), 0) for name in columns[1:])
    shared = static + dynamic + _RESERVED
    limits: list[IntArray] = [
        np.where(of_warp > 0, _REGISTERS // np.maximum(of_warp * warps, 1), 0),
        _SHARED[capability] * 1024 // shared,
        _THREADS.get(capability, 2048) // np.maximum(threads, 1),
        np.full(len(threads), _BLOCKS.get(capability, 32)),
    ]
    known = (threads > 0) & (registers > 0)
    return np.where(known, np.maximum(np.min(limits, axis=0), 1), 0).astype(np.int64)


LEVER = Lever(
    id=_ID,
    title="Wave quantisation",
    definition=(
        "The blocks of a grid run in waves, each as many as the SMs hold at once. Where the last "
        "wave has few, most of the GPU waits for them: a GEMM of 1.1 waves takes nearly as long as "
        "one of 2."
    ),
    differential=(
        "larger_batch is about grids that do not fill the GPU once. Persistent kernels have as "
        "many blocks as there are SMs and are not judged."
    ),
    prediction=(
        "half of what the empty places of the last wave take, by registers, shared memory and "
        "threads of a block; from nothing to all of it"
    ),
    reference="NVIDIA: matrix multiplication background, wave quantisation",
    find=find,
    order=6,
    claims=False,
)

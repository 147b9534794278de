"""Kernels too small to fill the device, and launches: more samples per step cost them little."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from stepscope.breakdown.explain import Explanation
from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.frameworks import is_torch
from stepscope.diagnosis.lever import Found, Lever, of_lever, with_lengths
from stepscope.kernels.kernels import changed, scaled
from stepscope.simulation.settings.base import Facts
from stepscope.simulation.settings.batch import Batch, lengths
from stepscope.trace.frame import BoolArray

_ID: Final = "larger_batch"
_ONCE: Final = "compilation_or_warmup"
_MUCH: Final = 0.05  # of the step: from then on it is a finding
OPAQUE_SHARE: Final = 0.1
"""Part of the compute time in graphs that were recorded as a whole from which on they may hold most
of what a larger batch gains."""
TIMES: Final = 2
"""The batch that the prediction is about is so many times as large."""
_TRAIN: Final = (
    "raise the batch size, or accumulate gradients over fewer, larger micro-batches, as far as "
    "memory allows; the learning rate may have to follow",
    "activation checkpointing or lower precision where memory is the limit",
)
_LAUNCH: Final = (
    "give each launch more to do: several inputs, rows or levels in one kernel, as far as they do "
    "not depend on one another",
)
_SERVE: Final = (
    "work on more requests or inputs in one step (larger batches, continuous batching), as far as "
    "memory and the latency that each may have allow: every one of them waits for the whole step",
    "lower precision, or a smaller cache of keys and values, where memory is the limit",
)


_UNSEEN: Final = "; of the kernels in CUDA graphs nothing is known but the time of the whole graph"


def _alike(e: Explanation) -> str:
    """What costs as much for any batch, beside small kernels."""
    return " and the optimizer" if e.workload.kind == "training" else ""


def find(case: Case, taken: BoolArray) -> Found | None:
    """Kernels with fewer blocks than the device has SMs, and what does not grow with the batch."""
    kernels = case.explanation.kernels
    sms = kernels.device[1]
    if not sms or case.idle_ns(_ONCE) >= _MUCH * case.step_ns:
        return None  # what is loaded or compiled once tells nothing about the time of a sample
    blocks = kernels.blocks
    mine = kernels.gpu.is_compute & kernels.steady & ~taken
    small = mine & (blocks > 0) & (blocks < sms)
    update = mine & kernels.in_phase("optimizer")
    rows = np.flatnonzero(small | update)
    if not len(rows):
        return None
    old = kernels.duration_ns[rows]
    filled = np.where(update[rows], 0.0, blocks[rows] / sms)
    factor = np.maximum(1 / TIMES, np.minimum(filled, 1.0))
    new = scaled(old, 1.0) * factor
    total = float(old.sum())
    least = float(new.sum())
    duration, compute = kernels.duration_ns, kernels.gpu.is_compute & kernels.steady
    graphs = duration[compute & kernels.in_category("graph")].sum()
    opaque = bool(graphs >= OPAQUE_SHARE * max(int(duration[compute].sum()), 1))
    does = case.explanation.workload.kind
    advice = _TRAIN if does == "training" or is_torch(case) else _LAUNCH
    return Found(
        repair=changed(rows, old, np.rint(new), least, (total + least) / 2),
        message=(
            "kernels that have fewer blocks than the GPU has SMs ({small_share} of the kernel time)"
            f"{_alike(case.explanation)} take less than twice as long for twice the batch: for as "
            "many samples, {kernels_ns_per_step} become some {changed_ns_per_step}, and half as "
            f"many kernels are launched and begun{_UNSEEN if opaque else ''}"
        ),
        recommendations=list(_SERVE if does == "inference" else advice),
        figures=[
            Figure(
                "small_share",
                "share",
                f"SELECT coalesce(sum(end_ns - start_ns) FILTER (blocks < {sms}), 0)::DOUBLE / "
                "sum(end_ns - start_ns) FROM kernel_category WHERE steady AND category IS NOT NULL "
                "AND {gpu}",
            ),
            Figure(
                "small_kernels_per_step",
                "per_step",
                "SELECT count(*) FILTER (blocks < "
                f"{sms})::DOUBLE / (SELECT count(*) FROM step WHERE steady AND {{gpu}}) FROM "
                f"kernel_category WHERE {of_lever(_ID)} AND {{gpu}}",
            ),
        ],
        at_least=opaque,
        next_capture=captures.NODES if opaque else None,
    )


def replayed(found: Found, facts: Facts, taken: BoolArray) -> Found:
    """The same with all kernels that the setting changes: each starts for twice the samples."""
    kernels = facts.kernels
    rows = np.flatnonzero(kernels.gpu.is_compute & kernels.steady & ~taken)
    return replace(
        with_lengths(
            found, kernels, rows, lambda bound: np.rint(lengths(facts, TIMES, bound)[rows] / TIMES)
        ),
        message=(
            "with twice the batch, {kernels_per_step} kernels per step that take "
            "{kernels_ns_per_step} take some {changed_ns_per_step} for as many samples: each "
            "starts half as often, and those that have fewer blocks than the GPU has SMs "
            f"({{small_share}} of the kernel time){_alike(facts.explanation)} take less than twice "
            f"as long; half as many kernels are launched{_UNSEEN if found.at_least else ''}"
        ),
    )


LEVER = Lever(
    id=_ID,
    title="Twice the batch, for as many samples",
    definition=(
        "A kernel that has fewer blocks than the GPU has SMs leaves the others idle, and takes as "
        "long for twice the work. The optimizer takes as long for any batch, every kernel takes "
        "some time to start and to end, and the host launches as many. All cost less a sample in a "
        "larger batch."
    ),
    differential=(
        "the prediction is about the time for the same number of samples, not about the step, "
        "which becomes longer. small_kernels and launch_bound are about the time between kernels, "
        "which a larger batch shares out among more samples; a CUDA graph removes it. Other levers "
        "may change the same kernels."
    ),
    prediction=(
        "the replay with twice the batch, for as many samples as today: what has blocks for half "
        "of the SMs or less, the optimizer and the host's launches take half a sample; the rest as "
        "far as SMs are free (whatif --set batch=2x says what is assumed). Of several ranks the "
        "kernels alone, and the range's upper end gains half of that"
    ),
    reference="NVIDIA: GPU performance background, wave and tile quantisation",
    find=find,
    order=8,
    claims=False,
    setting=Batch(TIMES),
    replayed=replayed,
)

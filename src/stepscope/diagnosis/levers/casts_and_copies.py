"""Kernels that only change the type of data, or copy it as it is."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Figure
from stepscope.diagnosis.lever import Found, Lever, of_lever
from stepscope.intervals import inside_any
from stepscope.intervals.distinct import among
from stepscope.kernels.caches import WRITTEN_NS, grown_caches
from stepscope.kernels.kernels import WIDENS, Kernels, changed
from stepscope.kernels.padding import padded_apart
from stepscope.trace.frame import BoolArray, IntArray

_ID: Final = "casts_and_copies"
_CAST: Final = re.compile(
    r"bfloat16_copy_kernel|float16_copy_kernel|direct_copy_kernel.*LoadWithCast"
    r"|convert_\w*_kernel|cast_kernel"
)
_COPY: Final = re.compile(r"direct_copy_kernel")

_NORM: Final = re.compile(
    r"GroupNorm|RowwiseMoments|ComputeFusedParams|ComputeInternalGradients|GammaBeta"
    r"|ComputeBackwardFusedParams"
)
_BETWEEN_CASTS: Final = re.compile(rb"WN{1,6}H")
_MANY: Final = 0.5
"""What these and their norms take at least, as a share of all casts, where a program makes them."""
_IN_HALF: Final = 0.55
"""What a norm takes of operands in half precision over what it takes of those in single: it moves
half of the bytes, and sums in single precision either way."""
_NORMS: Final = (
    "give norms half precision as it is (layer_norm(x) instead of layer_norm(x.float()).to(x.dtype)"
    "): they sum in single precision anyway"
)
_PADDING: Final = (
    "let the convolution pad (padding=...) instead of fn.pad, torch.cat or nn.ZeroPad2d before it: "
    "its kernels read zeros beyond the edge"
)
_CACHE: Final = (
    "write new keys and values into a cache that has its full length from the beginning "
    "(cache[:, :, at] = new; StaticCache in Hugging Face) instead of torch.cat, which copies all "
    "of it for each token and layer"
)

CASTS_GO: Final = (0.25, 0.75, 1.0)
"""Share of the casts that weights kept in the type of the GEMMs make superfluous: least, usual,
most. Casts of activations around what runs in single precision stay."""
COPIES_GO: Final = (0.0, 0.5, 1.0)
"""The same of copies that make a tensor contiguous."""
ONE_STAYS_OF: Final = (4, 2)
"""The usual share as whole operations: of four casts one stays, of two copies."""


def find(case: Case, taken: BoolArray) -> Found | None:
    """Casts, and copies by kernels or by the copy engine within the device."""
    kernels = case.explanation.kernels
    ops = kernels.gpu.ops
    mine = kernels.steady & ~taken & ~kernels.in_phase("optimizer")
    casts = mine & kernels.gpu.is_compute & ops.matches("name", _CAST)
    copies = mine & kernels.gpu.is_compute & ops.matches("name", _COPY) & ~casts
    copies |= mine & ops.equals("kind", "memcpy") & ops.equals("copy_kind", "DtoD")
    caches = np.flatnonzero(mine & grown_caches(kernels))
    rows = np.flatnonzero(casts | copies)
    if not len(rows) + len(caches):
        return None
    around, norms = _normed_in_single(kernels, casts)
    pads = padded_apart(kernels, mine)
    around = np.concatenate((around, pads))  # no row is of both
    rows = rows[~among(rows, around.tolist())]
    of_norms = kernels.duration_ns[norms].astype(np.float64)
    old = kernels.duration_ns[rows]
    is_cast = casts[rows]
    spent = float(old[is_cast].sum()), float(old[~is_cast].sum())
    most, least = (spent[0] * (1 - CASTS_GO[at]) + spent[1] * (1 - COPIES_GO[at]) for at in (0, 2))
    new = np.zeros(len(rows), np.int64)
    for kind, of in zip((is_cast, ~is_cast), ONE_STAYS_OF, strict=True):
        # of long and short ones alike
        by_length = np.flatnonzero(kind)[np.argsort(old[kind], kind="stable")]
        staying = by_length[of // 2 :: of]
        new[staying] = old[staying]
    in_half = np.rint(_IN_HALF * of_norms).astype(np.int64)
    written = np.minimum(kernels.duration_ns[caches], WRITTEN_NS)
    new = np.concatenate((new, np.zeros(len(around), np.int64), in_half, written))
    rows = np.concatenate((rows, around, norms, caches))
    old = kernels.duration_ns[rows]
    least += 0.5 * float(of_norms.sum())
    most += float(of_norms.sum()) + 2 * float(written.sum())
    cast_sql = (
        f"SELECT coalesce(sum(end_ns - start_ns) FILTER (kernel LIKE '%16_copy%'), 0)::DOUBLE / "
        f"sum(end_ns - start_ns) FROM kernel_category WHERE {of_lever(_ID)} AND {{gpu}}"
    )
    return Found(
        repair=changed(rows, old, new, least, most, certain=False),
        message=(
            "{kernels_per_step} kernels a step that cast tensors to another type or copy them as "
            "they are take {kernels_ns_per_step} ({to_half_share} of it casts to half precision); "
            "without those that weights in half precision and views make superfluous, some "
            "{changed_ns_per_step}"
        )
        + (
            "; counted with them are norms between casts to single precision and back, which take "
            "half precision as it is"
            if len(norms)
            else ""
        )
        + (
            "; counted with them are those that pad images for convolutions, which pad themselves "
            "where all sides get as much"
            if len(pads)
            else ""
        )
        + (
            "; counted with them are those that join new keys and values to all earlier ones"
            if len(caches)
            else ""
        ),
        recommendations=[
            *([_NORMS] if len(norms) else []),
            *([_PADDING] if len(pads) else []),
            *([_CACHE] if len(caches) else []),
            "load the weights in BF16 (model.to(torch.bfloat16)) where autocast casts them in "
            "every step"
            if case.explanation.workload.infers
            else "keep the weights in BF16 (model.to(torch.bfloat16), master weights in the "
            "optimizer, or FSDP's MixedPrecision) where autocast casts them in every step",
            "look for .contiguous(), .clone() and reshape of transposed tensors next to these "
            "operators; einsum and views need no copy",
            "cast once where a tensor is used several times; torch.compile merges the rest into "
            "its neighbours",
        ],
        figures=[Figure("to_half_share", "share", cast_sql)],
        next_capture=None if len(kernels.attribution.operators) else captures.STACKS,
    )


def _normed_in_single(kernels: Kernels, casts: BoolArray) -> tuple[IntArray, IntArray]:
    """Rows of casts to single precision and back with nothing but a norm between, and the norms'.

    Args:
        kernels: the device's kernels.
        casts: the casts to half precision among the operations.
    """
    ops = kernels.gpu.ops
    order = kernels.order[(kernels.gpu.is_compute & kernels.steady)[kernels.order]]
    letters = np.full(len(order), ord("."), np.uint8)
    norm = kernels.in_category("normalisation") | ops.matches("name", _NORM)
    widens = ops.matches("name", WIDENS)
    for letter, which in (("N", norm), ("W", widens), ("H", casts & ~widens)):
        letters[which[order]] = ord(letter)
    spans = [match.span() for match in _BETWEEN_CASTS.finditer(letters.tobytes())]
    begin, end = np.array(spans, np.int64).reshape(-1, 2).T
    found = order[inside_any(begin, end, len(order))]
    spent = kernels.duration_ns
    if spent[found].sum() < _MANY * spent[casts].sum():  # as autocast makes here and there
        found = found[:0]
    return found[~norm[found]], found[norm[found]]


LEVER = Lever(
    id=_ID,
    title="Casts and copies",
    definition=(
        "Autocast casts weights to half precision in every step, and gradients back; operators "
        "that need contiguous operands copy what is laid out otherwise. These kernels compute "
        "nothing."
    ),
    differential=(
        "compile merges those that stand beside pointwise kernels into these; both count them. "
        "layout_changes is about the order of image channels. Copies between host and device are "
        "no kernels."
    ),
    prediction=(
        "three quarters of the casts and half of the copies go; the range goes from a quarter of "
        "the casts to all of both. Where casts to single precision and back have only a norm "
        "between, both go, and the norm takes half precision. Kernels that pad images before a "
        "convolution, and those that cut the padding off its gradient, go, and so do those that "
        "join new keys and values to earlier ones, but for what writes the new ones"
    ),
    reference="PyTorch: automatic mixed precision; tensor views",
    find=find,
    refines=("memory_bound_kernels",),
    order=3,  # before compile, which takes its kernels
    claims=False,
)

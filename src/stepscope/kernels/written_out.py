"""Functions of PyTorch that a model writes out in primitive operations.

``x * torch.sigmoid(x)`` is ``silu``, ``(x - mean) / sqrt(variance + eps)`` a norm: each of them
launches a kernel for every operation, which the library's function does not. They are found by the
order in which the kernels are launched. What a call takes in the library is the tensors that its
kernels read and write, each in the time that the written-out kernels take for one; kernels of norms
take longer than that, by how many values they have a mean of (``_norm_ns``).

Gradients of activations are found like them, by the kernel of their derivative. Those of norms and
of a softmax depend on how these are written: all that is left of the backward pass's elementwise
kernels and sums is theirs where no other function is written out, and nobody's where one is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.intervals.distinct import among, distinct_values
from stepscope.kernels.categories import KernelClass
from stepscope.kernels.kernels import CATEGORY_NAMES, PHASES, Kernels, Repair
from stepscope.kernels.merging import LIKE_THE_LONGEST, launched_elements, longest_of_runs
from stepscope.kernels.runs import as_large, compiled
from stepscope.trace.frame import AnyArray, BoolArray, FloatArray, IntArray

_NONE: Final = ord("|")
"""Stands for kernels that no such function launches, and between threads and phases."""
_OTHER: Final = "."
_LETTERS: Final = (
    # the first that is found counts, in the kernel's operation
    ("S", re.compile(r"sigmoid_?backward", re.IGNORECASE)),
    ("T", re.compile(r"(?<!hard)tanh_?backward", re.IGNORECASE)),
    ("H", re.compile(r"hardtanh_?backward", re.IGNORECASE)),
    ("F", re.compile(r"softplus_?backward", re.IGNORECASE)),
    ("h", re.compile(r"^(clamp_scalar|hardtanh)$")),
    ("f", re.compile(r"^softplus$")),
    ("s", re.compile(r"^sigmoid$")),
    ("t", re.compile(r"^tanh$")),
    ("e", re.compile(r"^erf$")),
    ("x", re.compile(r"^exp$")),
    ("l", re.compile(r"^log(1p)?$")),
    ("q", re.compile(r"^r?sqrt$", re.IGNORECASE)),
    ("p", re.compile(r"^pow_tensor_scalar$")),
    ("m", re.compile(r"^(mul|multiplies)$", re.IGNORECASE)),
    ("a", re.compile(r"^((OnSelf_)?add|sub|plus|minus)$")),
    ("d", re.compile(r"^(div|div_true|divides)$", re.IGNORECASE)),
    ("n", re.compile(r"^neg$")),
    ("i", re.compile(r"^reciprocal$")),
    ("w", re.compile(r"^where$")),
    (">", re.compile(r"^compare")),
    ("g", re.compile(r"^sign$")),
    ("b", re.compile(r"^abs$", re.IGNORECASE)),
    ("R", re.compile(r"^threshold$")),
    ("o", re.compile(r"^Fill$")),
)
LARGEST: Final = re.compile(r"MaxOps|MaxNan|max_functor")
"""Reductions to the largest: ``max`` with its place, ``amax``."""


_NORM: Final = "layer_norm/group_norm"
_BATCH_NORM: Final = "batch_norm"
_NEVER: Final = re.compile(rb"(?!)")


@dataclass(frozen=True)
class Function:
    """A function of the library, as it is written out.

    Attributes:
        name: of the library's function.
        forward: letters of its kernels (``_LETTERS``; r a sum or mean, M the largest, c a copy or
            cast, k tensors put side by side, u and B numbers that are drawn).
        backward: those of its gradient; None where they depend on how it is written.
        passes: tensors of its size that the library reads and writes in a call and in its gradient;
            for a norm the least.
        norm: whether it divides by a deviation.
        single: whether autocast has it in single precision. Its gradient may also be written in
            other ways than ``backward``.
        own_gradient: whether its gradient tells it from another function that is written alike.
        by_gradient: whether it is another function where its gradient is not there.
        common_gradient: whether other functions' gradients are written alike.
    """

    name: str
    forward: re.Pattern[bytes]
    backward: re.Pattern[bytes] | None
    passes: tuple[float, float]
    norm: bool = False
    single: bool = False
    own_gradient: bool = False
    by_gradient: bool = False
    common_gradient: bool = False


FUNCTIONS: Final = (
    Function(
        _NORM,
        # the mean, the differences from it, their variance; or mean and variance of the input, and
        # the differences before the root or behind it
        re.compile(
            rb"(?:rc*[an]+c*(?:[pm]c*)?rc*|rc*rc*a?c*)[mdac]{0,3}[qp]i?c*(?:ac*)?[md]c*(?:mc*)?a?"
        ),
        None,
        (2.0, 5.0),
        norm=True,
        single=True,
    ),
    Function(_BATCH_NORM, _NEVER, None, (3.0, 5.0)),  # told from the former by its sums
    Function(
        "rms_norm",
        re.compile(rb"[pm]c*rc*[mdac]{0,3}[qp]i?c*[md]c*m?"),
        None,
        (2.0, 5.0),
        norm=True,
        single=True,
    ),
    Function(
        "log_softmax",
        re.compile(rb"Mc*ac*xc*rc*lc*a(?:c*a)?"),
        # that of the logarithm of a sum, as it is written or of logsumexp
        re.compile(rb"(?:nc*rc*|rc*nc*)(?:dc*|ac*xc*)mc*a"),
        (2.6, 3.1),
        single=True,
    ),
    Function("softmax", re.compile(rb"Mc*ac*xc*rc*d"), None, (2.7, 6.0), single=True),
    Function(
        "gelu",
        re.compile(rb"(?:[mpa]c*){4,6}tc*ac*m(?:c*m)?"),
        re.compile(rb"(?:mc*){0,3}Tc*(?:[mpa]c*){3,9}"),
        (2.0, 3.0),
    ),
    Function(
        "gelu",
        re.compile(rb"(?:[md]c*){1,2}ec*ac*m(?:c*m)?"),
        re.compile(rb"(?:mc*){0,3}pc*nc*(?:mc*)?xc*(?:[mda]c*){2,5}"),
        (2.0, 3.0),
    ),
    Function(
        "hardswish",
        re.compile(rb"ac*hc*[md]c*[md]"),
        re.compile(rb"(?:[md]c*){2,3}Hc*a"),
        (2.0, 3.0),
    ),
    Function(
        "mish",
        # by softplus, or all of it by the exponential
        re.compile(rb"(?:f|xc*(?:ac*)?l)c*tc*m"),
        re.compile(rb"mc*mc*Tc*(?:F|(?:ac*)?dc*m)c*a"),
        (2.0, 3.0),
    ),
    Function(
        "softplus",
        re.compile(rb"(?:mc*)?xc*(?:ac*)?l(?:c*[md])?"),
        re.compile(rb"(?:mc*)?(?:ac*)?dc*mc*m?"),
        (2.0, 3.0),
    ),
    Function(
        "selu/elu",
        # the lower half by where, of what is limited or not, or both halves by clamp
        re.compile(
            rb"(?:>c*(?:hc*)?xc*ac*(?:mc*)?|(?:hc*)?xc*ac*(?:mc*)?>c*)w(?:c*m)?"
            rb"|hc*xc*ac*(?:mc*)?hc*a(?:c*m)?"
        ),
        re.compile(
            rb"(?:mc*)?[co]*w[co]*w[co]*(?:ac*)?(?:mc*){1,2}(?:[co]*>[co]*w[co]*)?a"
            rb"|(?:mc*)?[co]*>c*w[co]*(?:mc*){1,2}[co]*>c*wc*a"
        ),
        (2.0, 3.0),
    ),
    Function(
        # with a slope for each channel: kernels over operands that are broadcast, not vectorised
        "prelu",
        re.compile(rb"hc*hc*mc*a"),
        re.compile(rb"mc*mc*rc*[co]*(?:>c*wc*[co]*>c*w|wc*[co]*w)c*a"),
        (4.0, 7.5),
        by_gradient=True,
    ),
    Function(
        "leaky_relu",
        # by where, or both halves by clamp
        re.compile(rb"(?:>c*mc*|mc*>c*)w|hc*hc*mc*a"),
        re.compile(rb"[co]*w[co]*w[co]*mc*a|mc*[co]*>c*w[co]*>c*wc*a"),
        (2.0, 3.0),
    ),
    Function(
        "softshrink",
        re.compile(rb"(?:gc*bc*ac*hc*|bc*ac*hc*gc*)m"),
        re.compile(rb"(?:mc*){1,2}R[co]*g[co]*m(?:[co]*a)?"),
        (2.0, 3.0),
    ),
    Function(
        # of a difference that is there: its square or its absolute value, whichever is meant
        "smooth_l1_loss/huber_loss",
        re.compile(rb"bc*(?=[pmac]*>)(?:[>pma]c*){4,7}w"),
        re.compile(rb"w[co]*w[co]*(?:mc*){0,5}gc*(?:mc*){1,3}a"),
        (2.5, 4.4),
        single=True,
    ),
    Function(
        # drawn, compared with the share, and scaled before or behind the product
        "dropout",
        re.compile(rb"(?:uc*>|B)c*(?:[md]c*)?[mw](?:c*[md])?"),
        re.compile(rb"[md]c*[mw]"),
        (2.7, 2.4),
        common_gradient=True,
    ),
    # of chunks, whose gradients are put side by side again
    Function(
        "glu", re.compile(rb"sc*m"), re.compile(rb"mc*mc*Sc*k"), (3.0, 5.0), own_gradient=True
    ),
    # another gate is the product with a tensor's sigmoid: nothing is added to its gradient
    Function(
        "silu", re.compile(rb"sc*m"), re.compile(rb"mc*mc*Sc*a"), (2.0, 3.0), own_gradient=True
    ),
)
"""With the passes that PyTorch 2.11's kernels for each take on an H100: 2.0 to 2.2 and 3.0 to 3.1
for the activations, 2.1 to 3.8 and 3.0 to 4.2 for log_softmax of 256 to 32,000 values; the gradient
of a softmax is two kernels."""

_GRADIENTS: Final = b"mdanprqxli"
"""Kernels of which a norm's or a softmax's gradient may be made."""
_KERNELS_BACK: Final = 2  # of the library's gradient of a norm
_RELU: Final = {"threshold": "clampscalarbackward"}
"""The gradient of ReLU, by another name."""
_ELSE: Final = 0.1
"""Part of the time of written-out functions that other elementwise kernels of the forward pass may
take, sums and copies apart, where the backward pass counts as theirs alone."""
_OF_CALLS: Final = 0.8  # of a function's calls that have the gradient that tells it

_SURE: Final = (0.8, 1.0, 1.4)
"""What a call in the library takes of the estimate: least, usual, most."""
_MEASURED_SMS: Final = 132  # what the rates of norms were measured on, an H100
_FEW: Final = 6_144
"""Values with one mean from which on ``group_norm`` is meant rather than ``layer_norm``."""
_WIDE: Final = 4_096
"""Values of a row from which on ``layer_norm`` reads it again rather than keep it."""
_EACH_BLOCK: Final = 1.25
"""Values a ns that the block reads which computes one mean and variance of ``group_norm``, at the
clock of an H100."""
HALF_CASTS: Final = ("bfloat16_copy", "float16_copy")
"""Operations that cast to half precision."""
_BESIDE: Final = 3  # copies and casts that may stand between a call and the cast of its result
_OTHER_CASTS: Final = 0.5
"""Casts to half precision for each norm, those of its own apart, that tell of autocast."""
_ONE_BLOCK: Final = 1024  # elements of the smallest launch of a vectorised kernel
_CHANNELS: Final = 4  # of a group, at least: the gradients of a norm have a block for each
_ACROSS: Final = re.compile(r"reduce_kernel<(?:\(int\))?\d+, ?(?:\(int\))?[2-9],")
"""Sums over rows of a matrix: each thread makes neighbouring values."""
_ELEMENTWISE: Final = re.compile(r"(?<!\w)elementwise_kernel<(?:\(int\))?\d+, ?(?:\(int\))?(\d+)")
"""Kernels over broadcast operands: threads a block, and elements a thread."""


@dataclass(frozen=True)
class WrittenOut:
    """Functions of the library that are written out in the steady window.

    Attributes:
        repair: their kernels, each call as the library's.
        names: the functions, the costliest first.
    """

    repair: Repair
    names: tuple[str, ...]


@dataclass
class _Calls:
    """Calls of written-out functions: forward ones, and the gradients of some of them.

    Attributes:
        first: where the kernels of each begin in the text.
        last: where they end, exclusive.
        function: index into ``FUNCTIONS``.
        back: whether it is a gradient.
    """

    first: IntArray
    last: IntArray
    function: IntArray
    back: BoolArray


def written_out(kernels: Kernels, taken: BoolArray) -> WrittenOut | None:
    """Functions of the library among the elementwise kernels and reductions of a device.

    Args:
        kernels: the device's kernels.
        taken: operations that belong to another finding already.
    """
    rows, text = _as_text(kernels, taken)
    letters = np.frombuffer(text, np.uint8)
    calls = _ending_large(kernels, rows, letters, _calls(text))
    calls = _certain(calls, _of_one_size(kernels, rows, calls))
    calls = _longest_gradients(kernels, rows, calls)
    calls = _over_the_batch(kernels, rows, letters, calls)
    if not len(calls.first):
        return None
    place, call = _places(calls.first, calls.last)
    half, beside, of_beside = _in_half(kernels, rows, calls)
    place, call = np.append(place, beside), np.append(call, of_beside)
    of_call = rows[place]
    spent = kernels.duration_ns[of_call]
    total = np.bincount(call, spent, len(calls.first))
    function, back = calls.function, calls.back
    ahead_ns, back_ns = _library_ns(kernels, of_call, letters[place], call, calls, half)
    takes = np.where(back, back_ns, ahead_ns)
    new = np.zeros(len(of_call), np.int64)
    longest = np.flatnonzero(longest_of_runs(spent, call, np.ones(len(call), bool)))
    new[longest] = np.rint(takes[call[longest]]).astype(np.int64)
    ends = [float((part * takes).sum()) for part in _SURE]
    rest = _gradients(kernels, rows, letters, place)
    owed = _owed(calls)[function] & ~back
    if len(rest) and owed.any():
        old = kernels.duration_ns[rest]
        owed_ns = float(back_ns[owed].sum())
        stay = np.argsort(-old, kind="stable")[: _KERNELS_BACK * int(owed.sum())]
        share = np.zeros(len(rest), np.int64)
        kept = min(owed_ns, float(old.sum())) / max(int(old[stay].sum()), 1)
        share[stay] = np.rint(kept * old[stay]).astype(np.int64)
        of_call, new = np.append(of_call, rest), np.append(new, share)
        ends = [
            end + min(part * owed_ns, float(old.sum()))
            for end, part in zip(ends, _SURE, strict=True)
        ]
    elif owed.any():  # their gradients are there, and go, too: which they are is not known
        ends[0] = max(ends[0] - float(total[owed].sum()), 0.0)
    order = np.argsort(of_call, kind="stable")
    of_call, new = of_call[order], new[order]
    repair = Repair(
        rows=of_call,
        old_ns=kernels.duration_ns[of_call],
        new_ns=new,
        merged=new == 0,
        idle_ns=np.zeros(len(new), np.int64),
        low_ns=min(int(ends[0]), int(new.sum())),
        high_ns=max(int(ends[2]), int(new.sum())),
    )
    by_name: dict[str, float] = {}
    times = np.bincount(function, total, len(FUNCTIONS))
    for one, ns in zip(FUNCTIONS, times.tolist(), strict=True):
        if ns:
            by_name[one.name] = by_name.get(one.name, 0.0) + ns
    return WrittenOut(repair, tuple(sorted(by_name, key=lambda name: -by_name[name])))


def _as_text(kernels: Kernels, taken: BoolArray) -> tuple[IntArray, bytes]:
    """Kernels in the order of enqueueing as letters, and the row of each; -1 for a separator."""
    order = kernels.order[(kernels.gpu.is_compute & kernels.steady)[kernels.order]]
    letters = letters_of(kernels)[order].astype(np.uint8)
    letters[~compiled(kernels)[order] | taken[order]] = _NONE
    thread, phase = kernels.attribution.thread[order], kernels.phase[order]
    apart = np.flatnonzero((thread[1:] != thread[:-1]) | (phase[1:] != phase[:-1])) + 1
    return np.insert(order, apart, -1), np.insert(letters, apart, _NONE).tobytes()


def letters_of(kernels: Kernels) -> IntArray:
    """The letter of each operation (``_LETTERS``), as its code; that of others for no kernel."""
    texts = kernels.gpu.ops.texts["name"]
    of_name = np.array([ord(_letter(*one)) for one in zip(texts, kernels.classes, strict=True)]
                       + [ord(_OTHER)])  # fmt: skip
    found: IntArray = of_name[kernels.gpu.ops["name"]]
    return found


def _letter(name: str, kernel: KernelClass) -> str:
    """The letter of a kernel."""
    if kernel.category == "copy":
        return "k" if "CatArray" in kernel.label else "c"
    if kernel.category == "reduction":
        return "M" if LARGEST.search(name) else "r"
    if kernel.category == "random":
        return "B" if "bernoulli" in name else "u" if "uniform" in name else _OTHER
    if kernel.category != "elementwise":
        return _OTHER
    return next((one for one, what in _LETTERS if what.search(kernel.operation)), _OTHER)


def _calls(text: bytes) -> _Calls:
    """All calls in the text, in the order of functions; no kernel belongs to two.

    What looks like gradients of a function that is not there is none.
    """
    claims = np.zeros(len(text) + 1, np.int64)
    found = [np.zeros((0, 4), np.int64)]
    for number, function in enumerate(FUNCTIONS):
        if function.by_gradient and not (function.backward and function.backward.search(text)):
            continue
        written = False
        for pattern, back in ((function.forward, False), (function.backward, True)):
            if pattern is None or (back and not (written or function.own_gradient)):
                continue
            spans = [match.span() for match in pattern.finditer(text)]
            begin, end = np.array(spans, np.int64).reshape(-1, 2).T
            before = np.concatenate(([0], np.cumsum(np.cumsum(claims)[:-1])))
            free = before[end] == before[begin]
            begin, end = begin[free], end[free]
            written = bool(free.any())
            claims[begin] += 1
            claims[end] -= 1
            kind = np.full(len(begin), number), np.full(len(begin), int(back))
            found.append(np.column_stack((begin, end, *kind)))
    first, last, function_of, of_back = np.concatenate(found).T
    return _Calls(first, last, function_of, of_back.astype(bool))


def _of_one_size(kernels: Kernels, rows: IntArray, calls: _Calls) -> BoolArray:
    """Calls whose first and last kernel make as many elements, where both are known.

    The sigmoid of a value for each channel times an image is no ``silu``.
    """
    return _as_many(kernels, rows[calls.first], rows[calls.last - 1])


def _ending_large(kernels: Kernels, rows: IntArray, letters: AnyArray, calls: _Calls) -> _Calls:
    """The same without norms that make a value for each row alone behind the root.

    The gradient of a root mean square reads like a norm up to there.
    """
    place, call = _places(calls.first, calls.last)
    made = made_elements(kernels, rows[place])
    roots = _first_of(call, among(letters[place], list(b"qp")), len(calls.first))
    behind = (roots[call] >= 0) & (np.arange(len(call)) > roots[call])
    most, last = np.zeros((2, len(calls.first)), np.int64)
    np.maximum.at(most, call, made)
    np.maximum.at(last, call[behind], made[behind])
    norms = np.array([f.norm for f in FUNCTIONS])[calls.function] & ~calls.back
    keep = ~norms | (2 * last >= most) | (last == 0)
    return _Calls(calls.first[keep], calls.last[keep], calls.function[keep], calls.back[keep])


def _as_many(kernels: Kernels, rows: IntArray, others: IntArray) -> BoolArray:
    """Whether kernels make as many elements as others, where both are known."""
    one, other = (launched_elements(kernels, row) for row in (rows, others))
    known = (one > 0) & (other > 0)
    found: BoolArray = ~known | as_large(one, other)
    return found


def _certain(calls: _Calls, alike: BoolArray) -> _Calls:
    """The same without those that may be of another function.

    Of functions that are written alike forwards the one whose gradients are there is meant, where
    nearly all calls have them.
    """
    gated = [number for number, function in enumerate(FUNCTIONS) if function.own_gradient]
    of_gate = among(calls.function, gated)
    forward = of_gate & ~calls.back & alike
    gradients = [int(((calls.function == number) & calls.back).sum()) for number in gated]
    meant = gated[int(np.argmax(gradients))]
    enough = max(gradients) >= _OF_CALLS * max(int(forward.sum()), 1)
    function = np.where(forward, meant, calls.function)
    keep = ~of_gate | (forward | (calls.back & (function == meant))) & enough
    keep &= among(function, distinct_values(function[~calls.back]).tolist())
    return _Calls(calls.first[keep], calls.last[keep], function[keep], calls.back[keep])


def _longest_gradients(kernels: Kernels, rows: IntArray, calls: _Calls) -> _Calls:
    """The same with the longest gradients, as many as calls, where others are written alike."""
    place, call = _places(calls.first, calls.last)
    spent = np.bincount(call, kernels.duration_ns[rows[place]], len(calls.first))
    keep = np.ones(len(calls.first), bool)
    for number, function in enumerate(FUNCTIONS):
        if function.common_gradient:
            back = np.flatnonzero((calls.function == number) & calls.back)
            ahead = int(((calls.function == number) & ~calls.back).sum())
            keep[back[np.argsort(-spent[back], kind="stable")[ahead:]]] = False
    return _Calls(calls.first[keep], calls.last[keep], calls.function[keep], calls.back[keep])


def _owed(calls: _Calls) -> BoolArray:
    """Functions whose gradients are not among the calls, though they have some."""
    back, ahead = (
        np.bincount(calls.function[which], minlength=len(FUNCTIONS))
        for which in (calls.back, ~calls.back)
    )
    unlike = np.array([f.single or f.backward is None for f in FUNCTIONS])
    found: BoolArray = unlike & (back < _OF_CALLS * ahead)
    return found


def _over_the_batch(kernels: Kernels, rows: IntArray, letters: AnyArray, calls: _Calls) -> _Calls:
    """The same with norms as batch norms whose means are of the batch, not of parts of a sample.

    Their sums make neighbouring values side by side, and fewer of them than each is a sum of.
    """
    names = [function.name for function in FUNCTIONS]
    norms = np.flatnonzero((calls.function == names.index(_NORM)) & ~calls.back)
    if not len(norms):
        return calls
    place, call = _places(calls.first[norms], calls.last[norms])
    sums, roots = (
        _first_of(call, letters[place] == ord(letter), len(norms)) for letter in ("r", "q")
    )
    of_call = rows[place]
    across = kernels.gpu.ops.matches("name", _ACROSS)[of_call[sums]]
    means = launched_elements(kernels, of_call[roots]).astype(np.float64)
    elements = np.zeros(len(norms))
    np.maximum.at(elements, call, launched_elements(kernels, of_call).astype(np.float64))
    found = across & (sums >= 0) & (roots >= 0) & (means > 0) & (elements >= means**2)
    function = calls.function.copy()
    function[norms[found]] = names.index(_BATCH_NORM)
    return _Calls(calls.first, calls.last, function, calls.back)


def _places(first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
    """The place of each kernel of some calls, and the number of the call."""
    length = last - first
    call = np.repeat(np.arange(len(length)), length)
    return np.repeat(first - np.cumsum(length) + length, length) + np.arange(len(call)), call


def _in_half(
    kernels: Kernels, rows: IntArray, calls: _Calls
) -> tuple[BoolArray, IntArray, IntArray]:
    """Calls whose function the library has in half precision, and the casts that then go, too.

    Autocast computes powers, exponentials and logarithms in single precision, and so what is
    written out by them; the result is then cast. The library's activation stays in half precision.

    Returns:
        Whether a call is one; places of casts beside them, and the call of each.
    """
    copies = kernels.in_category("copy")[rows] & (rows >= 0)
    casts = kernels.of_operation(*HALF_CASTS)[rows] & copies
    activation = np.array([not f.single for f in FUNCTIONS])[calls.function]
    numbers = np.arange(len(calls.first))
    norm_place, norm_call = _half_norms(kernels, rows, calls, casts, copies)
    # to single precision in the call: behind a norm in it there is nothing to cast
    widened = np.concatenate(([0], np.cumsum(copies & ~casts)))
    widens = widened[calls.last] > widened[np.maximum(calls.first - 1, 0)]
    forward = numbers[activation & ~calls.back & widens]
    place, call = _beside(kernels, rows, calls, forward, casts, copies, ahead=False)
    half = np.zeros(len(numbers), bool)
    half[call] = True
    for function in distinct_values(calls.function[half]).tolist():
        of_function = calls.function == function
        if half[of_function].sum() >= _OF_CALLS * (of_function & ~calls.back).sum():
            half |= of_function
    backward = numbers[half & calls.back]
    place_back, call_back = _beside(kernels, rows, calls, backward, copies, copies, ahead=True)
    half[norm_call] = True
    return (
        half,
        np.concatenate((place, place_back, norm_place)),
        np.concatenate((call, call_back, norm_call)),
    )


def _half_norms(
    kernels: Kernels, rows: IntArray, calls: _Calls, casts: BoolArray, copies: BoolArray
) -> tuple[IntArray, IntArray]:
    """Norms of models in half precision that widen what they read and cast what they make.

    The library's norm reads and writes half precision there. Under autocast, which casts weights
    as well, it does not.

    Returns:
        Places of casts beside such norms, and the call of each.
    """
    numbers = np.arange(len(calls.first))
    norms = numbers[np.array([f.norm for f in FUNCTIONS])[calls.function] & ~calls.back]
    widened = _beside(kernels, rows, calls, norms, copies & ~casts, copies, ahead=True)
    narrowed = np.concatenate(([0], np.cumsum(casts)))
    inside = narrowed[calls.last] > narrowed[calls.first]
    behind = _beside(kernels, rows, calls, norms[~inside[norms]], casts, copies, ahead=False)
    inside[behind[1]] = True
    forward = kernels.phase[rows] == PHASES.index("forward")
    own = int((narrowed[calls.last] - narrowed[calls.first])[norms].sum()) + len(behind[0])
    others = int((casts & forward).sum()) - own
    if others > _OTHER_CASTS * len(norms):
        return numbers[:0], numbers[:0]
    place, call = (np.concatenate(pair) for pair in zip(widened, behind, strict=True))
    certain = inside.copy()
    certain[numbers[~among(numbers, widened[1].tolist())]] = False
    return place[certain[call]], call[certain[call]]


def _beside(
    kernels: Kernels,
    rows: IntArray,
    calls: _Calls,
    which: IntArray,
    wanted: BoolArray,
    copies: BoolArray,
    *,
    ahead: bool,
) -> tuple[IntArray, IntArray]:
    """The first wanted kernel that makes as many elements as each call, in the copies beside it.

    Ahead of its first kernel, or behind its last, where weights may be cast before the result is.
    """
    place, call = [], []
    left = which
    for distance in range(_BESIDE):
        at = calls.first[left] - 1 - distance if ahead else calls.last[left] + distance
        inside = (at >= 0) & (at < len(rows))
        left, at = left[inside], at[inside]
        left, at = left[copies[at]], at[copies[at]]
        end = calls.first[left] if ahead else calls.last[left] - 1
        same = wanted[at] & _as_many(kernels, rows[end], rows[at])
        place.append(at[same])
        call.append(left[same])
        left = left[~same]
    return np.concatenate(place), np.concatenate(call)


def _library_ns(
    kernels: Kernels,
    rows: IntArray,
    letters: AnyArray,
    call: IntArray,
    calls: _Calls,
    half: BoolArray,
) -> tuple[FloatArray, FloatArray]:
    """What the library takes for each call, and for the gradient of it, ns.

    Args:
        kernels: the device's kernels.
        rows: rows of the calls' kernels.
        letters: the letter of each of these.
        call: the call of each.
        calls: the calls.
        half: those whose function it has in half precision.
    """
    pass_ns = _pass_ns(kernels, rows, call, len(calls.first)) * np.where(half, 0.5, 1.0)
    ahead, back = (
        pass_ns * np.array([f.passes[at] for f in FUNCTIONS])[calls.function] for at in (0, 1)
    )
    norms = np.array([f.norm for f in FUNCTIONS])[calls.function]
    if not norms.any():
        return ahead, back
    elements = np.zeros(len(norms))
    np.maximum.at(elements, call, made_elements(kernels, rows).astype(np.float64))
    means = _means(kernels, rows, letters, call, len(norms))
    known = norms & (elements > 0) & (means > 0)
    centred = np.array([f.name != "rms_norm" for f in FUNCTIONS])[calls.function]
    norm = _norm_ns(elements[known], means[known], pass_ns[known], centred[known],
                    (kernels.device[1] or _MEASURED_SMS) / _MEASURED_SMS)  # fmt: skip
    ahead[known], back[known] = norm
    return ahead, back


def _norm_ns(
    elements: FloatArray, means: FloatArray, pass_ns: FloatArray, centred: BoolArray, sms: float
) -> tuple[FloatArray, FloatArray]:
    """What PyTorch's norms take, forward and backward, ns.

    ``group_norm`` has a block for each mean, whatever the number of SMs, and applies it by kernels
    that are not vectorised. ``layer_norm`` has a block for each row; the parameters' gradients are
    summed over the rows by few blocks where rows are short. Rates by kernel of 21 shapes in single
    precision and bfloat16 (H100, PyTorch 2.11): most kernels take as long in both.

    Args:
        elements: of the tensor.
        means: values that have a mean of their own.
        pass_ns: what the tensor takes to be read or written once.
        centred: whether the mean is taken off.
        sms: SMs of the device over those of an H100.
    """
    several = elements / means >= _FEW
    group_ahead = elements / np.minimum(400 * sms, _EACH_BLOCK * means)
    group_ahead += np.maximum(2 * pass_ns, elements / (330 * sms))
    group_back = elements / np.minimum(280 * sms, _EACH_BLOCK * _CHANNELS * means)
    group_back += np.maximum(3 * pass_ns, elements / (220 * sms))
    again = np.where(elements / means >= _WIDE, pass_ns, 0.0)
    layer_ahead = 2 * pass_ns + again + np.where(centred, 1.1, 0.4) * means / sms
    summed = np.where(means > 2**16, 2.5 * pass_ns, np.where(centred, 4.5, 3.4) * means / sms)
    layer_back = 3 * pass_ns + 2 * again + 0.4 * means / sms + np.maximum(2 * pass_ns, summed)
    return np.where(several, group_ahead, layer_ahead), np.where(several, group_back, layer_back)


def _means(
    kernels: Kernels, rows: IntArray, letters: AnyArray, call: IntArray, count: int
) -> FloatArray:
    """How many means each call has: by the launch of its sums and of the root; 0 where unknown.

    A block of a sum makes one of many values, or one for each row of its threads of fewer. The root
    is launched for all of them, up to whole blocks.
    """
    grid = kernels.grid
    sums = _first_of(call, among(letters, list(b"rM")), count)
    roots = _first_of(call, letters == ord("q"), count)
    one_each = grid["grid_x"][rows[sums]].astype(np.float64)
    of_rows = one_each * np.maximum(grid["block_y"][rows[sums]], 1)
    most = launched_elements(kernels, rows[roots]).astype(np.float64)
    few = (most <= _ONE_BLOCK) | (of_rows > 2 * most)
    found = np.where(few, one_each, np.minimum(of_rows, most))
    return np.where((sums >= 0) & (roots >= 0), found, 0.0)


def _first_of(call: IntArray, which: BoolArray, count: int) -> IntArray:
    """Where the first of some kernels of each call is; -1 for none."""
    found = np.full(count, -1, np.int64)
    at = np.flatnonzero(which)[::-1]
    found[call[at]] = at  # the last that is assigned counts
    return found


def made_elements(kernels: Kernels, rows: IntArray) -> IntArray:
    """Elements that elementwise kernels are launched for, of whatever operands; 0 for others."""
    named = zip(kernels.gpu.ops.texts["name"], kernels.classes, strict=True)
    each = np.array([_thread_elements(name, kernel) for name, kernel in named] + [0])
    found: IntArray = (
        kernels.blocks[rows] * kernels.threads[rows] * each[kernels.gpu.ops["name"][rows]]
    )
    return found


def _thread_elements(name: str, kernel: KernelClass) -> int:
    """Elements that each thread of an elementwise kernel makes, of whatever operands."""
    found = _ELEMENTWISE.search(name)
    return int(found.group(1)) if found else kernel.thread_elements


def _pass_ns(kernels: Kernels, rows: IntArray, call: IntArray, count: int) -> FloatArray:
    """What one tensor of a call's size takes to be read or written once, ns."""
    spent = kernels.duration_ns[rows].astype(np.float64)
    tensors = np.array([c.tensors for c in kernels.classes] + [0])[kernels.gpu.ops["name"][rows]]
    longest = np.zeros(count)
    np.maximum.at(longest, call, spent)
    full = (tensors > 0) & (spent >= LIKE_THE_LONGEST * longest[call])
    moved = np.bincount(call[full], tensors[full], count)
    found: FloatArray = np.bincount(call[full], spent[full], count) / np.maximum(moved, 1)
    # where no name tells, the longest kernel reads and writes
    return np.where(moved > 0, found, longest / 2)


def _has_own_gradient(kernels: Kernels) -> BoolArray:
    """Operations of the library's functions whose gradients are kernels of their own.

    These are no gradients of a norm: ``GeluBackward`` stands for ``Gelu`` alone.
    """
    names = [kernel.operation.lower().replace("_", "") for kernel in kernels.classes]
    gradients = {_RELU.get(name, name) for name in names if "backward" in name or name in _RELU}
    own = [bool(name) and any(one.startswith(f"{name}backward") for one in gradients)
           for name in names]  # fmt: skip
    found: BoolArray = np.array([*own, False])[kernels.gpu.ops["name"]]
    return found


def _beside_like_sums(
    kernels: Kernels, rows: IntArray, letters: AnyArray, claimed: IntArray, backward: BoolArray
) -> BoolArray:
    """Letters of the backward pass in runs with a sum that is launched as one of the calls'.

    The gradient of a mean, or of what is divided by one, sums over the same values.
    """
    grid, row = kernels.grid, np.maximum(rows, 0)
    x, y = (grid[name][row].astype(np.int64) for name in ("grid_x", "grid_y"))
    launch = (x << 27) | (y << 11) | kernels.threads[row]
    sums = (rows >= 0) & (letters == ord("r"))
    of_calls = np.zeros(len(letters), bool)
    of_calls[claimed] = True
    alike = backward & sums & among(launch, distinct_values(launch[of_calls & sums]).tolist())
    run = np.cumsum(letters == _NONE)
    found: BoolArray = backward & (np.bincount(run, alike, run[-1] + 1) > 0)[run]
    return found


def _gradients(kernels: Kernels, rows: IntArray, letters: AnyArray, claimed: IntArray) -> IntArray:
    """Rows of the backward pass that are gradients of functions whose own kernels do not tell.

    Args:
        kernels: the device's kernels.
        rows: row of each letter.
        letters: kernels in the order of enqueueing.
        claimed: letters of calls.
    """
    free = rows >= 0
    free[claimed] = False
    row = np.maximum(rows, 0)
    spent = np.where(free, kernels.duration_ns[row], 0)
    backward = np.where(rows >= 0, kernels.phase[row], -1) == PHASES.index("backward")
    calls_ns = int(kernels.duration_ns[rows[claimed]].sum())
    another = ~backward & ~among(letters, [*b"ack", _NONE]) & ~_has_own_gradient(kernels)[row]
    if int(spent[another].sum()) > _ELSE * calls_ns:
        free &= _beside_like_sums(kernels, rows, letters, claimed, backward)
    # the sums behind products and convolutions are the gradients of biases
    layers = [CATEGORY_NAMES.index(name) for name in ("matmul", "convolution")]
    order = rows[rows >= 0]
    behind = np.zeros(len(kernels.gpu.ops), bool)
    behind[order[1:]] = among(kernels.category[order[:-1]], layers)
    of_layer = (letters == ord("r")) & behind[row]
    found: IntArray = rows[free & backward & among(letters, list(_GRADIENTS)) & ~of_layer]
    return found

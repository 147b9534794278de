"""Kinds of communication: how they are recognised, how large they are, how bandwidth counts.

Bandwidth follows nccl-tests (doc/PERFORMANCE.md of that project): the *algorithm bandwidth* is the
message size over the time; the *bus bandwidth* multiplies it by a factor of the kind and the
number of ranks, so that it can be compared with the hardware's whatever that number is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.activity.communication import known_kernels
from stepscope.intervals.distinct import among
from stepscope.trace.frame import BoolArray, IntArray
from stepscope.trace.text import LONGEST_JUDGED

KINDS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
    "exchange",
    "local",
    "unknown",
)
"""Every kind of communication; codes are positions in this tuple. ``exchange``: the
program sends and receives on all ranks at once, as in a ring. ``local`` are a communication
library's kernels that wait for no other rank, such as those that count what goes where."""

CODE: Final = {kind: code for code, kind in enumerate(KINDS)}
POINT_TO_POINT: Final = CODE["send_recv"]
UNKNOWN: Final = CODE["unknown"]

# In a rooted operation a member may be done before others have begun; in these no member can end
# before all have begun.
_ALL_WAIT_FOR_ALL: Final = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "unknown",
)  # fmt: skip

_WORDS: Final = (
    ("all_reduce", r"all_?reduce|cross_device_reduce|multimem_"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all"),
    ("send_recv", r"send_?recv|(?<![a-z])(i?send|i?recv|recvAnySource)(?![a-z])|nccl(send|recv)"),
    ("broadcast", r"broadcast|ncclbcast"),
    ("barrier", r"barrier"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)
_PATTERNS: Final = tuple((CODE[kind], re.compile(words, re.IGNORECASE)) for kind, words in _WORDS)

DTYPE_BYTES: Final = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "complexfloat": 8, "complexdouble": 16,
    "float": 4, "float32": 4, "int": 4, "int32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2,
    "byte": 1, "char": 1, "bool": 1, "uint8": 1, "int8": 1,
}  # fmt: skip


@lru_cache(maxsize=1 << 12)
def kind_of(name: str) -> int:
    """Code of the kind that a kernel, NCCL call or framework name states; ``UNKNOWN`` if none.

    The first word that fits wins, longer ones first: ``reduce_scatter`` is no ``reduce``. Template
    and call parameters are left out, because they may hold other operations' names.
    """
    head = re.split(r"[<(]", name[:LONGEST_JUDGED].removeprefix("void "), maxsplit=1)[0]
    for code, pattern in _PATTERNS:
        if pattern.search(head):
            return code
    return UNKNOWN


def kind_of_kernel(name: str) -> int:
    """Code of the kind of a communication kernel, by what is known of its library."""
    known = known_kernels(name)
    if known is not None and known.does != KINDS[UNKNOWN]:
        return CODE[known.does]
    return kind_of(name)


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a framework's type name; -1 where it is not known."""
    lowered = dtype.lower()
    return 1 if lowered.startswith("float8") else DTYPE_BYTES.get(lowered, -1)


def message_bytes(kind: int, in_bytes: int, out_bytes: int) -> int:
    """Message size as nccl-tests counts it, bytes; -1 where it is not known.

    The whole array: what is received in all for all-gather and gather, what is given for the
    others. (nccl-tests counts the array of all ranks for these two, and for reduce-scatter.)
    """
    total = out_bytes if KINDS[kind] in ("all_gather", "gather") else in_bytes
    if total <= 0:
        total = max(in_bytes, out_bytes)
    return total if total > 0 else -1


def bus_factor(kind: IntArray, size: IntArray) -> npt.NDArray[np.float64]:
    """Bus bandwidth over algorithm bandwidth, by kind and number of ranks."""
    n = np.maximum(size, 1).astype(np.float64)
    factor = np.ones(len(kind), np.float64)
    factor[kind == CODE["all_reduce"]] = (2 * (n - 1) / n)[kind == CODE["all_reduce"]]
    scattered = among(
        kind, [CODE[k] for k in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")]
    )
    factor[scattered] = ((n - 1) / n)[scattered]
    return factor


def all_wait(kind: IntArray) -> BoolArray:
    """Mask of the operations that no member can end before all members have begun."""
    return among(kind, [CODE[k] for k in _ALL_WAIT_FOR_ALL])

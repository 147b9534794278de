"""What CUDA is called in every trace: kernels without decoration, calls, copies, and codes."""

from __future__ import annotations

import re

_VERSION = re.compile(r"_v\d+$")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\(anonymous\)::|<unnamed>::|::operator ?\(\)")
_BRACKETS = re.compile(r"[<>(){}\[\]]")
_LONGEST_PARSED = 20_000

COPY_LABELS = {
    "HtoD": "Host-to-Device",
    "DtoH": "Device-to-Host",
    "DtoD": "Device-to-Device",
    "HtoH": "Host-to-Host",
    "PtoP": "Peer-to-Peer",
    "HtoA": "Host-to-Array",
    "AtoH": "Array-to-Host",
    "AtoA": "Array-to-Array",
    "AtoD": "Array-to-Device",
    "DtoA": "Device-to-Array",
}
COPY_KINDS = (
    *("unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA"),
    *("AtoD", "DtoA", "DtoD", "HtoH", "PtoP"),
)
"""By number, as CUPTI counts them."""
MEMORY_KINDS = (
    *("pageable", "pinned", "device", "array", "managed"),
    *("device_static", "managed_static"),
)
SYNC_KINDS = {0: "unknown", 1: "event", 2: "stream_wait_event", 3: "stream", 4: "context"}
STREAM_FLAGS = {1: "default", 2: "non_blocking", 3: "null"}
MEMSET_NAME = "[CUDA memset]"


def call_name(raw: str) -> str:
    """A CUDA function's name without its version: ``cudaMalloc_v3020`` gives ``cudaMalloc``."""
    return _VERSION.sub("", raw)


def copy_name(kind: str) -> str:
    """What a memory copy is called: ``HtoD`` gives ``[CUDA memcpy Host-to-Device]``."""
    return f"[CUDA memcpy {COPY_LABELS.get(kind, 'Unknown')}]"


def short_kernel_name(name: str) -> str:
    """The function's own name: no return type, namespaces, template arguments, parameters.

    >>> short_kernel_name("void at::native::vectorized_kernel<4, F<int (*)(int)>>(int, F)")
    'vectorized_kernel'
    """
    text = _ANONYMOUS.sub("", name[:_LONGEST_PARSED])
    depth = 0
    start = 0
    kept = []
    for bracket in _BRACKETS.finditer(text):
        symbol = bracket.group()
        at = bracket.start()
        if symbol in "<({[":
            if depth == 0:
                kept.append(text[start:at])
                if symbol == "(":
                    break
            depth += 1
        elif depth:
            if symbol == ">" and text[at - 1] == "-":
                continue  # a flow event
            depth -= 1
            start = at + 1
    else:
        kept.append(text[start:] if depth == 0 else "")
    words = "".join(kept).split()
    short = words[-1].rsplit("::", 1)[-1] if words else ""
    return short or name

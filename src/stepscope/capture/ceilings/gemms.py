"""GEMMs by cuBLASLt through ctypes: what the tensor cores achieve."""

from __future__ import annotations

import ctypes
import glob
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepscope.capture.libraries import load, site_folders

# values of the enumerations in library_types.h, cublas_api.h and cublasLt.h
_F32, _F64, _F16, _BF16, _E4M3 = 0, 1, 2, 14, 28
_COMPUTE_32F, _COMPUTE_TF32, _COMPUTE_64F = 68, 77, 70
_TRANSPOSE_A, _FAST_ACCUMULATION, _MOST_WORKSPACE = 3, 25, 1
_TRANSPOSED = 1
_CHOICES = 4
_WORKSPACE_BYTES = 64 << 20
_PATTERN_BYTES = 4 << 20
_IN_SITE = ("nvidia/cublas/lib", "nvidia/cu*/lib")
_IN_SYSTEM = ("/usr/local/cuda*/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
              "/usr/lib64")  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """One kind of GEMM.

    Attributes:
        operand: type of the factors.
        result: type of the result.
        compute: how it is computed.
        item: bytes of an operand.
        bytes_: for each byte of an operand, the values it may take: random numbers of sizes near
            one. Zeros would need less power, and so give a rate that no program achieves.
        least: compute capability from which the device can do it.
    """

    operand: int
    result: int
    compute: int
    item: int
    bytes_: tuple[bytes, ...]
    least: tuple[int, int]


_ANY = bytes(range(256))
_NEAR_ONE = b"\x3e\x3f\xbe\xbf"
KINDS: Final = {
    "fp64_gemm": Kind(_F64, _F64, _COMPUTE_64F, 8, (*[_ANY] * 6, b"\xe0\xe5\xef", b"\x3f\xbf"),
                        (8, 0)),
    "tf32": Kind(_F32, _F32, _COMPUTE_TF32, 4, (_ANY, _ANY, _ANY, _NEAR_ONE), (8, 0)),
    "fp16": Kind(_F16, _F16, _COMPUTE_32F, 2, (_ANY, b"\x34\x35\x38\x39\xb4\xb5\xb8\xb9"), (7, 0)),
    "bf16": Kind(_BF16, _BF16, _COMPUTE_32F, 2, (_ANY, _NEAR_ONE), (8, 0)),
    "fp8": Kind(_E4M3, _BF16, _COMPUTE_32F, 1, (b"\x20\x28\x2b\x30\x34\x37\xa0\xa8\xb3\xb5",),
                (8, 9)),
}  # fmt: skip
"""Every kind by name. FP64 goes to tensor cores where the device has such, which cuBLAS decides."""


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Choice(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Lt:
    """An open cuBLASLt.

    Raises:
        OSError: it is not found or does not work; the message says why.
    """

    def __init__(self) -> None:
        places = [str(path) for path in _candidates()]
        library = load(*places, "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")
        if library is None:
            raise OSError(
                "cuBLASLt is not installed; install PyTorch with CUDA or nvidia-cublas, or name "
                "libcublasLt.so in STEPSCOPE_CUBLASLT"
            )
        self._library = library
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        number = int(library.cublasLtGetVersion())
        # CUDA 12 counts 120304, CUDA 13 130101
        self.version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise OSError(f"{name} failed with status {code}")

    def _layout(self, type_: int, size: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), type_,
                   ctypes.c_uint64(size), ctypes.c_uint64(size), ctypes.c_int64(size))  # fmt: skip
        return layout

    def gemms(
        self, kind: Kind, size: int, places: tuple[int, int, int, int]
    ) -> Iterator[Callable[[], None]]:
        """Ways to do one square product, the one that cuBLAS thinks the fastest first.

        Args:
            kind: of the product.
            size: rows and columns.
            places: addresses of the factors, the result and 64 MiB of workspace.

        Raises:
            OSError: this library or device cannot do it.
        """
        wide = kind.compute == _COMPUTE_64F
        scale = _F64 if wide else _F32
        what = ctypes.c_void_p()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(what), kind.compute, scale)
        # both factors along the summed dimension: what FP8 demands and the others are fastest with
        self._set("cublasLtMatmulDescSetAttribute", what, _TRANSPOSE_A, ctypes.c_int32(_TRANSPOSED))
        if kind.operand == _E4M3:
            flag = ctypes.c_int8(1)
            self._set("cublasLtMatmulDescSetAttribute", what, _FAST_ACCUMULATION, flag)
        factor, result = self._layout(kind.operand, size), self._layout(kind.result, size)
        wishes = ctypes.c_void_p()
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(wishes))
        self._set("cublasLtMatmulPreferenceSetAttribute", wishes, _MOST_WORKSPACE,
                  ctypes.c_uint64(_WORKSPACE_BYTES))  # fmt: skip
        choices, found = (_Choice * _CHOICES)(), ctypes.c_int()
        self._call("cublasLtMatmulAlgoGetHeuristic", self._handle, what, factor, factor, result,
                   result, wishes, _CHOICES, choices, ctypes.byref(found))  # fmt: skip
        number = ctypes.c_double if wide else ctypes.c_float
        one, zero = number(1.0), number(0.0)
        a, b, c, workspace = (ctypes.c_void_p(place) for place in places)
        for choice in choices[: found.value]:

            def run(choice: _Choice = choice) -> None:
                self._call("cublasLtMatmul", self._handle, what, ctypes.byref(one), a, factor, b,
                           factor, ctypes.byref(zero), c, result, c, result,
                           ctypes.byref(choice.algorithm), workspace,
                           ctypes.c_size_t(_WORKSPACE_BYTES), None)  # fmt: skip

            yield run

    def _set(self, name: str, where: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call(name, where, attribute, ctypes.byref(value), size)


WORKSPACE_BYTES = _WORKSPACE_BYTES
"""Memory that a product may use beside its operands."""


def numbers(kind: Kind) -> bytes:
    """Random operands of a kind, always the same ones."""
    source = random.Random(0)
    found = bytearray(_PATTERN_BYTES)
    for at, allowed in enumerate(kind.bytes_):
        table = bytes(allowed[value % len(allowed)] for value in range(256))
        count = _PATTERN_BYTES // kind.item
        found[at :: kind.item] = source.randbytes(count).translate(table)
    return bytes(found)


def _candidates() -> list[Path]:
    """Copies of cuBLASLt: ``STEPSCOPE_CUBLASLT``, packages of this and the usual Python, system."""
    own = os.environ.get("STEPSCOPE_CUBLASLT")
    found = [Path(own)] if own else []
    sites = [*site_folders(()), *site_folders(("python3",))]
    folders = [f"{site}/{inside}" for site in dict.fromkeys(sites) for inside in _IN_SITE]
    for pattern in (*folders, *_IN_SYSTEM):
        for folder in sorted(glob.glob(pattern), reverse=True):  # noqa: PTH207 - absolute pattern
            found += sorted(Path(folder).glob("libcublasLt.so.*"), reverse=True)
    return found

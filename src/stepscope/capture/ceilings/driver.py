"""The CUDA driver through ctypes: one device, memory, kernels from PTX text, times."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final

from stepscope.capture.errors import CaptureError
from stepscope.capture.libraries import load

_SMS, _L2_BYTES, _MAJOR, _MINOR = 16, 38, 75, 76  # CUdevice_attribute
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_NAME_BYTES = 256
_DEFAULT_STREAM: Final = None


class DeviceError(CaptureError):
    """A call of the driver failed."""

    def __init__(self, call: str, code: int, message: str) -> None:
        super().__init__(
            f"{call} failed: {message}; look whether nvidia-smi works and the GPU is idle"
        )
        self.code = code


class Device:
    """An open GPU; all work goes to its default stream.

    Args:
        index: number of the device, as CUDA counts.

    Raises:
        CaptureError: there is no such GPU here.
    """

    def __init__(self, index: int = 0) -> None:
        library = load("libcuda.so.1", "libcuda.so")
        if library is None:
            raise CaptureError(
                "this machine has no NVIDIA driver (libcuda.so.1), so there is no GPU to measure; "
                "run it where the program trains"
            )
        self._library = library
        try:
            self._call("cuInit", 0)
        except DeviceError as error:
            raise CaptureError(
                "the NVIDIA driver finds no GPU to measure; look what nvidia-smi says, and "
                "whether CUDA_VISIBLE_DEVICES hides it"
                if error.code == _NO_DEVICE
                else str(error)
            ) from error
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if not 0 <= index < count.value:
            raise CaptureError(
                f"there is no GPU {index}; this machine shows {count.value}, counted from 0"
            )
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), index)
        # the primary context is the one that cuBLASLt works in, too
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._call("cuCtxSetCurrent", self._context)
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("cuDeviceGetName", name, _NAME_BYTES, self._device)
        self.name = name.value.decode("utf-8", "replace")
        self.sms = self._attribute(_SMS)
        self.l2_bytes = self._attribute(_L2_BYTES)
        self.capability = (self._attribute(_MAJOR), self._attribute(_MINOR))
        self._begin, self._end = self._event(), self._event()
        self._allocated: list[ctypes.c_uint64] = []

    def close(self) -> None:
        """Give everything back."""
        self.free()
        self._library.cuDevicePrimaryCtxRelease_v2(self._device)

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise CaptureError(f"the NVIDIA driver has no {name}; install a newer driver")
        code = function(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise DeviceError(name, code, (text.value or b"error").decode() + f" ({code})")

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def cuda(self) -> str:
        """Newest CUDA version that the driver knows."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def free_bytes(self) -> int:
        """Memory of the device that is free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Address of new memory of so many bytes, kept until :meth:`free`."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self._allocated.append(address)
        return address.value

    def free(self) -> None:
        """Free all memory that was allocated."""
        self.wait()
        while self._allocated:
            self._library.cuMemFree_v2(self._allocated.pop())

    def fill(self, address: int, size: int, pattern: bytes) -> None:
        """Write a pattern over and over; its length divides the size or exceeds it."""
        done = min(len(pattern), size)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), pattern, ctypes.c_size_t(done))
        while done < size:
            part = min(done, size - done)
            self._call("cuMemcpyDtoD_v2", ctypes.c_uint64(address + done),
                       ctypes.c_uint64(address), ctypes.c_size_t(part))  # fmt: skip
            done += part

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the device's memory."""
        buffer = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return buffer.raw

    def kernel(self, ptx: str, name: str) -> ctypes.c_void_p:
        """A kernel of a PTX text, compiled by the driver for this device."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ptx.encode() + b"\0")
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def launch(
        self, kernel: ctypes.c_void_p, blocks: int, threads: int, arguments: Sequence[Any]
    ) -> None:
        """Launch a kernel.

        Args:
            kernel: from :meth:`kernel`.
            blocks: blocks of the grid.
            threads: threads of a block.
            arguments: ctypes values in the order of the kernel's parameters.
        """
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in arguments)
        )
        self._call("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, _DEFAULT_STREAM,
                   pointers, None)  # fmt: skip

    def wait(self) -> None:
        """Wait for all work; an error of an earlier launch comes out here."""
        self._call("cuCtxSynchronize")

    def seconds(self, work: Callable[[], object], times: int) -> float:
        """Device time of one run of some work, s, over so many runs."""
        self._call("cuEventRecord", self._begin, _DEFAULT_STREAM)
        for _ in range(times):
            work()
        self._call("cuEventRecord", self._end, _DEFAULT_STREAM)
        self._call("cuEventSynchronize", self._end)
        elapsed = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(elapsed), self._begin, self._end)
        return elapsed.value / 1e3 / times

"""What host and device time by operator is told as: rows, and the contract of their JSON."""

from __future__ import annotations

from typing import Final

import msgspec

from stepscope.operators.compiled import CompiledCode

SCHEMA: Final = "stepscope.operators/2"


class OperatorRow(msgspec.Struct, frozen=True):
    """One group of host events.

    Attributes:
        kind: ``operator``, ``annotation``, ``call`` (of CUDA), ``python`` (time of traced Python
            functions) or ``unlinked`` (device time that no operator launched); empty where a group
            holds several kinds.
        name: operator, or what it is grouped by.
        shapes: input shapes as JSON text, those of a list of tensors left out as torch does; empty
            unless they were asked for.
        calls: number of events.
        self_cpu_ns: host time less that of events inside.
        self_cpu_share: part of all self host time.
        cpu_ns: host time, with events inside.
        cpu_mean_ns: the same a call.
        self_device_ns: device time of the kernels, copies and memsets that it launched itself.
        self_device_share: part of all device time.
        device_ns: the same with events inside.
        device_mean_ns: the same a call.
        kernels: number of these kernels, copies and memsets.
        backward_cpu_ns: host time of the backward pass of these calls; null unless joined.
        backward_device_ns: device time of the backward pass of these calls; null unless joined.
        flop: floating-point operations, by the recorded shapes, with operators inside; null where
            not known.
        flop_per_s: these over ``device_ns``, over ``cpu_ns`` where nothing ran on a device.
        tensor_core_share: time on tensor cores over that of GEMMs, convolutions and
            attention; null where it launched none.
        self_cpu_memory_bytes: host memory allocated less released, without events inside; null
            where the capture does not tell.
        cpu_memory_bytes: the same with events inside.
        self_device_memory_bytes: as for the host, on the devices.
        device_memory_bytes: the same with events inside.
    """

    kind: str
    name: str
    shapes: str
    calls: int
    self_cpu_ns: int
    self_cpu_share: float
    cpu_ns: int
    cpu_mean_ns: float
    self_device_ns: int
    self_device_share: float
    device_ns: int
    device_mean_ns: float
    kernels: int
    backward_cpu_ns: int | None
    backward_device_ns: int | None
    flop: float | None
    flop_per_s: float | None
    tensor_core_share: float | None
    self_cpu_memory_bytes: int | None
    cpu_memory_bytes: int | None
    self_device_memory_bytes: int | None
    device_memory_bytes: int | None


class OperatorKernel(msgspec.Struct, frozen=True):
    """One kernel under one group of operators, which launched it themselves.

    Attributes:
        kind: of the group.
        name: of the group.
        shapes: of the group.
        kernel: its name.
        calls: launches.
        time_ns: device time.
        share: part of the group's own device time.
    """

    kind: str
    name: str
    shapes: str
    kernel: str
    calls: int
    time_ns: int
    share: float


class OperatorAverages(msgspec.Struct, frozen=True):
    """Host and device time by operator.

    Attributes:
        schema: name and version of this contract.
        paths: the inputs as the user named them.
        by: key of ``GROUPINGS``.
        scope: ``capture`` or ``steady`` (events that begin in the steady steps).
        steps: steps in the scope, of all ranks; null for the whole capture.
        self_cpu_ns: host time of all events, none counted twice.
        device_ns: time of all kernels, copies and memsets.
        has_device: whether the capture holds any.
        operators: one entry a group, in the order that was asked for.
        kernels: the kernels under each, the longest time first; empty unless asked for.
        compiled: what ``torch.compile`` did; null where the capture shows none of it.
        readings: what stands out, in sentences.
        warnings: what is missing, and what was assumed.
    """

    schema: str
    paths: list[str]
    by: str
    scope: str
    steps: int | None
    self_cpu_ns: int
    device_ns: int
    has_device: bool
    operators: list[OperatorRow]
    kernels: list[OperatorKernel]
    compiled: CompiledCode | None
    readings: list[str]
    warnings: list[str]

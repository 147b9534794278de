"""What moves data between GPUs, and how long a collective takes: latency and bandwidth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.collectives import kinds
from stepscope.collectives.calls import Participant, job_calls
from stepscope.simulation.settings.base import Facts
from stepscope.simulation.subject import Subject
from stepscope.trace.frame import IntArray

NVLINK_GB_S: Final = {
    r"GB200|B200|B300": 900.0,
    r"GH200|H100(?!.*PCIe)|H200|H800": 450.0,
    r"A100|A800": 300.0,
    r"V100(?!.*PCIE)": 150.0,
}
"""NVLink of one GPU in one direction, GB/s: half of what NVIDIA's datasheets give for both."""

NVLINK_SHARE: Final = 0.85
"""Share of it that large all-reduces achieve: 0.8 to 0.88 on four H200 under NVSwitch."""

LATENCY_NS: Final = 60_000
"""What an all-reduce of tens of megabytes takes beyond its bytes over the bandwidth, in a training
step on four H200: starting on all ranks, the steps of the ring, the ramp to full rate."""

PCIE_GB_S: Final = 20.0
"""Without NVLink: PCI Express 4.0, sixteen wide, in one direction, as copies achieve it."""

FAR_APART: Final = 1.5
"""Sizes that differ by this tell latency and bandwidth apart."""


@dataclass(frozen=True)
class Link:
    """Time of an all-reduce: latency, and bytes over the bus bandwidth.

    Attributes:
        latency_ns: of one.
        bus_bytes_a_ns: bus bandwidth as nccl-tests counts it.
        source: where both are from.
        measured: whether collectives of the capture tell.
    """

    latency_ns: float
    bus_bytes_a_ns: float
    source: str
    measured: bool

    def all_reduce_ns(self, size: float, ranks: int) -> float:
        """An all-reduce of so many bytes over so many ranks, ns."""
        if ranks < 2:
            return 0.0
        return self.latency_ns + 2 * (ranks - 1) / ranks * size / self.bus_bytes_a_ns


@dataclass(frozen=True)
class Messages:
    """All-reduces of gradients of one device; one value an item of its program.

    Attributes:
        item: the items, ascending.
        bytes: message size; -1 where the capture does not tell.
        ranks: ranks of the job, or of the communicator where that is known.
    """

    item: IntArray
    bytes: IntArray
    ranks: int


def messages(subject: Subject, facts: Facts, ranks: int) -> Messages:
    """The all-reduces that the backward pass enqueues.

    Args:
        subject: the program.
        facts: its device.
        ranks: of the job, as far as captures are there.
    """
    calls = job_calls([Participant(facts.rank, facts.gpu, facts.read, 0)]).calls[0]
    size = np.full(len(facts.gpu.ops), -1, np.int64)
    reduces = np.zeros(len(facts.gpu.ops), bool)
    mine = calls.kind == kinds.CODE["all_reduce"]
    reduces[calls.op[mine]] = True
    reduces &= ~facts.kernels.in_phase("forward")
    size[calls.op[mine]] = calls.bytes[mine]
    program = subject.program
    row = np.maximum(program.op, 0)
    items = np.flatnonzero(subject.is_op & (program.op >= 0) & reduces[row])
    known = calls.size[mine]
    stated = int(np.median(known[known > 0])) if (known > 0).any() else ranks
    return Messages(items, size[program.op[items]], max(stated, ranks))


def link_of(facts: Sequence[Facts], subjects: Sequence[Subject]) -> Link:
    """Latency and bandwidth by the capture's own all-reduces, else by the device's datasheet."""
    fitted = _fitted(facts, subjects)
    return fitted if fitted is not None else by_datasheet(facts[0].kernels.device[0])


def by_datasheet(device: str) -> Link:
    """What the device's generation of NVLink achieves; PCI Express where it has none."""
    for pattern, rate in NVLINK_GB_S.items():
        if re.search(pattern, device):
            source = (
                f"{NVLINK_SHARE * rate:.0f} GB/s of the {rate:.0f} GB/s that the datasheet of "
                f"{device} gives for NVLink in one direction, and {LATENCY_NS / 1e3:.0f} us"
            )
            return Link(LATENCY_NS, NVLINK_SHARE * rate, source, measured=False)
    source = f"{PCIE_GB_S:.0f} GB/s of PCI Express, because no NVLink of {device} is known"
    return Link(LATENCY_NS, PCIE_GB_S, source, measured=False)


def _fitted(facts: Sequence[Facts], subjects: Sequence[Subject]) -> Link | None:
    sizes: list[IntArray] = []
    times: list[IntArray] = []
    ranks = len(subjects)
    for subject, one in zip(subjects, facts, strict=True):
        found = messages(subject, one, len(subjects))
        known = found.bytes > 0
        sizes.append(found.bytes[known])
        times.append(subject.program.duration_ns[found.item[known]])
        ranks = max(ranks, found.ranks)
    size, time = np.concatenate(sizes), np.concatenate(times)
    if not len(size) or ranks < 2:
        return None
    return fit(size, time, ranks)


def fit(size: IntArray, time_ns: IntArray, ranks: int) -> Link | None:
    """Latency and bus bandwidth of some all-reduces: a line through the quickest of each size.

    What waits for another rank, or shares the device with compute, takes longer than the message
    needs; the lower quartile of each size is taken.
    """
    points = _by_size(size, time_ns)
    traffic = points[:, 0] * 2 * (ranks - 1) / ranks
    latency = float(LATENCY_NS)
    if points[-1, 0] >= FAR_APART * points[0, 0]:
        weight = points[:, 2]
        slope, begin = _line(traffic, points[:, 1], weight)
        if slope > 0 and begin >= 0:
            return Link(begin, 1 / slope, "the capture's own all-reduces", measured=True)
        latency = 0.0 if slope > 0 else latency
    heaviest = int(np.argmax(points[:, 0] * points[:, 2]))
    left = points[heaviest, 1] - min(latency, points[heaviest, 1] / 2)
    if left <= 0:
        return None
    return Link(
        points[heaviest, 1] - left,
        traffic[heaviest] / left,
        "the capture's own all-reduces, which are of one size: the latency is assumed",
        measured=True,
    )


_ALIKE: Final = 1.05
"""Sizes within this are one."""


def _by_size(size: IntArray, time_ns: IntArray) -> npt.NDArray[np.float64]:
    """Rows of (bytes, lower quartile of the times, how many), by size ascending."""
    order = np.argsort(size, kind="stable")
    size, time_ns = size[order], time_ns[order]
    cuts = np.flatnonzero(size[1:] > _ALIKE * size[:-1]) + 1
    rows = [
        (float(np.mean(a)), float(np.percentile(b, 25)), float(len(a)))
        for a, b in zip(np.split(size, cuts), np.split(time_ns, cuts), strict=True)
    ]
    return np.array(rows)


def _line(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], weight: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Slope and begin of the line nearest to some points."""
    total = weight.sum()
    mean_x, mean_y = float((weight * x).sum() / total), float((weight * y).sum() / total)
    spread = float((weight * (x - mean_x) ** 2).sum())
    slope = float((weight * (x - mean_x) * (y - mean_y)).sum()) / spread if spread else 0.0
    return slope, mean_y - slope * mean_x

"""Which process GPU work belongs to, where one file holds what several processes recorded.

Tools that merge the traces of all ranks into one file leave the host events their process ids. GPU
work names no process, only its device and the call that launched it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.importers.kineto.events import MISSING
from stepscope.intervals.distinct import distinct_rows, distinct_values, with_counts

Ints = npt.NDArray[np.int64]


class Launchers:
    """The process of each GPU operation.

    That is the process whose call launched it. Where no call is recorded, or where several
    processes number their calls alike, it is the one that launched most of what the device ran,
    and where no call tells, the captured process.

    Attributes:
        processes: the processes whose work a GPU ran, ascending.
    """

    def __init__(
        self, host: int, calls: tuple[Ints, Ints] | None, gpu: tuple[Ints, Ints] | None
    ) -> None:
        """Compare the calls of all processes with the operations.

        Args:
            host: the captured process.
            calls: process and correlation of the CUDA calls; None without any.
            gpu: device and correlation of the operations; None without any.
        """
        self._host = host
        self._correlation = self._launcher = self._devices = np.empty(0, np.int64)
        self._most = self._devices
        self.processes = [host]
        if calls is None or gpu is None:
            return
        pid, correlation = calls
        launching = (pid != MISSING) & (correlation > 0)
        if len(distinct_values(pid[launching])) < 2:
            return
        pid, correlation = pid[launching], correlation[launching]
        pairs = distinct_rows((correlation, pid))[0]
        pid, correlation = pid[pairs], correlation[pairs]
        values, counts = with_counts(correlation)
        alone = counts[np.searchsorted(values, correlation)] == 1
        self._correlation, self._launcher = correlation[alone], pid[alone]
        device, launcher = gpu[0], self._by_call(gpu[1])
        known = launcher != MISSING
        self._count(device[known].astype(np.int64), launcher[known])
        self.processes = distinct_values(self.of(*gpu)).tolist()

    def of(self, device: Ints, correlation: Ints | None = None) -> Ints:
        """The process of operations.

        Args:
            device: their devices.
            correlation: what ties each to the call that launched it; None where nothing does.
        """
        if not len(self._correlation):
            return np.full(len(device), self._host)
        launcher = (
            np.full(len(device), MISSING) if correlation is None else self._by_call(correlation)
        )
        if len(self._devices):
            at = np.minimum(np.searchsorted(self._devices, device), len(self._devices) - 1)
            of_device = np.where(self._devices[at] == device, self._most[at], MISSING)
            launcher = np.where(launcher == MISSING, of_device, launcher)
        return np.where(launcher == MISSING, self._host, launcher)

    def _by_call(self, correlation: Ints) -> Ints:
        """The process whose call has a number that no call of another one has, else MISSING."""
        at = np.searchsorted(self._correlation, correlation)
        at = np.minimum(at, max(len(self._correlation) - 1, 0))
        if not len(self._correlation):
            return np.full(len(correlation), MISSING)
        return np.where(self._correlation[at] == correlation, self._launcher[at], MISSING)

    def _count(self, device: Ints, launcher: Ints) -> None:
        """Note which process launched most of what each device ran."""
        if not len(device):
            return
        first, which = distinct_rows((device, launcher))
        often = np.bincount(which)
        # the last of each device is the process that launched most
        order = np.lexsort((often, device[first]))
        devices = device[first][order]
        last = np.append(devices[1:] != devices[:-1], True)
        self._devices, self._most = devices[last], launcher[first][order][last]

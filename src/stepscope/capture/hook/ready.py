"""Tells whether steps use up batches that PyTorch's DataLoader had ready before; on request.

A loader with workers makes batches ahead while a program starts, compiles or saves. However slow it
is, the steps behind that wait for none: a recording of them would show another program than the one
that trains.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STEPS = 4
"""The fewest batches that were ready in so many steps are held against those of as many before."""
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_AHEAD = 2
"""Times as many steps as there are batches ahead, that may pass until these are used up: those of
workers that take twice what a step does are made again at half the pace meanwhile."""


class ReadyBatches:
    """Whether there are fewer and fewer batches ready of the loader that the program reads.

    Attributes:
        most: steps that it may take until they are used up; 0 where no workers are known, and of a
            job, whose ranks must record the same steps.
    """

    def __init__(self) -> None:
        self._iterator: Any = None  # a weak reference to it
        self._ready: list[int] = []
        self.most = 0

    def watch(self, module: Any) -> None:
        """Note which iterator is read; ``module`` is ``torch.utils.data.dataloader``."""
        import weakref

        kind = module._BaseDataLoaderIter
        read = kind.__next__

        def noted(iterator: Any) -> Any:
            self._iterator = weakref.ref(iterator)
            return read(iterator)

        noted.__name__ = "__next__"
        kind.__next__ = noted

    def step(self) -> None:
        """A step has ended: see how many batches are ready for the next ones."""
        iterator = self._iterator and self._iterator()
        try:
            self._ready.append(_ready(iterator))
            ahead = iterator._num_workers * iterator._prefetch_factor
            self.most = 0 if _several_ranks() else _AHEAD * ahead
        except Exception:  # no such iterator, or a system or a PyTorch that does not tell
            self._ready.append(0)

    def get_fewer(self) -> bool:
        """Whether they still do; so few steps that nobody can tell count as one that does."""
        now, before = self._ready[-_STEPS:], self._ready[-2 * _STEPS : -_STEPS]
        if not now or not now[-1]:
            return False
        return len(before) < _STEPS or min(now) < min(before)


def _ready(iterator: Any) -> int:
    """Batches that were made and not yet read: in the queues, and those that came out of turn."""
    queues = {id(queue): queue for queue in (iterator._worker_result_queue, iterator._data_queue)}
    waiting = sum(int(queue.qsize()) for queue in queues.values())
    return waiting + sum(len(task) > 1 for task in iterator._task_info.values())


def _several_ranks() -> bool:
    """Whether the program is one process of a job."""
    if any(os.environ.get(name, "1") not in ("", "1") for name in _SIZES):
        return True
    distributed = sys.modules.get("torch.distributed")
    return bool(
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )

"""Read ahead in further threads, so that reading and decoding overlap."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")
Part = TypeVar("Part")
_AHEAD = 2  # finished items that wait; bounds the memory
_POLL_S = 0.1


def prefetched(make: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    """The items of an iterator that a thread of its own creates, runs and finishes.

    An error of the iterator is raised here, after the items before it. When the consumer stops
    early, the thread ends after the item it works on.
    """
    ready: queue.Queue[Item | _End] = queue.Queue(_AHEAD)
    stop = threading.Event()

    def put(item: Item | _End) -> None:
        while not stop.is_set():
            with suppress(queue.Full):
                ready.put(item, timeout=_POLL_S)
                return

    def work() -> None:
        end = _End()
        try:
            items = make()
            for item in items:
                put(item)
                if stop.is_set():
                    break
        except BaseException as error:
            end.error = error
        put(end)

    thread = threading.Thread(target=work, name="stepscope-reader", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        thread.join()


def in_order(work: Callable[[Part], Item], parts: Iterable[Part], threads: int) -> Iterator[Item]:
    """What several threads make of some parts, in the order of the parts.

    At most one item more than there are threads waits, which bounds the memory. An error is
    raised here, after the items before it.
    """
    from concurrent.futures import Future, ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads, thread_name_prefix="stepscope-reader")
    pending: deque[Future[Item]] = deque()
    try:
        for part in parts:
            pending.append(pool.submit(work, part))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class _End:
    """No more items; with the error that ended them, if one did."""

    error: BaseException | None = None

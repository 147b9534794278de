"""How an answer is computed: beside the event loop, within a deadline, given up when nobody waits.

Threads cannot be ended from outside. One that is past its deadline goes on by itself, unless it
looks at its event; the request is answered meanwhile, and the process ends without waiting for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from starlette.responses import Response

from stepscope.trace.errors import (
    ConflictError,
    GivenUpError,
    LimitError,
    StepscopeError,
    UsageError,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from stepscope.server.answers import Refusal

T = TypeVar("T")

DEADLINE_S: Final = 120.0
EXPLAINED_DEADLINE_S: Final = 3600.0
"""... of what waits until a large job is explained, which the page shows the progress of."""
_MOST_THREADS: Final = 40
_threads = threading.BoundedSemaphore(_MOST_THREADS)


async def answered(
    request: Request,
    answer: Callable[[threading.Event], bytes],
    kind: str,
    deadline_s: float = DEADLINE_S,
) -> Response:
    """The answer to a request.

    Args:
        request: what was asked.
        answer: computes it; its argument is set once nobody waits any more.
        kind: its media type.
        deadline_s: seconds that it may take.
    """
    gone = threading.Event()
    watching = asyncio.create_task(_watch(request, gone))
    try:
        body = await asyncio.wait_for(in_thread(lambda: answer(gone)), deadline_s)
    except TimeoutError:
        return refusal(
            LimitError(
                f"the answer takes longer than {deadline_s:g} s and was given up; ask for less, "
                "or start stepscope ui again"
            )
        )
    except GivenUpError:
        return Response(status_code=204)
    except StepscopeError as error:
        return refusal(error)
    finally:
        gone.set()
        watching.cancel()
    return Response(body, media_type=kind)


def refusal(error: StepscopeError) -> Response:
    """An error as an answer: 409 for a conflict, 400 for what cannot be, 503, or 410."""
    status = 410
    if isinstance(error, UsageError):
        status = 409 if isinstance(error, ConflictError) else 400
    elif isinstance(error, LimitError):
        status = 503
    found: Refusal = {"error": str(error)}
    return Response(msgspec.json.encode(found), status, media_type="application/json")


async def _watch(request: Request, gone: threading.Event) -> None:
    """Wait until the other end has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def in_thread(work: Callable[[], T]) -> T:
    """Run something in a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def fail(failure: BaseException) -> None:
        if not future.done():  # else it was given up
            future.set_exception(failure)

    def tell(found: T) -> None:
        if not future.done():
            future.set_result(found)

    def run() -> None:
        try:
            found = work()
        except BaseException as error:
            _threads.release()
            failure = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(fail, failure)
            return
        _threads.release()
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, found)

    while not _threads.acquire(blocking=False):
        await asyncio.sleep(0.01)
    threading.Thread(target=run, name="stepscope-answer", daemon=True).start()
    return await future

"""What tries ask of a ``DataLoader`` that is being made."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_MOST_FUNCTIONS = 200


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: bytes) -> int:
        """Take it for written."""
        return len(data)


def why_no_workers(torch: Any, given: dict[str, Any]) -> str:
    """Why worker processes would change the data or fail; empty where they would do.

    Args:
        torch: the program's torch.
        given: the loader's arguments.
    """
    dataset = given.get("dataset")
    iterable = torch.utils.data.IterableDataset
    if isinstance(dataset, iterable) and not _shards(dataset, given):
        return (
            f"{type(dataset).__name__} is an IterableDataset that does not ask get_worker_info, as "
            "far as its code shows: each worker would give all of the data"
        )
    if _on_gpu(dataset):
        return f"{type(dataset).__name__} holds CUDA tensors, which workers cannot share safely"
    if _start_method(given) != "fork":
        for name in ("dataset", "collate_fn", "worker_init_fn"):
            if problem := _why_no_pickle(given.get(name)):
                return f"workers are started by {_start_method(given)}, and {name} {problem}"
    return ""


def _shards(dataset: Any, given: dict[str, Any]) -> bool:
    """Whether the code that iterates over a dataset, or starts a worker, asks which worker it is.

    Followed are methods of the dataset and functions of the files in which that code stands.
    """
    kind = type(dataset)
    left = [getattr(kind, "__iter__", None), given.get("worker_init_fn")]
    seen: set[Any] = set()
    while left and len(seen) < _MOST_FUNCTIONS:
        function = left.pop()
        code = getattr(function, "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        names = _names(code)
        if "get_worker_info" in names:
            return True
        known = getattr(function, "__globals__", {})
        for name in names:
            left += [vars(one).get(name) for one in kind.__mro__]
            left.append(known.get(name))
        if "super" in names:
            left += [vars(one).get("__iter__") for one in kind.__mro__]
    return False


def _names(code: Any) -> set[str]:
    """The names that a piece of code and those inside it use."""
    found: set[str] = set()
    codes = [code]
    while codes:
        one = codes.pop()
        found.update(one.co_names)
        codes += [inner for inner in one.co_consts if hasattr(inner, "co_names")]
    return found


def _on_gpu(dataset: Any) -> bool:
    """Whether a dataset has CUDA tensors among its attributes, or in a tuple or list of them."""
    held = list(getattr(dataset, "__dict__", {}).values())
    held += [one for many in held if isinstance(many, (tuple, list)) for one in many[:100]]
    return any(getattr(one, "is_cuda", False) is True for one in held)


def _start_method(given: dict[str, Any]) -> str:
    """How workers are started: the loader's way, the program's, or this Python's."""
    import multiprocessing

    context = given.get("multiprocessing_context")
    if context is not None:
        return context if isinstance(context, str) else str(context.get_start_method())
    usual = multiprocessing.get_start_method(allow_none=True)
    return usual or multiprocessing.get_all_start_methods()[0]


def _why_no_pickle(what: Any) -> str:
    import pickle

    if what is None:
        return ""
    try:
        pickle.Pickler(_Nowhere()).dump(what)
    except Exception as error:
        return f"cannot be pickled ({type(error).__name__}: {str(error)[:120]})"
    return ""


def workers_of(given: dict[str, Any]) -> int:
    """Workers that a loader is made with."""
    return int(given.get("num_workers") or 0)


def processors() -> int:
    """Processors that this process may use."""
    import os

    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1

"""Write tracks into a file of arrays, as :mod:`stepscope.timeline.stored` reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.cache.arrays import ArrayWriter
from stepscope.intervals import mipmap
from stepscope.timeline.track import Samples, Slices, Track
from stepscope.trace.frame import IntArray

_SMALL = 1 << 16
_KEPT = ("title", "table", "kind", "process_id", "device", "stream", "thread_id", "unit")


def write_slices(writer: ArrayWriter, key: str, content: Slices) -> dict[str, Any]:
    """Store the slices of a track; returns what :class:`StoredSlices` is told about them."""
    depth = content.depth
    deep = int(depth.max(initial=-1)) + 1
    rows = [np.flatnonzero(depth == d) for d in range(deep)] if deep > 1 else []
    writer.add(f"{key}.start", np.asarray(content.start, np.int64))
    writer.add(f"{key}.end", np.asarray(content.end, np.int64))
    writer.add(f"{key}.name", content.name, "<u4")
    writer.add(f"{key}.code", content.code, "|u1")
    writer.add(f"{key}.id", content.id, _kind(content.id))
    writer.add(f"{key}.depth", depth, "|u1")
    edges = np.cumsum([0, *map(len, rows)]) if rows else np.array([0, len(content)])
    if rows:
        writer.add(f"{key}.rows", rows, "<u4")
    every = rows or [np.arange(len(content))]
    levels = mipmap.build(content.start, content.end, content.code, every)
    for name in ("table", "index", "covered", "dominant", "count", "long"):
        values = getattr(levels, name).ravel()
        writer.add(f"{key}.level.{name}", values, "<i8" if name == "table" else _kind(values))
    names, count, total = content.tallies()
    writer.add(f"{key}.names", names, "<u4")
    writer.add(f"{key}.names.count", count, "<u4")
    writer.add(f"{key}.names.total", total)
    ascending = bool((np.diff(content.id) > 0).all())
    if not ascending:
        writer.add(f"{key}.id.order", np.argsort(content.id, kind="stable"), "<u4")
    # at the last depth of a deep track, slices may lie inside one another
    tidy = all(bool((np.diff(content.end[r]) >= 0).all()) for r in every)
    return {"depths": edges.tolist(), "tidy": tidy, "ascending": ascending}


def write_texts(writer: ArrayWriter, key: str, texts: Sequence[str]) -> None:
    """Store texts as :class:`Texts` reads them."""
    # a line feed separates; the texts of a trace hold none, but who knows
    ends = np.cumsum([len(text.encode("utf-8", "replace")) + 1 for text in texts], dtype=np.int64)

    def pieces() -> Iterator[npt.NDArray[np.uint8]]:
        for low in range(0, len(texts), _SMALL):
            lines = (text.replace("\n", " ") + "\n" for text in texts[low : low + _SMALL])
            yield np.frombuffer("".join(lines).encode("utf-8", "replace"), np.uint8)

    writer.add(f"{key}.text", pieces(), "|u1", int(ends[-1]) if len(ends) else 0)
    writer.add(f"{key}.ends", ends - 1)


def write_track(writer: ArrayWriter, track: Track, number: int) -> dict[str, Any]:
    """Store a track; returns what is told about it."""
    content = track.build()
    facts: dict[str, Any] = {name: getattr(track, name) for name in _KEPT}
    facts["path"] = track.path.partition("/")[2]  # without the rank, which the job decides
    facts["rows"] = len(content)
    if isinstance(content, Samples):
        writer.add(f"{number}.time", np.asarray(content.time, np.int64))
        writer.add(f"{number}.value", np.asarray(content.value, np.float64))
        facts["limits"] = [None if np.isnan(v) else v for v in content.limits]
    else:
        facts |= write_slices(writer, str(number), content)
    return facts


def write_links(writer: ArrayWriter, call_of_op: IntArray) -> None:
    """Store which ``api_call`` launched each ``gpu_op``, by their ids; -1 where unknown."""
    writer.add("links.call", call_of_op, "<i4" if len(call_of_op) < 1 << 31 else "<i8")
    ops = np.flatnonzero(call_of_op >= 0)
    writer.add("links.ops", ops[np.argsort(call_of_op[ops], kind="stable")], "<u4")


def _kind(values: npt.NDArray[np.integer]) -> str:
    """The smallest type that holds some whole numbers."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for kind, most in (("|u1", 8), ("<u2", 16), ("<u4", 32)):
        if low >= 0 and high < 1 << most:
            return kind
    return "<i8"

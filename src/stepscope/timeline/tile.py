"""What the browser draws: all rows of some tracks in one window, as compact binary.

A tile is a little-endian 32-bit length, a header of that many bytes (JSON, padded with spaces so
that what follows is aligned to 8) and arrays one after the other, each padded to 8 bytes. The
header names them: ``{"rows": [{"track": 3, "depth": 0, "arrays": {"start": ["f8", 0, 12]}}]}``
says that ``start`` is 12 doubles from byte 0 behind the header on. Times are doubles of whole
nanoseconds on the job's clock: exact up to 104 days.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from stepscope.intervals.distinct import distinct_values
from stepscope.timeline.answers import COUNTER_ARRAYS, ROW_ARRAYS, Kind, TileHeader, TileRow
from stepscope.timeline.track import Names, Samples, Slices, Track
from stepscope.trace.errors import GivenUpError
from stepscope.trace.frame import AnyArray, IntArray

MOST_COLUMNS = 16_384
LONGEST_NAME = 200


@dataclass(frozen=True)
class Window:
    """A window at a resolution.

    Attributes:
        begin: begin on the job's clock, ns.
        bucket: width of a column, ns.
        columns: number of columns.
    """

    begin: int
    bucket: int
    columns: int

    @property
    def end(self) -> int:
        """End, ns."""
        return self.begin + self.bucket * self.columns


@dataclass
class Tile:
    """Rows of one window, collected."""

    window: Window
    names: Names
    cancelled: Callable[[], bool] = lambda: False
    rows: list[TileRow] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    depths: dict[int, int] = field(default_factory=dict)
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0

    def add(self, track: Track) -> None:
        """Add all rows of a track."""
        if self.cancelled():
            raise GivenUpError
        content = track.content
        if isinstance(content, Samples):
            self.depths[track.id] = 1
            self._samples(track, content)
        else:
            self.depths[track.id] = content.depths
            self._slices(track, content)

    def _slices(self, track: Track, content: Slices) -> None:
        w = self.window
        for depth, (of_track, columns) in enumerate(content.window(w.begin, w.bucket, w.columns)):
            if self.cancelled():
                raise GivenUpError
            if not len(of_track) and not len(columns.index):
                continue
            self.used.update(distinct_values(content.name[of_track]).tolist())
            self._row(
                track,
                depth,
                ROW_ARRAYS,
                start=content.start[of_track],
                end=content.end[of_track],
                row=of_track,
                name=content.name[of_track],
                code=content.code[of_track],
                column=columns.index,
                share=columns.covered_ns / w.bucket,
                dominant=columns.dominant,
                count=columns.count,
            )

    def _samples(self, track: Track, content: Samples) -> None:
        w = self.window
        edges = w.begin + w.bucket * np.arange(w.columns + 1, dtype=np.int64)
        at = np.searchsorted(content.time, edges, side="left")
        index = np.flatnonzero(np.diff(at))
        if len(index):
            visible = content.value[at[0] : at[-1]]
            first = at[:-1][index] - at[0]
            low = np.minimum.reduceat(visible, first)
            high = np.maximum.reduceat(visible, first)
            last = content.value[at[1:][index] - 1]
        else:
            low = high = last = np.empty(0)
        before = content.value[at[0] - 1] if at[0] > 0 else np.nan
        self._row(
            track,
            0,
            COUNTER_ARRAYS,
            column=index,
            low=low,
            high=high,
            last=last,
            before=np.array([before]),
            limits=np.array(content.limits),
        )

    def _row(
        self, track: Track, depth: int, kinds: dict[str, Kind], **arrays: AnyArray | IntArray
    ) -> None:
        facts: dict[str, tuple[Kind, int, int]] = {}
        for name, kind in kinds.items():
            values = arrays[name]
            data = np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()
            facts[name] = kind, self._size, len(values)
            self._parts.append(data + b"\0" * (-len(data) % 8))
            self._size += len(self._parts[-1])
        self.rows.append({"track": track.id, "depth": depth, "arrays": facts})

    def encoded(self) -> bytes:
        """The tile as bytes."""
        w = self.window
        header: TileHeader = {
            "begin": w.begin,
            "bucket": w.bucket,
            "columns": w.columns,
            "depths": self.depths,
            "rows": self.rows,
            "names": {number: self.names.texts[number][:LONGEST_NAME] for number in self.used},
        }
        text = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 4) % 8)
        return b"".join((len(text).to_bytes(4, "little"), text, *self._parts))


def tile(
    tracks: Iterable[Track],
    window: Window,
    names: Names,
    cancelled: Callable[[], bool] = lambda: False,
) -> bytes:
    """One tile of some tracks.

    Args:
        tracks: the tracks, made when their turn comes.
        window: what is asked for.
        names: texts of all tracks.
        cancelled: whether nobody waits for the answer any more; asked before each row.

    Raises:
        GivenUpError: nobody does.
    """
    made = Tile(window, names, cancelled)
    for track in tracks:
        made.add(track)
    return made.encoded()

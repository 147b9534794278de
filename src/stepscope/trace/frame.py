"""A table in memory as numpy columns: what the analyses take and give."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepscope.intervals.distinct import distinct_values
from stepscope.trace.text import KEPT_ANSWERS, LONGEST_JUDGED

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.trace.regex import Regex

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
AnyArray = npt.NDArray[Any]

NULL = -1
"""Stands for a null in integer columns; a text column's null has code -1."""


@cache
def searched(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    """Whether ``pattern`` is found in a text; one of ours, as it is kept.

    The answers for the last texts are kept, too: the traces of a job hold the same names.
    """
    return lru_cache(maxsize=KEPT_ANSWERS)(lambda text: pattern.search(text) is not None)


@dataclass(frozen=True)
class Frame:
    """Columns of equal length.

    Attributes:
        columns: name to numpy array. Text columns hold int32 codes into ``texts``.
        texts: name of a text column to its distinct values.
    """

    columns: dict[str, AnyArray]
    texts: dict[str, list[str]] = field(default_factory=dict)
    _matching: dict[tuple[str, re.Pattern[str]], BoolArray] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, column: str) -> AnyArray:
        return self.columns[column]

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def take(self, rows: AnyArray) -> Frame:
        """The rows selected by an index array or a boolean mask."""
        if rows.dtype == np.bool_ and rows.all():
            return self  # frames are never changed in place, so sharing saves a copy
        taken = {name: data[rows] for name, data in self.columns.items()}
        return Frame(taken, self.texts, self._matching)

    def only(self, columns: Sequence[str]) -> Frame:
        """Some of the columns, shared."""
        return Frame(
            {name: self.columns[name] for name in columns},
            {name: self.texts[name] for name in columns if name in self.texts},
        )

    def slice(self, start: int, stop: int) -> Frame:
        """The rows ``start`` to ``stop - 1``, as views."""
        views = {name: data[start:stop] for name, data in self.columns.items()}
        return Frame(views, self.texts, self._matching)

    def with_used_texts(self, column: str) -> Frame:
        """The same with only those distinct texts of a column that its rows have."""
        codes, texts = self.columns[column], self.texts[column]
        known = codes[codes >= 0]
        if 8 * len(known) < len(texts):
            used = distinct_values(known)
        else:
            used = np.flatnonzero(np.bincount(known, minlength=len(texts)))
        if len(used) == len(texts):
            return self
        found = np.where(codes >= 0, np.searchsorted(used, codes), -1).astype(codes.dtype)
        return Frame(
            {**self.columns, column: found},
            {**self.texts, column: [texts[code] for code in used.tolist()]},
        )

    def equals(self, column: str, *values: str) -> BoolArray:
        """Mask of the rows whose text column is one of ``values``."""
        codes = self.columns[column]
        found = np.zeros(len(codes), bool)
        for code, text in enumerate(self.texts[column]):
            if text in values:  # a handful at most: comparing is quicker than looking up
                found |= codes == code
        return found

    def matches(self, column: str, pattern: re.Pattern[str]) -> BoolArray:
        """Mask of the rows whose text matches ``pattern`` anywhere; evaluated per distinct text.

        Once for all frames that share the texts: causes ask the same of the same names.
        """
        hits = self._matching.get((column, pattern))
        if hits is None:
            hits = self._holding(column, searched(pattern))
            self._matching[column, pattern] = hits
        return self._with(column, hits)

    def found(self, column: str, pattern: Regex) -> BoolArray:
        """Mask of the rows in whose text a user's expression is found."""
        return np.append(pattern.search(self.texts[column]), False).take(self.columns[column])

    def that(self, column: str, holds: Callable[[str], bool]) -> BoolArray:
        """Mask of the rows whose text satisfies a predicate; evaluated per distinct text."""
        return self._with(column, self._holding(column, holds))

    def _holding(self, column: str, holds: Callable[[str], bool]) -> BoolArray:
        """Which texts of a column satisfy a predicate; last for null, which does not."""
        known = (text[:LONGEST_JUDGED] for text in self.texts[column])
        return np.array([*map(holds, known), False], dtype=bool)

    def _with(self, column: str, hits: BoolArray) -> BoolArray:
        codes = self.columns[column]
        if not hits.any():
            return np.zeros(len(codes), bool)
        return hits.take(codes)  # -1, null, takes the last

    def text(self, column: str, row: int) -> str:
        """The text of one row; empty for null."""
        code = int(self.columns[column][row])
        return self.texts[column][code] if code >= 0 else ""


def distinct(values: AnyArray) -> AnyArray:
    """Sorted distinct values; at once when there is only one, as with most process ids."""
    if len(values) and values.min() == values.max():
        return values[:1]
    return distinct_values(values)


def from_arrow(table: pa.Table) -> Frame:
    """Convert an Arrow table (dictionary-encoded text) to a :class:`Frame`.

    Integer nulls become ``NULL`` (-1), null flags become False, float nulls NaN.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns: dict[str, AnyArray] = {}
    texts: dict[str, list[str]] = {}
    while table.column_names:
        name, chunked = table.column_names[0], table.column(0)
        table = table.remove_column(0)  # what is converted need not be held twice
        data = _one_chunk(chunked)
        del chunked
        if pa.types.is_dictionary(data.type):
            texts[name] = data.dictionary.to_pylist()
            columns[name] = pc.fill_null(data.indices, -1).to_numpy(zero_copy_only=False)
        elif pa.types.is_boolean(data.type):
            columns[name] = pc.fill_null(data, False).to_numpy(zero_copy_only=False)
        elif pa.types.is_floating(data.type):
            columns[name] = data.to_numpy(zero_copy_only=False)
        else:
            filled = pc.fill_null(data, NULL) if data.null_count else data
            columns[name] = filled.to_numpy(zero_copy_only=False)
    return Frame(columns, texts)


def _one_chunk(chunked: pa.ChunkedArray) -> pa.Array:
    """A column in one piece, with one dictionary."""
    import pyarrow as pa

    if pa.types.is_dictionary(chunked.type) and not _share_dictionary(chunked.chunks):
        chunked = chunked.unify_dictionaries()
    data = chunked.combine_chunks()
    if isinstance(data, pa.ChunkedArray):
        data = data.chunk(0) if data.num_chunks else pa.array([], type=data.type)
    return data


def _share_dictionary(chunks: list[pa.Array]) -> bool:
    """Whether all chunks name the same dictionary in memory.

    To unify them anyway would look every text of it up for every chunk.
    """
    places = {
        (
            tuple(buffer.address if buffer else 0 for buffer in chunk.dictionary.buffers()),
            chunk.dictionary.offset,
            len(chunk.dictionary),
        )
        for chunk in chunks
    }
    return len(places) <= 1

"""Clean text of untrusted origin, and dictionaries of the strings that are really used."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepscope.intervals.distinct import distinct_values, with_inverse
from stepscope.trace.frame import AnyArray, BoolArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_CONTROL_RE2 = r"[\x00-\x1f\x7f\x{80}-\x{9f}]"
_LARGE_DICTIONARY = 1 << 15
Codes = npt.NDArray[np.int32]
Replaced = Callable[[int, str], None]
"""Receives the number of texts that cleaning changed, and the first of them."""


def clean(raw: bytes | str) -> str:
    """Text without invalid UTF-8 and control characters, each replaced by U+FFFD."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return _CONTROL.sub("\ufffd", text)


def clean_array(values: pa.Array, replaced: Replaced) -> pa.Array:
    """A string array from a string or binary array, which may hold bytes that are no UTF-8."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if values.null_count == len(values):
        return pa.nulls(len(values), pa.string())

    try:
        texts = values.cast(pa.string())
        texts.validate(full=True)
        if not pc.any(pc.match_substring_regex(texts, _CONTROL_RE2)).as_py():
            return texts
    except pa.ArrowInvalid:
        pass
    raw = values.cast(pa.binary()).to_pylist()
    cleaned = [None if item is None else clean(item) for item in raw]
    changed = [
        text
        for item, text in zip(raw, cleaned, strict=True)
        if text is not None and text.encode() != item
    ]
    replaced(len(changed), changed[0] if changed else "")
    return pa.array(cleaned, type=pa.string())


class Lexicon:
    """The distinct texts of one canonical column, in order of their first use.

    All batches of the column share it, so that codes of different batches compare.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._array: pa.Array | None = None

    def code(self, text: str) -> int:
        """The code of a text, new or known."""
        found = self._codes.setdefault(text, len(self.texts))
        if found == len(self.texts):
            self.texts.append(text)
            self._array = None
        return found

    def codes(self, texts: pa.Array) -> pa.Array:
        """Codes (int32, null where the text is null) of a string array."""
        import pyarrow as pa

        encoded = texts.dictionary_encode()
        known = np.array([self.code(text) for text in encoded.dictionary.to_pylist()], np.int32)
        return pa.array(known).take(encoded.indices)

    def encode(self, codes: pa.Array) -> pa.Array:
        """The dictionary array of int32 codes; a huge dictionary is cut to what they use."""
        import pyarrow as pa

        if self._array is None:
            self._array = pa.array(self.texts, type=pa.string())
        if len(self.texts) > _LARGE_DICTIONARY:
            return self._array.take(codes).dictionary_encode()
        return pa.DictionaryArray.from_arrays(codes, self._array)


class Strings:
    """The table ``StringIds``: number to text.

    It also holds much that is no name (the program's output, environment variables), so texts
    are cleaned when they are used.

    Args:
        ids: the numbers, in any order.
        texts: the texts as stored (binary), of the same length; null counts as empty.
    """

    def __init__(self, ids: IntArray, texts: pa.Array) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._texts = texts.take(order)
        self._dense: AnyArray | None = None
        if len(ids) and self._ids[0] >= 0 and self._ids[-1] < 4 * len(ids) + (1 << 16):
            self._dense = np.full(int(self._ids[-1]) + 1, -1, np.int64)
            self._dense[self._ids] = np.arange(len(ids))

    def __len__(self) -> int:
        return len(self._ids)

    def positions(self, ids: IntArray) -> IntArray:
        """Where each id stands; -1 for an id that does not exist."""
        if not len(self._ids):
            return np.full(len(ids), -1, np.int64)
        if self._dense is not None:
            inside = (ids >= 0) & (ids < len(self._dense))
            if inside.all():
                return self._dense[ids]
            return np.where(inside, self._dense[np.where(inside, ids, 0)], -1)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, at, -1)

    def text(self, position: int) -> tuple[str, bool]:
        """The clean text at a position, and whether cleaning changed it."""
        raw = self._texts[position].as_py() or b""
        text = clean(raw)
        return text, text.encode() != raw

    def positions_of(self, ids: pa.Array) -> IntArray:
        """Positions of nullable ids; -1 where the id is null or unknown."""
        at = self.positions(ids.fill_null(-1).to_numpy(zero_copy_only=False))
        if not ids.null_count:
            return at
        # no number stands for null: -1 may itself be the id of a text
        valid = ids.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, at, -1)

    def take(self, ids: pa.Array, replaced: Replaced) -> pa.Array:
        """Clean texts of nullable ids; null where the id is null or unknown."""
        import pyarrow as pa

        if ids.null_count == len(ids):
            return pa.nulls(len(ids), pa.string())
        at = self.positions_of(ids)
        return clean_array(self._texts.take(pa.array(at, mask=at < 0)), replaced)


class NameColumn:
    """Turns string ids of one source column into codes of one canonical text column.

    Args:
        strings: the source's texts.
        lexicon: the canonical column's dictionary.
        unknown: receives the number of ids without text, and the first of them.
        replaced: receives the distinct texts that cleaning changed.
        change: applied to each distinct text.
    """

    def __init__(
        self,
        strings: Strings,
        lexicon: Lexicon,
        unknown: Replaced,
        replaced: Replaced,
        change: Callable[[str], str] = str,
    ) -> None:
        self._strings = strings
        self._lexicon = lexicon
        self._unknown = unknown
        self._replaced = replaced
        self._change = change
        self._known: Codes = np.full(len(strings) + 1, -1, np.int32)  # the last one: position -1

    def __call__(self, ids: pa.Array) -> pa.Array:
        """Codes of ids; null stays null, an unknown id becomes ``[string N]``."""
        import pyarrow as pa

        numbers: IntArray = ids.fill_null(-1).to_numpy(zero_copy_only=False)
        at = self._strings.positions_of(ids)
        codes = self._known[at]
        missing = codes < 0
        if missing.any():
            for position in distinct_values(at[missing & (at >= 0)]).tolist():
                text, changed = self._strings.text(position)
                if changed:
                    self._replaced(1, text)
                self._known[position] = self._lexicon.code(self._change(text))
            codes = self._known[at]
            self._name_unknown(codes, numbers, (at < 0) & _valid(ids))
        if ids.null_count:  # a null reads as -1, which a text may have as its number
            return pa.array(codes, mask=(codes < 0) | ~_valid(ids))
        return pa.array(codes)

    def _name_unknown(self, codes: Codes, numbers: IntArray, where: BoolArray) -> None:
        if not where.any():
            return
        distinct, inverse = with_inverse(numbers[where])
        named = [self._lexicon.code(f"[string {number}]") for number in distinct.tolist()]
        codes[where] = np.array(named, np.int32)[inverse]
        self._unknown(int(where.sum()), f"string id {int(numbers[where][0])}")


def _valid(values: pa.Array) -> BoolArray:
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), dtype=bool)

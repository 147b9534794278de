"""Texts of untrusted origin: cleaned, and kept once, with codes for the columns that hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepscope.intervals.distinct import with_inverse
from stepscope.trace.frame import AnyArray, BoolArray
from stepscope.trace.text import clean_dictionary, without_controls

if TYPE_CHECKING:
    import pyarrow as pa

_LARGE_DICTIONARY = 1 << 15
Codes = npt.NDArray[np.int32]
Replaced = Callable[[int, str], None]
"""Receives the number of texts that cleaning changed, and the first of them."""


def clean(raw: bytes | str) -> str:
    """Text without invalid UTF-8 and control characters, each replaced by U+FFFD."""
    return without_controls(raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw)


def clean_array(values: pa.Array, replaced: Replaced) -> pa.Array:
    """A string array from a string or binary array, which may hold bytes that are no UTF-8."""
    import pyarrow as pa

    if values.null_count == len(values):
        return pa.nulls(len(values), pa.string())
    try:
        texts = values.cast(pa.string())
        texts.validate(full=True)
        cleaned, changed = clean_dictionary(texts)
    except pa.ArrowInvalid:
        raw = values.cast(pa.binary()).to_pylist()
        cleaned = pa.array([None if item is None else clean(item) for item in raw], pa.string())
        pairs = zip(raw, cleaned.to_pylist(), strict=True)
        changed = [text for item, text in pairs if item is not None and text.encode() != item]
    if changed:
        replaced(len(changed), changed[0])
    return cleaned


class StringTable:
    """The distinct texts of one canonical column, in order of their first use.

    All batches of the column share it, so that codes of different batches compare.
    """

    def __init__(self) -> None:
        self.texts: list[Any] = []
        self._codes: dict[Any, int] = {}
        self._array: pa.Array | None = None

    def code(self, text: str | bytes) -> int:
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

    def codes_of(self, values: Sequence[str] | Sequence[bytes]) -> Codes:
        """Codes of a sequence of values, new ones being added."""
        known = self._codes
        try:
            return np.fromiter(map(known.__getitem__, values), np.int32, len(values))
        except KeyError:
            return np.fromiter(map(self.code, values), np.int32, len(values))

    def encode(self, codes: pa.Array) -> pa.Array:
        """The dictionary array of int32 codes; a huge dictionary is cut to what they use."""
        import pyarrow as pa

        if self._array is None:
            self._array = pa.array(self.texts, type=pa.string())
        if len(self.texts) > _LARGE_DICTIONARY:
            return self._array.take(codes).dictionary_encode()
        return pa.DictionaryArray.from_arrays(codes, self._array)


def dictionary(
    codes: AnyArray, words: Sequence[str | None], mask: BoolArray | None = None
) -> pa.Array:
    """A dictionary array of the words that are used, which need not be distinct.

    Args:
        codes: place of each row's word; -1 stands for none.
        words: the words; None is null.
        mask: further rows that are null.
    """
    import pyarrow as pa

    used = np.zeros(len(words) + 1, dtype=bool)
    used[codes] = True  # code -1 marks the spare last place
    used[-1] = False
    kept = np.flatnonzero(used)
    known: dict[str, int] = {}
    place = np.full(len(words) + 1, -1, np.int32)
    place[kept] = [known.setdefault(words[at] or "", len(known)) for at in kept.tolist()]
    null = np.array([word is None for word in words] + [True], dtype=bool)[codes]
    if mask is not None:
        null |= mask
    indices = pa.array(place[codes], mask=null if null.any() else None)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(known), pa.string()))


def labels(numbers: AnyArray, known: Mapping[int, str], other: str = "{}") -> pa.Array:
    """Dictionary array of the labels of an enumeration."""
    distinct, inverse = with_inverse(numbers)
    return dictionary(inverse, [known.get(n, other.format(n)) for n in distinct.tolist()])


def constant(text: str, rows: int) -> pa.Array:
    """Dictionary array of one text."""
    return dictionary(np.zeros(rows, np.int32), [text])

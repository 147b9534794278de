"""Texts of untrusted origin: cleaned, and kept once, with codes for the columns that hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

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

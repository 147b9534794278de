"""Regular expressions of users over the names of a trace: RE2, whose time is linear in the text.

Python's ``re`` tries every way to match: a short expression may take longer than anyone lives, and
holds Python's lock meanwhile. Expressions that we wrote ourselves stay with ``re``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from stepscope.trace.errors import GivenUpError, LimitError, UsageError

LONGEST: Final = 1000
"""Characters of an expression."""
TIMEOUT_S: Final = 60.0
_FIRST: Final = 16
_MOST: Final = 1 << 16
_SHORT_S: Final = 0.05
"""A piece of names that takes less is followed by one of twice as many."""
_LACKING: Final = re.compile(r"\(\?<?[=!]|\(\?P=|\(\?\(|\(\?>|\(\?[#xaLu]|\\[1-9Z]|[*+?}]\+")
"""What Python's expressions have and RE2's have not."""
_REASON: Final = re.compile(r"Invalid regular expression: |Invalid: ")


@dataclass(frozen=True)
class Regex:
    """An expression that RE2 understands.

    Attributes:
        text: as the user wrote it.
        ignore_case: whether case counts for nothing.
    """

    text: str
    ignore_case: bool = False

    def search(
        self,
        names: Sequence[str],
        timeout_s: float = TIMEOUT_S,
        given_up: Callable[[], bool] = lambda: False,
    ) -> npt.NDArray[np.bool_]:
        """Mask of the names in which it is found.

        Args:
            names: where it is looked for.
            timeout_s: seconds that this may take.
            given_up: whether nobody waits for the answer any more.

        Raises:
            LimitError: it takes longer.
            GivenUpError: nobody waits.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        found = np.zeros(len(names), bool)
        ends = time.monotonic() + timeout_s
        at, size = 0, _FIRST
        while at < len(names):
            began = time.monotonic()
            if began > ends:
                raise LimitError(
                    f"looking for {self.text[:80]!r} takes too long; give a simpler expression"
                )
            if given_up():
                raise GivenUpError
            # lone surrogates are no text to Arrow
            part = pa.array([_valid(name) for name in names[at : at + size]], pa.string())
            hits = pc.match_substring_regex(part, self.text, ignore_case=self.ignore_case)
            found[at : at + size] = hits.to_numpy(zero_copy_only=False)
            at += size
            if time.monotonic() - began < _SHORT_S:
                size = min(2 * size, _MOST)
        return found


def regex(text: str, what: str = "", *, ignore_case: bool = False) -> Regex:
    """An expression of a user.

    Args:
        text: the expression.
        what: the option that it came with, for the message.
        ignore_case: whether case counts for nothing.

    Raises:
        UsageError: RE2 does not understand it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    name = f"{what} {text[:200]!r}" if what else repr(text[:200])
    if len(text) > LONGEST:
        raise UsageError(f"{name} is longer than {LONGEST:,} characters; shorten it")
    try:
        pc.match_substring_regex(pa.array([""]), text, ignore_case=ignore_case)
    except (pa.ArrowException, UnicodeError) as error:
        reason = _REASON.sub("", " ".join(str(error).split()))[:200]
        lacking = (
            "; RE2, which is used here, has no look-ahead, look-behind or back-references"
            if _LACKING.search(text)
            else ""
        )
        raise UsageError(f"{name} is no regular expression: {reason}{lacking}") from error
    return Regex(text, ignore_case)


def _valid(name: str) -> str:
    return name if name.isascii() else name.encode("utf-8", "replace").decode()

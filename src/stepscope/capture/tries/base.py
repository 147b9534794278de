"""What a fix declares, and what it did to a program. For Python from 3.8 on, as the hook is."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_NUMBER = 1024
_PLACES = 20
"""Applications whose place in the program is looked up; the rest are counted."""


class Try:
    """A fix that can be tried.

    Attributes:
        name: as ``--try`` has it, without a value.
        argument: what stands behind the equals sign: ``N`` for a number from 1 on, a fixed word, or
            nothing.
        summary: what it does, in one sentence without end.
        repairs: ids of the causes and levers whose prediction is about it.
        further: ids of causes of which it is the further repair, whose prediction is told beside.
        eases: ids of further ones that it may make smaller; ``--try auto`` takes it for these, too.
        lines: what to write into the script where it was of use.
        refused: when it is not applied, and what it does not see, in sentences.
        rounding: whether it may change the rounding of numbers. Others must leave the losses as
            they are.
        looks: whether it only looks: the program is then run once, and no time is compared.
        warmup: steps to let pass, at least, until the program runs with it as it will.
        order: which of several is applied first.
        automatic: the value that ``--try auto`` gives it; empty where its argument is. None where
            auto does not take it.
    """

    def __init__(
        self,
        name: str,
        *,
        summary: str,
        lines: str,
        refused: str,
        repairs: tuple[str, ...] = (),
        further: tuple[str, ...] = (),
        eases: tuple[str, ...] = (),
        argument: str = "",
        rounding: bool = False,
        looks: bool = False,
        warmup: int = 0,
        order: int = 5,
        automatic: str | None = "",
    ) -> None:
        self.name = name
        self.argument = argument
        self.summary = summary
        self.repairs = repairs
        self.further = further
        self.eases = eases
        self.lines = lines
        self.refused = refused
        self.rounding = rounding
        self.looks = looks
        self.warmup = warmup
        self.order = order
        self.automatic = automatic

    @property
    def shown(self) -> str:
        """The name with its argument."""
        return f"{self.name}={self.argument}" if self.argument else self.name

    def refuse_value(self, value: str | None) -> str:
        """Why a value is not one that it takes; empty where it is."""
        if not self.argument:
            return "" if value is None else f"{self.name} takes no value; write {self.name}"
        if self.argument != "N":
            right = value == self.argument
            return "" if right else f"{self.name} takes one value; write {self.shown}"
        is_number = value is not None and value.isdecimal() and value.isascii() and len(value) < 9
        if is_number and 1 <= int(value or 0) <= _MOST_NUMBER:
            return ""
        return f"{self.name} needs a number from 1 to {_MOST_NUMBER:,}, as in {self.name}=4"

    def to_write(self, value: str) -> str:
        """The lines for the script, with the value."""
        return self.lines.replace("N", value) if self.argument == "N" else self.lines


class Change:
    """What a try did to this process of the program.

    Attributes:
        declared: the try.
        value: what it was given.
        trial: what it may ask of the program's run.
        refused: why it is not applied; empty where it is.
    """

    def __init__(self, declared: Try, value: str, trial: Any) -> None:
        self.declared = declared
        self.value = value
        self.trial = trial
        self.refused = ""
        self._applied = 0
        self._places: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._notes: list[str] = []
        self._declined = ""

    @property
    def torch(self) -> Any:
        """The program's torch, which it has imported."""
        return sys.modules["torch"]

    def applied(self) -> None:
        """It was applied once, at what the program is doing now."""
        self._applied += 1
        if self._applied <= _PLACES:
            place = place_in_program()
            self._places[place] = self._places.get(place, 0) + 1

    def left(self, reason: str) -> None:
        """It would have been applied here, but for a reason."""
        self._left[reason] = self._left.get(reason, 0) + 1

    def decline(self, reason: str) -> None:
        """It must not be applied here; where that is so everywhere, it is refused."""
        self.left(reason)
        self._declined = self._declined or reason

    def refuse(self, reason: str) -> None:
        """Apply it nowhere, from now on."""
        if not self.refused:
            self.refused = reason

    def note(self, text: str) -> None:
        """What the user should know of it."""
        if text not in self._notes:
            self._notes.append(text)

    def document(self) -> dict[str, Any]:
        """As the launcher reads it."""
        return {
            "name": self.declared.name,
            "value": self.value,
            "applied": self._applied,
            "refused": self.refused or (self._declined if not self._applied else ""),
            "places": self._places,
            "left": self._left,
            "notes": self._notes,
        }


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
_LIBRARIES = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python3")


def place_in_program() -> str:
    """The innermost line of the program's own that is being executed, as ``train.py:12``.

    Lines of libraries do not count; empty where there are only those.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        library = name.startswith(_OURS) or package in ("torch", "importlib", "accelerate")
        if not library and name[:1] != "<" and not any(part in name for part in _LIBRARIES):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""

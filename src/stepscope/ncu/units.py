"""Units as Nsight Compute writes them: to base units for computing, and back for showing."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_PREFIX: Final = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9,
                  "T": 1e12, "P": 1e15}  # fmt: skip
_TIME: Final = {"second": 1e9, "s": 1e9}  # the base unit of time is the nanosecond
_TIME_UNIT = re.compile(r"^([num]?)(second|s)$")
_SCALED = re.compile(r"^([KMGTPk]?)(byte|hz|Hz)((?:/.*)?)$")
_RATE = re.compile(r"^([KMGTPk]?)(\w+)/([num]?)(second|s)$")
_STEPS: Final = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3), ("", 1.0))
_TIME_STEPS: Final = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))


@cache
def factor(unit: str) -> float:
    """What a value in this unit is multiplied by to be in base units (ns, byte, Hz, ...).

    Nsight Compute scales units to the value and spells them differently from version to version:
    ``usecond`` and ``us``, ``Gbyte/second`` and ``Gbyte/s``, ``cycle/nsecond`` and ``Ghz``.
    """
    unit = unit.strip()
    time = _TIME_UNIT.match(unit)
    if time:
        return _PREFIX[time[1]] * _TIME[time[2]]
    rate = _RATE.match(unit)
    if rate:
        return _PREFIX[rate[1]] / _PREFIX[rate[3]]
    scaled = _SCALED.match(unit)
    if scaled:
        return _PREFIX[scaled[1]]
    return 1.0


def shown(value: float, unit: str) -> str:
    """A value as ``ncu --page details`` prints it: two decimals, whole numbers without.

    Args:
        value: in base units.
        unit: base unit: ``ns``, ``byte``, ``byte/s``, ``hz``, ``%``, ...
    """
    scaled, name = _to_fit(value, unit)
    number = f"{scaled:z,.0f}" if scaled == int(scaled) else f"{scaled:z,.2f}"
    return f"{number} {name}".rstrip()


def _to_fit(value: float, unit: str) -> tuple[float, str]:
    """The value in the largest unit in which it is at least one."""
    if unit == "ns":
        name, size = next((s for s in _TIME_STEPS if abs(value) >= s[1]), _TIME_STEPS[-1])
        return value / size, name
    base, slash, per = unit.partition("/")
    if base in ("byte", "hz", "FLOP") and per not in ("cycle", "sector"):
        prefix, size = next((s for s in _STEPS if abs(value) >= s[1]), _STEPS[-1])
        return value / size, prefix + base + slash + per
    return value, unit

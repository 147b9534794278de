"""Formats of report tables: ``name[:option...]``, units, and cells as text."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.render.fitted import wrapped
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

AUTO_LINES, MAX_WIDTH = 100, 100
TIME_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "sec": 1_000_000_000}
BYTE_UNITS = {
    "B": 1,
    "KB": 10**3,
    "KiB": 2**10,
    "MB": 10**6,
    "MiB": 2**20,
    "GB": 10**9,
    "GiB": 2**30,
}
DECIMALS = {"us": 3, "ms": 4, "sec": 4, "KB": 2, "KiB": 2, "MB": 3, "MiB": 3, "GB": 3, "GiB": 3}
_DEFAULTS = {"ts": "ns", "dur": "ns", "mem": "MB", "thru": "MB", "ratio": "%", "addr": "hex"}
_ALLOWED = {
    "ts": tuple(TIME_UNITS),
    "dur": tuple(TIME_UNITS),
    "mem": tuple(BYTE_UNITS),
    "thru": tuple(BYTE_UNITS),
    "ratio": ("%",),
    "addr": ("hex", "uint"),
    "gid": ("gidint", "gidhex", "gidsubint", "gidsubhex"),
}
_META = {"time": ("ts", "dur"), "bytes": ("mem", "thru")}
_COMMON = ("noconv", "nohdrunit")
_SHAPED = ("nohdr", "nofmt", "autolines=", "colmax=")
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "column": ("txt", _SHAPED),
    "table": ("txt", _SHAPED),
    "csv": ("csv", ("nohdr",)),
    "tsv": ("tsv", ("nohdr", "esc")),
    "json": ("json", ()),
    "hdoc": ("html", ("title=", "css=")),
    "htable": ("html", ()),
}
"""Format -> file extension and its own options."""

_TEXT = ("text", "terminal")
"""What other commands call ``column``, which has its name here from Nsight Systems."""

TITLES = {
    "column": "aligned columns for reading",
    "table": "a table with lines around its cells",
    "csv": "comma-separated values; quoted where a value holds a comma, quote or line end; texts "
    "that a spreadsheet takes for formulas begin with an apostrophe",
    "tsv": "tab-separated values; tabs and line ends inside values become spaces",
    "json": "an array of objects, one a row; null where there is no value",
    "hdoc": "an HTML page with the table",
    "htable": "the table alone in HTML",
}
OPTIONS = {
    "nohdr": "no header",
    "nofmt": "no separators between thousands",
    "autolines=": f"rows that decide the width of the columns (default {AUTO_LINES}, 0: all)",
    "colmax=": f"widest column that is chosen so (default {MAX_WIDTH}, 0: no limit)",
    "esc": r"write \t for a tab inside a value",
    "title=": "title of the page",
    "css=": "address of a style sheet",
    "noconv": "times in ns, sizes in bytes, addresses in decimal",
    "nohdrunit": "no unit in the headers",
}
"""What the options mean, whatever format takes them."""


def formats_text(name: str, width: int | None = None) -> str:
    """The list of all formats, or what one of them (or ALL) takes.

    Raises:
        UsageError: there is no such format.
    """
    name = name.partition(":")[0]
    if not name:
        lines = []
        for known in FORMATS:
            text = f"{known:8} {TITLES[known]} (.{FORMATS[known][0]})"
            lines += wrapped(text, width, indent=2, hang=11)
        return "The following formats are known:\n\n" + "\n".join(lines) + "\n"
    if name != "ALL" and name not in FORMATS:
        raise UsageError(f"there is no format {name!r}; {_nearest(name, tuple(FORMATS), 'format')}")
    return "\n".join(_about(known, width) for known in (FORMATS if name == "ALL" else [name]))


def _about(name: str, width: int | None) -> str:
    own = (*FORMATS[name][1], *_COMMON)
    lines = [*wrapped(f"{name}[:option...] -- {TITLES[name]}", width, hang=4), ""]
    for option in own:
        lines += wrapped(f"{option:12} {OPTIONS[option]}", width, indent=4, hang=17)
    if "colmax=" in own:
        lines.append(f"    {'N:N:...':12} widths of the columns in order (. chosen, 0 hidden)")
    for category, units in _ALLOWED.items():
        lines.append(f"    {category + '=':12} unit: {', '.join(units)}")
    for both, categories in _META.items():
        lines.append(f"    {both + '=':12} the same for {' and '.join(categories)}")
    return "\n".join(lines) + "\n"


_LONG_UNITS = {
    "nsec": "ns",
    "nanoseconds": "ns",
    "usec": "us",
    "us": "us",
    "microseconds": "us",
    "msec": "ms",
    "ms": "ms",
    "milliseconds": "ms",
    "seconds": "sec",
    "ns": "ns",
}


@dataclass(frozen=True)
class Format:
    """A format with its options.

    Attributes:
        name: one of ``FORMATS``.
        units: unit of each category that was set.
        flags: options without value that were given.
        values: options with value.
        widths: explicit column widths (column, table); -1 for automatic, 0 hides the column.
    """

    name: str
    units: dict[str, str] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()
    values: dict[str, str] = field(default_factory=dict)
    widths: tuple[int, ...] = ()

    @property
    def extension(self) -> str:
        """Extension of files in this format."""
        return FORMATS[self.name][0]

    def unit(self, category: str) -> str:
        """The unit that values of a category are shown in."""
        if "noconv" in self.flags:
            return {"ts": "ns", "dur": "ns", "mem": "B", "thru": "B", "addr": "uint"}.get(
                category, _DEFAULTS.get(category, "")
            )
        return self.units.get(category, _DEFAULTS.get(category, ""))


def time_unit(text: str) -> str:
    """The unit that a time unit's name, or the beginning of it, stands for.

    Raises:
        UsageError: it fits none, or several.
    """
    fits = {unit for name, unit in _LONG_UNITS.items() if text and name.startswith(text)}
    if text in _LONG_UNITS:
        fits = {_LONG_UNITS[text]}
    if len(fits) != 1:
        raise UsageError(f"{text!r} is no time unit; units are nsec, usec, msec, seconds")
    return fits.pop()


def parse_format(text: str, base_time: str = "ns") -> Format:
    """Read ``name[:option...]``, as in ``csv:time=ms:mem=B:nohdr``.

    Args:
        text: the format.
        base_time: unit of times that the format itself does not set.

    Raises:
        UsageError: unknown format, option, category or unit.
    """
    name, *options = text.split(":")
    if name in _TEXT:
        name = "column"
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}; {_nearest(name, tuple(FORMATS), 'format')}")
    own = FORMATS[name][1]
    units = {"ts": base_time, "dur": base_time}
    flags: set[str] = set()
    values: dict[str, str] = {}
    widths: list[int] = []
    for option in options:
        key, equals, value = option.partition("=")
        if not equals and key in (*own, *_COMMON):
            flags.add(key)
        elif equals and f"{key}=" in own:
            values[key] = value
            if key in ("autolines", "colmax") and not value.isdigit():
                raise UsageError(f"{name}:{key} needs a number, not {value!r}")
        elif equals:
            for category in _META.get(key, (key,)):
                units[category] = _checked_unit(name, category, value)
        elif "colmax=" in own and (option == "." or option.isdigit()):
            widths.append(-1 if option == "." else int(option))
        else:
            known = (*own, *_COMMON)
            raise UsageError(
                f"{name} has no option {option!r}; {_nearest(option, known, 'option')}"
            )
    return Format(name, units, frozenset(flags), values, tuple(widths))


def _checked_unit(format_: str, category: str, unit: str) -> str:
    if category not in _ALLOWED:
        known = (*_ALLOWED, *_META)
        raise UsageError(
            f"{format_} has no option {category!r}; {_nearest(category, known, 'category')}"
        )
    if unit not in _ALLOWED[category]:
        raise UsageError(
            f"{category} cannot be in {unit!r}; units are {', '.join(_ALLOWED[category])}"
        )
    return unit


def _nearest(word: str, words: Sequence[str], kind: str) -> str:
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    plural = "categories" if kind == "category" else f"{kind}s"
    return f"did you mean {near[0]!r}?" if near else f"{plural} are {', '.join(words)}"


@dataclass(frozen=True)
class Cells:
    """A report table as text.

    Attributes:
        head: column headers.
        columns: the cells by column; empty text for null.
        numeric: which columns hold numbers.
        prose: which columns hold sentences.
    """

    head: list[str]
    columns: list[list[str]]
    numeric: list[bool]
    prose: list[bool]


def cells(table: pa.Table, format_: Format) -> Cells:
    """The cells of a report table in the units of a format."""
    import pyarrow as pa

    head, columns, numeric, prose = [], [], [], []
    for entry, data in zip(table.schema, table.columns, strict=True):
        category = (entry.metadata or {}).get(b"unit", b"").decode()
        head.append(_header(entry, format_))
        columns.append(column_texts(data, category, format_))
        kind = entry.type
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        numeric.append(bool(number) and not is_hexadecimal(category, format_))
        prose.append(b"prose" in (entry.metadata or {}))
    return Cells(head, columns, numeric, prose)


def headers(table: pa.Table, format_: Format) -> list[str]:
    """The column headers, with units."""
    return [_header(entry, format_) for entry in table.schema]


def _header(entry: pa.Field, format_: Format) -> str:
    category = (entry.metadata or {}).get(b"unit", b"").decode()
    return str(entry.name) + _suffix(category, format_)


def _suffix(category: str, format_: Format) -> str:
    if not category or category in ("addr", "hex") or "nohdrunit" in format_.flags:
        return ""
    unit = format_.unit(category)
    return f" ({unit}/s)" if category == "thru" else f" ({unit})"


def converted(values: list[Any], unit: str) -> list[str]:
    """Values in a larger unit.

    The last digit of a tie depends on the arithmetic: like Nsight Systems, times are multiplied
    by the inverse of the unit, bytes divided by it.
    """
    form = f"%.{DECIMALS[unit]}f"
    if unit in TIME_UNITS:
        inverse = float(f"1e-{len(str(TIME_UNITS[unit])) - 1}")
        return ["" if value is None else form % (value * inverse) for value in values]
    size = BYTE_UNITS[unit]
    return ["" if value is None else form % (value / size) for value in values]


def is_hexadecimal(category: str, format_: Format) -> bool:
    """Whether a category's values are shown in hexadecimal."""
    return category == "hex" or (category == "addr" and format_.unit("addr") == "hex")


def _hexadecimal(value: int, category: str) -> str:
    unsigned = value & (1 << 64) - 1
    return f"0x{unsigned:X}" if category == "addr" else f"{unsigned:x}"


def column_texts(data: pa.ChunkedArray, category: str, format_: Format) -> list[str]:
    """The cells of one column; empty text for null."""
    import pyarrow as pa

    if pa.types.is_dictionary(data.type):
        found: list[str] = []
        for part in data.chunks:
            texts = ["" if text is None else text for text in part.dictionary.to_pylist()]
            found += ["" if code is None else texts[code] for code in part.indices.to_pylist()]
        return found
    values: list[Any] = data.to_pylist()
    if pa.types.is_string(data.type):
        return ["" if value is None else value for value in values]
    if is_hexadecimal(category, format_):
        return ["" if value is None else _hexadecimal(value, category) for value in values]
    unit = format_.unit(category) if category else ""
    factor = (TIME_UNITS | BYTE_UNITS).get(unit, 1)
    if factor == 1:
        return ["" if value is None else str(value) for value in values]
    return converted(values, unit)

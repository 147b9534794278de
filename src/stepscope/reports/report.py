"""What a report (or rule) is, how it is asked for, and its answer."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stepscope.reports.arrays import round_half_away
from stepscope.reports.needs import Need, missing
from stepscope.reports.source import Source, written
from stepscope.sql.files import to_arrow
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_BETWEEN = re.compile("(?<!:):(?!:)")
"""Between a report's arguments; ``::`` belongs to a name such as ``aten::mm``."""

_PROSE = {True: {"prose": "yes"}, False: {}}

Unit = Literal["", "ratio", "dur", "ts", "mem", "thru", "addr", "hex"]
"""Category of a column's values: share in percent, ns (duration, point in time), bytes, bytes a
second, address, another number that is read in hexadecimal."""


@dataclass(frozen=True)
class Column:
    """A column of a report.

    Attributes:
        label: header without unit.
        unit: category; renderers convert and add the unit to the header.
        doc: what it means.
        decimals: to which fractions of SQL are rounded; by default one, and sizes once their unit
            is known.
        prose: whether values are sentences, which tables for people break instead of cutting.
    """

    label: str
    unit: Unit = ""
    doc: str = ""
    decimals: int | None = None
    prose: bool = False


@dataclass(frozen=True)
class Argument:
    """An argument a report takes, as in ``name:argument`` or ``name:argument=value``.

    Attributes:
        name: as written.
        doc: what it does.
        default: value when it is not given; None for a switch without value.
        low: smallest value allowed.
        high: largest value allowed.
        text: whether the value is a text instead, empty where it is not given.
    """

    name: str
    doc: str
    default: int | None = None
    low: int | None = None
    high: int | None = None
    text: bool = False


Arguments = Mapping[str, int | bool | str]
"""Value of each argument that a report takes: switches are booleans."""

Answer = Sequence[Any]
"""One array (numpy, Arrow) a column, in the report's order."""


ROWS = Argument("rows", "show at most N rows (-1: all)", 50, low=-1)


@dataclass(frozen=True)
class Report:
    """One report.

    Attributes:
        name: public name.
        title: short title for people.
        doc: definition: what one row is, what is counted, in which order.
        columns: the columns, in order.
            function that computes them from a trace.
        arguments: what it takes after its name.
        aliases: old names.
        needs: what the capture must hold; the first that it lacks is named to the user.
        none_found: said by rules when there is nothing to show.
        advice: said by rules before their table.
    """

    name: str
    title: str
    doc: str
    columns: tuple[Column, ...]
    run: str | Callable[[Source, Arguments], Answer]
    arguments: tuple[Argument, ...] = ()
    aliases: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    none_found: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Request:
    """A report with its arguments, as asked for.

    Attributes:
        report: which.
        written: the arguments as written, for file names.
        values: the arguments' values.
        start_ns: ``start=``: only events after this time.
        end_ns: ``end=``: only events before this time.
        nvtx: ``nvtx=range[@domain]``: only events of this range.
    """

    report: Report
    written: tuple[str, ...] = ()
    values: Arguments = field(default_factory=dict)
    start_ns: int | None = None
    end_ns: int | None = None
    nvtx: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a report said of one trace.

    Attributes:
        request: what was asked.
        table: the answer, with title, advice and units as metadata; None where data is missing.
        missing: why there is no answer, and which capture option provides the data.
    """

    request: Request
    table: pa.Table | None
    missing: str = ""


def registered(package: ModuleType, attribute: str) -> dict[str, Report]:
    """Reports by name: those that each module of a package lists in an attribute."""
    found: dict[str, Report] = {}
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        found |= {report.name: report for report in getattr(loaded, attribute)}
    return dict(sorted(found.items()))


def find(name: str, known: Mapping[str, Report], kind: str = "report") -> Report:
    """A report by name or old name.

    Raises:
        UsageError: there is none; the message names the nearest.
    """
    if name in known:
        return known[name]
    for report in known.values():
        if name in report.aliases:
            return report
    raise UsageError(f"there is no {kind} {name!r}; {nearest(name, known, kind)}")


def nearest(word: str, known: Iterable[str], kind: str) -> str:
    """The end of an error message: what may have been meant."""
    words = sorted(known)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"{kind}s are {', '.join(words)}"


def parse(text: str, known: Mapping[str, Report], kind: str = "report") -> Request:
    """Read ``name[:argument[=value]...]``.

    Raises:
        UsageError: unknown report or argument, or a value out of range.
    """
    name, *written = _BETWEEN.split(text)
    report = find(name, known, kind)
    values: dict[str, int | bool | str] = {
        argument.name: _unless_given(argument) for argument in report.arguments
    }
    window: dict[str, int | None] = {"start": None, "end": None}
    nvtx = ""
    for item in written:
        key, equals, value = item.partition("=")
        if key in window and value.lstrip("-").isdigit():
            window[key] = int(value)
            continue
        if key == "nvtx" and value:
            nvtx = value
            continue
        values[key] = _value(report, key, value if equals else None)
    if values.get("base") and values.get("mangled"):
        raise UsageError(f"{report.name} takes base or mangled, not both")
    return Request(report, tuple(written), values, window["start"], window["end"], nvtx)


def _unless_given(argument: Argument) -> int | bool | str:
    if argument.text:
        return ""
    return False if argument.default is None else argument.default


def _value(report: Report, key: str, value: str | None) -> int | bool | str:
    takes = {argument.name: argument for argument in report.arguments}
    if key not in takes:
        if not takes:
            raise UsageError(f"{report.name} takes no arguments, but was given {key!r}")
        raise UsageError(
            f"{report.name} takes no argument {key!r}; {nearest(key, takes, 'argument')}"
        )
    argument = takes[key]
    if argument.text:
        if not value:
            raise UsageError(f"{report.name}:{key} needs a text, as in {key}=NAME")
        return value
    if argument.default is None:
        if value is not None:
            raise UsageError(f"{report.name}:{key} takes no value")
        return True
    try:
        number = int(value or "")
    except ValueError:
        raise UsageError(
            f"{report.name}:{key} needs a whole number, as in {key}={argument.default}"
        ) from None
    low, high = argument.low, argument.high
    if (low is not None and number < low) or (high is not None and number > high):
        raise UsageError(
            f"{report.name}:{key} must be at least {low}"
            + (f" and at most {high}" if high is not None else "")
        )
    return number


def answer(request: Request, source: Source) -> Outcome:
    """Run a report on a trace."""
    report = request.report
    lacking = missing(report.needs, source)
    if lacking:
        return Outcome(request, None, lacking)
    if isinstance(report.run, str):
        columns = columns_of(source, report.run, request.values, report.columns)
    else:
        columns = report.run(source, request.values)
    return Outcome(request, table_of(report, columns))


def columns_of(
    source: Source, statement: str, arguments: Arguments, columns: Sequence[Column]
) -> Answer:
    """What a statement gives, rounded as the columns say."""
    found = source.table(written(statement, arguments), coded=True)
    return [_rounded(data, column) for data, column in zip(found.columns, columns, strict=True)]


def _rounded(data: pa.ChunkedArray, column: Column) -> pa.Array:
    import pyarrow as pa

    array = data.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_string(array.type):
        return array.dictionary_encode()  # a text is then written once, however many rows have it
    decimals = column.decimals
    if decimals is None and column.unit not in ("mem", "thru"):
        decimals = 1
    if decimals is None or not pa.types.is_floating(array.type):
        return array
    values = array.to_numpy(zero_copy_only=False)
    return to_arrow(round_half_away(values, decimals), np.isnan(values))


def table_of(report: Report, columns: Answer) -> pa.Table:
    """The answer as Arrow table: unit in each field's metadata, title in the schema's."""
    import pyarrow as pa

    specs = getattr(columns, "columns", report.columns)  # SQL decides its columns itself
    arrays = [
        data
        if isinstance(data, pa.Array)
        else to_arrow(data)
        if isinstance(data, np.ndarray)
        else pa.array(data)
        for data in columns
    ]
    fields = [
        pa.field(column.label, array.type, metadata={"unit": column.unit, **_PROSE[column.prose]})
        for column, array in zip(specs, arrays, strict=True)
    ]
    about = {
        "name": report.name,
        "title": report.title,
        "advice": report.advice,
        "none_found": report.none_found,
    }
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=about))

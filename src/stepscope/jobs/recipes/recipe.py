"""What a recipe is: what is asked of one capture, and how the answers become tables and charts."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from stepscope.jobs.recipes import catalog
from stepscope.reports.needs import Need, missing
from stepscope.reports.report import nearest
from stepscope.reports.source import Source, written
from stepscope.trace.errors import UsageError
from stepscope.trace.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.breakdown.explain import Explanation

Value = int | float | str | bool
Values = Mapping[str, Value]

BEGIN: Final = "begin_epoch_ns"
LENGTH: Final = "job_ns"
"""Values that a recipe with ``aligned`` gets beside its options: begin and length of the job."""

IDENTITY: Final = {
    "rank": "rank of the capture: what it or its file name states, else its place in the order",
    "capture": "file name of the capture",
}
"""First columns of a table with a row a capture."""


@dataclass(frozen=True)
class Option:
    """An option of a recipe, written ``--set NAME=VALUE``; the default tells its type.

    Attributes:
        name: as written.
        doc: what it does.
        default: value when it is not given; an empty text for a required one.
        low: smallest value allowed.
        high: largest value allowed.
        required: whether it must be given.
    """

    name: str
    doc: str
    default: Value
    low: float | None = None
    high: float | None = None
    required: bool = False

    def parse(self, text: str) -> Value:
        """The value that a text stands for.

        Raises:
            UsageError: none of this option's.
        """
        if isinstance(self.default, bool):
            if text.lower() not in ("true", "false", "yes", "no", "1", "0", ""):
                raise UsageError(f"{self.name} is a switch; give {self.name}=true or false")
            return text.lower() in ("true", "yes", "1", "")
        if isinstance(self.default, str):
            if self.required and not text:
                raise UsageError(f"{self.name} needs a text, as in --set {self.name}=TEXT")
            return text
        try:
            number = type(self.default)(text)
        except ValueError:
            kind = "a whole number" if isinstance(self.default, int) else "a number"
            raise UsageError(
                f"{self.name} needs {kind}, as in --set {self.name}={self.default}"
            ) from None
        low, high = self.low, self.high
        # a number that is none compares as false
        if not ((low is None or number >= low) and (high is None or number <= high)):
            ends = " and ".join(
                f"{word} {end:g}"
                for word, end in (("at least", low), ("at most", high))
                if end is not None
            )
            raise UsageError(f"{self.name} must be {ends}; {text} is not")
        return number


@dataclass(frozen=True)
class Output:
    """A table that a recipe makes.

    Attributes:
        name: of its files.
        doc: what a row is.
        columns: name -> meaning with unit, in order. A name that ends in ``_ns`` or ``_bytes``
            tells the unit, ``_share`` is from 0 to 1, ``_percent`` from 0 to 100.
        sql: the statement that makes it of ``part``, the rows of all captures (with the columns of
            ``IDENTITY`` and ``input``, the capture's number), of ``capture`` (one row a capture:
            ``input``, ``rank``, ``capture``, ``hostname``, ``origin_epoch_ns``, ``begin_ns``,
            ``end_ns``) and of the tables before it.
        keys: columns that tell rows apart, for ``diff``.
    """

    name: str
    doc: str
    columns: dict[str, str]
    sql: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    Attributes:
        kind: ``heat`` (x, y, value), ``bar`` (y: names, value; ``group`` colours them) or ``line``
            (x, value; a line a ``group``). Many groups become a band of quantiles.
        table: which table it draws.
        title: what it shows.
        x: column along.
        y: column of rows or bars.
        value: column that is drawn.
        group: column that tells lines or colours apart.
        unit: of the values: ``ns``, ``bytes``, ``percent`` or none.
        top: bars at most, the longest; the page says how many there are.
        middle: whether colours go two ways from zero.
        where: condition of SQL on the rows that are drawn.
    """

    kind: Literal["heat", "bar", "line"]
    table: str
    title: str
    value: str
    x: str = ""
    y: str = ""
    group: str = ""
    unit: Literal["ns", "bytes", "percent", ""] = ""
    top: int = 25
    middle: bool = False
    where: str = "true"


@dataclass(frozen=True)
class Figure:
    """One figure of the result, in the terminal and in ``recipe.json``.

    Attributes:
        name: as in the JSON.
        doc: what it says, for the terminal.
        unit: one of :data:`stepscope.trace.units.UNITS`, empty for a text.
        sql: one cell of the tables made.
    """

    name: str
    doc: str
    unit: str
    sql: str


class Capture:
    """One capture as a recipe asks it.

    Args:
        trace: the trace.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.source = Source(trace)

    def table(self, statement: str, columns: tuple[str, ...], values: Values) -> pa.Table:
        """What a statement over canonical tables and views of reports gives, columns so named."""
        found = self.source.table(written(statement, _for_sql(values)))
        return found.rename_columns(list(columns))

    @cached_property
    def explained(self) -> list[Explanation]:
        """The steps of every device, accounted for; empty without GPU work."""
        from stepscope.breakdown.explain import explain

        return explain(self.trace.frame, self.trace.meta)


def _for_sql(values: Values) -> dict[str, int | bool | str]:
    """Values as statements take them."""
    return {
        name: str(value) if isinstance(value, float) else value for name, value in values.items()
    }


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Attributes:
        name: as asked for; the name that Nsight Systems has, where it has one.
        title: one line.
        doc: definition: what is counted, how.
        run: the statement that is asked of each capture, or a function that answers for it.
        columns: what the statement's columns are called, in order; not needed for a function.
        tables: what is made of the answers, the first being the one to read first.
        charts: of the page.
        figures: of the summary.
        options: what it takes.
        needs: what a capture must hold; one that does not is left out, with the reason.
        merge: statement that joins answers (``part``) into fewer rows of the same columns, so
            that any number of captures is reduced in little memory; empty to keep all rows.
        aligned: whether a capture must know when the whole job began and ended (``BEGIN``,
            ``LENGTH``); captures are then looked at twice.
        source: where the definition comes from.
        none_found: said where no capture has a row.
    """

    name: str
    title: str
    doc: str
    run: str | Callable[[Capture, Values], pa.Table]
    tables: tuple[Output, ...]
    columns: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    figures: tuple[Figure, ...] = ()
    options: tuple[Option, ...] = ()
    needs: tuple[Need, ...] = ()
    merge: str = ""
    aligned: bool = False
    source: str = "Stepscope"
    none_found: str = "No capture has a row of what was asked."
    of_results: bool = field(default=False, repr=False)
    """Whether it compares two results of recipes, and not captures."""

    def values(self, given: Mapping[str, str]) -> dict[str, Value]:
        """All options with the values given as text.

        Raises:
            UsageError: an option is unknown, lacks its value or has a wrong one.
        """
        known = {option.name: option for option in self.options}
        for name in given:
            if name not in known:
                hint = nearest(name, known, "option") if known else "it takes no options"
                raise UsageError(f"{self.name} has no option {name!r}; {hint}")
        for option in self.options:
            if option.required and option.name not in given:
                raise UsageError(
                    f"{self.name} needs {option.name}: {option.doc}; give --set {option.name}=VALUE"
                )
        return {
            name: option.parse(given[name]) if name in given else option.default
            for name, option in known.items()
        }

    def ask(self, trace: Trace, values: Values) -> pa.Table:
        """What one capture answers.

        Raises:
            LackingError: the capture holds none of what the recipe needs.
        """
        capture = Capture(trace)
        if lacking := missing(self.needs, capture.source):
            raise LackingError(lacking)
        if isinstance(self.run, str):
            return capture.table(self.run, self.columns, values)
        return self.run(capture, values)


class LackingError(UsageError):
    """A capture lacks what a recipe needs: no damage, and said apart."""

    state = "lacking"


def facts(trace: Trace) -> dict[str, Any]:
    """What the reduction knows of a capture beside its rows: where and when it was recorded."""
    from stepscope.trace.one_job import claimed_rank

    meta = trace.meta
    rank, source = claimed_rank(trace)
    return {
        "capture": trace.path.name.encode("utf-8", "replace").decode(),
        "stated_rank": rank,
        "rank_source": source if rank is not None else "",
        "hostname": meta.hostname,
        "origin_epoch_ns": meta.origin_epoch_ns,
        "begin_ns": meta.window_start_ns,
        "end_ns": meta.window_end_ns,
        "problems": [
            f"{problem.count:,} x {problem.message}; {problem.remedy}"
            for problem in meta.problems
            if problem.severity in ("data_loss", "error")
        ],
    }


@cache
def recipes() -> dict[str, Recipe]:
    """Every recipe that ships, by name: each module of ``catalog`` registers one."""
    return {name: _shipped(name) for name in sorted(_names())}


@cache
def _names() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(catalog.__path__))


def _shipped(name: str) -> Recipe:
    recipe: Recipe = importlib.import_module(f"{catalog.__name__}.{name}").RECIPE
    assert recipe.name == name
    return recipe


def find(name: str) -> Recipe:
    """A recipe that ships; what the others import is not loaded.

    Raises:
        UsageError: there is none of this name.
    """
    if name not in _names():
        raise UsageError(f"there is no recipe {name!r}; {nearest(name, recipes(), 'recipe')}")
    return _shipped(name)


def from_text(text: str, path: str) -> Recipe:
    """The recipe that a user's Python file defines as ``RECIPE``.

    Raises:
        UsageError: it cannot be run, or defines none.
    """
    space: dict[str, Any] = {"__name__": "stepscope_user_recipe", "__file__": path}
    try:
        exec(compile(text, path, "exec"), space)
    except Exception as error:
        raise UsageError(f"{path} failed: {type(error).__name__}: {error}; correct it") from error
    found = space.get("RECIPE")
    if not isinstance(found, Recipe):
        raise UsageError(f"{path} must set RECIPE to a stepscope.jobs.recipes.Recipe")
    return found

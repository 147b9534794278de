"""Imports inside the package follow the arrows of the design; start-up stays light.

The arrows are declared once: those of rooms in ``ARROWS``, those of each module of a facade in
``PARTS``. A new folder or file directly under ``stepscope``, or in a facade, must be given its
arrows there, or these tests fail.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import stepscope

PACKAGE = Path(stepscope.__file__).parent
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]

PARTS: dict[str, dict[str, set[str]]] = {
    "api": {
        "inputs": {"importers", "trace", "data", "kernels"},
        # What took long to find, kept; it is found behind every question.
        "answers": {"trace"},
        # What is kept of a timeline beside the cached traces.
        "shelves": {"timeline", "trace", ".answers"},
        "explained": {
            *("activity", "breakdown", "jobs", "kernels", "simulation", "diagnosis", "steps"),
            "trace",
        },
        "tables": {"sql", "derived", "diagnosis", "trace", ".answers", ".explained"},
        "reports": {"reports", "rules", "tabular", "compare", "trace", ".tables"},
        "views": {
            *("breakdown", "jobs", "tabular", "timeline", "export", "trace"),
            *(".explained", ".shelves"),
        },
        "ncu": {"ncu", "jobs", "operators", "diagnosis"},
        "job": {
            *("importers", "trace", "steps", "kernels", "collectives", "operators", "simulation"),
            *("diagnosis", "compare", "timeline"),
            *(".answers", ".inputs", ".explained", ".tables", ".reports", ".shelves", ".views"),
            ".ncu",
        },
        "runs": {"compare", "trace", ".job"},
        "history": {"compare", "render", "trace.errors", "trace.given", ".runs"},
        # It records programs, and needs nothing of what opens traces.
        "recording": {"capture", "importers", "trace.errors"},
        "__init__": {".job"},
    },
}
"""Facade -> its modules -> the rooms each may import; with a dot before it, a module beside it.

A facade as a whole may import almost everything, which would allow any of its modules too much.
"""


def needed_by_parts(facade: str) -> set[str]:
    """The rooms that a facade imports: what its modules do."""
    named = set().union(*PARTS[facade].values())
    return {arrow.split(".")[0] for arrow in named if not arrow.startswith(".")}


ARROWS: dict[str, set[str]] = {
    "trace": {"intervals"},
    "intervals": set(),
    "capture": set(),
    "annotate": set(),
    "data": set(),
    "importers": {"trace", "intervals"},
    "sql": {"trace"},
    # What devices and threads did, as columns: everything below is built on it.
    "activity": {"trace", "intervals"},
    "steps": {"activity", "trace", "intervals"},
    "gaps": {"steps", "activity", "trace", "intervals"},
    "kernels": {"gaps", "activity", "trace", "intervals"},
    # One device explained; then the ranks' collectives; then the job.
    "breakdown": {"kernels", "gaps", "steps", "activity", "trace", "intervals"},
    "collectives": {"breakdown", "kernels", "gaps", "steps", "activity", "trace", "intervals"},
    "jobs": {"collectives", "breakdown", "activity", "trace"},
    "operators": {"jobs", "breakdown", "kernels", "activity", "trace", "intervals"},
    "simulation": {"breakdown", "gaps", "activity", "trace", "intervals"},
    "derived": {"jobs", "collectives", "breakdown", "kernels", "gaps", "trace", "intervals"},
    "tabular": {"gaps", "trace", "intervals"},
    "timeline": {
        *("derived", "tabular", "jobs", "breakdown", "kernels", "gaps", "activity"),
        *("trace", "intervals"),
    },
    "reports": {"tabular", "sql", "trace", "intervals"},
    "rules": {"breakdown", "gaps", "activity", "tabular", "trace", "intervals"},
    "ncu": {"trace"},
    "diagnosis": {
        *("simulation", "jobs", "collectives", "breakdown", "kernels", "gaps", "activity"),
        *("trace", "intervals"),
    },
    "compare": {
        *("diagnosis", "timeline", "jobs", "collectives", "breakdown", "kernels", "gaps"),
        *("trace", "intervals"),
    },
    # These two know results only: nothing that opens or reads a capture.
    "render": {
        *("compare", "diagnosis", "ncu", "operators", "simulation", "collectives", "tabular"),
        *("trace", "timeline.colours"),
    },
    "export": {"timeline", "activity", "trace", "intervals"},
    "api": needed_by_parts("api"),
    # Front doors ask the facade and know the types of results; one command starts the server.
    "cli": {
        *("api", "render", "server", "compare.gate", "compare.result", "compare.trend"),
        *("tabular.report", "trace.cache", "trace.errors", "trace.progress"),
    },
    "server": {
        *("api", "render", "timeline.panels", "timeline.stepview.steps"),
        *("trace.errors", "trace.text"),
    },
    # Writes the reference pages from every room's declarations; nothing imports it.
    "docs": {
        *("trace", "importers", "sql", "tabular", "reports", "rules", "ncu", "kernels", "gaps"),
        *("breakdown", "operators", "simulation", "derived", "diagnosis", "compare", "render"),
        *("api", "cli", "activity", "data", "timeline.classes", "timeline.colours"),
    },
    # pytest loads it at start-up, in whatever project: it stands alone.
    "pytest_plugin": set(),
    # The package itself may offer the facade, lazily; every room may read its version.
    "__init__": {"api", "annotate"},
    "__main__": {"cli"},
}
"""Room -> the rooms it may import. A dotted name allows that module of the room only."""

STANDARD_LIBRARY_ONLY = {"capture", "annotate"}
NUMPY_ONLY = {"intervals"}

HEAVY = {"adbc_driver_manager", "adbc_driver_sqlite", "duckdb", "numpy", "pyarrow", "rich"}
START_UP_MODULES = 200
"""Bound on the modules that start-up may load; the interpreter and click make up most of it."""


@dataclass(frozen=True)
class Import:
    """One import of one module, wherever in it the statement stands."""

    module: str
    line: int
    target: str

    @property
    def room(self) -> str:
        return room(self.module)

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room(module: str) -> str:
    """The room a module of the package is in; the package itself is ``__init__``."""
    return module.split(".")[1] if "." in module else "__init__"


def imports_of(module: str, path: Path) -> Iterator[Import]:
    """Every import, those inside functions and under TYPE_CHECKING too.

    A text that is exactly the name of a module counts as well: that is how modules are imported
    lazily by name.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(module, node.lineno, alias.name)
            case ast.ImportFrom():
                source = node.module or ""
                if node.level:
                    above = package.split(".")
                    above = above[: len(above) - node.level + 1]
                    source = ".".join([*above, *([source] if source else [])])
                for alias in node.names:
                    full = f"{source}.{alias.name}"
                    yield Import(module, node.lineno, full if full in MODULES else source)
            case ast.Constant(value=str() as text) if text != module and text in MODULES:
                if text != "stepscope":
                    yield Import(module, node.lineno, text)


IMPORTS = [found for module, path in MODULES.items() for found in imports_of(module, path)]
INTERNAL = [i for i in IMPORTS if i.target.split(".")[0] == "stepscope"]
EXTERNAL = [
    i
    for i in IMPORTS
    if i.target.split(".")[0] not in {"stepscope", "__future__", *sys.stdlib_module_names}
]


def allowed(found: Import) -> bool:
    if found.target == "stepscope" or room(found.target) == found.room:
        return True
    return any(
        found.target == f"stepscope.{arrow}" or found.target.startswith(f"stepscope.{arrow}.")
        for arrow in ARROWS[found.room]
    )


def part(module: str) -> str:
    """The module of a facade that a module is, or lies in."""
    return ".".join(module.split(".")[2:3]) or "__init__"


def allowed_to_part(found: Import) -> set[str]:
    """The arrows of a facade's module that allow an import; none where it is not allowed."""
    return {
        arrow
        for arrow in PARTS[found.room][part(found.module)]
        for full in [f"stepscope.{found.room}{arrow}" if arrow[0] == "." else f"stepscope.{arrow}"]
        if found.target == full or found.target.startswith(f"{full}.")
    }


def listed(found: list[Import]) -> str:
    return "\n".join(map(str, found))


def test_every_room_has_its_arrows() -> None:
    rooms = {room(module) for module in MODULES} | {
        entry.name for entry in PACKAGE.iterdir() if entry.is_dir() and any(entry.rglob("*.py"))
    }
    assert rooms <= ARROWS.keys(), "give the new room its arrows in ARROWS"


def test_the_table_names_rooms_and_has_no_circle() -> None:
    graph = {name: {arrow.split(".")[0] for arrow in arrows} for name, arrows in ARROWS.items()}
    assert set().union(*graph.values()) <= graph.keys()
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("trace") < order.index("api") < order.index("cli")


def test_imports_follow_the_arrows() -> None:
    wrong = [i for i in INTERNAL if not allowed(i)]
    assert not wrong, listed(wrong)


@pytest.mark.parametrize("facade", PARTS)
def test_the_modules_of_a_facade_follow_arrows_of_their_own(facade: str) -> None:
    modules = {part(module) for module in MODULES if room(module) == facade}
    assert modules == PARTS[facade].keys(), "give the new module its arrows in PARTS"
    graph = {
        name: {arrow[1:] for arrow in arrows if arrow.startswith(".")}
        for name, arrows in PARTS[facade].items()
    }
    assert set().union(*graph.values()) <= modules
    TopologicalSorter(graph).prepare()  # raises where there is a circle
    inside = [i for i in INTERNAL if i.room == facade and i.target != "stepscope"]
    wrong = [i for i in inside if not allowed_to_part(i)]
    assert not wrong, listed(wrong)


@pytest.mark.parametrize("facade", PARTS)
def test_a_facade_has_no_arrow_that_it_does_not_need(facade: str) -> None:
    inside = [i for i in INTERNAL if i.room == facade]
    used = {(part(i.module), arrow) for i in inside for arrow in allowed_to_part(i)}
    stated = {(name, arrow) for name, arrows in PARTS[facade].items() for arrow in arrows}
    assert stated == used


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    source = tmp_path / "sample.py"
    source.write_text(
        "import stepscope.sql\n"
        "from stepscope import importers\n"
        "from ..importers.registry import load\n"
        "from . import frame\n"
        "def f():\n"
        "    from stepscope.breakdown import explain\n"
        "LAZY = {'x': 'stepscope.gaps'}\n"
    )
    found = list(imports_of("stepscope.trace.sample", source))
    assert [i.target for i in sorted(found, key=lambda i: i.line)] == [
        "stepscope.sql",
        "stepscope.importers",
        "stepscope.importers.registry",
        "stepscope.trace.frame",
        "stepscope.breakdown.explain",
        "stepscope.gaps",
    ]
    assert [i.target for i in found if allowed(i)] == ["stepscope.trace.frame"]


def test_importers_do_not_know_each_other() -> None:
    def source_format(module: str) -> str | None:
        parts = module.split(".")
        folder = ".".join(parts[:3])
        if parts[1:2] != ["importers"] or folder not in MODULES or parts[2:3] == ["common"]:
            return None
        return folder if MODULES[folder].name == "__init__.py" else None

    wrong = [
        i
        for i in INTERNAL
        if (own := source_format(i.module)) and (other := source_format(i.target)) and own != other
    ]
    assert not wrong, listed(wrong)


@pytest.mark.parametrize(
    ("rooms", "libraries"), [(STANDARD_LIBRARY_ONLY, set()), (NUMPY_ONLY, {"numpy"})]
)
def test_rooms_that_stand_almost_alone(rooms: set[str], libraries: set[str]) -> None:
    wrong = [i for i in EXTERNAL if i.room in rooms and i.target.split(".")[0] not in libraries]
    assert not wrong, listed(wrong)


def test_third_party_imports_are_declared() -> None:
    """Whatever the package imports comes with it, or with one of the extras a user can ask for."""
    extras = PROJECT["optional-dependencies"]
    wanted = [
        *PROJECT["dependencies"],
        *(line for name, lines in extras.items() if name not in {"dev", "bench"} for line in lines),
    ]
    declared = {canonicalize_name(Requirement(line).name) for line in wanted}
    # What a declared library itself requires is there, too.
    for name in list(declared):
        try:
            needs = requires(name) or []
        except PackageNotFoundError:  # an extra that is not installed here
            continue
        for line in needs:
            if (needed := Requirement(line)).marker is None:
                declared.add(canonicalize_name(needed.name))
    provider = packages_distributions()
    wrong = [
        i
        for i in EXTERNAL
        if not declared & {canonicalize_name(d) for d in provider.get(i.target.split(".")[0], [])}
    ]
    assert not wrong, listed(wrong)


def test_start_up_imports_nothing_heavy() -> None:
    program = "import sys, stepscope.cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert not HEAVY & set(loaded)
    assert len(loaded) < START_UP_MODULES

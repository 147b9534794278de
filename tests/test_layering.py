"""The walls of the house: imports follow the arrows of the design, and what computes only computes.

The arrows are declared once: those of rooms in ``ARROWS``, those of each module of a facade in
``PARTS``. A new folder or file directly under ``stepscope``, or in a facade, must be given its
arrows there, or these tests fail. Inside a room modules import each other freely, but never in a
circle. ``OWNERS``, ``PRINTING`` and ``PURE`` say who may use an engine, print, or touch a file.
All these tables are exact: an entry that nothing needs any more fails, too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
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
        "inputs": {"cache", "importers", "trace", "data", "kernels"},
        # What comes with the package, unpacked.
        "bundled": {"data", "trace.errors"},
        # What took long to find, kept; it is found behind every question.
        "answers": {"cache", "trace"},
        # What is kept of a timeline beside the cached traces.
        "stored": {"timeline", "cache", "trace", ".answers"},
        "explained": {
            *("activity", "breakdown", "jobs", "kernels", "memory", "simulation", "diagnosis"),
            *("steps", "trace"),
        },
        "tables": {"sql", "derived", "diagnosis", "trace", ".answers", ".explained"},
        "reports": {"reports", "compare", "trace", ".tables"},
        "views": {
            *("breakdown", "jobs", "timeline", "export", "trace"),
            *(".explained", ".stored"),
        },
        "ncu": {"ncu", "jobs", "operators", "diagnosis"},
        "job": {
            *("cache", "importers", "trace", "steps", "gaps", "kernels", "collectives"),
            *("operators", "simulation", "memory", "diagnosis", "compare", "timeline"),
            *(".answers", ".inputs", ".explained", ".tables", ".reports", ".stored", ".views"),
            ".ncu",
        },
        # The captures of a task over many, with what became of each.
        "items": {"jobs", "trace", ".inputs"},
        "digest_files": {"jobs", "trace"},
        "digest_making": {
            *("diagnosis", "jobs", "operators", "simulation", "trace"),
            *(".digest_files", ".items", ".job"),
        },
        "digests": {
            *("importers", "jobs", "trace"),
            *(".digest_files", ".digest_making", ".inputs", ".items", ".job"),
        },
        "job_page": {"jobs", "trace", ".digest_files", ".digests", ".inputs", ".job"},
        "recipe_diff": {"jobs", "trace"},
        "recipes": {
            *("cache", "importers", "jobs", "render", "reports", "trace"),
            *(".items", ".recipe_diff"),
        },
        "runs": {"compare", "trace", ".job"},
        "history": {"compare", "render", "trace.errors", "trace.given", ".runs"},
        "terms": {
            *("derived", "diagnosis", "kernels", "knowledge", "ncu", "reports", "simulation"),
            "trace",
        },
        "guide": {"knowledge", "trace", ".job", ".recording"},
        # It records programs, and needs nothing of what opens traces.
        "recording": {"capture", "importers", "native", "trace.errors"},
        "tries": {"capture", "compare", "trace", ".job", ".recording"},
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
    # Finds, compiles and loads compiled code.
    "native": set(),
    "annotate": set(),
    "data": set(),
    "cache": {"trace"},
    "importers": {"cache", "trace", "intervals"},
    "sql": {"trace"},
    # What devices and threads did, as columns: everything below is built on it.
    "activity": {"trace", "intervals"},
    "steps": {"activity", "trace", "intervals"},
    "gaps": {"steps", "activity", "trace", "intervals"},
    "kernels": {"gaps", "activity", "trace", "intervals"},
    # One device explained; then the ranks' collectives; then the job.
    "breakdown": {"kernels", "gaps", "steps", "activity", "trace", "intervals"},
    "collectives": {"breakdown", "kernels", "gaps", "steps", "activity", "trace", "intervals"},
    "jobs": {
        *("reports", "collectives", "breakdown", "kernels", "gaps", "sql", "activity", "trace"),
        "intervals",
    },
    "operators": {
        *("jobs", "collectives", "breakdown", "kernels", "gaps", "activity", "trace", "intervals"),
    },
    # Who allocated memory, when and what for.
    "memory": {"kernels", "activity", "trace", "intervals"},
    # Settings look at kernels, at operators with their shapes, and at what collectives carry.
    "simulation": {
        *("operators", "collectives", "breakdown", "kernels", "gaps", "activity"),
        *("native", "trace", "intervals"),
    },
    "derived": {
        *("operators", "jobs", "collectives", "breakdown", "kernels", "gaps", "activity"),
        *("trace", "intervals"),
    },
    "timeline": {
        *("derived", "jobs", "breakdown", "kernels", "gaps", "activity"),
        *("cache", "trace", "intervals"),
    },
    "reports": {"breakdown", "gaps", "activity", "sql", "trace", "intervals"},
    "ncu": {"trace"},
    "knowledge": {"trace.errors"},
    "diagnosis": {
        *("simulation", "operators", "jobs", "collectives", "breakdown", "kernels", "gaps"),
        *("activity", "trace", "intervals"),
    },
    "compare": {
        *("diagnosis", "timeline", "jobs", "collectives", "breakdown", "kernels", "gaps"),
        *("activity", "trace", "intervals"),
    },
    # These two know results only: nothing that opens or reads a capture.
    "render": {
        *("compare", "diagnosis", "memory", "ncu", "operators", "simulation", "collectives"),
        *("jobs.job_result", "jobs.recipes", "knowledge", "reports.report", "trace"),
        "timeline.colours",
    },
    "export": {"timeline", "activity", "trace", "intervals"},
    "api": needed_by_parts("api"),
    # Front doors ask the facade and know the types of results; one command starts the server.
    "cli": {
        *("agent", "api", "render", "server", "compare.result", "compare.trend"),
        *("reports.report", "cache.store", "trace.errors", "trace.progress", "knowledge.guidance"),
    },
    "server": {
        *("api", "render", "timeline.panels", "timeline.stepview.steps", "timeline.answers"),
        *("compare.result", "compare.step_rows", "diagnosis.result", "jobs.job_grid"),
        *("jobs.job_result", "trace.errors", "trace.notes", "trace.text"),
    },
    # A front door for coding agents; it serves HTTP as the timeline's server does.
    "agent": {
        *("api", "render", "server.guard", "server.serve", "trace.errors"),
        *("diagnosis.result", "knowledge.explanation", "knowledge.guidance"),
    },
    # pytest loads it at start-up, in whatever project: it stands alone.
    "pytest_plugin": set(),
    # The package itself may offer the facade, lazily; every room may read its version.
    "__init__": {"api", "annotate"},
    "__main__": {"cli"},
}
"""Room -> the rooms it may import. A dotted name allows that module of the room only."""

OWNERS: dict[str, set[str]] = {
    "duckdb": {"sql", "jobs.engine.reduce"},
    "_duckdb": {"sql"},
    "pyarrow.parquet": {
        *("trace", "importers.nsys"),
        # Files of their own, which are no traces: a run history, and rows of a recorded run.
        *("compare.history.folder", "api.history", "api.digest_files", "api.recipes"),
        "jobs.engine.reduce",
        "export.tables",
    },
    "sqlite3": {"importers", "compare.history.sqlite", "export.nsys"},
    "adbc_driver_sqlite": {"importers.nsys.sqlite_source"},
    "adbc_driver_manager": {"importers.nsys.sqlite_source"},
    "anyio": {"agent.protocol"},
    "click": {"cli"},
    "jinja2": {"render.html"},
    "mcp": {"agent.protocol"},
    "rich": {"cli", "render"},
    "starlette": {"server", "agent.protocol"},
    "uvicorn": {"server"},
}
"""Engine -> the rooms and modules that import it; everybody else asks one of these."""

PRINTING = {
    *("capture", "cli"),
    # Asks how wide the terminal is; text is returned, and ``cli`` prints it.
    "render.fitted",
    # A process of its own, which tells the server on its standard output how far it is.
    "server.background",
}
"""The rooms and modules that use the standard streams."""

PURE = {
    *("activity", "steps", "gaps", "kernels", "breakdown", "collectives", "jobs", "operators"),
    *("memory", "simulation", "derived", "diagnosis", "intervals"),
}
"""Rooms from tables to results: they touch no file, folder, process or environment."""
NOT_PURE = "stepscope.jobs.engine"
"""Applies functions to many inputs, in processes and on clusters."""

STANDARD_LIBRARY_ONLY = {"capture", "annotate", "native"}
NUMPY_ONLY = {"intervals"}

HEAVY = {
    "adbc_driver_manager",
    "adbc_driver_sqlite",
    "duckdb",
    "jinja2",
    "numpy",
    "pyarrow",
    "rich",
}
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


KINDS = {ast.Import, ast.ImportFrom, ast.Constant, ast.Call, ast.Attribute}
"""Syntax that is looked at."""


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All of a file's syntax of these kinds; hundreds of files take seconds, once.

    ``ast.walk`` takes twice as long.
    """
    found: list[ast.AST] = []
    left: list[ast.AST] = [ast.parse(path.read_bytes(), str(path))]
    while left:
        node = left.pop()
        if type(node) in KINDS:
            found.append(node)
        for name in node._fields:
            below = getattr(node, name, None)
            if isinstance(below, list):
                left += [each for each in below if isinstance(each, ast.AST)]
            elif isinstance(below, ast.AST) and below._fields:  # not Load, Add and the like
                left.append(below)
    return found


def imports_of(module: str, path: Path) -> Iterator[Import]:
    """Every import, those inside functions and under TYPE_CHECKING too.

    A text that is exactly the name of a module counts as well: that is how modules are imported
    lazily by name.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes(path):
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
                    known = full in MODULES or full in OWNERS
                    yield Import(module, node.lineno, full if known else source)
            case ast.Constant(value=str() as text) if text != module and text in MODULES:
                if text != "stepscope":
                    yield Import(module, node.lineno, text)


@cache
def imports() -> list[Import]:
    """Every import of the package."""
    return [found for module, path in MODULES.items() for found in imports_of(module, path)]


def internal() -> list[Import]:
    return [i for i in imports() if i.target.split(".")[0] == "stepscope"]


def external() -> list[Import]:
    known = {"stepscope", "__future__", *sys.stdlib_module_names}
    return [i for i in imports() if i.target.split(".")[0] not in known]


def within(module: str, place: str) -> bool:
    """Whether a module is a certain module, or lies in that folder."""
    return module == place or module.startswith(f"{place}.")


def allowed(found: Import) -> bool:
    if found.target == "stepscope" or room(found.target) == found.room:
        return True
    return any(within(found.target, f"stepscope.{arrow}") for arrow in ARROWS[found.room])


def part(module: str) -> str:
    """The module of a facade that a module is, or lies in."""
    return ".".join(module.split(".")[2:3]) or "__init__"


def allowed_to_part(found: Import) -> set[str]:
    """The arrows of a facade's module that allow an import; none where it is not allowed."""
    return {
        arrow
        for arrow in PARTS[found.room][part(found.module)]
        for full in [f"stepscope.{found.room}{arrow}" if arrow[0] == "." else f"stepscope.{arrow}"]
        if within(found.target, full)
    }


def listed(found: list[Import]) -> str:
    return "\n".join(map(str, found))


def test_every_room_has_its_arrows() -> None:
    rooms = {room(module) for module in MODULES} | {
        entry.name for entry in PACKAGE.iterdir() if entry.is_dir() and any(entry.rglob("*.py"))
    }
    assert rooms == ARROWS.keys(), (
        "give the new room its arrows in ARROWS; remove those of old ones"
    )


def test_contributing_says_what_every_room_is_for() -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## Where things go\n")[2].partition("\n## ")[0]
    folders = {name for name in ARROWS if (PACKAGE / name).is_dir()}
    files = {f"{name}.py" for name in ARROWS.keys() - folders - {"__init__", "__main__"}}
    assert folders == set(re.findall(r"\*\*`(\w+)/`\*\*", section))
    assert [name for name in files if f"`{name}`" not in section] == []


def test_the_table_names_rooms_and_has_no_circle() -> None:
    graph = {name: {arrow.split(".")[0] for arrow in arrows} for name, arrows in ARROWS.items()}
    assert set().union(*graph.values()) <= graph.keys()
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("trace") < order.index("api") < order.index("cli")


def test_imports_follow_the_arrows() -> None:
    wrong = [i for i in internal() if not allowed(i)]
    assert not wrong, listed(wrong)


def test_a_room_has_no_arrow_that_it_does_not_need() -> None:
    targets: dict[str, set[str]] = {name: set() for name in ARROWS}
    for i in internal():
        targets[i.room].add(i.target)
    stale = {
        f"{name} -> {arrow}"
        for name, arrows in ARROWS.items()
        for arrow in arrows
        if not any(within(target, f"stepscope.{arrow}") for target in targets[name])
    }
    assert not stale


def circles(found: list[Import]) -> list[str]:
    """A circle of modules in each room that has one; lazy imports and those of types count."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for i in found:
        if i.target in MODULES and room(i.target) == i.room and i.target != i.module:
            graphs.setdefault(i.room, {}).setdefault(i.module, set()).add(i.target)
    answer = []
    for graph in graphs.values():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            answer.append(" is imported by ".join(error.args[1]))
    return answer


def test_modules_of_a_room_import_each_other_in_no_circle() -> None:
    assert circles(internal()) == []
    ends = ("stepscope.gaps.idle", "stepscope.gaps.gil")
    assert len(circles([Import(ends[0], 1, ends[1]), Import(ends[1], 1, ends[0])])) == 1


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
    inside = [i for i in internal() if i.room == facade and i.target != "stepscope"]
    wrong = [i for i in inside if not allowed_to_part(i)]
    assert not wrong, listed(wrong)


@pytest.mark.parametrize("facade", PARTS)
def test_a_facade_has_no_arrow_that_it_does_not_need(facade: str) -> None:
    inside = [i for i in internal() if i.room == facade]
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


@pytest.mark.parametrize("engine", OWNERS)
def test_an_engine_is_imported_by_its_owners_only(engine: str) -> None:
    users = {i.module for i in imports() if within(i.target, engine)}
    assert misplaced(users, OWNERS[engine]) == set()


def misplaced(modules: set[str], places: set[str]) -> set[str]:
    """Modules that are in none of the places, and places with no such module."""
    owned = {place: {m for m in modules if within(m, f"stepscope.{place}")} for place in places}
    unused = {f"{place} no longer needs its entry" for place in places if not owned[place]}
    return modules - set().union(*owned.values()) | unused


OUTSIDE = {
    *("builtins", "io", "logging", "mmap", "os", "shutil", "socket", "subprocess", "tempfile"),
    *("glob", "fileinput", "pickle", "importlib.resources"),
}
"""Modules through which one reaches files, processes and the environment."""
FILE_METHODS = {
    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "rmdir", "touch"),
    *("unlink", "iterdir", "glob", "rglob", "is_file", "is_dir", "exists", "stat", "home", "cwd"),
    *("fromfile", "tofile", "memmap", "loadtxt", "savetxt", "savez", "savez_compressed"),
}
"""Of paths and of NumPy; a method of this name is not called in a pure room."""


def effects(module: str, path: Path) -> Iterator[tuple[str, str]]:
    """What a module does beside computing: prints or files, and where."""
    for found in imports_of(module, path):
        if any(within(found.target, name) for name in OUTSIDE):
            yield "files", str(found)
    for node in nodes(path):
        match node:
            case ast.Call(func=ast.Name(id="print" | "input")):
                yield "prints", f"{module}:{node.lineno} {ast.unparse(node)}"
            case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr" | "stdin"):
                yield "prints", f"{module}:{node.lineno} {ast.unparse(node)}"
            case ast.ImportFrom(module="sys", names=names):
                if {"stdout", "stderr", "stdin"} & {alias.name for alias in names}:
                    yield "prints", f"{module}:{node.lineno} {ast.unparse(node)}"
            case ast.Call(func=ast.Name(id="open")):
                yield "files", f"{module}:{node.lineno} {ast.unparse(node)}"
            case ast.Call(func=ast.Attribute(attr=name) as called):
                if name in FILE_METHODS or ast.unparse(called) in ("np.load", "np.save"):
                    yield "files", f"{module}:{node.lineno} {ast.unparse(node)}"


def test_only_front_doors_print() -> None:
    users = {
        module
        for module, path in MODULES.items()
        for kind, _ in effects(module, path)
        if kind == "prints"
    }
    assert misplaced(users, PRINTING) == set()


@pytest.mark.parametrize("name", sorted(PURE))
def test_a_pure_room_touches_no_file(name: str) -> None:
    inside = {
        module: path
        for module, path in MODULES.items()
        if room(module) == name and not within(module, NOT_PURE)
    }
    assert inside
    found = [text for module, path in inside.items() for _, text in effects(module, path)]
    assert not found, "\n".join(found)


def test_effects_are_found_wherever_they_stand(tmp_path: Path) -> None:
    source = tmp_path / "sample.py"
    source.write_text(
        "import os\n"
        "from subprocess import run\n"
        "from sys import stderr\n"
        "def f(path, x):\n"
        "    print(x)\n"
        "    sys.stdout.write(x)\n"
        "    open(x)\n"
        "    (path / 'a').write_text(x)\n"
        "    np.save(x)\n"
        "    x.replace('a', 'b').copy()\n"
    )
    kinds = [kind for kind, _ in effects("stepscope.gaps.sample", source)]
    assert sorted(kinds) == ["files"] * 5 + ["prints"] * 3


def test_importers_do_not_know_each_other() -> None:
    def source_format(module: str) -> str | None:
        parts = module.split(".")
        folder = ".".join(parts[:3])
        if parts[1:2] != ["importers"] or folder not in MODULES or parts[2:3] == ["common"]:
            return None
        return folder if MODULES[folder].name == "__init__.py" else None

    wrong = [
        i
        for i in internal()
        if (own := source_format(i.module)) and (other := source_format(i.target)) and own != other
    ]
    assert not wrong, listed(wrong)


@pytest.mark.parametrize(
    ("rooms", "libraries"), [(STANDARD_LIBRARY_ONLY, set()), (NUMPY_ONLY, {"numpy"})]
)
def test_rooms_that_stand_almost_alone(rooms: set[str], libraries: set[str]) -> None:
    wrong = [i for i in external() if i.room in rooms and i.target.split(".")[0] not in libraries]
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

    def provided_by(name: str) -> list[str]:
        # the compiled module beside a package (_duckdb) is not always listed
        return provider.get(name) or provider.get(name.removeprefix("_"), [])

    wrong = [
        i
        for i in external()
        if not declared & {canonicalize_name(d) for d in provided_by(i.target.split(".")[0])}
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

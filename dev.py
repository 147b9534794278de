#!/usr/bin/env python3
"""The development commands of Stepscope; needs Python >= 3.11 and nothing else.

Every command first makes ``.venv`` beside this file ready: created when it is missing, made again
when ``requirements/dev.lock`` changed; with uv, which pip fetches where it is not on the PATH, and
with pip where there is no uv to be had.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

# Older Pythons must get as far as this line, so the file keeps to syntax that Python 3.6 can parse.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "dev.py: Stepscope needs Python 3.11 or newer, this is "
        f"{sys.version_info[0]}.{sys.version_info[1]}; run it with a newer one, such as python3.13"
    )

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements" / "dev.lock"
UV_LOCK = LOCK.with_name("uv.lock")
UI = ROOT / "src" / "stepscope" / "server" / "ui"
STAMP = VENV / "stepscope.stamp"
"""Marks the folder as ours, and holds the digest of what it was made from once it is complete."""

LINTERS = (
    ("ruff check", ("-m", "ruff", "check", ".")),
    ("ruff format", ("-m", "ruff", "format", "--check", ".")),
    ("mypy", ("-m", "mypy")),
)
MYPY_ONCE = (
    "import gc; gc.disable(); gc.enable = gc.disable; "  # mypy itself would enable it again
    "from mypy.__main__ import console_entry; console_entry()"
)
"""mypy that looks for no garbage: a fifth less time, thrice the memory."""
MYPY_ONCE_BYTES = 4 << 30
"""Memory that must be free for that: it takes 1.7 GB, and the tests run beside it."""
COLLECT = ("-m", "pytest", "--collect-only", "-q", "-n", "0")
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
}
"""Settings of glibc's ``malloc``; other C libraries have none of these names."""
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input")
COMPILE = (
    # One version of each package for all Pythons: mypy reads the stubs as Python 3.11.
    *("pip", "compile", "--universal", "--python-version", "3.11", "--fork-strategy", "fewest"),
    *("--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"),
    *("--custom-compile-command", "python3 dev.py lock", "--quiet"),
)
LOCKS = {
    LOCK: ("pyproject.toml", "--extra", "dev", "--extra", "bench"),
    UV_LOCK: ("requirements/uv.in",),
}


class DevError(Exception):
    """What stops a command; the message is the one line that is printed."""


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(prog="dev.py", description="Development commands.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, message) in COMMANDS.items():
        commands.add_parser(name, help=message, add_help=False)
    known, rest = parser.parse_known_args(arguments[:1])
    try:
        run, _ = COMMANDS[known.command]
        return run([*rest, *arguments[1:]])
    except DevError as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def demo(arguments: Sequence[str]) -> int:
    """Diagnose the bundled trace."""
    prepare()
    return call([str(VENV / "bin" / "stepscope"), "demo", *arguments], Path.cwd())


LEFT_OUT = (
    *(
        "capture",
        "cli",
        "compare",
        "diagnosis",
        "export",
        "fuzz",
        "reports",
        "server",
        "simulation",
    ),
    *("walk", "importers/test_kineto_real.py", "importers/test_nsys_schemas.py"),
    *("importers/test_nsys_figures.py", "timeline/test_stored_tracks.py", "test_docs.py"),
    *("test_packaging.py", "steps/test_xla_steps.py"),
)
FAST = (*(f"--ignore=tests/{name}" for name in LEFT_OUT), "-m", "not slow and not gpu")
"""What the quick selection leaves out: what starts programs, browsers and servers, and what goes
through whole captures of every kind."""


def test(arguments: Sequence[str]) -> int:
    """Run every check; pytest comes last, so that its counts close the output.

    The type checker, which uses one core, works beside pytest; it is heard only when it fails.
    ``--fast`` runs ruff and the quick tests only, and says what it left out.
    """
    prepare()
    if "--fast" in arguments:
        return fast([argument for argument in arguments if argument != "--fast"])
    (types, checker), quick = LINTERS[-1], LINTERS[:-1]
    with tempfile.TemporaryFile() as stated:
        command = [str(PYTHON), *checker]
        if os.environ.get("CI"):  # nobody checks again, and a tenth of the time goes into the cache
            if free_bytes() >= MYPY_ONCE_BYTES:
                command = [str(PYTHON), "-c", MYPY_ONCE]
            command += ["--cache-dir", os.devnull]
        checking = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=stated, stderr=subprocess.STDOUT
        )
        try:
            failed = [name for name, command in quick if python(*command)]
            if failed:
                say(f"{listed(failed)} failed (above); the tests run nevertheless")
            if not any((ROOT / "tests").rglob("*.pyc")):  # else every worker compiles all of them
                python(*COLLECT, quiet=True)
            code = python(*pytest(), *arguments)
            if checking.wait():
                failed.append(types)
                stated.seek(0)
                print(stated.read().decode(errors="replace"), end="", flush=True)
        finally:
            checking.kill()
    if failed:
        say(f"failed: {listed([*failed, 'pytest'] if code else failed)}")
    return code or bool(failed)


def free_bytes() -> int:
    """Memory that this machine, or the container, has to spare; 0 where it does not tell."""
    try:
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        (free,) = (int(line.split()[1]) << 10 for line in meminfo.splitlines() if "Avail" in line)
    except (OSError, ValueError):
        return 0
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, int((group / limit).read_text()) - int((group / used).read_text()))
        except (OSError, ValueError):  # no such group, or one without a limit
            continue
    return free


def pytest() -> tuple[str, ...]:
    """How pytest is started: one worker more than cores, as tests also wait.

    A worker gets neighbouring tests, which share what they set up.
    """
    return ("-m", "pytest", "-n", str((os.cpu_count() or 1) + 1), "--dist", "worksteal")


def fast(arguments: Sequence[str]) -> int:
    """Run ruff and the tests that need neither other programs nor whole captures of every kind."""
    failed = [name for name, command in LINTERS[:-1] if python(*command)]
    code = python(*pytest(), *FAST, *arguments)
    say(f"left out: mypy and the tests of {listed(LEFT_OUT)}; python3 dev.py test runs all")
    if failed:
        say(f"failed: {listed([*failed, 'pytest'] if code else failed)}")
    return code or bool(failed)


def docs(arguments: Sequence[str]) -> int:
    """Write the reference pages and the outputs of commands in the docs again."""
    prepare()
    return python("-m", "tools.docs", *arguments)


def site(arguments: Sequence[str]) -> int:
    """Build the documentation as a site into build/site; every link is checked."""
    prepare()
    # --quiet leaves the warnings, which fail the build
    code = python("-m", "mkdocs", "build", "--strict", "--quiet", *arguments)
    if code == 0:
        say("built build/site; open build/site/index.html")
    return code


def lint(arguments: Sequence[str]) -> int:
    """Run the linters and the type checker."""
    no_more(arguments)
    failed = lint_all()
    if failed:
        say(f"failed: {listed(failed)}")
    return bool(failed)


def format_code(arguments: Sequence[str]) -> int:
    """Apply the formatter and the linter's safe repairs."""
    no_more(arguments)
    prepare()
    python("-m", "ruff", "check", "--fix-only", ".")
    return python("-m", "ruff", "format", ".")


def bench(arguments: Sequence[str]) -> int:
    """Run one of the benchmark scripts; without arguments list them."""
    scripts = {path.stem: path for path in sorted((ROOT / "benchmarks").rglob("*.py"))}
    if not arguments:
        print("\n".join(f"{name:16} {path}" for name, path in scripts.items()))
        return 0
    if arguments[0] not in scripts:
        raise DevError(f"no benchmark {arguments[0]!r}; known: {listed(scripts)}")
    prepare()
    return call([str(PYTHON), str(scripts[arguments[0]]), *arguments[1:]], Path.cwd())


def lock(arguments: Sequence[str]) -> int:
    """Resolve pyproject.toml again into the lock; pins stay where they still fit."""
    with held():
        uv = shutil.which("uv")
        if uv is None:
            if not usable():
                create(None)
            if python("-c", "import uv", quiet=True) and python(*PIP, "uv"):
                raise DevError("pip install uv failed (above)")
        command = [uv] if uv else [str(PYTHON), "-m", "uv"]
        for made, sources in LOCKS.items():
            target = ("--output-file", str(made.relative_to(ROOT)))
            code = call([*command, *COMPILE, *sources, *target, *arguments], ROOT)
            if code:
                return code
            if "://" in made.read_text(encoding="utf-8"):
                raise DevError(f"{made} names an address; only names, versions and hashes belong")
    return 0


def ui(arguments: Sequence[str]) -> int:
    """Test and build the page of ``stepscope ui``; needs Node 20 or newer with npm."""
    no_more(arguments)
    npm = shutil.which("npm")
    if npm is None:
        raise DevError("npm is not installed; only changes of the page's source need it")
    for command in ([npm, "ci"], [npm, "test"], [npm, "run", "build"]):
        if call(command, UI):
            raise DevError(f"{' '.join(command[1:])} failed (above)")
    (UI.parent / "static" / "built_from").write_text(ui_digest() + "\n", encoding="utf-8")
    return 0


def ui_digest() -> str:
    """Digest of all that the page is built from: a test compares it with what was built."""
    files = [p for folder in ("src", "public") for p in (UI / folder).rglob("*") if p.is_file()]
    files += [p for p in UI.iterdir() if p.suffix in {".js", ".json"}]
    made_from = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.relative_to(UI).as_posix()):
        made_from.update(path.relative_to(UI).as_posix().encode() + b"\0")
        made_from.update(path.read_bytes() + b"\0")
    return made_from.hexdigest()


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "demo": (demo, "diagnose the bundled trace"),
    "test": (test, "ruff, mypy and pytest (--fast: the quick tests); arguments go to pytest"),
    "docs": (docs, "write docs/reference and the outputs in the docs again"),
    "site": (site, "build the documentation as a site into build/site"),
    "lint": (lint, "ruff and mypy only"),
    "format": (format_code, "format the code and repair what ruff can"),
    "bench": (bench, "run a benchmark by name; list them without a name"),
    "ui": (ui, "test and build the page of stepscope ui with npm, after a change of its source"),
    "lock": (lock, "write requirements/dev.lock again (--upgrade raises the pins)"),
}


def check_venv() -> None:
    """Refuse a Python that cannot make virtual environments."""
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise DevError(
            "this Python cannot make virtual environments; install its venv package "
            f"(Debian, Ubuntu: apt-get install python{version}-venv) and try again"
        )


def prepare() -> None:
    """Make the environment complete: the locked packages and Stepscope itself, editable."""
    with held():
        wanted = digest()
        if usable() and STAMP.read_text(encoding="utf-8") == wanted:
            return
        refuse_foreign()
        say("installing the packages of requirements/dev.lock into .venv (under a minute)")
        uv = shutil.which("uv")
        create(uv)
        found = uv or fetched_uv()
        if found and install(found):
            say("uv failed (above); trying pip, which has settings of its own")
            found = None
            create(None)
        if found is None and install(None):
            raise DevError("pip install failed (above)")
        STAMP.write_text(wanted, encoding="utf-8")


def fetched_uv() -> str | None:
    """The uv that pip installs: with it, the rest takes a third of pip's time; None without."""
    failed = call([str(PYTHON), *PIP, "--require-hashes", "-r", str(UV_LOCK)], ROOT, quiet=True)
    return None if failed else str(PYTHON.with_name("uv"))


def install(uv: str | None) -> int:
    """Install into the environment, with uv or else pip; the exit code.

    The lock is whole, so nothing is resolved; modules are compiled when they are imported.
    """
    installer = [str(PYTHON), *PIP, "--no-compile"]
    if uv:
        installer = [uv, "pip", "install", "--quiet", "--python", str(PYTHON)]
    # The build backend is one of the locked packages: nothing else is downloaded.
    own = ("--no-index", "--no-build-isolation", "--editable", str(ROOT))
    return call([*installer, "--no-deps", "--require-hashes", "-r", str(LOCK)], ROOT) or call(
        [*installer, "--no-deps", *own], ROOT
    )


def digest() -> str:
    """Digest of everything the environment is made from, its place included."""
    made_from = hashlib.sha256(str(ROOT).encode())
    for path in (LOCK, UV_LOCK, ROOT / "pyproject.toml"):
        made_from.update(path.read_bytes())
    return made_from.hexdigest()


def usable() -> bool:
    """Whether the environment is ours and its Python still runs."""
    return STAMP.is_file() and python("-c", "", quiet=True) == 0


def refuse_foreign() -> None:
    """Never make the environment over somebody else's, nor through a link to another checkout's."""
    if VENV.is_symlink():
        raise DevError(f"{VENV} is a link; remove it, and one of this checkout's own is made")
    if VENV.exists() and any(VENV.iterdir()) and not STAMP.exists():
        raise DevError(f"{VENV} was not made by dev.py; move it away and try again")


def create(uv: str | None) -> None:
    """Create the environment, over an older one of ours."""
    if uv is None:
        check_venv()
    refuse_foreign()
    VENV.mkdir(exist_ok=True)
    # Written first, so that an interrupted set-up is recognised as ours and made again.
    STAMP.write_text("incomplete", encoding="utf-8")
    base = getattr(sys, "_base_executable", None) or sys.executable
    pip = ("--without-pip",) if uv else ()
    if call([base, "-m", "venv", "--clear", *pip, str(VENV)], ROOT):
        raise DevError(f"could not create {VENV} (above)")
    STAMP.write_text("incomplete", encoding="utf-8")


class held:  # noqa: N801  (used like a function)
    """Keeps a second dev.py waiting while one changes the environment."""

    def __enter__(self) -> None:
        """Wait for the lock."""
        self._folder = os.open(ROOT, os.O_RDONLY)
        fcntl.flock(self._folder, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        os.close(self._folder)


def lint_all() -> list[str]:
    """Run all linters; returns the names of those that failed."""
    prepare()
    return [name for name, command in LINTERS if python(*command)]


def python(*arguments: str, quiet: bool = False) -> int:
    """Run the environment's Python from the repository root; its exit code."""
    if not PYTHON.exists():
        return 1
    return call([str(PYTHON), *arguments], ROOT, quiet=quiet)


def call(command: Sequence[str], folder: Path, *, quiet: bool = False) -> int:
    """Run a command that sees the environment only; its exit code."""
    sys.stdout.flush()
    sink = subprocess.DEVNULL if quiet else None
    done = subprocess.run(
        command, cwd=folder, env=environment(), stdout=sink, stderr=sink, check=False
    )
    return done.returncode


def environment() -> dict[str, str]:
    """What the commands see: no other packages, and compiled modules are kept.

    Tests start Python hundreds of times; containers often forbid it to keep what it compiles. Free
    memory stays with a process: to give pages back and have them cleared again takes two to six
    hundredths of the tests' time.
    """
    out = {"PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"}
    kept = {name: value for name, value in os.environ.items() if name not in out}
    for name, value in ALLOCATOR.items():
        kept.setdefault(name, value)
    return {**kept, "NO_MKDOCS_2_WARNING": "1"}  # a notice of the theme in every build


def no_more(arguments: Sequence[str]) -> None:
    """Refuse arguments of a command that takes none."""
    if arguments:
        raise DevError(f"this command takes no arguments, got {listed(arguments)}")


def listed(names: Iterable[str]) -> str:
    """Names as one text."""
    return ", ".join(names)


def say(text: str) -> None:
    """One line to the person, apart from what the tools print."""
    print(f"dev.py: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

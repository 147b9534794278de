"""Find, compile and load the compiled code. Also run by the package's build hook, on its own."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    *("-std=c++17", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-fwrapv"),
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-Wall", "-Wextra"),
)
WAYS = (("-nodefaultlibs", "-lc"), ())
"""Tried in turn. The first leaves the C++ library out, which nothing needs: the result loads
wherever the C library does."""
LONGEST_S = 60
"""A compiler that takes longer is broken; it takes well under a second."""


@dataclass(frozen=True)
class Found:
    """A library, or why there is none.

    Attributes:
        path: the library; None where there is none.
        why: why there is none, with what would help; empty where there is one.
    """

    path: Path | None
    why: str = ""


def names() -> list[str]:
    """The libraries, by name."""
    return sorted(source.stem for source in SOURCES.glob("*.cpp"))


def file_name(name: str) -> str:
    """A library's file, named by its source and how it is compiled: a stale one is never used."""
    digest = hashlib.sha256(f"{sys.platform} {' '.join(FLAGS)}\0".encode())
    digest.update((SOURCES / f"{name}.cpp").read_bytes())
    return f"libstepscope_{name}-{digest.hexdigest()[:16]}.so"


def compiler() -> str | None:
    """The C++ compiler: ``CXX``, else the usual names on ``PATH``."""
    for candidate in (os.environ.get("CXX", ""), *COMPILERS):
        if candidate and (found := shutil.which(candidate)):
            return found
    return None


def compile_into(folder: Path, name: str) -> Found:
    """Compile a library into a folder; one that is there already is kept."""
    target = folder / file_name(name)
    if target.exists():
        return Found(target)
    cxx = compiler()
    if cxx is None:
        return Found(None, "there is no C++ compiler here; install one, or a wheel built with one")
    try:
        for made in (folder.parent, folder):  # what is in it is loaded
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / "library.so"
            for way in WAYS:
                source = str(SOURCES / f"{name}.cpp")
                done = _compiled(cxx, (*FLAGS, source, "-o", str(built), *way))
                if done.returncode == 0 and built.exists():
                    built.replace(target)  # at once: another process may compile too
                    return Found(target)
    except (OSError, subprocess.SubprocessError) as error:
        return Found(None, f"{name} cannot be compiled into {folder}: {error}")
    line = next((li for li in done.stderr.splitlines() if "error" in li), done.stderr[:200])
    return Found(None, f"{cxx} could not compile {name}: {line.strip()}")


def _compiled(cxx: str, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [cxx, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=LONGEST_S,
        check=False,
    )


def cache_folder() -> Path:
    """Where a library compiled on first use is kept: in the folder of ``stepscope cache``."""
    if own := os.environ.get("STEPSCOPE_CACHE_DIR"):
        return Path(own) / "native"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "stepscope" / "native"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stepscope" / "native"


def find(name: str) -> Found:
    """A library: the one installed with the package, else one compiled on first use."""
    try:
        installed = HERE / file_name(name)
        if installed.exists():
            return Found(installed)
        return compile_into(cache_folder(), name)
    except (OSError, RuntimeError) as error:  # sources that cannot be read; no home
        return Found(None, str(error))


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Loaded:
    """A loaded library, or why there is none.

    Attributes:
        library: its functions; None where there is none.
        why: why there is none.
        where: its file.
    """

    library: ctypes.CDLL | None
    why: str = ""
    where: str = ""


@cache
def load(name: str) -> Loaded:
    """Load a library; what failed once in a process is not tried again in it."""
    found = find(name)
    if found.path is None:
        return Loaded(None, found.why)
    try:
        return Loaded(ctypes.CDLL(str(found.path)), where=str(found.path))
    except OSError as error:  # a folder that may hold no programs, a file of another machine
        return Loaded(None, f"{found.path} cannot be loaded: {error}")

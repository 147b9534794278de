"""Find or compile the collector's library. Also run by the package's build hook, on its own."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
PREFIX = "libstepscope_"
PARTS = {"collector": "*.cpp", "waits": "preload/*.cpp"}
"""The libraries and their sources: the collector, and what is preloaded to note waits."""
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    *("-std=c++17", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-Wall", "-Wextra"),
)
MACROS = {"collector": (), "waits": ("-DSTEPSCOPE_WAITS",)}
LINK = ("-Wl,-z,nodelete", "-Wl,--exclude-libs,ALL", "-ldl", "-lpthread")
OLDEST = SOURCES / "oldest_glibc.h"
OLD = (
    *("-include", str(OLDEST), "-Wl,--push-state,--no-as-needed"),
    *("-l:libdl.so.2", "-l:libpthread.so.0", "-Wl,--pop-state"),
)
"""Makes a library that old systems load, too: there, what it needs stands in these two files."""
STATIC = ("-static-libstdc++", "-static-libgcc")
"""The program may bring a C++ library of another version."""
WAYS = ((*STATIC, *OLD), STATIC, ())
"""Tried in turn: another C library has no old versions, and a static C++ one may be missing."""


@dataclass(frozen=True)
class Library:
    """The collector's library, or why there is none.

    Attributes:
        path: the library; None where there is none.
        remedy: what to do to get one; empty where there is one.
    """

    path: Path | None
    remedy: str = ""


def file_name(part: str = "collector") -> str:
    """A library's name, which changes with the sources: a stale one is never used."""
    digest = hashlib.sha256(" ".join((*FLAGS, *LINK, *STATIC)).encode())
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"{PREFIX}{part}-{digest.hexdigest()[:16]}.so"


def supported() -> str:
    """Why the collector cannot work on this system; empty where it can."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return f"the collector works on Linux only, not on {sys.platform} {platform.machine()}"
    return ""


def compiler() -> str | None:
    """The C++ compiler: ``CXX``, else the usual names on ``PATH``."""
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    return None


def compile_into(folder: Path, part: str = "collector") -> Library:
    """Compile a library into a folder; one that is there already is kept."""
    if why := supported():
        return Library(None, why)
    target = folder / file_name(part)
    if target.exists():
        return Library(target)
    cxx = compiler()
    if cxx is None:
        return Library(
            None,
            "the collector is not compiled and there is no C++ compiler here; install one "
            "(Debian, Ubuntu: apt-get install g++; conda: gxx), or install a Stepscope wheel "
            "built with one",
        )
    sources = [str(source) for source in sorted(SOURCES.glob(PARTS[part]))]
    try:
        for made in (folder.parent, folder):  # what is in it is loaded into programs
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / "collector.so"
            for way in WAYS:
                command = [cxx, *FLAGS, *MACROS[part], *sources, "-o", str(built), *way, *LINK]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    built.rename(target)  # at once: another process may compile too
                    return Library(target)
    except OSError as error:
        return Library(None, f"the collector cannot be compiled into {folder}: {error.strerror}")
    line = next((li for li in done.stderr.splitlines() if "error" in li), done.stderr[:200])
    return Library(None, f"{cxx} could not compile the collector: {line.strip()}")


_VERSION = re.compile(rb"GLIBC_(\d+)\.(\d+)")
_OLDEST_POLICY = (2, 17)


def platform_tag(libraries: list[Path]) -> str:
    """The platform of a wheel with these libraries, by PEP 600: which C library they need."""
    found = {tuple(map(int, v)) for path in libraries for v in _VERSION.findall(path.read_bytes())}
    if not found:  # another C library
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    major, minor = max(_OLDEST_POLICY, *found)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def cache_folder() -> Path:
    """Where a library compiled on first use is kept."""
    if own := os.environ.get("STEPSCOPE_CACHE_DIR"):
        return Path(own) / "collector"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stepscope" / "collector"


def find(part: str = "collector") -> Library:
    """A library: the one installed with the package, else one compiled on first use."""
    if why := supported():
        return Library(None, why)
    installed = HERE / file_name(part)
    if installed.exists():
        return Library(installed)
    return compile_into(cache_folder(), part)


if __name__ == "__main__":
    print(compile_into(Path(sys.argv[1])))

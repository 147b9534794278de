"""Find NVIDIA's libraries and tools on this machine, without loading a GPU framework."""

from __future__ import annotations

import ctypes
import glob
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CUPTI_FILE = re.compile(r"libcupti\.so\.(\d+)(?:\.(\d+))?(?:\.(\d+))?$")
_IN_SITE = ("nvidia/cu*/lib", "nvidia/cuda_cupti/lib")
_IN_SYSTEM = (
    "/usr/local/cuda*/lib64",
    "/usr/local/cuda*/extras/CUPTI/lib64",
    "/usr/local/cuda*/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
)
_SITE_PROGRAM = "import site, sys; print('\\n'.join([*sys.path, site.getusersitepackages()]))"
_TOOL_FOLDERS = {
    "nsys": ("/opt/nvidia/nsight-systems*/*/bin", "/usr/local/cuda*/bin"),
    "ncu": ("/opt/nvidia/nsight-compute*/*", "/usr/local/cuda*/bin"),
}


@dataclass(frozen=True)
class Tool:
    """An installed program and its version, as numbers, (0,) where it does not say."""

    path: str
    version: tuple[int, ...]

    def text(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.version))


def _matching(pattern: str) -> list[str]:
    """Existing paths of an absolute pattern, in no order; Path.glob wants a folder to start in."""
    return glob.glob(pattern)  # noqa: PTH207


def site_folders(command: tuple[str, ...]) -> list[str]:
    """Where the program's Python looks for packages.

    Args:
        command: the program; its first word is asked when it is a Python.
    """
    folders = list(sys.path)
    first = Path(command[0]).name if command else ""
    if re.fullmatch(r"python[\d.]*", first) and shutil.which(command[0]) != sys.executable:
        done = subprocess.run(
            [command[0], "-c", _SITE_PROGRAM], capture_output=True, text=True, check=False
        )
        folders = done.stdout.splitlines() if done.returncode == 0 else folders
    elif (script := shutil.which(command[0]) if command else None) and script != sys.executable:
        # torchrun, accelerate: scripts of an environment, with its packages beside them
        folders = [*_matching(f"{Path(script).parent.parent}/lib/python3*/site-packages"), *folders]
    return [folder for folder in dict.fromkeys(folders) if folder]


def cupti_candidates(command: tuple[str, ...] = ()) -> list[Path]:
    """Copies of libcupti, best first: ``STEPSCOPE_CUPTI``, the program's packages, the system."""
    found: list[Path] = []
    if own := os.environ.get("STEPSCOPE_CUPTI"):
        found.append(Path(own))
    patterns = [f"{site}/{inside}" for site in site_folders(command) for inside in _IN_SITE]
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        patterns += [f"{home}/lib64", f"{home}/extras/CUPTI/lib64"]
    for pattern in (*patterns, *_IN_SYSTEM):
        for folder in sorted(_matching(pattern), reverse=True):
            found += sorted(
                path for path in Path(folder).glob("libcupti.so.*") if _CUPTI_FILE.search(path.name)
            )
    distinct = {path.resolve(): path for path in reversed(found)}
    return [path for path in dict.fromkeys(found) if distinct[path.resolve()] == path]


def cupti_version(path: Path) -> int | None:
    """``cuptiGetVersion()`` of a library; None where it cannot be loaded.

    Asked in another process: a library that is loaded here stays.
    """
    program = (
        "import ctypes, sys; v = ctypes.c_uint32(); lib = ctypes.CDLL(sys.argv[1]);"
        "print(v.value if lib.cuptiGetVersion(ctypes.byref(v)) == 0 else '')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    text = done.stdout.strip()
    return int(text) if done.returncode == 0 and text.isdigit() else None


@cache
def find_tool(name: str) -> Tool | None:
    """An installed ``nsys`` or ``ncu``: on ``PATH``, else the newest in the usual folders."""
    override = os.environ.get("STEPSCOPE_NSYS") if name == "nsys" else None
    places = [override] if override else [shutil.which(name)]
    for pattern in _TOOL_FOLDERS[name]:
        places += [f"{folder}/{name}" for folder in sorted(_matching(pattern), reverse=True)]
    for place in places:
        if place and os.access(place, os.X_OK):
            return Tool(place, _version_of(place))
    return None


def _version_of(program: str) -> tuple[int, ...]:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    found = re.search(r"(\d{4})\.(\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if found else (0,)


def load(*names: str) -> ctypes.CDLL | None:
    """The first of some shared libraries that loads."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None

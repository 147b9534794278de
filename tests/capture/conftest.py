"""A driver and an NVTX to play with: compiled stand-ins, and a way to run programs under them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope

from stepscope.capture.collector import build
from stepscope.capture.launcher import Outcome, record
from stepscope.capture.options import Options
from stepscope.importers.registry import convert
from stepscope.trace.trace import Trace

NATIVE = Path(__file__).parent / "native"
COMPILER = shutil.which("gcc") or shutil.which("cc")

PRELUDE = """
import ctypes, os, signal, sys, threading, time
cuda = ctypes.CDLL(os.environ["FAKE_CUPTI"])
nvtx = ctypes.CDLL(os.environ["FAKE_NVTX"])
cuda.fake_launch.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint32)
for name in ("fake_stream_sync", "fake_record", "fake_stream_wait"):
    getattr(cuda, name).argtypes = (ctypes.c_uint64, ctypes.c_uint64)
for name in ("fake_copy", "fake_copy_between", "fake_set", "fake_sync"):
    getattr(cuda, name).argtypes = {
        "fake_copy": (ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_uint64),
        "fake_copy_between": (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32),
        "fake_set": (ctypes.c_uint64,),
        "fake_sync": (ctypes.c_uint64,),
    }[name]
for name in ("domain", "registered"):
    getattr(nvtx, name).restype = ctypes.c_void_p
nvtx.registered.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
nvtx.name_category.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p)
nvtx.domain_push.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_double)
nvtx.domain_pop.argtypes = (ctypes.c_void_p,)
for name in ("range_start", "domain_start", "schema"):
    getattr(nvtx, name).restype = ctypes.c_uint64
nvtx.range_end.argtypes = (ctypes.c_uint64,)
nvtx.domain_start.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
nvtx.domain_end.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
nvtx.schema.argtypes = (ctypes.c_void_p,)
nvtx.collective_push.argtypes = (
    ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int)
KERNEL = ctypes.c_char_p(b"_ZN2at6native6kernelILi4EfEEvi")

def launch(n=1, device=0, name=KERNEL):
    for _ in range(n):
        cuda.fake_launch(name, 3000, device)

def push(name):
    return nvtx.push(name.encode())

pop = nvtx.pop

def written(kernels):
    # waits until the collector has written so many kernels of this process, however busy it is here
    import glob, struct
    folder = os.path.dirname(os.environ["STEPSCOPE_CAPTURE"])
    (path,) = glob.glob(os.path.join(folder, f"p{os.getpid()}-*.raw"))
    limit, found = time.monotonic() + 100, 0
    while found < kernels:
        assert time.monotonic() < limit, found
        time.sleep(0.005)
        with open(path, "rb") as file: data = file.read()
        at = found = 0
        while at + 40 <= len(data):
            _, kind, _, rows, size = struct.unpack_from("<IHHII", data, at)
            found += rows * (kind == 4)
            at += 40 + size

def readings(thread):
    # how often the state of a thread of this process was read and written so far
    folder = os.path.dirname(os.environ["STEPSCOPE_CAPTURE"])
    try: lines = open(os.path.join(folder, "threads.tsv")).read().splitlines()
    except FileNotFoundError: return 0
    return sum(line.split("\\t")[1:3] == [str(os.getpid()), str(thread)] for line in lines)
"""


@dataclass
class Program:
    """Runs programs that use the stand-ins, under ``stepscope run``'s launcher."""

    folder: Path
    output: list[str] = field(default_factory=list)
    runs: int = 0

    def script(self, text: str, *, start: str = "nvtx.nvtx_load(); cuda.fake_init()") -> Path:
        path = self.folder / f"program{self.runs}.py"
        path.write_text(f"{PRELUDE}\n{start}\n{textwrap.dedent(text)}")
        return path

    def options(self, text: str, **options: Any) -> Options:
        self.runs += 1
        start = options.pop("start", "nvtx.nvtx_load(); cuda.fake_init()")
        command = (sys.executable, str(self.script(text, start=start)))
        output = self.folder / f"run{self.runs}"
        options = {"counters": False, "backend": "collector", "flush_ms": 100} | options
        return Options(command=command, output=output, **options)

    def record(self, text: str, **options: Any) -> Outcome:
        """Run a script; it may use ``cuda``, ``nvtx``, ``launch``, ``push`` and ``pop``."""
        return record(self.options(text, **options), "test", self.output.append)

    def trace(self, text: str, *, exit_code: int = 0, **options: Any) -> Trace:
        """Run a script and read what its one rank left."""
        outcome = self.record(text, **options)
        assert outcome.exit_code == exit_code, self.output
        assert len(outcome.raw) == 1, outcome
        return read(outcome.raw[0])


def read(raw: Path) -> Trace:
    target = raw.parents[1] / f"{raw.name}.stepscope"
    convert(raw, target)
    return Trace(target)


def texts(trace: Trace, table: str, column: str) -> list[Any]:
    return trace.arrow(table, [column]).column(0).to_pylist()


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of the compiled stand-ins, as environment variables."""
    if COMPILER is None:
        pytest.skip("needs a C compiler for the stand-ins of CUPTI and NVTX")
    folder = tmp_path_factory.mktemp("stand_ins")
    found = {}
    for variable, source, name in (
        ("FAKE_CUPTI", "fake_cupti.c", "libcupti.so.13"),
        ("FAKE_NVTX", "fake_nvtx.c", "libfakenvtx.so"),
    ):
        target = folder / name
        flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")
        command = [COMPILER, *flags, str(NATIVE / source), "-o", str(target), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        found[variable] = str(target)
    return found


@pytest.fixture
def program(
    stand_ins: dict[str, str], collector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Program:
    for name, path in stand_ins.items():
        monkeypatch.setenv(name, path)
    monkeypatch.setenv("STEPSCOPE_CUPTI", stand_ins["FAKE_CUPTI"])
    for name in list(os.environ):
        if name.endswith("RANK") or name.startswith("SLURM"):
            monkeypatch.delenv(name)
    return Program(tmp_path)


@pytest.fixture(scope="session")
def collector() -> Path:
    """The folder with the compiled collector of this test run; empty without a compiler."""
    folder = build.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # one worker compiles, the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        for part in build.PARTS:
            build.find(part)
    return folder


@pytest.fixture
def stepscope(tmp_path: Path, collector: Path) -> Stepscope:
    """The command line with a cache that holds the compiled collector and no captures."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "collector").symlink_to(collector)
    return Stepscope(cache)

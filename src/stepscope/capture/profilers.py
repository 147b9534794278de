"""Other profilers: who else uses, or may want, CUPTI in the recorded program."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stepscope.capture.threads import tree_of

PROFILERS_FILE = "profilers.json"
_FIRST_LOOK_S = 1.0
_LOOK_S = 10.0
"""Reading the mappings of a PyTorch process takes some milliseconds of the launcher's time."""


@dataclass(frozen=True)
class Sign:
    """A library whose presence in a process tells of a profiler.

    Attributes:
        tool: its name.
        pattern: of the file's name.
        holds: whether it takes CUPTI as soon as it is loaded; else only when it is started.
    """

    tool: str
    pattern: re.Pattern[str]
    holds: bool


# Names of the files that the tools' own installations bring.
LIBRARIES = (
    Sign("Nsight Systems", re.compile(r"libToolsInjection(Proxy)?(64|32)?\.so"), True),
    Sign("Nsight Compute", re.compile(r"libcuda-injection\.so|libTreeLauncher\w*\.so"), True),
    Sign("nvprof", re.compile(r"libaccinj64\.so|libcuinj64\.so"), True),
    Sign("cuda-gdb", re.compile(r"libcudadebugger\.so"), True),
    Sign("Proton (Triton's profiler)", re.compile(r"libproton\.so"), False),
)
# Set for the programs that these tools start.
_VARIABLES = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "NVPROF_ID": "nvprof",
    "CUDBG_API_REVISION": "cuda-gdb",
}
_INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
_DAEMON = "KINETO_USE_DAEMON"


@dataclass(frozen=True)
class Found:
    """A profiler in a process.

    Attributes:
        process: the process.
        tool: the profiler.
        path: the library that tells.
        holds: whether it takes CUPTI by being there.
        time_ns: when it was first seen, monotonic.
    """

    process: int
    tool: str
    path: str
    holds: bool
    time_ns: int

    def message(self) -> str:
        """What it means, in one sentence."""
        name = Path(self.path).name
        if self.holds:
            return (
                f"{self.tool} was in process {self.process} ({name}): only one tool can use CUPTI, "
                "so GPU work may be missing; record without it"
            )
        return (
            f"process {self.process} loaded {self.tool} ({name}): where it was started, it or this "
            "recording lacks GPU work; switch it off while recording"
        )


def in_environment(environment: Mapping[str, str] = os.environ) -> Iterator[tuple[str, str]]:
    """(what the environment tells of another profiler, what to do), in sentences.

    Args:
        environment: that of the program to be.
    """
    tools = {tool: name for name, tool in _VARIABLES.items() if environment.get(name)}
    for entry in re.split(r"[ :]", environment.get("LD_PRELOAD", "")):
        for sign in LIBRARIES:
            if sign.holds and sign.pattern.fullmatch(Path(entry).name):
                tools.setdefault(sign.tool, "LD_PRELOAD")
    for tool, variable in tools.items():
        yield (
            f"{tool} already records this shell's programs ({variable} is set) and holds CUPTI, so "
            "Stepscope would record NVTX ranges only",
            f"run it outside of {tool}",
        )
    for variable in _INJECTIONS:
        if not tools and environment.get(variable):
            yield (
                f"{variable} is set to {environment[variable]}, another tool's library; Stepscope "
                "puts its own there",
                f"unset {variable} where nothing needs it",
            )
    if environment.get(_DAEMON):
        yield (
            f"{_DAEMON} is set: torch.profiler may be started from outside, and sees no GPU work "
            "while Stepscope records",
            f"unset {_DAEMON}, or trigger no trace while recording",
        )


def in_process(process: int) -> Iterator[tuple[Sign, str]]:
    """(sign, path) of the profilers whose libraries a process has loaded."""
    try:
        text = Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for path in {line.partition("/")[2] for line in text.splitlines() if ".so" in line}:
        name = path.rpartition("/")[2].removesuffix(" (deleted)")
        for sign in LIBRARIES:
            if sign.pattern.match(name):
                yield sign, f"/{path}"


@dataclass
class ProfilerWatch:
    """Looks now and then which profilers the processes of a run have loaded, until it is stopped.

    Attributes:
        path: where what was found is written.
        found: what was found, by process and tool.
    """

    path: Path
    found: dict[tuple[int, str], Found] = field(default_factory=dict)
    _end: threading.Event = field(default_factory=threading.Event)
    _worker: threading.Thread | None = None

    def start(self, root: int) -> None:
        """Begin with a process and its descendants."""
        self._worker = threading.Thread(
            target=self._run, args=(root,), name="stepscope-profilers", daemon=True
        )
        self._worker.start()

    def stop(self) -> None:
        """End, and write what was found."""
        self._end.set()
        if self._worker is not None:
            self._worker.join(timeout=5)
        if self.found:
            try:
                text = json.dumps([asdict(one) | {"message": one.message()} for one in self.all()])
                self.path.write_text(text, encoding="utf-8")
            except OSError:
                pass  # the launcher says it, too

    def all(self) -> list[Found]:
        """What was found, in order of time."""
        return sorted(self.found.values(), key=lambda one: one.time_ns)

    def _run(self, root: int) -> None:
        pause = _FIRST_LOOK_S
        while not self._end.wait(pause):
            self.look(root)
            pause = min(_LOOK_S, pause * 2)

    def look(self, root: int) -> None:
        """Look once."""
        for process in tree_of(root):
            for sign, path in in_process(process):
                key = (process, sign.tool)
                if key not in self.found:
                    now = time.monotonic_ns()
                    self.found[key] = Found(process, sign.tool, path, sign.holds, now)

"""What can be captured on this machine, and what to do where it cannot."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from stepscope.capture import nvml
from stepscope.capture.backends.registry import BACKENDS
from stepscope.capture.collector import build
from stepscope.capture.libraries import cupti_candidates, cupti_version, find_tool, load
from stepscope.capture.profilers import in_environment, in_process

Status = Literal["ok", "warning", "missing"]
_ADMIN_ONLY = Path("/proc/driver/nvidia/params")
_CAP_SYS_ADMIN = 1 << 21
_CAPABILITIES = {1 << 19: "CAP_SYS_PTRACE", _CAP_SYS_ADMIN: "CAP_SYS_ADMIN", 1 << 38: "CAP_PERFMON"}
_PTRACE = Path("/proc/sys/kernel/yama/ptrace_scope")
_PERF = Path("/proc/sys/kernel/perf_event_paranoid")


_FOREIGN = (
    ("py-spy", "py-spy", "to look at a running Python program: pip install py-spy"),
    (
        "perf",
        "perf",
        "to look at native code: the package linux-perf or linux-tools",
    ),
    ("nccl-tests", "all_reduce_perf", "to measure the links: build nccl-tests of NVIDIA with make"),
)
"""Tools that the guide names beside ours: check, program, what for and how to get it."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what it is about.
        status: ``ok``, ``warning`` (works, with limits) or ``missing``.
        message: what was found.
        remedy: what to do; empty where there is nothing to do.
    """

    name: str
    status: Status
    message: str
    remedy: str = ""

    def document(self) -> dict[str, str]:
        """As in the JSON output."""
        return {key: str(value) for key, value in asdict(self).items()}


def examine(command: tuple[str, ...] = ()) -> list[Check]:
    """Look at everything; takes some seconds at most.

    Args:
        command: the program that is to be captured, whose Python is looked into.
    """
    return [
        *_gpu(),
        *_cupti(command),
        *_permissions(),
        *_others(),
        *_streams(),
        *_tools(),
        *_backends(command),
    ]


def _gpu() -> Iterator[Check]:
    yield Check("system", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")
    try:
        library = nvml.Nvml()
        gpus = library.gpus()
        driver = f"driver {library.driver()}, CUDA up to {library.cuda()}"
    except OSError as error:
        cuda = load("libcuda.so.1")
        remedy = "install NVIDIA's driver; in a container, start it with --gpus all"
        message = str(error) if cuda is None else f"{error} (libcuda is there)"
        yield Check("driver", "missing", message, remedy)
        return
    yield Check("driver", "ok", driver)
    if not gpus:
        yield Check("gpu", "missing", "the driver sees no GPU", "check CUDA_VISIBLE_DEVICES")
    for gpu in gpus:
        yield Check(f"gpu {gpu.index}", "ok", f"{gpu.name} {gpu.uuid}")


def _cupti(command: tuple[str, ...]) -> Iterator[Check]:
    candidates = cupti_candidates(command)
    if not candidates:
        yield Check(
            "cupti",
            "missing",
            "no libcupti was found in this Python's packages, in CUDA_HOME or in the system",
            "install PyTorch with CUDA, or pip install nvidia-cuda-cupti (-cu12 for CUDA 12)",
        )
    for path in candidates[:4]:
        version = cupti_version(path)
        if version is None:
            yield Check("cupti", "warning", f"{path} does not load or does not tell its version")
        else:
            yield Check("cupti", "ok", f"{path}, interface version {version}")


def _permissions() -> Iterator[Check]:
    admin = os.geteuid() == 0 or bool(_capabilities() & _CAP_SYS_ADMIN)
    try:
        restricted = "RmProfilingAdminOnly: 1" in _ADMIN_ONLY.read_text(encoding="utf-8")
    except OSError:
        restricted = False
    if not _ADMIN_ONLY.exists():
        pass  # without the driver there is nothing to read
    elif restricted and not admin:
        yield Check(
            "hardware counters",
            "warning",
            "only administrators may read them, so ncu does not work; captures of the timeline do",
            "ask for NVreg_RestrictProfilingToAdminUsers=0 in the driver's module options",
        )
    else:
        yield Check("hardware counters", "ok", "may be read by this user")
    yield from _rights(admin=admin)
    try:
        free = os.statvfs("/dev/shm")
        megabytes = free.f_bavail * free.f_frsize / 1e6
    except OSError:
        megabytes = 0.0
    if megabytes < 256:
        yield Check(
            "shared memory",
            "warning",
            f"/dev/shm has {megabytes:,.0f} MB free: NVTX ranges of killed processes would be lost",
            "in a container, start it with --shm-size=1g",
        )
    else:
        yield Check("shared memory", "ok", f"/dev/shm has {megabytes:,.0f} MB free")


def _rights(*, admin: bool) -> Iterator[Check]:
    """What the kernel lets tools do beside the program; Stepscope's own collector needs none."""
    scope = _number(_PTRACE)
    if scope is not None and scope >= 2 and not admin:
        message = f"ptrace_scope is {scope}: no tool may attach to processes"
        yield Check("attach", "warning", message)
    else:
        known = "this kernel does not restrict it" if scope is None else f"ptrace_scope is {scope}"
        yield Check("attach", "ok", f"tools may attach to programs that they start ({known})")
    level = _number(_PERF)
    if level is None:
        message = "this kernel has no perf events, so nsys does not sample the CPU"
        yield Check("cpu sampling", "warning", message)
    elif level > 2 and not admin:
        yield Check(
            "cpu sampling",
            "warning",
            f"perf_event_paranoid is {level}, so nsys does not sample the CPU",
            "sysctl kernel.perf_event_paranoid=2",
        )
    else:
        yield Check("cpu sampling", "ok", f"perf_event_paranoid is {level}")
    if container := _container():
        held = _capabilities()
        had = [name for bit, name in _CAPABILITIES.items() if held & bit]
        yield Check(
            "container",
            "ok" if had else "warning",
            f"{container}, with {', '.join(had) or 'no further rights'}",
            "" if had else "ncu and CPU sampling may need docker run --cap-add=SYS_ADMIN",
        )


def _container() -> str:
    """What kind of container this is; empty where it is none, or does not show."""
    if Path("/.dockerenv").exists():
        return "a Docker container"
    if Path("/run/.containerenv").exists():
        return "a Podman container"
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if os.environ.get(name):
            return "an Apptainer container"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "a Kubernetes container"
    return ""


def _others() -> Iterator[Check]:
    """Other users of CUPTI: in the environment, and among this user's running programs."""
    known = [Check("other profilers", "warning", *found) for found in in_environment()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            for sign, path in in_process(int(entry.name)):
                message = (
                    f"{sign.tool} is loaded in running process {entry.name} ({Path(path).name})"
                )
                known.append(
                    Check("other profilers", "warning", message, "do not record that process")
                )
    if not known:
        known.append(Check("other profilers", "ok", "no other user of CUPTI is in sight"))
    yield from known


def _streams() -> Iterator[Check]:
    """What can be recorded beside CUDA and NVTX."""
    try:
        _, wait, _ = Path("/proc/self/schedstat").read_text(encoding="utf-8").split()
        yield Check(
            "thread states", "ok", f"/proc tells running and waiting times ({int(wait):,} ns)"
        )
    except (OSError, ValueError):
        yield Check(
            "thread states",
            "warning",
            "the kernel does not tell how long threads wait for a CPU; running, sleeping and disk "
            "waits are known at each reading only",
            "a kernel with CONFIG_SCHED_INFO tells",
        )
    yield Check(
        "python stacks",
        "ok",
        "the hook can sample them inside programs of Python 3.8 or newer (run --sample-hz 50)",
    )
    try:
        library = nvml.Nvml()
        able = [gpu for gpu in library.gpus() if library.has_gpm(gpu)]
    except OSError:
        return  # the driver has been reported
    if able:
        yield Check("gpu activity", "ok", f"GPM counters of {len(able)} GPUs can be sampled")
    else:
        yield Check(
            "gpu activity",
            "warning",
            "these GPUs or this driver have no GPM counters; clocks, power and memory are sampled",
            "GPM needs a Hopper GPU or newer and driver 525 or newer",
        )


def _capabilities() -> int:
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    except OSError:
        pass
    return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _tools() -> Iterator[Check]:
    for name in ("nsys", "ncu"):
        tool = find_tool(name)
        if tool is None:
            yield Check(name, "missing", f"{name} was not found", BACKENDS[name].check(()).remedy)
        else:
            yield Check(name, "ok", f"{tool.path}, version {tool.text()}")
    for name, program, remedy in _FOREIGN:
        if found := shutil.which(program):
            yield Check(name, "ok", found)
        else:
            yield Check(name, "missing", f"{program} was not found", remedy)
    cxx = build.compiler()
    message = (
        cxx or "no C++ compiler was found; it is needed only where the wheel brings no collector"
    )
    yield Check("compiler", "ok" if cxx else "warning", message)


def _backends(command: tuple[str, ...]) -> Iterator[Check]:
    for backend in BACKENDS.values():
        ready = backend.check(command)
        status: Status = "missing" if not ready.ready else "warning" if ready.remedy else "ok"
        message = f"{ready.message} ({ready.detail})" if ready.detail else ready.message
        yield Check(f"backend {backend.name}", status, message, ready.remedy)

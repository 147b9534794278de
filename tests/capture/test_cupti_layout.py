"""The collector's own declarations against CUPTI's published headers and libraries.

The headers are neither part of this repository nor of any package: they are fetched for this test
from NVIDIA's wheels, with ``pip download``, and skipped, loudly, where that fails.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from stepscope.capture import rawfiles
from stepscope.capture.collector.build import SOURCES, find

pytestmark = pytest.mark.slow

WHEELS = (
    "nvidia-cuda-cupti-cu11==11.8.87",
    "nvidia-cuda-cupti-cu12==12.1.105",
    "nvidia-cuda-cupti-cu12==12.4.127",
    "nvidia-cuda-cupti-cu12==12.8.57",
    "nvidia-cuda-cupti==13.0.85",
)
PLATFORMS = ("manylinux2014", "manylinux1", "manylinux_2_25")
FIELD = re.compile(r"^FIELD\((\w+), (\w+), ([^,]+), (\d+)\)$", re.MULTILINE)
TABLE = (SOURCES / "cupti_fields.def").read_text(encoding="utf-8")
ABI = (SOURCES / "cupti_abi.h").read_text(encoding="utf-8")
NAMES = {"objectId": "objectId.pt.threadId"}
ENUMERATORS = {
    "kMemcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "kMemset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "kDriver": "CUPTI_ACTIVITY_KIND_DRIVER",
    "kRuntime": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "kConcurrentKernel": "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
    "kOverhead": "CUPTI_ACTIVITY_KIND_OVERHEAD",
    "kMemcpyPtoP": "CUPTI_ACTIVITY_KIND_MEMCPY2",
    "kCudaEvent": "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "kStream": "CUPTI_ACTIVITY_KIND_STREAM",
    "kSynchronization": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "kMemory2": "CUPTI_ACTIVITY_KIND_MEMORY2",
    "kGraphTrace": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "kMaxLimitReached": "CUPTI_ERROR_MAX_LIMIT_REACHED",
    "kMultipleSubscribers": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
    "kForced": "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED",
    "kThreadIdSystem": "CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM",
    "kDriverProfilerStart": "CUPTI_DRIVER_TRACE_CBID_cuProfilerStart",
    "kDriverProfilerStop": "CUPTI_DRIVER_TRACE_CBID_cuProfilerStop",
    "kRuntimeProfilerStart": "CUPTI_RUNTIME_TRACE_CBID_cudaProfilerStart_v4000",
    "kRuntimeProfilerStop": "CUPTI_RUNTIME_TRACE_CBID_cudaProfilerStop_v4000",
    "kSyncEvent": "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE",
    "kSyncStreamWait": "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT",
    "kSyncStream": "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE",
    "kSyncContext": "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE",
    "kContextCreated": "CUPTI_CBID_RESOURCE_CONTEXT_CREATED",
    "kContextDestroyStarting": "CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING",
}
# What the CUPTI headers ask of cuda.h, which is in another package: opaque handles only.
CUDA_H = """
#pragma once
#include <stddef.h>
#include <stdint.h>
typedef struct CUctx_st* CUcontext; typedef struct CUstream_st* CUstream;
typedef struct CUfunc_st* CUfunction; typedef struct CUmod_st* CUmodule;
typedef struct CUgraph_st* CUgraph; typedef struct CUgraphExec_st* CUgraphExec;
typedef struct CUgraphNode_st* CUgraphNode; typedef struct CUevent_st* CUevent;
typedef int CUdevice; typedef int CUresult; typedef int CUfunc_cache; typedef int CUsharedconfig;
typedef int CUdevice_attribute; typedef int CUfunction_attribute; typedef int CUjit_option;
typedef int CUgraphNodeType; typedef unsigned long long CUdeviceptr; typedef int CUlaunchConfig;
typedef struct CUuuid_st { char bytes[16]; } CUuuid;
typedef enum { CU_GRAPH_NODE_TYPE_KERNEL } CUgraphNodeType_;
"""


@pytest.fixture(scope="module")
def fetch(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a requirement to its unpacked wheel.

    CUPTI_WHEELS names a folder that has the wheels already.
    """
    folder = Path(os.environ.get("CUPTI_WHEELS") or tmp_path_factory.mktemp("wheels"))

    unreachable: list[str] = []

    @cache
    def found(requirement: str) -> Path | None:
        name, version = requirement.split("==")
        pattern = f"{name.replace('-', '_')}-{version}-*.whl"
        if not any(folder.glob(pattern)):
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
            command += ["--only-binary=:all:", "--retries=1", "--timeout=15"]
            command += [f"--platform={platform}_x86_64" for platform in PLATFORMS]
            command += ["-d", str(folder), requirement]
            if not unreachable:
                tried = subprocess.run(
                    command, capture_output=True, text=True, timeout=240, check=False
                )
                # each try waits for the index; where it cannot be reached one is enough
                silent = re.search(r"connection|resol|unreachable|timed out", tried.stderr, re.I)
                if silent and not any(folder.glob(pattern)):
                    unreachable.append(requirement)
        wheel = next(folder.glob(pattern), None)
        if wheel is None:
            return None
        target = tmp_path_factory.mktemp("unpacked")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        return target

    def get(requirement: str) -> Path:
        target = found(requirement)
        if target is None:
            pytest.skip(f"NOT CHECKED: {requirement} cannot be fetched from the package index")
        return target

    return get


@pytest.fixture(params=WHEELS)
def cupti(request: pytest.FixtureRequest, fetch: Callable[[str], Path]) -> Path:
    """An unpacked wheel."""
    return fetch(request.param)


def compiled(cupti: Path, source: str) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("NOT CHECKED: needs a C++ compiler")
    include = next(cupti.rglob("cupti_activity.h")).parent
    real = next(Path("/usr/local").glob("cuda*/include/cuda.h"), None)
    if real is None:
        (cupti / "cuda.h").write_text(CUDA_H)
    path = cupti / "check.cpp"
    path.write_text(source)
    command = [compiler, "-fsyntax-only", "-w", f"-I{include}", f"-I{cupti}"]
    command += [f"-I{real.parent}"] if real else []
    return subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)


def newest_record(header: str, record: str) -> str:
    """The newest version of a record's struct in a header, as its typedef is called."""
    base = {"Kernel": "Kernel", "Memory": "Memory"}.get(record, record)
    found = re.findall(rf"\bCUpti_Activity{base}(\d*);", header)
    newest = max((int(n or 1) for n in found), default=0)
    assert newest, record
    return f"CUpti_Activity{base}{newest if newest > 1 else ''}"


def test_the_declarations_agree_with_the_headers(cupti: Path) -> None:
    """In one program: most of a compilation's time goes into the headers."""
    lines = ["#include <cupti.h>", f'#include "{SOURCES / "cupti_abi.h"}"']
    lines += [*fields(cupti), *callbacks(), *numbers()]
    done = compiled(cupti, "\n".join(lines))
    assert done.returncode == 0, done.stderr[-3000:]


def fields(cupti: Path) -> Iterator[str]:
    """Fields stand where the collector reads them."""
    include = next(cupti.rglob("cupti_activity.h")).parent
    header = (include / "cupti_activity.h").read_text(encoding="utf-8", errors="replace")
    table = [(r, n, k, int(o)) for r, n, k, o in FIELD.findall(TABLE)]
    assert len(table) > 70
    for record, name, kind, offset in table:
        struct = newest_record(header, record)
        member = NAMES.get(name, name)
        yield f'static_assert(offsetof({struct}, {member}) == {offset}, "{record}.{name}");'
        size = f"sizeof((({struct}*)0)->{member}) == sizeof({kind})"
        yield f'static_assert({size}, "size of {record}.{name}");'


def callbacks() -> Iterator[str]:
    """Callbacks are told what the collector reads."""
    members = {
        "site": "callbackSite",
        "function": "functionName",
        "arguments": "functionParams",
        "result": "functionReturnValue",
        "symbol": "symbolName",
        "context": "context",
        "context_number": "contextUid",
        "kept": "correlationData",
        "correlation": "correlationId",
    }
    for ours, theirs in members.items():
        equal = (
            f"offsetof(stepscope::cupti::CallbackData, {ours})"
            f" == offsetof(CUpti_CallbackData, {theirs})"
        )
        yield f'static_assert({equal}, "{ours}");'


def numbers() -> Iterator[str]:
    """Numbers are those of the headers."""
    for ours, theirs in ENUMERATORS.items():
        match = re.search(rf"\b{ours} = (\d+)", ABI)
        assert match, ours
        yield f'static_assert({theirs} == {match[1]}, "{ours}");'
    calls = (SOURCES / "calls.h").read_text(encoding="utf-8")
    assert "cudaGetDevice\n" in calls
    yield "static_assert(CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020 == 17);"


def test_arguments_stand_where_the_collector_reads_them(cupti: Path) -> None:
    """Streams and events are the words of the arguments' structs that the table names."""
    source = (SOURCES / "api_calls.cpp").read_text(encoding="utf-8")
    table = re.findall(r'\{"(\w+)", k\w+, (-?\d), (-?\d)\}', source)
    assert len(table) == 10
    include = next(cupti.rglob("generated_cuda_meta.h")).parent
    text = "".join(
        (include / f"generated_{name}_meta.h").read_text(encoding="utf-8", errors="replace")
        for name in ("cuda", "cuda_runtime_api")
    )
    structs = re.findall(r"typedef struct (\w+)_params_st \{(.*?)\}", text, re.DOTALL)
    seen = set()
    for begins, stream, event in table:
        for name, body in structs:
            if name.startswith(begins):
                seen.add(begins)
                fields = [line.split()[0] for line in body.split(";") if line.strip()]
                for index, kinds in (
                    (int(stream), ("cudaStream_t", "CUstream")),
                    (int(event), ("cudaEvent_t", "CUevent")),
                ):
                    assert index < 0 or fields[index] in kinds, (name, fields)
    # Functions without arguments have no struct.
    none = {"cudaDeviceSynchronize", "cuCtxSynchronize"}
    assert {begins for begins, _, _ in table} - seen <= none


def test_the_library_has_the_functions_that_are_needed(cupti: Path) -> None:
    source = (SOURCES / "cupti_library.cpp").read_text(encoding="utf-8")
    needed = re.findall(r'load\(library\.\w+, "(\w+)"\)', source)
    optional = re.findall(r'load\(library\.\w+, "(\w+)", true\)', source)
    assert len(needed) > 8
    library = ctypes.CDLL(str(next(cupti.rglob("libcupti.so.*"))))
    assert [name for name in needed if not hasattr(library, name)] == []
    assert set(optional) >= {"cuptiActivityEnableRuntimeApi", "cuptiSetThreadIdType"}


def test_a_real_cupti_without_a_driver_harms_nobody(cupti: Path, tmp_path: Path) -> None:
    """What is missing is told in the file, and the program goes on."""
    library = find().path
    if library is None:
        pytest.skip("NOT CHECKED: the collector is not compiled")
    raw = tmp_path / "raw"
    raw.mkdir()
    configuration = tmp_path / "collector.conf"
    path = next(cupti.rglob("libcupti.so.*"))
    configuration.write_text(f"folder={raw}\nrange=process\nkinds=10,5,4\ncupti={path}\n")
    code = f"import ctypes; print(ctypes.CDLL({str(library)!r}).InitializeInjection())"
    environment = {**os.environ, "STEPSCOPE_CAPTURE": str(configuration)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    (recorded,) = rawfiles.recorded(raw)
    assert recorded.finished
    assert recorded.warnings or recorded.device is not None

"""A made-up export in the layout of Nsight Systems 2023.4 that holds every kind of event.

The real captures hold no unified memory, MPI, OpenACC, OpenMP or network events, one process and
few start/end ranges; this one has them all, with the corner cases: ties, equal ends, ranges that
overlap, that end on other threads or never, domains, registered strings, two processes that use
the same correlation ids, launches without work and work without launches.
"""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

PROCESSES = (4001, 4002)
_VM = 1 << 48
_COMMON_GPU = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, "
    "correlationId INTEGER, globalPid INTEGER"
)
_OPENMP = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, eventKind INTEGER"
)
_OPENACC = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, nameId INTEGER NOT NULL, globalTid INTEGER, "
    "eventKind INTEGER NOT NULL, DeviceType INTEGER NOT NULL, lineNo INTEGER NOT NULL, "
    "cuDeviceId INTEGER NOT NULL, cuContextId INTEGER NOT NULL, cuStreamId INTEGER NOT NULL, "
    "srcFile INTEGER, funcName INTEGER"
)
_CALL = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, nameId INTEGER NOT NULL"
)
_COUNTER = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, globalId INTEGER NOT NULL, "
    "metricsListId INTEGER NOT NULL, metricsIdx INTEGER NOT NULL, value INTEGER NOT NULL"
)
TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "ENUM_CUDA_MEMCPY_OPER": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ENUM_CUDA_MEM_KIND": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ENUM_NSYS_EVENT_TYPE": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "TARGET_INFO_GPU": "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, cuDevice INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": _COMMON_GPU
    + ", bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, "
    "srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, "
    "dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER, graphNodeId INTEGER, "
    "virtualAddress INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": _COMMON_GPU
    + ", value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": _COMMON_GPU
    + ", demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, "
    "launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, "
    "gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, "
    "blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, "
    "staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, "
    "localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, "
    "gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER, "
    "sharedMemoryLimitConfig INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, "
    "rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, "
    "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, "
    "int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
    "floatValue REAL, jsonTextId INTEGER, jsonText TEXT",
    "OSRT_API": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, "
    "nestingLevel INTEGER, callchainId INTEGER NOT NULL",
    "PROFILER_OVERHEAD": "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL",
    "CUDNN_EVENTS": _CALL,
    "CUBLAS_EVENTS": _CALL,
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "start INTEGER NOT NULL, globalPid INTEGER NOT NULL, "
    "address INTEGER NOT NULL, originalFaultPc INTEGER, CpuInstruction INTEGER NOT NULL, "
    "module INTEGER NOT NULL, unresolvedFaultPc INTEGER",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "globalPid INTEGER NOT NULL, deviceId INTEGER NOT NULL, address INTEGER NOT NULL, "
    "numberOfPageFaults INTEGER NOT NULL, faultAccessType INTEGER NOT NULL",
    "MPI_RANKS": "globalTid INTEGER NOT NULL, rank INTEGER NOT NULL",
    "MPI_P2P_EVENTS": "start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER, "
    "commHandle INTEGER, tag INTEGER, remoteRank INTEGER, size INTEGER, requestHandle INTEGER",
    "MPI_COLLECTIVES_EVENTS": "start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, "
    "textId INTEGER, commHandle INTEGER, rootRank INTEGER, size INTEGER, recvSize INTEGER, "
    "requestHandle INTEGER",
    "MPI_START_WAIT_EVENTS": "start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, "
    "textId INTEGER, requestHandle INTEGER",
    "MPI_OTHER_EVENTS": "start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER",
    "OPENMP_EVENT_KIND_PARALLEL": _OPENMP + ", parallelId INTEGER, parentTaskId INTEGER",
    "OPENMP_EVENT_KIND_TASK": _OPENMP + ", parallelId INTEGER, taskId INTEGER, kind INTEGER",
    "CUPTI_ACTIVITY_KIND_OPENACC_DATA": _OPENACC + ", bytes INTEGER, varName INTEGER",
    "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH": _OPENACC
    + ", numGangs INTEGER, numWorkers INTEGER, vectorLength INTEGER, kernelName INTEGER",
    "CUPTI_ACTIVITY_KIND_OPENACC_OTHER": _OPENACC,
    "TARGET_INFO_NIC_INFO": "GUID INTEGER NOT NULL, stateName TEXT NOT NULL, "
    "nicId INTEGER NOT NULL, name TEXT NOT NULL, deviceId INTEGER NOT NULL, "
    "vendorId INTEGER NOT NULL, linkLayer INTEGER NOT NULL",
    "NIC_ID_MAP": "nicId INTEGER NOT NULL, globalId INTEGER NOT NULL",
    "TARGET_INFO_NETWORK_METRICS": "metricsListId INTEGER NOT NULL, metricsIdx INTEGER NOT NULL, "
    "name TEXT NOT NULL, description TEXT NOT NULL, unit TEXT NOT NULL",
    "ENUM_NET_DEVICE_ID": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "NET_NIC_METRIC": _COUNTER,
    "NET_IB_SWITCH_METRIC": _COUNTER,
}
_COPIES = (
    *("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host"),
    *("Array-to-Array", "Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host"),
    *("Peer-to-Peer", "Unified Host-to-Device", "Unified Device-to-Host"),
    "Unified Device-to-Device",
)
_KINDS = (
    *("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static"),
    "Unknown",
)
_TYPES = {
    33: "NvtxCategory",
    34: "NvtxMark",
    39: "NvtxThread",
    59: "NvtxPushPopRange",
    60: "NvtxStartEndRange",
    75: "NvtxDomainCreate",
    76: "NvtxDomainDestroy",
}


def thread(process: int, number: int) -> int:
    """A global thread id."""
    return _VM | process << 24 | number


class Export:
    """The database being made."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.db = sqlite3.connect(path)
        for name, columns in TABLES.items():
            self.db.execute(f"CREATE TABLE {name} ({columns})")
        self._strings: dict[str, int] = {}
        for number, label in enumerate(_COPIES):
            self.add("ENUM_CUDA_MEMCPY_OPER", id=number, name=f"COPY_{number}", label=label)
        for number, label in enumerate(_KINDS):
            self.add("ENUM_CUDA_MEM_KIND", id=number, name=f"KIND_{number}", label=label)
        for number, label in _TYPES.items():
            self.add("ENUM_NSYS_EVENT_TYPE", id=number, name=label, label=label)
        versions = {"MAJOR": 3, "MINOR": 7, "MICRO": 2}
        self.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.7.2")
        for name, value in versions.items():
            self.add("META_DATA_EXPORT", name=f"EXPORT_SCHEMA_VERSION_{name}", value=str(value))

    def add(self, table: str, **row: Any) -> None:
        """One row."""
        places = ", ".join("?" * len(row))
        columns = ", ".join(row)
        self.db.execute(f"INSERT INTO {table} ({columns}) VALUES ({places})", [*row.values()])

    def text(self, value: str) -> int:
        """The id of a string."""
        if value not in self._strings:
            self._strings[value] = len(self._strings) + 3
            self.add("StringIds", id=self._strings[value], value=value)
        return self._strings[value]

    def close(self) -> None:
        """Finish."""
        self.db.commit()
        self.db.close()


def build(path: Path, seed: int = 7) -> None:
    """Write the export."""
    draw = random.Random(seed)
    export = Export(path)
    for gpu, name in enumerate(("NVIDIA One", "NVIDIA Two")):
        export.add("TARGET_INFO_GPU", vmId=_VM, id=gpu, name=name, cuDevice=gpu)
    threads = [thread(p, p + i) for p in PROCESSES for i in range(3)]
    for number, tid in enumerate(threads[:-1]):
        export.add(
            "ThreadNames", nameId=export.text(f"worker{number % 2}"), priority=20, globalTid=tid
        )
    export.add("ThreadNames", nameId=export.text("given"), priority=10, globalTid=threads[0])
    _ranges(export, draw, threads)
    _cuda(export, draw, threads)
    _host(export, draw, threads)
    _unified(export, draw)
    _mpi(export, draw, threads)
    _directives(export, draw, threads)
    _network(export, draw)
    export.close()


def _ranges(export: Export, draw: random.Random, threads: list[int]) -> None:
    for process in PROCESSES:
        export.add(
            "NVTX_EVENTS",
            start=1,
            eventType=75,
            text=f"lib{process % 2}",
            domainId=5,
            globalTid=thread(process, process),
        )

    def put(kind: int, tid: int, start: int, end: int | None, name: str, **more: Any) -> None:
        registered = draw.random() < 0.4
        export.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=kind,
            globalTid=tid,
            text=None if registered else name,
            textId=export.text(name) if registered else None,
            rangeId=draw.randrange(99),
            **more,
        )

    for tid in threads[:5]:
        for step in range(8):
            start = 1000 + step * 100_000 + draw.randrange(50)
            end = start + 90_000
            domain = draw.choice((0, 0, 5, 6))
            put(59, tid, start, end, f"step {step % 3}", domainId=0)
            for part in range(3):
                at = start + 1000 + part * 29_000
                put(59, tid, at, at + 28_000, draw.choice(("fwd", "bwd", "fwd,x")), domainId=domain)
                if draw.random() < 0.5:
                    put(59, tid, at + 1, at + 28_000, "same end", domainId=0)
                put(59, tid, at + 500, at + 14_000, "inner", domainId=0)
            put(60, tid, start + 20_000, start + 70_000, "phase", domainId=domain)
            if step % 3 == 0:
                put(60, tid, start + 40_000, start + 120_000, "over", domainId=0)
    put(60, threads[0], 5000, 400_000, "handed over", domainId=0, endGlobalTid=threads[1])
    put(60, threads[0], 300_000, None, "never ended", domainId=0)
    put(59, threads[1], 850_000, None, "never popped", domainId=0)
    put(59, threads[1], 860_000, 870_000, "in the open one", domainId=0)
    put(34, threads[0], 2_000_000, None, "mark", domainId=0)


def _cuda(export: Export, draw: random.Random, threads: list[int]) -> None:
    names = [f"void k{i}<float, {i}>(int)" for i in range(6)]
    correlation = dict.fromkeys(PROCESSES, 100)

    def call(tid: int, start: int, length: int, name: str, result: int = 0) -> int:
        process = tid >> 24 & 0xFFFFFF
        correlation[process] += 1
        export.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=start + length,
            eventClass=1 if name.startswith("cu") and not name.startswith("cuda") else 0,
            globalTid=tid,
            correlationId=correlation[process],
            nameId=export.text(name),
            returnValue=result,
        )
        return correlation[process]

    def common(tid: int, number: int | None, start: int, length: int) -> dict[str, Any]:
        device = draw.randrange(2)
        stream = draw.choice((7, 7, 13))
        return {
            "start": start,
            "end": start + length,
            "deviceId": device,
            "contextId": device + 1,
            "greenContextId": draw.choice((0, None, 3)),
            "streamId": stream,
            "correlationId": number,
            "globalPid": tid & ~0xFFFFFF,
        }

    for tid in threads[:5]:
        at = 1500 + draw.randrange(40)
        for _ in range(220):
            length = draw.choice((500, 900, 1300, 3000))
            begins = at + length + draw.choice((-200, 0, 300, 5000))
            busy = draw.choice((0, 800, 1600, 2500, 12_000))
            kind = draw.random()
            if kind < 0.6:
                number = call(
                    tid,
                    at,
                    length,
                    draw.choice(
                        ("cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaLaunchKernelExC_v11060")
                    ),
                )
                which = draw.randrange(6)
                mangled = export.text(f"_Z2k{which}") if which % 3 else None
                export.add(
                    "CUPTI_ACTIVITY_KIND_KERNEL",
                    **common(tid, number, begins, busy),
                    demangledName=export.text(names[which]),
                    mangledName=mangled,
                    shortName=export.text(f"k{which // 2}"),
                    registersPerThread=16 + which,
                    gridX=draw.choice((1, 12345)),
                    gridY=1,
                    gridZ=1,
                    blockX=128,
                    blockY=1,
                    blockZ=1,
                    staticSharedMemory=which * 100,
                    dynamicSharedMemory=0,
                    localMemoryPerThread=0,
                    localMemoryTotal=0,
                    gridId=1,
                )
            elif kind < 0.8:
                name = draw.choice(
                    ("cudaMemcpyAsync_v3020", "cudaMemcpy_v3020", "cudaMemcpyPeerAsync_v4000")
                )
                number = call(tid, at, length, name)
                peers = draw.choice(((None, None), (0, 0), (0, 1)))
                export.add(
                    "CUPTI_ACTIVITY_KIND_MEMCPY",
                    **common(tid, number, begins, busy),
                    bytes=draw.choice((0, 4, 64_000, 64_001, 1 << 20)),
                    copyKind=draw.choice((1, 2, 8, 10)),
                    srcKind=draw.randrange(4),
                    dstKind=draw.randrange(5),
                    srcDeviceId=peers[0],
                    dstDeviceId=peers[1],
                )
            elif kind < 0.9:
                name = draw.choice(("cudaMemset_v3020", "cudaMemsetAsync_v3020"))
                number = call(tid, at, length, name)
                export.add(
                    "CUPTI_ACTIVITY_KIND_MEMSET",
                    **common(tid, number, begins, busy),
                    value=0,
                    bytes=draw.choice((4, 4096)),
                    memKind=draw.randrange(6),
                )
            else:
                call(
                    tid,
                    at,
                    length,
                    draw.choice(
                        (
                            "cudaStreamSynchronize_v3020",
                            "cudaDeviceSynchronize_v3020",
                            "cudaEventQuery_v3020",
                            "cudaEventQuery",
                        )
                    ),
                    draw.choice((0, 0, 600)),
                )
            at += length + draw.choice((0, 100, 2000))
    for tid in threads[:2]:  # after the last time that a range names, in ranges that never end
        number = call(tid, 1_500_000, 500, "cudaLaunchKernel_v7000")
        export.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            **common(tid, number, 1_510_000, 900),
            demangledName=export.text("late"),
            shortName=export.text("late"),
            registersPerThread=8,
            gridX=1,
            gridY=1,
            gridZ=1,
            blockX=1,
            blockY=1,
            blockZ=1,
            staticSharedMemory=0,
            dynamicSharedMemory=0,
            localMemoryPerThread=0,
            localMemoryTotal=0,
            gridId=1,
        )
    # work without a recorded call
    export.add(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        **common(threads[0], 99_999, 700, 50),
        demangledName=export.text("orphan"),
        shortName=export.text("orphan"),
        registersPerThread=8,
        gridX=1,
        gridY=1,
        gridZ=1,
        blockX=1,
        blockY=1,
        blockZ=1,
        staticSharedMemory=0,
        dynamicSharedMemory=0,
        localMemoryPerThread=0,
        localMemoryTotal=0,
        gridId=1,
    )
    for start in (600_000, 1_000_000):
        export.add(
            "PROFILER_OVERHEAD",
            start=start,
            end=start + 40_000,
            globalTid=threads[0],
            nameId=export.text("CUDA profiling data flush overhead"),
            returnValue=0,
        )


def _host(export: Export, draw: random.Random, threads: list[int]) -> None:
    for number in range(120):
        tid = draw.choice(threads)
        start = number * 7000
        export.add(
            "OSRT_API",
            start=start,
            end=start + draw.randrange(1000, 9000),
            eventClass=27,
            globalTid=tid,
            nameId=export.text(draw.choice(("poll", "read", "sem_wait"))),
            returnValue=0,
            nestingLevel=0,
            callchainId=0,
        )
    for table, name, event_class in (
        ("CUBLAS_EVENTS", "cublasGemmEx", 29),
        ("CUDNN_EVENTS", "cudnnConvolutionForward", 28),
    ):
        for number in range(9):
            export.add(
                table,
                start=number * 9000,
                end=number * 9000 + 500 * (number + 1),
                eventClass=event_class,
                globalTid=threads[0],
                nameId=export.text(name),
            )


def _unified(export: Export, draw: random.Random) -> None:
    addresses = [0x7F0000000000 + i * 65536 for i in range(15)]
    for number in range(80):
        gpid = _VM | PROCESSES[0] << 24
        start = 2000 + number * 900
        address = draw.choice(addresses[: 9 if number % 2 else 12])
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start=start,
            end=start + draw.randrange(200, 9000),
            deviceId=0,
            contextId=1,
            streamId=7,
            globalPid=gpid,
            bytes=draw.choice((4096, 65536, 2 << 20)),
            copyKind=draw.choice((11, 12)),
            srcKind=4,
            dstKind=4,
            virtualAddress=address,
        )
        export.add(
            "CUDA_UM_CPU_PAGE_FAULT_EVENTS",
            start=start,
            globalPid=gpid,
            address=draw.choice(addresses),
            module=export.text("libc.so"),
            CpuInstruction=export.text(f"main+{draw.randrange(4)}"),
        )
        export.add(
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
            start=start,
            end=start + 300,
            globalPid=gpid,
            deviceId=0,
            address=draw.choice(addresses),
            faultAccessType=1,
            numberOfPageFaults=draw.randrange(1, 20),
        )


def _mpi(export: Export, draw: random.Random, threads: list[int]) -> None:
    for rank, process in enumerate(PROCESSES):
        export.add("MPI_RANKS", globalTid=thread(process, process), rank=rank)
    for number in range(40):
        tid = thread(draw.choice(PROCESSES), 0)
        tid = tid | (tid >> 24 & 0xFFFFFF)
        start, end = number * 3000, number * 3000 + draw.randrange(10, 2900)
        common = {"start": start, "end": end, "globalTid": tid}
        kind = number % 4
        if kind == 0:
            export.add(
                "MPI_P2P_EVENTS",
                **common,
                textId=export.text("MPI_Send"),
                tag=draw.choice((-1, 0, 7)),
                remoteRank=draw.randrange(2),
                size=draw.choice((8, 4096, 1 << 22)),
            )
        elif kind == 1:
            export.add("MPI_START_WAIT_EVENTS", **common, textId=export.text("MPI_Wait"))
        elif kind == 2:
            export.add("MPI_OTHER_EVENTS", **common, textId=export.text("MPI_Barrier"))
        else:
            export.add(
                "MPI_COLLECTIVES_EVENTS",
                **common,
                textId=export.text("MPI_Allreduce"),
                rootRank=draw.choice((0, 1, None)),
                size=1 << 20,
                recvSize=1 << 20,
            )


def _directives(export: Export, draw: random.Random, threads: list[int]) -> None:
    for number in range(60):
        start = number * 2000
        end = start + draw.randrange(10, 1900)
        table, kind = draw.choice(
            (("OPENMP_EVENT_KIND_PARALLEL", 5), ("OPENMP_EVENT_KIND_TASK", 7))
        )
        export.add(
            table,
            start=start,
            end=end,
            eventClass=55,
            globalTid=draw.choice(threads),
            nameId=export.text(draw.choice(("Parallel", "Task", "Both"))),
            eventKind=kind,
        )
        part = draw.choice(("DATA", "LAUNCH", "OTHER"))
        export.add(
            f"CUPTI_ACTIVITY_KIND_OPENACC_{part}",
            start=start,
            end=end,
            nameId=export.text(draw.choice(("Enter Data", "Compute Construct"))),
            globalTid=threads[0],
            eventKind=1,
            DeviceType=4,
            lineNo=draw.choice((10, 20)),
            cuDeviceId=0,
            cuContextId=1,
            cuStreamId=7,
            srcFile=export.text(draw.choice(("/src/a.c", "/src/b.c"))),
            funcName=export.text("main"),
        )


def _network(export: Export, draw: random.Random) -> None:
    export.add("ENUM_NET_DEVICE_ID", id=4123, name="CX6", label="ConnectX-6")
    for nic, name in enumerate(("mlx5_0", "mlx5_1")):
        export.add(
            "TARGET_INFO_NIC_INFO",
            GUID=0x98039B0300AABB00 - (1 << 64) + nic,
            stateName="up",
            nicId=nic,
            name=name,
            deviceId=4123,
            vendorId=713,
            linkLayer=1,
        )
        export.add("NIC_ID_MAP", nicId=nic, globalId=500 + nic)
    for index, name in enumerate(("IB: Bytes sent", "IB: Send waits")):
        export.add(
            "TARGET_INFO_NETWORK_METRICS",
            metricsListId=1,
            metricsIdx=index,
            name=name,
            description=name,
            unit="",
        )
    for number in range(50):
        export.add(
            "NET_NIC_METRIC",
            start=number * 100_000,
            end=(number + 1) * 100_000,
            globalId=500 + number % 2,
            metricsListId=1,
            metricsIdx=draw.randrange(2),
            value=draw.choice((0, 900, 1100, 5000)),
        )

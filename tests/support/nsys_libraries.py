"""Reports that nsys 2023.4 has no script for, checked with one that it has.

Calls of cuBLAS, cuDNN, MPI, NCCL and the kernel's system calls lie in tables that no report of that
version reads. But its ``osrt_sum`` summarises any intervals: rewritten as calls of the OS runtime,
these give the figures that the real tool's arithmetic makes of them. Which rows belong to a
report is said here in SQL, apart from Stepscope's importer.
"""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

from tests.support.nsys_export import PROCESSES, TABLES, Export, thread

_COMMON = "SELECT {label}, t.start, t.end FROM {table} t JOIN StringIds s ON s.id = t.{id}"


def _of(table: str, label: str = "s.value", number: str = "nameId", where: str = "1") -> str:
    return _COMMON.format(label=label, table=table, id=number) + f" WHERE {where}"


def _sized(table: str, column: str, kind: str) -> str:
    return (
        f"SELECT '{kind}|' || s.value, 0, t.{column} FROM {table} t "
        f"JOIN StringIds s ON s.id = t.textId WHERE t.{column} IS NOT NULL"
    )


_MPI = {
    "P2P": "p2p",
    "COLLECTIVES": "collectives",
    "START_WAIT": "start_wait",
    "OTHER": "other",
}
_NCCL_DOMAIN = (
    "SELECT 'NCCL_CALL|' || t.text, t.start, t.end FROM NVTX_EVENTS t JOIN NVTX_EVENTS d "
    "ON d.eventType = 75 AND d.domainId = t.domainId AND d.text = 'NCCL' "
    "AND (d.globalTid >> 24) = (t.globalTid >> 24) WHERE t.eventType = 59"
)
INTERVALS = {
    "cublas_api_sum": _of("CUBLAS_EVENTS"),
    "cudnn_api_sum": _of("CUDNN_EVENTS"),
    "syscall_sum": _of("SYSCALL"),
    "mpi_event_sum": " UNION ALL ".join(
        _of(f"MPI_{part}_EVENTS", f"'{kind}|' || s.value", "textId") for part, kind in _MPI.items()
    ),
    "mpi_msg_size_sum": " UNION ALL ".join(
        (
            _sized("MPI_P2P_EVENTS", "size", "p2p"),
            _sized("MPI_COLLECTIVES_EVENTS", "size", "coll_send"),
            _sized("MPI_COLLECTIVES_EVENTS", "recvSize", "coll_recv"),
        )
    ),
    "nccl_sum": _NCCL_DOMAIN
    + " UNION ALL "
    + _of(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "'NCCL_KERNEL|' || s.value",
        "shortName",
        "s.value LIKE 'nccl%'",
    ),
}
"""Report -> (label, start, end) of what it summarises; labels of two columns are joined by |."""


def build(path: Path, seed: int = 11) -> None:
    """Write an export with calls of all these libraries."""
    draw = random.Random(seed)
    export = Export(path)
    export.db.execute(f"CREATE TABLE SYSCALL ({TABLES['CUBLAS_EVENTS']})")
    threads = [thread(process, process + n) for process in PROCESSES for n in range(2)]
    for process in PROCESSES:
        export.add("MPI_RANKS", globalTid=thread(process, process), rank=process % 2)
        for domain, text in ((4, "NCCL"), (5, "other")):
            export.add(
                "NVTX_EVENTS", start=1, eventType=75, text=text, domainId=domain,
                globalTid=thread(process, process),
            )  # fmt: skip
    calls = {
        "CUBLAS_EVENTS": ("cublasSgemm_v2", "cublasGemmEx", "cublasCreate_v2"),
        "CUDNN_EVENTS": ("cudnnConvolutionForward", "cudnnCreate", "cudnnBackendExecute"),
        "SYSCALL": ("read", "futex", "epoll_wait"),
    }
    for number in range(400):
        start = 10_000 * number
        when = {"start": start, "end": start + draw.randrange(1, 9000)}
        tid = {"globalTid": draw.choice(threads)}
        for table, names in calls.items():
            name = export.text(draw.choice(names))
            export.add(table, **when, **tid, eventClass=28, nameId=name)
        _mpi(export, draw, when | tid)
        _nccl(export, draw, number, when | tid)
    export.close()


def _mpi(export: Export, draw: random.Random, common: dict[str, int]) -> None:
    size = draw.choice((0, 8, 4096, 1 << 20, 123_457))
    part = draw.choice(tuple(_MPI))
    table = f"MPI_{part}_EVENTS"
    if part == "P2P":
        name = export.text(draw.choice(("MPI_Send", "MPI_Recv", "MPI_Isend")))
        export.add(table, **common, textId=name, tag=3, remoteRank=1, size=size)
    elif part == "COLLECTIVES":
        name = export.text(draw.choice(("MPI_Allreduce", "MPI_Bcast", "MPI_Reduce")))
        received = draw.choice((None, size, 2 * size))
        export.add(table, **common, textId=name, rootRank=0, size=size, recvSize=received)
    else:
        name = export.text("MPI_Wait" if part == "START_WAIT" else "MPI_Init")
        export.add(table, **common, textId=name)


def _nccl(export: Export, draw: random.Random, number: int, common: dict[str, int]) -> None:
    export.add(
        "NVTX_EVENTS", **common, eventType=59, domainId=draw.choice((4, 4, 5)),
        text=draw.choice(("ncclAllReduce", "ncclReduceScatter", "ncclGroupEnd"))
        if number % 3 else "step",
    )  # fmt: skip
    # in the other domain only names that are none of NCCL
    export.db.execute(
        "UPDATE NVTX_EVENTS SET text = 'forward' WHERE domainId = 5 AND eventType = 59"
    )
    name = draw.choice(("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclKernel_SendRecv", "gemm"))
    export.add(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        start=common["start"], end=common["end"] + 500, deviceId=0, contextId=1, streamId=7,
        correlationId=number, globalPid=common["globalTid"] >> 24 << 24,
        demangledName=export.text(f"{name}(args)"), shortName=export.text(name),
        registersPerThread=8, gridX=1, gridY=1, gridZ=1, blockX=1, blockY=1, blockZ=1,
        staticSharedMemory=0, dynamicSharedMemory=0, localMemoryPerThread=0, localMemoryTotal=0,
        gridId=1,
    )  # fmt: skip


def as_os_runtime(export: Path, report: str, target: Path) -> None:
    """An export in which the report's rows are calls of the OS runtime, and nothing else is."""
    with sqlite3.connect(export) as db:
        rows = db.execute(INTERVALS[report]).fetchall()
    made = Export(target)
    for label, start, end in rows:
        made.add(
            "OSRT_API", start=start, end=end, eventClass=27, globalTid=thread(1, 1),
            nameId=made.text(label), returnValue=0, nestingLevel=0, callchainId=0,
        )  # fmt: skip
    made.close()

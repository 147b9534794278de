"""The canonical tables: every column, its type, unit and meaning, declared once.

Arrow schemas, the reference documentation and the invariant checks are all derived from
``TABLES``. Times are integer nanoseconds since the capture's origin (``Meta.origin_epoch_ns``
gives its wall-clock time). Text columns are dictionary-encoded. Every table with a time column is
stored sorted by it; ``id`` is the row's position in that order, so that evidence can name rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
"""Version of the stored layout; a reader refuses a newer one and upgrades an older one."""

ColumnType = Literal["int64", "int32", "float64", "bool", "text"]


@dataclass(frozen=True)
class Column:
    """One column: name, storage type, meaning. ``nullable`` columns may hold nulls."""

    name: str
    type: ColumnType
    doc: str
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    """One canonical table.

    Attributes:
        name: table name as users see it in SQL.
        doc: what one row is.
        columns: in storage order.
        sort: the column rows are sorted by, or None for tables without time.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    sort: str | None = "start_ns"

    def column_names(self) -> list[str]:
        """Names in storage order."""
        return [column.name for column in self.columns]


def _must(name: str, kind: ColumnType, doc: str) -> Column:
    return Column(name, kind, doc, nullable=False)


def _may(name: str, kind: ColumnType, doc: str) -> Column:
    return Column(name, kind, doc)


_ID = _must("id", "int64", "row number in start order, from 0")
_START = _must("start_ns", "int64", "begin, ns since the origin")
_END = _must("end_ns", "int64", "end, ns since the origin; never before start_ns")
_PROCESS = _must("process_id", "int64", "operating-system process id")
_THREAD = _must("thread_id", "int64", "operating-system thread id")
_CORRELATION = _may("correlation_id", "int64", "links a CUDA call to the work it enqueued")

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            "gpu_op",
            "One operation the GPU executed: a kernel, a memory copy, a memory set, or a whole "
            "CUDA graph where the capture did not look inside.",
            (
                _ID,
                _must("kind", "text", "kernel, memcpy, memset or graph"),
                _PROCESS,
                _must("device", "int32", "CUDA device ordinal inside the process"),
                _may("context", "int32", "CUDA context id"),
                _must("stream", "int64", "CUDA stream id"),
                _CORRELATION,
                _START,
                _END,
                _must(
                    "name", "text", "demangled kernel name, or e.g. [CUDA memcpy Host-to-Device]"
                ),
                _may("short_name", "text", "kernel name without template and call parameters"),
                _may("mangled_name", "text", "kernel symbol"),
                _may("grid_x", "int32", "blocks in x"),
                _may("grid_y", "int32", "blocks in y"),
                _may("grid_z", "int32", "blocks in z"),
                _may("block_x", "int32", "threads a block in x"),
                _may("block_y", "int32", "threads a block in y"),
                _may("block_z", "int32", "threads a block in z"),
                _may("registers", "int32", "registers a thread"),
                _may("static_shared_bytes", "int64", "static shared memory a block, bytes"),
                _may("dynamic_shared_bytes", "int64", "dynamic shared memory a block, bytes"),
                _may("local_bytes", "int64", "local memory a thread, bytes"),
                _may("bytes", "int64", "bytes moved (memcpy) or set (memset)"),
                _may("copy_kind", "text", "HtoD, DtoH, DtoD, HtoH, PtoP, ... (memcpy only)"),
                _may(
                    "src_memory",
                    "text",
                    "pageable, pinned, device, array, managed, device_static, managed_static, "
                    "unknown; for a memset the memory that is set",
                ),
                _may("dst_memory", "text", "as src_memory, for the destination"),
                _may("src_device", "int32", "memcpy: device copied from, where recorded"),
                _may("dst_device", "int32", "memcpy: device copied to, where recorded"),
                _may("virtual_address", "int64", "unified memory: address that migrated"),
                _may("graph_id", "int64", "CUDA graph executable the operation belongs to"),
                _may("graph_node_id", "int64", "node inside the CUDA graph"),
                _may("green_context", "int32", "green context id"),
            ),
        ),
        Table(
            "api_call",
            "One host call that the capture traced: CUDA runtime or driver, cuBLAS, cuDNN, NCCL, "
            "MPI, or the operating system's runtime.",
            (
                _ID,
                _must("api", "text", "runtime, driver, cublas, cudnn, nccl, mpi, osrt, syscall"),
                _PROCESS,
                _THREAD,
                _START,
                _END,
                _must("name", "text", "function name without version suffix (_v3020)"),
                _must("raw_name", "text", "function name as recorded"),
                _may("name_number", "int64", "the source's number of raw_name"),
                _may("return_value", "int64", "the call's status"),
                _CORRELATION,
                _may("operator_external_id", "int64", "external id of the enclosing operator"),
                _may("callchain_id", "int64", "host stack recorded at the call"),
            ),
        ),
        Table(
            "range",
            "A named interval the program or framework annotated: NVTX push/pop and start/end, "
            "record_function user annotations, and their projections that a profiler made.",
            (
                _ID,
                _must("kind", "text", "pushpop, startend, annotation, gpu_annotation or mark"),
                _PROCESS,
                _may("thread_id", "int64", "thread that opened it; null on the GPU side"),
                _may("end_thread_id", "int64", "thread that closed it, where another one did"),
                _START,
                _END,
                _must("name", "text", "text of the range"),
                _may("domain", "text", "NVTX domain; null for the default domain"),
                _may("payload", "text", "payload as recorded"),
                _may("device", "int32", "gpu_annotation: device"),
                _may("stream", "int64", "gpu_annotation: stream"),
                _must("closed", "bool", "false when it was still open at the capture's end"),
                _may("source_row", "int64", "row id in the source's own table"),
                _may("end_missing", "bool", "true when the source holds no end at all"),
            ),
        ),
        Table(
            "operator",
            "One framework operator call on the host (aten::mm, a custom autograd function).",
            (
                _ID,
                _PROCESS,
                _THREAD,
                _START,
                _END,
                _must("name", "text", "operator name"),
                _may("external_id", "int64", "id that CUDA calls refer to"),
                _may("sequence_number", "int64", "autograd sequence number"),
                _may("forward_thread_id", "int64", "thread number of the forward call (autograd)"),
                _may("forward_start_ns", "int64", "start of the forward operator, by its link"),
                _may("input_shapes", "text", "input shapes as JSON text"),
                _may("input_types", "text", "input types as JSON text"),
                _may("concrete_inputs", "text", "scalar inputs as JSON text"),
            ),
        ),
        Table(
            "python_function",
            "One Python function call that the profiler traced (with_stack).",
            (
                _ID,
                _PROCESS,
                _THREAD,
                _START,
                _END,
                _must("name", "text", "file(line): function"),
                _may("python_id", "int64", "id of this frame"),
                _may("python_parent_id", "int64", "id of the calling frame"),
            ),
        ),
        Table(
            "sync",
            "One synchronisation as the driver saw it.",
            (
                _ID,
                _PROCESS,
                _may("device", "int32", "CUDA device ordinal inside the process"),
                _may("context", "int32", "CUDA context id"),
                _may("stream", "int64", "stream waited for or waiting; null where none"),
                _CORRELATION,
                _START,
                _END,
                _must("kind", "text", "event, stream_wait_event, stream, context or unknown"),
                _may("event_id", "int64", "CUDA event"),
                _may("event_sync_id", "int64", "which recording of the event"),
            ),
        ),
        Table(
            "event_record",
            "One recording of a CUDA event on a stream.",
            (
                _PROCESS,
                _may("device", "int32", "CUDA device ordinal inside the process"),
                _may("context", "int32", "CUDA context id"),
                _may("stream", "int64", "stream the event was recorded on"),
                _CORRELATION,
                _must("event_id", "int64", "CUDA event"),
                _may("event_sync_id", "int64", "which recording of the event"),
                _may("time_ns", "int64", "when it completed, where recorded"),
            ),
            sort=None,
        ),
        Table(
            "collective",
            "What the framework said about one communication kernel.",
            (
                _PROCESS,
                _CORRELATION,
                _may("device", "int32", "CUDA device ordinal inside the process"),
                _must("name", "text", "allreduce, _allgather_base, ..."),
                _may("dtype", "text", "element type"),
                _may("in_elements", "int64", "elements sent by this rank"),
                _may("out_elements", "int64", "elements received by this rank"),
                _may("group_name", "text", "process group name"),
                _may("group_description", "text", "process group description"),
                _may("group_size", "int64", "ranks in the group"),
                _may("group_ranks", "text", "ranks of the group as JSON text"),
                _may("sequence", "int64", "sequence number inside the group"),
                _may("rank", "int64", "this rank inside the job"),
                _may(
                    "in_splits",
                    "text",
                    "all-to-all: parts sent to each rank of the group, as JSON text; [] where all "
                    "are equal",
                ),
                _may("out_splits", "text", "all-to-all: parts received from each rank, likewise"),
            ),
            sort=None,
        ),
        Table(
            "memory_event",
            "One allocation or release that the framework or driver reported.",
            (
                _PROCESS,
                _may("thread_id", "int64", "operating-system thread id"),
                _must("time_ns", "int64", "when, ns since the origin"),
                _must(
                    "kind",
                    "text",
                    "alloc or free (driver), cache (framework allocator), completed (a released "
                    "block may be used again) or oom (out of memory)",
                ),
                _may("device", "int32", "device ordinal; null for host memory"),
                _may("address", "int64", "address"),
                _may("bytes", "int64", "signed size: negative on release; oom: what was requested"),
                _may("total_allocated_bytes", "int64", "allocated after the event"),
                _may("total_reserved_bytes", "int64", "reserved after the event"),
                _may("stack_id", "int64", "names the rows of stack_frame with its frames"),
                _may("stream", "int64", "stream that the memory was requested for"),
                _may("device_free_bytes", "int64", "oom: what the device had free"),
            ),
            sort="time_ns",
        ),
        Table(
            "memory_block",
            "One block of the framework's caching allocator when its state was dumped.",
            (
                _PROCESS,
                _must("device", "int32", "device ordinal"),
                _must("segment_address", "int64", "begin of the segment that it lies in"),
                _must("segment_bytes", "int64", "size of that segment"),
                _must("pool", "text", "small or large: the allocator's pool"),
                _may("stream", "int64", "stream that the segment belongs to"),
                _may("expandable", "bool", "true for a segment that grows"),
                _must("address", "int64", "begin"),
                _must("bytes", "int64", "size"),
                _must("requested_bytes", "int64", "what the program asked for"),
                _must("state", "text", "active_allocated, active_pending_free or inactive"),
                _may("stack_id", "int64", "names the rows of stack_frame with its frames"),
            ),
            sort=None,
        ),
        Table(
            "overhead",
            "Time the capturing tool itself spent.",
            (
                _ID,
                _may("process_id", "int64", "operating-system process id"),
                _may("thread_id", "int64", "operating-system thread id"),
                _START,
                _END,
                _must("name", "text", "what the tool did"),
            ),
        ),
        Table(
            "timed_stretch",
            "Some whole steps that the recorder timed by the program's clock, with no work on the "
            "GPU at either end: recorded ones and others, by which the cost of recording is known.",
            (
                _ID,
                _PROCESS,
                _START,
                _END,
                _must("steps", "int64", "steps in it"),
                _must("recorded", "bool", "whether these are the steps of the capture"),
            ),
        ),
        Table(
            "cpu_sample",
            "One sample of a running thread.",
            (
                _must("time_ns", "int64", "when, ns since the origin"),
                _PROCESS,
                _THREAD,
                _may("cpu", "int32", "logical CPU"),
                _may("weight", "int64", "cycles or ns that the sample stands for"),
                _may("stack_id", "int64", "names the rows of stack_frame with its frames"),
            ),
            sort="time_ns",
        ),
        Table(
            "stack_frame",
            "One frame of a host stack that a sample or an allocation names.",
            (
                _must(
                    "stack_id",
                    "int64",
                    "the stack, as in cpu_sample, memory_event and memory_block",
                ),
                _must("depth", "int32", "0 is the outermost frame"),
                _must("function", "text", "function, as the source tells it"),
                _may("module", "text", "library, program or Python file it stands in"),
                _may("line", "int32", "line that was being executed (Python)"),
            ),
            sort=None,
        ),
        Table(
            "sched",
            "One interval in which a thread ran on a CPU.",
            (
                _ID,
                _PROCESS,
                _THREAD,
                _START,
                _END,
                _may("cpu", "int32", "logical CPU"),
            ),
        ),
        Table(
            "thread_state",
            "One interval in which a thread was in one state of the operating system's scheduler.",
            (
                _ID,
                _PROCESS,
                _THREAD,
                _START,
                _END,
                _must(
                    "state",
                    "text",
                    "running (on a CPU), runnable (wants one, has none), sleeping, disk "
                    "(uninterruptible, as a rule for a disk or file system), stopped",
                ),
            ),
        ),
        Table(
            "gil",
            "One interval in which a thread held or waited for the GIL.",
            (_ID, _PROCESS, _THREAD, _START, _END, _must("state", "text", "holding or waiting")),
        ),
        Table(
            "metric_sample",
            "One sample of a hardware counter.",
            (
                _must("time_ns", "int64", "when, ns since the origin"),
                _may("device", "int32", "physical GPU; null for a CPU counter"),
                _must("metric", "text", "counter name"),
                _must("value", "float64", "value in the counter's own unit"),
            ),
            sort="time_ns",
        ),
        Table(
            "thread",
            "One thread that appears in the capture.",
            (_PROCESS, _THREAD, _may("name", "text", "thread name")),
            sort=None,
        ),
        Table(
            "thread_name",
            "One name of a thread; a thread may have several, of different origin.",
            (
                _PROCESS,
                _THREAD,
                _may("name", "text", "name"),
                _may("priority", "int64", "rank of the name's origin; lower says more"),
            ),
            sort=None,
        ),
        Table(
            "page_fault",
            "One page fault (or group of faults) of unified memory.",
            (
                _must("kind", "text", "cpu or gpu: who touched the page"),
                _PROCESS,
                _may("device", "int32", "CUDA device ordinal inside the process (gpu)"),
                _START,
                _END,
                _may("address", "int64", "address that was touched"),
                _may("faults", "int64", "number of faults that the row stands for (gpu)"),
                _may("instruction", "text", "code that touched it (cpu)"),
            ),
        ),
        Table(
            "mpi_event",
            "One MPI call with its arguments.",
            (
                _ID,
                _must("kind", "text", "p2p, start_wait, other or collective"),
                _PROCESS,
                _THREAD,
                _START,
                _END,
                _must("name", "text", "function name"),
                _may("rank", "int64", "rank of the calling thread"),
                _may("tag", "int64", "message tag (p2p)"),
                _may("peer_rank", "int64", "the other rank (p2p)"),
                _may("root_rank", "int64", "root (collective)"),
                _may("bytes", "int64", "message size, bytes (p2p)"),
                _may("send_bytes", "int64", "sent by this rank, bytes (collective)"),
                _may("receive_bytes", "int64", "received by this rank, bytes (collective)"),
            ),
        ),
        Table(
            "openacc_event",
            "One OpenACC construct as the host saw it.",
            (
                _ID,
                _must("kind", "text", "data, launch or other"),
                _PROCESS,
                _THREAD,
                _START,
                _END,
                _must("name", "text", "event"),
                _may("file", "text", "source file"),
                _may("line", "int64", "line"),
                _may("name_number", "int64", "the source's number of name"),
            ),
        ),
        Table(
            "openmp_event",
            "One OpenMP construct or event.",
            (
                _ID,
                _must("kind", "text", "parallel, task, sync_region, ..."),
                _PROCESS,
                _THREAD,
                _START,
                _END,
                _must("name", "text", "event"),
                _may("name_number", "int64", "the source's number of name"),
            ),
        ),
        Table(
            "network_sample",
            "One sample of a counter of a network card or switch.",
            (
                _ID,
                _must("source", "text", "nic or ib_switch"),
                _START,
                _END,
                _must("metric", "text", "counter name"),
                _must("value", "int64", "value of the counter"),
                _may("guid", "int64", "device's global unique id"),
                _may("device_name", "text", "device's name (mlx5_0)"),
                _may("product", "text", "device's product name"),
            ),
        ),
        Table(
            "process",
            "One process that appears in the capture.",
            (
                _PROCESS,
                _may("name", "text", "process name"),
                _may("rank", "int64", "rank in the job, where known"),
            ),
            sort=None,
        ),
        Table(
            "device",
            "One GPU as one process sees it.",
            (
                _may("process_id", "int64", "process; null when the source does not say"),
                _must("device", "int32", "CUDA device ordinal inside the process"),
                _may("physical_id", "int32", "index in the machine"),
                _may("name", "text", "product name"),
                _may("uuid", "text", "unique id"),
                _may("sm_count", "int32", "streaming SMs"),
                _may("compute_major", "int32", "compute capability, major"),
                _may("compute_minor", "int32", "compute capability, minor"),
                _may("memory_bytes", "int64", "device memory, bytes"),
                _may("memory_bandwidth", "int64", "peak memory bandwidth, bytes a second"),
                _may("clock_hz", "int64", "peak SM clock, Hz"),
            ),
            sort=None,
        ),
        Table(
            "stream",
            "One CUDA stream.",
            (
                _PROCESS,
                _may("context", "int32", "CUDA context id"),
                _may("device", "int32", "CUDA device ordinal inside the process"),
                _must("stream", "int64", "CUDA stream id"),
                _may("priority", "int32", "priority; lower is more urgent"),
                _may("flag", "text", "default, non_blocking or null"),
            ),
            sort=None,
        ),
        Table(
            "communicator",
            "One process group the framework declared.",
            (
                _may("name", "text", "group name"),
                _may("description", "text", "group description"),
                _may("backend", "text", "backend"),
                _may("size", "int64", "ranks in the group"),
                _may("ranks", "text", "ranks as JSON text"),
            ),
            sort=None,
        ),
        Table(
            "diagnostic",
            "One remark of the capturing tool about its own capture.",
            (
                _may("time_ns", "int64", "when, ns since the origin"),
                _may("process_id", "int64", "process it speaks of"),
                _must("severity", "text", "info, warning or error"),
                _must("text", "text", "the remark"),
            ),
            sort=None,
        ),
    )
}
"""Every canonical table by name."""


@cache
def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of a canonical table.

    Raises:
        KeyError: when there is no such table.
    """
    import pyarrow as pa

    types = {
        "int64": pa.int64(),
        "int32": pa.int32(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "text": pa.dictionary(pa.int32(), pa.string()),
    }
    return pa.schema(
        [pa.field(c.name, types[c.type], nullable=c.nullable) for c in TABLES[table].columns]
    )

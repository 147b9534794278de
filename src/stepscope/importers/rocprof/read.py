"""Read a result, of either form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from stepscope.importers.common.sink import Sink
from stepscope.importers.rocprof.about import missing_tables
from stepscope.importers.rocprof.results_json import Call, Tool, load
from stepscope.importers.rocprof.rocpd import Database, opened, timed
from stepscope.importers.rocprof.rows import Rows
from stepscope.trace.errors import InputError
from stepscope.trace.meta import Meta
from stepscope.trace.store import TraceWriter

_GPU: Final = 2
_FAR: Final = 2**62
_CHUNK: Final = 1 << 17


def read(path: Path, writer: TraceWriter) -> Meta:
    """Fill the tables from a result.

    Args:
        path: JSON or database.
        writer: receives the tables.

    Raises:
        InputError: it is damaged, or holds nothing to read.
    """
    with path.open("rb") as file:
        is_database = file.read(16).startswith(b"SQLite format 3")
    if is_database:
        with opened(path) as database:
            return _database(path, writer, database)
    return _json(writer, load(path))


def _finish(meta: Meta, rows: Rows, window: tuple[int, int]) -> Meta:
    sink = rows.sink
    problems = sink.writer.problems
    problems.count("unresolved_correlation", rows.unresolved(), scope="gpu_op")
    problems.count(
        "unread_events", rows.not_gpu, scope="gpu_op", detail="work and copies without a GPU"
    )
    begin, end = window
    meta.window_start_ns = 0
    meta.window_end_ns = max(sink.latest_ns, end - begin if end > begin else 0)
    sink.put_records("thread", [{"process_id": p, "thread_id": t} for p, t in sorted(sink.threads)])
    sink.put_records(
        "stream",
        [{"process_id": p, "device": d, "stream": s} for p, _, d, s in sorted(sink.streams)],
    )
    meta.missing = missing_tables(sink.rows)
    return meta


def _origin(begin: int, first: int) -> int:
    """Time zero: the begin of the process, where that makes sense."""
    return begin if 0 < begin <= first < _FAR else max(first, 0)


def _json(writer: TraceWriter, tool: Tool) -> Meta:
    records, reported = tool.buffer_records, tool.metadata
    calls = [*records.hip_api, *records.hsa_api, *records.marker_api, *records.rccl_api]
    everything = (records.kernel_dispatch, records.memory_copy, calls)
    first = min(
        (r.start_timestamp for part in everything for r in part if 0 < r.start_timestamp < _FAR),
        default=0,
    )
    sink = Sink(writer, _origin(reported.init_time, first))
    gpus = [agent for agent in tool.agents if agent.type == _GPU]
    devices = {agent.id.handle: agent.logical_node_type_id for agent in gpus}
    process = reported.pid if 0 <= reported.pid < _FAR else 0
    rows = Rows(sink, process, devices)
    names = _symbols(tool)
    for at in range(0, len(records.kernel_dispatch), _CHUNK):
        part = records.kernel_dispatch[at : at + _CHUNK]
        info = [kernel.dispatch_info for kernel in part]
        rows.kernels(
            {
                "start": [k.start_timestamp for k in part],
                "end": [k.end_timestamp for k in part],
                "agent": [i.agent_id.handle for i in info],
                "queue": [i.queue_id.handle for i in info],
                "stream": [k.stream_id.handle for k in part],
                "correlation": [k.correlation_id.internal for k in part],
                "kernel": [i.kernel_id for i in info],
                "group": [i.group_segment_size for i in info],
                "private": [i.private_segment_size for i in info],
                **{f"block_{a}": [getattr(i.workgroup_size, a) for i in info] for a in "xyz"},
                **{f"grid_{a}": [getattr(i.grid_size, a) for i in info] for a in "xyz"},
            },
            names,
        )
    copies = records.memory_copy
    if copies:
        rows.copies(
            {
                "start": [c.start_timestamp for c in copies],
                "end": [c.end_timestamp for c in copies],
                "source": [c.src_agent_id.handle for c in copies],
                "target": [c.dst_agent_id.handle for c in copies],
                "bytes": [c.bytes for c in copies],
                "queue": [0] * len(copies),
                "stream": [c.stream_id.handle for c in copies],
                "correlation": [c.correlation_id.internal for c in copies],
                "name": [_operation(tool, c.kind, c.operation)[1] for c in copies],
            }
        )
    messages = {message.key: message.value for message in tool.strings.marker_api}
    for at in range(0, len(calls), _CHUNK):
        _calls(rows, tool, calls[at : at + _CHUNK], messages)
    sink.put_records("process", [{"process_id": process}])
    sink.put_records(
        "device",
        [
            {
                "process_id": process,
                "device": gpu.logical_node_type_id,
                "physical_id": gpu.logical_node_type_id,
                "name": gpu.product_name or gpu.name or None,
                "sm_count": gpu.cu_count,
                "clock_hz": gpu.max_engine_clk_fcompute * 1_000_000,
                "memory_bytes": sum(bank.size_in_bytes for bank in gpu.mem_banks) or None,
            }
            for gpu in gpus
            if 0 <= gpu.logical_node_type_id < 2**31 and 0 <= gpu.cu_count < 2**31
        ],
    )
    meta = Meta(hostname=reported.node.hostname, command=" ".join(reported.command)[:4096])
    return _finish(meta, rows, (sink.origin_ns, reported.fini_time))


def _symbols(tool: Tool) -> list[str]:
    known = {
        symbol.kernel_id: str(symbol.formatted_kernel_name or symbol.kernel_name)
        for symbol in tool.kernel_symbols
        if 0 <= symbol.kernel_id < 1 << 24
    }
    return [known.get(number, "") for number in range(max(known, default=-1) + 1)]


def _operation(tool: Tool, kind: int, operation: int) -> tuple[str, str]:
    """Names of a kind and of an operation of that kind."""
    kinds = tool.strings.buffer_records
    if not 0 <= kind < len(kinds):
        return f"[kind {kind}]", f"[operation {operation}]"
    names = kinds[kind].operations
    found = names[operation] if 0 <= operation < len(names) else f"[operation {operation}]"
    return kinds[kind].kind, found


def _calls(rows: Rows, tool: Tool, calls: list[Call], messages: dict[int, str]) -> None:
    named = [_operation(tool, call.kind, call.operation) for call in calls]
    rows.regions(
        {
            "start": [c.start_timestamp for c in calls],
            "end": [c.end_timestamp for c in calls],
            "thread": [c.thread_id for c in calls],
            "correlation": [c.correlation_id.internal for c in calls],
            "name": [operation for _, operation in named],
            "domain": [kind for kind, _ in named],
            "message": [messages.get(c.correlation_id.internal) for c in calls],
        }
    )


def _database(path: Path, writer: TraceWriter, database: Database) -> Meta:
    runs = database.runs()
    if len(runs) != 1:
        raise InputError(
            f"{path} holds {len(runs)} runs; give the database of one run, as rocprofv3 wrote it"
        )
    run = runs[0]
    processes = _list(database, "rocpd_info_process", run)
    if len(processes) > 1:
        raise InputError(
            f"{path} holds {len(processes)} processes; rocprofv3 writes a database a process, give "
            "these"
        )
    about = processes[0] if processes else {}
    process = _whole(about.get("pid"))
    agents = [a for a in _list(database, "rocpd_info_agent", run) if a.get("type") == "GPU"]
    devices = {_whole(agent["id"]): _whole(agent.get("type_index")) for agent in agents}
    first = _first(database, run)
    sink = Sink(writer, _origin(_whole(about.get("init")), first))
    rows = Rows(sink, process, devices)
    _work(database, run, rows)
    sink.put_records("process", [{"process_id": process, "name": about.get("name")}])
    sink.put_records(
        "device",
        [
            {
                "process_id": process,
                "device": devices[_whole(agent["id"])],
                "physical_id": devices[_whole(agent["id"])],
                "name": agent.get("product_name") or agent.get("name"),
            }
            for agent in agents
        ],
    )
    nodes = _list(database, "rocpd_info_node", run)
    meta = Meta(
        hostname=str(nodes[0].get("hostname") or "") if nodes else "",
        command=str(about.get("command") or "")[:4096],
    )
    return _finish(meta, rows, (sink.origin_ns, _whole(about.get("fini"))))


def _work(database: Database, run: str, rows: Rows) -> None:
    strings = {
        _whole(number): str(text)
        for part in _parts(database, "rocpd_string", run, "id, string")
        for number, text in zip(part["id"], part["string"], strict=True)
    }
    symbols = _list(database, "rocpd_info_kernel_symbol", run)
    known = {_whole(s["id"]): str(s.get("display_name") or s["kernel_name"]) for s in symbols}
    numbers = {number: place for place, number in enumerate(known)}
    where = {
        "agent": "@.agent_id", "queue": "@.queue_id", "stream": "@.stream_id",
        "correlation": "e.stack_id",
    }  # fmt: skip
    table = database.table("rocpd_kernel_dispatch", run)
    if table is not None:
        sql = timed(database, table, run, {
            **where, "kernel": "r.kernel_id", "group": "r.group_segment_size",
            "private": "r.private_segment_size",
            **{f"block_{a}": f"r.workgroup_size_{a}" for a in "xyz"},
            **{f"grid_{a}": f"r.grid_size_{a}" for a in "xyz"},
        })  # fmt: skip
        for part in database.rows(sql):
            part["kernel"] = [numbers.get(_whole(kernel), -1) for kernel in part["kernel"]]
            rows.kernels({k: _zero(v) for k, v in part.items()}, list(known.values()))
    table = database.table("rocpd_memory_copy", run)
    if table is not None:
        sql = timed(database, table, run, {
            "queue": "@.queue_id", "stream": "@.stream_id", "correlation": "e.stack_id",
            "source": "r.src_agent_id", "target": "r.dst_agent_id", "bytes": "r.size",
            "name_id": "r.name_id",
        })  # fmt: skip
        for part in database.rows(sql):
            part["name"] = [strings.get(_whole(number), "") for number in part.pop("name_id")]
            names = part.pop("name")
            rows.copies({**{k: _zero(v) for k, v in part.items()}, "name": names})
    table = database.table("rocpd_region", run)
    if table is None:
        return
    threads = {_whole(t["id"]): _whole(t["tid"]) for t in _list(database, "rocpd_info_thread", run)}
    sql = timed(database, table, run, {
        "thread": "@.tid", "correlation": "e.stack_id", "name_id": "r.name_id",
        "domain_id": "e.category_id", "extra": "e.extdata",
    })  # fmt: skip
    for part in database.rows(sql):
        rows.regions(
            {
                "start": _zero(part["start"]),
                "end": _zero(part["end"]),
                "thread": [threads.get(_whole(t), _whole(t)) for t in part["thread"]],
                "correlation": _zero(part["correlation"]),
                "name": [strings.get(_whole(n), "[region]") for n in part["name_id"]],
                "domain": [strings.get(_whole(n), "") for n in part["domain_id"]],
                "message": [_message(text) for text in part["extra"]],
            }
        )


def _message(extra: Any) -> str:
    """Text of a marker, in what the event says besides."""
    import msgspec

    try:
        found = msgspec.json.decode(extra)
    except (msgspec.DecodeError, TypeError, RecursionError):
        return ""
    text = found.get("message") if isinstance(found, dict) else None
    return text if isinstance(text, str) else ""


def _first(database: Database, run: str) -> int:
    """The earliest time of all."""
    stamps = database.table("rocpd_timestamp", run)
    if stamps is not None:
        sql = [f"SELECT min(value) AS first FROM {stamps} WHERE value > 0"]
    else:
        kinds = ("rocpd_kernel_dispatch", "rocpd_memory_copy", "rocpd_region")
        tables = [t for kind in kinds if (t := database.table(kind, run)) is not None]
        sql = [f"SELECT min(start) AS first FROM {table} WHERE start > 0" for table in tables]
    found = [
        _whole(value) for text in sql for part in database.rows(text) for value in part["first"]
    ]
    return min((value for value in found if value > 0), default=0)


def _parts(database: Database, kind: str, run: str, columns: str = "*") -> Any:
    table = database.table(kind, run)
    return () if table is None else database.rows(f"SELECT {columns} FROM {table}")


def _list(database: Database, kind: str, run: str) -> list[dict[str, Any]]:
    return [
        dict(zip(part, row, strict=True))
        for part in _parts(database, kind, run)
        for row in zip(*part.values(), strict=True)
    ]


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 2**62 else 0


def _zero(values: list[Any]) -> list[int]:
    """Numbers, with 0 for what is none."""
    return [_whole(value) for value in values]

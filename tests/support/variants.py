"""Variants of a capture with one thing changed, made from its canonical tables.

Each is what the same program could have left behind on another machine, under other circumstances
or with a worse tool. Time is stretched as a whole, so that what follows shifts with what came
before and no operation starts before its launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stepscope.intervals import union
from stepscope.trace.problems import ProblemLog
from stepscope.trace.store import TraceWriter, write_meta
from stepscope.trace.trace import Trace

Tables = dict[str, pa.Table]
Times = npt.NDArray[np.int64]

_TIMES: Final = ("start_ns", "end_ns", "time_ns")
_PROCESS: Final = "process_id"


def tables_of(trace: Trace) -> Tables:
    """All tables of a trace that hold rows."""
    return {name: trace.arrow(name) for name in trace.meta.rows if trace.rows(name)}


def written(tables: Mapping[str, pa.Table], like: Trace, folder: Path) -> Path:
    """Write tables as a trace with the metadata of another."""
    folder.mkdir(parents=True)
    problems = ProblemLog()
    writer = TraceWriter(folder, problems)
    for name, table in tables.items():
        if len(table):
            columns = [c for c in table.column_names if c != "id"]
            writer.append(name, {c: table.column(c).combine_chunks() for c in columns})
    rows = writer.close()
    ends = [int(pc.max(t["end_ns"]).as_py()) for t in tables.values() if "end_ns" in t.column_names]
    begins = [
        int(pc.min(t["start_ns"]).as_py()) for t in tables.values() if "start_ns" in t.column_names
    ]
    meta = msgspec.structs.replace(
        like.meta, rows=rows, window_start_ns=min(begins), window_end_ns=max(ends),
        problems=problems.problems(), input_digest=folder.name,
    )  # fmt: skip
    write_meta(folder, meta)
    return folder


def _with(table: pa.Table, name: str, values: object) -> pa.Table:
    at = table.column_names.index(name)
    field = table.schema.field(name)
    return table.set_column(at, field, pa.array(values, field.type))


def _moved(tables: Tables, move: Callable[[Times], Times]) -> Tables:
    """All times through a monotonic function."""
    found = {}
    for name, before in tables.items():
        table = before
        for column in _TIMES:
            if column in table.column_names:
                values = table[column].combine_chunks()
                known = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
                after = pa.array(move(known), pa.int64(), mask=values.is_null().to_numpy(False))
                table = _with(table, column, after)
        found[name] = table
    return found


def _busy(tables: Tables) -> tuple[Times, Times]:
    ops = tables["gpu_op"]
    start, end = (ops[c].to_numpy().astype(np.int64) for c in ("start_ns", "end_ns"))
    return union(start, end)


def paced(tables: Tables, *, busy: float = 1.0, idle: float = 1.0) -> Tables:
    """Time takes another length while the device works, or while it does not."""
    start, end = _busy(tables)
    at = np.unique(np.concatenate((start, end)))
    length = np.diff(at)
    inside = np.isin(at[:-1], start)
    to = at[0] + np.concatenate(([0], np.cumsum(np.where(inside, busy, idle) * length)))

    def move(times: Times) -> Times:
        beyond = np.where(times < at[0], times - at[0], np.maximum(times - at[-1], 0))
        moved: Times = (np.interp(times, at, to) + beyond).astype(np.int64)
        return moved

    return _moved(tables, move)


def renamed(tables: Tables) -> Tables:
    """Kernels but those of NCCL have names that say nothing."""
    ops = tables["gpu_op"]
    kernel = pc.equal(ops["kind"].cast(pa.string()), "kernel").to_numpy(False)
    kernel &= ~pc.match_substring(ops["name"].cast(pa.string()), "nccl").to_numpy()
    for column in ("name", "short_name", "mangled_name"):
        if column in ops.column_names:
            coded = ops[column].combine_chunks()
            if coded.null_count == len(coded):
                continue
            number = coded.indices.fill_null(0).to_numpy(False)
            names = coded.cast(pa.string()).to_pylist()
            texts = [
                f"k{int(n)}" if is_kernel else name
                for n, is_kernel, name in zip(number, kernel, names, strict=True)
            ]
            ops = _with(ops, column, pa.array(texts).dictionary_encode().cast(coded.type))
    return tables | {"gpu_op": ops}


def bare(tables: Tables) -> Tables:
    """No annotations."""
    return {name: table for name, table in tables.items() if name != "range"}


def unlinked(tables: Tables, share: float, seed: int = 0) -> Tables:
    """Some operations do not tell which call launched them."""
    ops = tables["gpu_op"]
    lost = np.random.default_rng(seed).random(len(ops)) < share
    values = ops["correlation_id"].combine_chunks()
    return tables | {
        "gpu_op": _with(ops, "correlation_id", pc.if_else(pa.array(lost), None, values))
    }


def part(tables: Tables, begin: float, end: float) -> Tables:
    """What began in a part of the run, given as shares of its length, and had ended by then."""
    starts = tables["gpu_op"]["start_ns"].to_numpy()
    first, last = int(starts.min()), int(starts.max())
    low, high = (first + round(share * (last - first)) for share in (begin, end))
    found = {}
    for name, before in tables.items():
        table = before
        if "start_ns" in table.column_names:
            keep = pc.and_(pc.greater_equal(table["start_ns"], low), pc.less_equal(
                pc.fill_null(table["end_ns"], high + 1), high))  # fmt: skip
            table = table.filter(keep)
        elif "time_ns" in table.column_names:
            time = table["time_ns"]
            table = table.filter(pc.and_(pc.greater_equal(time, low), pc.less_equal(time, high)))
        if len(table):
            found[name] = table
    return found


def clocks_apart(tables: Tables, offset_ns: int, jitter_ns: int = 0, seed: int = 0) -> Tables:
    """The device's clock differs from the host's, and wavers by the jitter."""
    ops = tables["gpu_op"]
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    chance = np.random.default_rng(seed)
    # a waver that is slow against the operations keeps their order
    knots = np.linspace(int(start.min()), int(end.max()) + 1, 50)
    shift = offset_ns + chance.uniform(-jitter_ns, jitter_ns, len(knots))

    def move(times: Times) -> Times:
        return (times + np.interp(times, knots, shift)).astype(np.int64)

    return tables | {"gpu_op": _with(_with(ops, "start_ns", move(start)), "end_ns", move(end))}


def two_processes(tables: Tables) -> Tables:
    """A second process does the same on the same device, half a millisecond later."""
    found = {}
    for name, table in tables.items():
        if _PROCESS not in table.column_names:
            found[name] = table
            continue
        other = _moved({name: table}, lambda times: times + 500_000)[name]
        number = pc.add(other[_PROCESS], 100_000)
        other = _with(other, _PROCESS, number.combine_chunks())
        if "thread_id" in other.column_names:
            other = _with(other, "thread_id", pc.add(other["thread_id"], 100_000).combine_chunks())
        found[name] = pa.concat_tables(
            [table, other], promote_options="default"
        ).unify_dictionaries()
    return found


def two_kinds(tables: Tables, begins: Times) -> Tables:
    """Every other step takes half as long again, and half of its kernels have other names."""
    ends = np.append(begins[1:], begins[-1] + (begins[-1] - begins[0]) // (len(begins) - 1))
    odd = np.arange(len(begins)) % 2 == 1
    at = np.append(begins, ends[-1])
    to = at[0] + np.concatenate(([0], np.cumsum(np.where(odd, 1.5, 1.0) * np.diff(at))))

    def move(times: Times) -> Times:
        beyond = np.where(times < at[0], times - at[0], np.maximum(times - at[-1], 0))
        moved: Times = (np.interp(times, at, to) + beyond).astype(np.int64)
        return moved

    ops = tables["gpu_op"]
    step = np.searchsorted(begins, ops["start_ns"].to_numpy(), side="right") - 1
    other = (step % 2 == 1) & (np.arange(len(ops)) % 2 == 1)
    kernel = pc.equal(ops["kind"].cast(pa.string()), "kernel").to_numpy(False)
    names = ops["name"].cast(pa.string()).to_pylist()
    texts = [f"{n}_b" if o else n for n, o in zip(names, other & kernel, strict=True)]
    kind = ops.schema.field("name").type
    ops = _with(ops, "name", pa.array(texts).dictionary_encode().cast(kind))
    return _moved(tables | {"gpu_op": ops}, move)

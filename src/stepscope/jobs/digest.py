"""The digest of one rank: what a diagnosis of its job needs, in one row of Parquet.

One row stands for one device of one rank, so that the digests of a job are one table, whether they
lie in a thousand files or in one. Lists of structs hold what repeats: steps, collectives, kernels.
The layout is declared here; the Arrow schema and the reference page are made from it. A reader
refuses a newer version; fields are only ever added within a version, and are null in older files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stepscope.trace.frame import AnyArray, IntArray
from stepscope.trace.schema import Column, Table

if TYPE_CHECKING:
    import pyarrow as pa

VERSION: Final = 1
"""Version of the layout."""

MOST_STEPS: Final = 64
"""Steady steps that a digest holds: the first ones."""

MOST_CALLS: Final = 3000
"""Collectives that a digest holds: those of as many whole steps as fit, the first ones."""

MOST_KERNELS: Final = 40
"""Kernels by name and launch that a digest holds: those of most time."""

LONGEST_TEXT: Final = 160
"""Characters of a name; longer ones are cut."""


def _c(name: str, kind: Any, doc: str) -> Column:
    return Column(name, kind, doc)


FACTS: Final = (
    _c("version", "int64", "version of this layout"),
    _c("made_by", "text", "version of Stepscope that made it"),
    _c("rank", "int64", "the rank; null where the capture does not tell"),
    _c("world_size", "int64", "ranks of the job; null where unknown"),
    _c("process_id", "int64", "operating-system process id"),
    _c("device", "int64", "CUDA device ordinal inside the process"),
    _c("device_name", "text", "product name of the GPU"),
    _c("hostname", "text", "machine; empty where unknown"),
    _c("source", "text", "importer that read the capture"),
    _c("capture", "text", "path of the full capture, as it was named"),
    _c("capture_digest", "text", "content key of the full capture (BLAKE2b)"),
    _c("origin_epoch_ns", "int64", "wall-clock time of time zero, ns since 1970; null if unknown"),
    _c("step_kind", "text", "what a step is, as in the diagnosis"),
    _c("step_source", "text", "what the steps were found by"),
    _c("step_message", "text", "how the steps were found, in one sentence"),
    _c("steps_found", "int64", "steps of the capture"),
    _c("steady_steps", "int64", "steady steps of the capture; the list holds the first of them"),
    _c("steps_with_calls", "int64", "steady steps whose collectives are all in the list"),
    _c("step_ns", "float64", "mean steady step, ns"),
    _c("host_need_ns", "float64", "what the host does but wait for the device, ns a step; 0: none"),
    _c("host_recording_ns", "float64", "of it, the estimated cost of recording"),
    _c("host_calling_ns", "float64", "of it, calls and the short pauses between them"),
    _c("host_untraced_ns", "float64", "of it, long pauses without calls, and getting input"),
    _c("host_least_ns", "float64", "what it needs at least: without the most that the tool added"),
    _c("input_ns", "float64", "host time of getting input, ns a step"),
    _c("sm_clock_mhz", "float64", "mean SM clock in the steady steps; null where not sampled"),
    _c("sm_clock_low_mhz", "float64", "lowest SM clock in the steady steps"),
    _c("throttled_share", "float64", "share of its samples with a reason for a lower clock"),
    _c("power_w", "float64", "mean power draw in the steady steps, W"),
    _c("memory_peak_bytes", "int64", "most that the framework reserved; null where not recorded"),
    _c("verdict", "text", "diagnosis of this rank by itself"),
    _c("problems", "int64", "import problems of the capture"),
)
"""One value a row."""

LISTS: Final = {
    table.name: table
    for table in (
        Table(
            "steps",
            "One steady step, cut as on this rank; times on the clock of the capture.",
            (
                _c("number", "int64", "number of the step in the capture"),
                _c("begin_ns", "int64", "begin on the device, ns since the origin"),
                _c("wall_ns", "int64", "length; the parts below but alone_ns sum to it exactly"),
                _c("compute_ns", "int64", "compute kernels run"),
                _c("communication_ns", "int64", "only communication (or less) runs"),
                _c("copy_ns", "int64", "only copies (or memory sets) run"),
                _c("memset_ns", "int64", "only memory sets run"),
                _c("idle_ns", "int64", "nothing runs"),
                _c("alone_ns", "int64", "part of compute_ns in which no communication runs"),
                _c("kernels", "int64", "compute kernels that began"),
                _c("threads", "int64", "threads they were launched with"),
            ),
        ),
        Table(
            "idle",
            "Idle time of one step by cause; those of a step sum to its idle_ns.",
            (
                _c("step", "int64", "position in steps"),
                _c("cause", "text", "what it is charged to"),
                _c("time_ns", "int64", "idle time, ns"),
            ),
        ),
        Table(
            "phases",
            "One phase of the step, means of the steady steps.",
            (
                _c("phase", "text", "dataload, copies, forward, backward, optimizer, other"),
                _c("host_ns", "int64", "host time, ns a step"),
                _c("gpu_ns", "int64", "device time, ns a step"),
            ),
        ),
        Table(
            "calls",
            "One collective on this rank, in time order.",
            (
                _c("start_ns", "int64", "begin, ns since the origin"),
                _c("duration_ns", "int64", "length of its kernel"),
                _c("kind", "text", "all_reduce, all_gather, ..., send_recv"),
                _c("looks", "text", "type and size, or kernel and launch: equal on its members"),
                _c("group", "text", "ranks of the communicator, or its name; empty where unknown"),
                _c("communicator", "text", "identity that NCCL states; empty where it does not"),
                _c("use", "text", "what the communicator is likely for"),
                _c("stream", "int64", "CUDA stream"),
                _c("sequence", "int64", "number inside the communicator; -1 where unknown"),
                _c("bytes", "int64", "message size; -1 where unknown"),
                _c("nccl_bytes", "int64", "message size as NCCL states it; -1 where it does not"),
                _c("size", "int64", "ranks of the communicator; -1 where unknown"),
                _c("kernels_before", "int64", "compute kernels that began before it"),
                _c("stated", "bool", "whether more than the kernel's name tells the kind"),
            ),
        ),
        Table(
            "exposure",
            "A stretch of time, up to the next row's begin, with communication that no compute "
            "covers: all of it, or a part that is spread over it.",
            (
                _c("start_ns", "int64", "begin, ns since the origin"),
                _c("exposed_ns", "int64", "communication runs and no compute covers it"),
                _c("blocking_ns", "int64", "part of it: other work was ready, or the host waited"),
            ),
        ),
        Table(
            "categories",
            "Kernels of one category in the steady steps.",
            (
                _c("category", "text", "kernel category"),
                _c("count", "int64", "kernels"),
                _c("total_ns", "int64", "their time"),
                _c("p10_ns", "int64", "a tenth of them takes at most this"),
                _c("median_ns", "int64", "half of them"),
                _c("p90_ns", "int64", "nine tenths of them"),
                _c("step_spread", "float64", "median absolute deviation of a step's time, share"),
            ),
        ),
        Table(
            "kernels",
            "One kernel and launch size in the steady steps; those of most time.",
            (
                _c("key", "int64", "hash of name and launch size: equal on all ranks"),
                _c("name", "text", "its name, cut"),
                _c("category", "text", "kernel category"),
                _c("count", "int64", "launches"),
                _c("total_ns", "int64", "their time"),
                _c("p10_ns", "int64", "a tenth of them takes at most this"),
                _c("median_ns", "int64", "half of them"),
                _c("p90_ns", "int64", "nine tenths of them"),
            ),
        ),
        Table(
            "waits",
            "Calls in which the host waited for the device, by name, in the steady steps.",
            (
                _c("call", "text", "name of the call"),
                _c("count", "int64", "calls"),
                _c("time_ns", "int64", "their time"),
            ),
        ),
        Table(
            "findings",
            "One cause that this rank shows by itself.",
            (
                _c("cause", "text", "public id"),
                _c("time_ns", "float64", "what it takes, ns a step"),
                _c("predicted_ns", "float64", "mean step of this rank without it"),
                _c("sure_gain_ns", "float64", "gain that the tool did not make itself"),
                _c("of_program", "bool", "false where it lies in the measurement"),
                _c("range", "text", "annotation that holds most of it; empty where unknown"),
                _c("operator", "text", "operator that holds most of it"),
                _c("place", "text", "source line or function that holds most of it"),
                _c("message", "text", "one sentence"),
                _c("advice", "text", "what to change first"),
            ),
        ),
        Table(
            "evidence",
            "Where to look in the full capture.",
            (
                _c("what", "text", "slowest step, longest gap, longest collective"),
                _c("step", "int64", "number of the step in the capture; -1 outside"),
                _c("start_ns", "int64", "begin, ns since the origin"),
                _c("end_ns", "int64", "end, ns since the origin"),
                _c("sql", "text", "statement for stepscope query on the capture"),
            ),
        ),
    )
}
"""Lists of structs, one a row."""

_ARROW: Final = {"int64": "int64", "float64": "float64", "bool": "bool_", "text": "string"}


@cache
def arrow_schema() -> pa.Schema:
    """The Arrow schema of digests."""
    import pyarrow as pa

    def type_of(column: Column) -> pa.DataType:
        found: pa.DataType = getattr(pa, _ARROW[column.type])()
        return found

    fields = [pa.field(column.name, type_of(column)) for column in FACTS]
    for table in LISTS.values():
        inside = pa.struct([pa.field(column.name, type_of(column)) for column in table.columns])
        fields.append(pa.field(table.name, pa.list_(inside)))
    return pa.schema(fields, metadata={b"stepscope.digest": str(VERSION).encode()})


def integer_leaves() -> list[str]:
    """Paths of the integer columns inside lists, as Parquet names them."""
    return [
        f"{table.name}.list.element.{column.name}"
        for table in LISTS.values()
        for column in table.columns
        if column.type == "int64"
    ]


def text_leaves() -> list[str]:
    """Paths of the text columns, as Parquet names them."""
    return [
        *(column.name for column in FACTS if column.type == "text"),
        *(
            f"{table.name}.list.element.{column.name}"
            for table in LISTS.values()
            for column in table.columns
            if column.type == "text"
        ),
    ]


@dataclass
class Digest:
    """One digest in memory.

    Attributes:
        facts: one value for each of ``FACTS``; None where unknown.
        lists: name of a list to its columns: numpy arrays, or lists of texts.
        path: the file that it was read from; empty for one that was not.
    """

    facts: dict[str, Any]
    lists: dict[str, dict[str, Any]] = field(default_factory=dict)
    path: str = ""

    @property
    def rank(self) -> int:
        """The rank; -1 where unknown."""
        rank = self.facts["rank"]
        return -1 if rank is None else int(rank)

    @property
    def hostname(self) -> str:
        """Its machine; empty where unknown."""
        return self.facts["hostname"] or ""

    def ints(self, table: str, column: str) -> IntArray:
        """A column of integers."""
        found: IntArray = np.asarray(self.lists[table][column], np.int64)
        return found

    def floats(self, table: str, column: str) -> AnyArray:
        """A column of numbers."""
        return np.asarray(self.lists[table][column], np.float64)

    def texts(self, table: str, column: str) -> list[str]:
        """A column of texts."""
        found: list[str] = list(self.lists[table][column])
        return found

    @cached_property
    def n_steps(self) -> int:
        """Steps in the list."""
        return len(self.lists["steps"]["number"])


def as_table(digests: list[Digest]) -> pa.Table:
    """Digests as one Arrow table, a row each."""
    import pyarrow as pa

    schema = arrow_schema()
    columns: list[pa.Array] = []
    for column in FACTS:
        values = [digest.facts[column.name] for digest in digests]
        columns.append(pa.array(values, schema.field(column.name).type))
    for table in LISTS.values():
        kind = schema.field(table.name).type
        sizes = [len(digest.lists[table.name][table.columns[0].name]) for digest in digests]
        leaves = [
            pa.concat_arrays(
                [
                    pa.array(digest.lists[table.name][column.name], kind.value_type[i].type)
                    for digest in digests
                ]
            )
            for i, column in enumerate(table.columns)
        ]
        inside = pa.StructArray.from_arrays(leaves, fields=list(kind.value_type))
        offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
        columns.append(pa.ListArray.from_arrays(offsets, inside, type=kind))
    return pa.Table.from_arrays(columns, schema=schema)


def from_table(table: pa.Table, path: str) -> list[Digest]:
    """The digests of a table: one a row. Fields that an older file lacks are empty."""
    found = []
    known = set(table.column_names)
    columns = {name: table.column(name).combine_chunks() for name in known}
    lists = {name: _flat(columns[name], LISTS[name]) for name in LISTS if name in known}
    for row in range(table.num_rows):
        facts = {c.name: columns[c.name][row].as_py() if c.name in known else None for c in FACTS}
        own: dict[str, dict[str, Any]] = {}
        for name, declared in LISTS.items():
            if name not in lists:
                own[name] = {c.name: _empty(c) for c in declared.columns}
                continue
            offsets, leaves = lists[name]
            low, high = int(offsets[row]), int(offsets[row + 1])
            own[name] = {leaf: values[low:high] for leaf, values in leaves.items()}
        found.append(Digest(facts, own, path))
    return found


def _flat(array: pa.Array, declared: Table) -> tuple[AnyArray, dict[str, Any]]:
    """Offsets of a list column, and its leaves as numpy arrays or lists of texts."""
    offsets = array.offsets.to_numpy()
    inside = array.values
    there = {inside.type.field(i).name: i for i in range(inside.type.num_fields)}
    leaves: dict[str, Any] = {}
    for column in declared.columns:
        if column.name not in there:
            leaves[column.name] = (
                [""] * len(inside) if column.type == "text" else np.full(len(inside), -1)
            )
            continue
        leaf = inside.field(there[column.name])
        if column.type == "text":
            leaves[column.name] = leaf.to_pylist()
        else:
            leaves[column.name] = leaf.to_numpy(zero_copy_only=False)
    return offsets, leaves


def _empty(column: Column) -> Any:
    return [] if column.type == "text" else np.empty(0, np.int64)

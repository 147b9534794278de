"""MPI calls: every one, by function, and the sizes of their messages."""

from __future__ import annotations

import numpy as np

from stepscope.reports.summary import header, summary
from stepscope.tabular.maths import dictionary, group, nullable, statistics, text_ranks
from stepscope.tabular.needs import MPI
from stepscope.tabular.report import Answer, Arguments, Column, Report
from stepscope.tabular.source import Rows, Source
from stepscope.trace.frame import IntArray

_VALUES = ("tag", "rank", "peer_rank", "root_rank", "bytes", "send_bytes", "receive_bytes")
_SOURCES = {"p2p": "p2p", "collective": "collectives", "start_wait": "start_wait", "other": "other"}
_SIZES = (("p2p", "bytes"), ("coll_send", "send_bytes"), ("coll_recv", "receive_bytes"))


def _trace(source: Source, _: Arguments) -> Answer:
    events = source.rows("mpi_event")
    return [
        events["start_ns"],
        events["end_ns"],
        events.duration,
        dictionary(events["name"], events.texts("name")),
        events["process_id"],
        events["thread_id"],
        *(nullable(events[column], ~events.valid(column)) for column in _VALUES),
    ]


def _summary(source: Source, _: Arguments) -> Answer:
    events = source.rows("mpi_event")
    groups, firsts = group(events["kind"], events["name"])
    found = statistics(events.duration, groups, len(firsts))
    name, kind = events["name"][firsts], events["kind"][firsts]
    order = np.lexsort((text_ranks(events.texts("name"))[name], -found.total))
    sources = [_SOURCES.get(text, text) for text in events.texts("kind")]
    return [
        *summary(found, order),
        dictionary(kind[order], sources),
        dictionary(name[order], events.texts("name")),
    ]


def _sizes(source: Source, _: Arguments) -> Answer:
    events = source.rows("mpi_event")
    parts = [_sized(events, column) for _, column in _SIZES]
    size = np.concatenate([size for _, size in parts])
    name = np.concatenate([name for name, _ in parts])
    which = np.repeat(np.arange(len(parts)), [len(size) for _, size in parts])
    groups, firsts = group(which, name)
    found = statistics(size, groups, len(firsts))
    order = np.lexsort((text_ranks(events.texts("name"))[name[firsts]], -found.total))
    values = (found.total, found.count, found.avg, found.med, found.low, found.high, found.std)
    return [
        *(value[order] for value in values),
        dictionary(which[firsts][order], [label for label, _ in _SIZES]),
        dictionary(name[firsts][order], events.texts("name")),
    ]


def _sized(events: Rows, column: str) -> tuple[IntArray, IntArray]:
    known = events.valid(column)
    return events["name"][known].astype(np.int64), events[column][known]


_SOURCE = Column("Source", doc="kind of call")
_EVENT = Column("Name", doc="function")
REPORTS = [
    Report(
        "mpi_event_trace",
        "MPI Event Trace",
        "Every MPI call in order of start.",
        (
            Column("Start", "ts", "begin"),
            Column("End", "ts", "end"),
            Column("Duration", "dur", "length"),
            Column("Event", doc="function"),
            Column("Pid", doc="process"),
            Column("Tid", doc="thread"),
            Column("Tag", doc="message tag"),
            Column("Rank", doc="calling rank"),
            Column("PeerRank", doc="the other rank (point to point)"),
            Column("RootRank", doc="root (collectives)"),
            Column("Size", "mem", "message size (point to point)"),
            Column("CollSendSize", "mem", "sent (collectives)"),
            Column("CollRecvSize", "mem", "received (collectives)"),
        ),
        _trace,
        needs=(MPI,),
    ),
    Report(
        "mpi_event_sum",
        "MPI Event Summary",
        "MPI calls by kind and function, waiting included. Longest total first.",
        header("Instances", _SOURCE, _EVENT),
        _summary,
        needs=(MPI,),
    ),
    Report(
        "mpi_msg_size_sum",
        "MPI Message Size Summary",
        "Message sizes by kind and function. Largest volume first.",
        (
            Column("Total Message Volume", "mem", "sum"),
            Column("Instances", doc="number of messages"),
            Column("Avg", "mem", "mean"),
            Column("Med", "mem", "median"),
            Column("Min", "mem", "smallest"),
            Column("Max", "mem", "largest"),
            Column("StdDev", "mem", "sample standard deviation"),
            Column("Source", doc="p2p, coll_send or coll_recv"),
            _EVENT,
        ),
        _sizes,
        needs=(MPI,),
    ),
]

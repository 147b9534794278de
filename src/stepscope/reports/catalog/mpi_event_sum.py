"""MPI calls: every one, by function, and the sizes of their messages."""

from __future__ import annotations

from stepscope.reports.needs import MPI
from stepscope.reports.report import Column, Report
from stepscope.reports.summary import header, spread, summary

_TRACE = """
SELECT start_ns, end_ns, duration_ns, name, process_id, thread_id,
    tag, rank, peer_rank, root_rank, bytes, send_bytes, receive_bytes
FROM mpi_event
"""
_SUMMARY = summary(
    "mpi_event",
    "kind",
    "name",
    shown="CASE kind WHEN 'collective' THEN 'collectives' ELSE kind END, name",
    extra="min(id) AS first_id",
    order="name, first_id",
)
_SIZES = f"""
SELECT sum(size)::BIGINT AS total, count(*), {spread("size")}, label, name
FROM (
    SELECT 0 AS side, 'p2p' AS label, name, bytes AS size FROM mpi_event
    UNION ALL SELECT 1, 'coll_send', name, send_bytes FROM mpi_event
    UNION ALL SELECT 2, 'coll_recv', name, receive_bytes FROM mpi_event
)
WHERE size IS NOT NULL GROUP BY side, label, name ORDER BY total DESC, name, side
"""


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
        _TRACE,
        needs=(MPI,),
    ),
    Report(
        "mpi_event_sum",
        "MPI Event Summary",
        "MPI calls by kind and function, waiting included. Longest total first.",
        header("Instances", _SOURCE, _EVENT),
        _SUMMARY,
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
        _SIZES,
        needs=(MPI,),
    ),
]

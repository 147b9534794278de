"""When a network device waited to send."""

from __future__ import annotations

from stepscope.reports.needs import NETWORK
from stepscope.reports.report import Argument, Column, Report

_SQL = """
SELECT start_ns, end_ns, duration_ns, value, guid, product FROM network_sample
WHERE metric = 'IB: Send waits' AND value > {ticks_threshold}
"""

REPORTS = [
    Report(
        "network_congestion",
        "Network Devices Congestion",
        "Intervals in which a network card or switch port waited to send for more ticks a "
        "millisecond than the threshold, in order of start.",
        (
            Column("Start", "ts", "begin"),
            Column("End", "ts", "end"),
            Column("Duration", "dur", "length"),
            Column("Send wait rate (ticks/ms)", doc="ticks waited, a millisecond"),
            Column("GUID", "hex", "device's global unique id"),
            Column("Device name"),
        ),
        _SQL,
        arguments=(Argument("ticks_threshold", "leave out lower rates (ticks/ms)", 10_000, low=0),),
        needs=(NETWORK,),
    )
]

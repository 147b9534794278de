"""When a network device waited to send."""

from __future__ import annotations

from stepscope.tabular.maths import dictionary, nullable
from stepscope.tabular.needs import NETWORK
from stepscope.tabular.report import Answer, Argument, Arguments, Column, Report
from stepscope.tabular.source import Source

_WAITS = "IB: Send waits"


def _run(source: Source, arguments: Arguments) -> Answer:
    samples = source.rows("network_sample")
    samples = samples.where(samples.equals("metric", (_WAITS,)))
    found = samples.where(samples["value"] > int(arguments["ticks_threshold"]))
    return [
        found["start_ns"],
        found["end_ns"],
        found.duration,
        found["value"],
        nullable(found["guid"], ~found.valid("guid")),
        dictionary(found["product"], found.texts("product")),
    ]


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
        _run,
        arguments=(Argument("ticks_threshold", "leave out lower rates (ticks/ms)", 10_000, low=0),),
        needs=(NETWORK,),
    )
]

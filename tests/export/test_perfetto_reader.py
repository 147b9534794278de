"""What we write for Perfetto, read by Perfetto: its trace processor, and its schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.export.trace_processor import ask, engine
from tests.server.browser import launched
from tests.support.build import Build

from stepscope.api import Job
from stepscope.api.inputs import bundled_capture


@pytest.fixture(scope="module")
def reader() -> Iterator[Any]:
    engine()  # skip before a browser is started
    # to optimize what runs for a second takes longer than the second
    with launched("--js-flags=--liftoff-only") as found:
        yield found


def drawn(job: Job) -> Counter[tuple[str, int, int]]:
    """Name, begin and length of every slice."""
    texts = job.timeline.names.texts
    found: Counter[tuple[str, int, int]] = Counter()
    for track in job.timeline.tracks:
        content = job.timeline.track(track.id).slices
        rows = zip(content.name.tolist(), content.start.tolist(), content.end.tolist(), strict=True)
        found.update((texts[name], start, end - start) for name, start, end in rows)
    return found


def test_the_trace_processor_reads_every_slice_of_a_real_capture(reader: Any) -> None:
    job = Job([bundled_capture()])
    rows, errors, flows, tracks, threads = ask(
        reader,
        b"".join(job.views.exported("perfetto")),
        "SELECT name, ts, dur FROM slice",
        "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
        """SELECT o.name AS out_name, o.ts AS out_ts, i.name AS in_name, i.ts AS in_ts
        FROM flow JOIN slice o ON o.id = slice_out JOIN slice i ON i.id = slice_in""",
        "SELECT id, name, parent_id FROM track",
        "SELECT max(depth) AS deepest, count(*) AS n FROM slice",
    )
    assert errors == []
    found = Counter((row["name"], row["ts"], row["dur"]) for row in rows)
    assert found == drawn(job)
    assert threads[0]["n"] == len(rows) > 10_000
    launched_ops = job.query(
        """SELECT count(DISTINCT correlation_id) AS n FROM gpu_op
        WHERE correlation_id IN (SELECT correlation_id FROM api_call WHERE api <> 'osrt')"""
    )
    assert len(flows) == launched_ops["n"][0].as_py() > 1000
    assert all("aunch" in f["out_name"] or "Mem" in f["out_name"] for f in flows)
    assert all(f["in_ts"] >= f["out_ts"] for f in flows)
    named = {row["id"]: row for row in tracks}
    titles = {track.title for track in job.timeline.tracks}
    groups = {job.timeline.group_of(track) for track in job.timeline.tracks}
    for row in tracks:
        if row["parent_id"] is None:
            assert row["name"] in groups, row
        else:
            assert row["name"] in titles, row
            assert named[row["parent_id"]]["name"] in groups


def test_the_trace_processor_reads_what_is_odd(tmp_path: Path, reader: Any) -> None:
    names = ["<b>", "a\nb", "\u202e\u05d0", "🔥" * 300, "x" * 100_000, '"\\', ""]
    b = Build()
    b.range(0, 100, "outer")
    for i, name in enumerate(names):
        b.range(10 + i, 11 + i, name)
    b.kernel(20, 30, call=(11, 12), name="first")
    b.kernel(28, 36, call=(13, 14), name="overlaps")
    b.kernel(36, 36, call=(15, 16), name="instant")
    for at, value in ((1000, 4096), (2000, 0), (90_000, 1 << 50)):
        b._add("memory_event", process_id=100, time_ns=at, kind="cache", device=0, bytes=1,
               total_allocated_bytes=value)  # fmt: skip
    job = Job([b.trace(tmp_path).folder])
    rows, errors, counters = ask(
        reader,
        b"".join(job.views.exported("perfetto")),
        "SELECT coalesce(name, '') AS name, ts, dur FROM slice",
        "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
        """SELECT counter.ts, value, counter_track.name FROM counter
        JOIN counter_track ON counter_track.id = track_id ORDER BY counter.ts""",
    )
    assert errors == []
    assert Counter((r["name"], r["ts"], r["dur"]) for r in rows) == drawn(job)
    assert [(c["ts"], c["value"]) for c in counters] == [(1000, 4096), (2000, 0), (90_000, 1 << 50)]
    assert {c["name"] for c in counters} == {"Memory allocated"}


def test_the_trace_processor_reads_the_chrome_format_too(reader: Any) -> None:
    job = Job([bundled_capture()])
    rows, errors = ask(
        reader,
        b"".join(job.views.exported("chrome")),
        "SELECT name, ts, dur FROM slice",
        "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
    )
    assert errors == []
    assert Counter(row["name"] for row in rows) == _names(job)


def _names(job: Job) -> Counter[str]:
    found: Counter[str] = Counter()
    for (name, _, _), count in drawn(job).items():
        found[name] += count
    return found


def test_the_schema_knows_every_field() -> None:
    pytest.importorskip("google.protobuf", reason="needs protobuf")
    schema = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
        reason="needs Perfetto's schema (pip install perfetto protobuf)",
    )
    from google.protobuf.unknown_fields import UnknownFieldSet

    job = Job([bundled_capture()])
    trace = schema.Trace()
    trace.ParseFromString(b"".join(job.views.exported("perfetto")))

    def known(message: Any) -> None:
        assert len(UnknownFieldSet(message)) == 0, message
        for field, value in message.ListFields():
            if field.message_type is not None:
                for inner in value if field.is_repeated else [value]:
                    known(inner)

    packets = trace.packet
    for packet in [*packets[:300], *packets[-300:]]:
        known(packet)
    begins = [p for p in packets if p.track_event.type == schema.TrackEvent.TYPE_SLICE_BEGIN]
    ends = [p for p in packets if p.track_event.type == schema.TrackEvent.TYPE_SLICE_END]
    assert len(begins) == len(ends) == sum(drawn(job).values())


def test_counters_and_the_critical_path_arrive(reader: Any) -> None:
    job = Job([bundled_capture()])
    samples, path, errors = ask(
        reader,
        b"".join(job.exported("perfetto", counters=True, critical_path=True)),
        """SELECT t.name AS name, count(*) AS n, min(c.value) AS low, max(c.value) AS high
        FROM counter c JOIN track t ON t.id = c.track_id GROUP BY 1""",
        """SELECT count(*) AS n, sum(dur) AS whole, min(ts) AS begin, max(ts + dur) AS stop
        FROM slice s JOIN track t ON t.id = s.track_id WHERE t.name = 'Critical path'""",
        "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
    )
    assert errors == []
    table = job.reports.table("gpu_queue_length_sum").to_pylist()
    queues = {row["name"]: row for row in samples if row["name"].startswith("Queue length")}
    assert len(queues) == len(table) > 0
    for row in table:
        found = queues[f"Queue length, stream {row['Strm']}"]
        assert (found["n"], found["low"], found["high"]) == (row["Count"], row["Min"], row["Max"])
    assert any("bandwidth" in row["name"] for row in samples)
    measured = sum(step.measured_ns for step in job.critical_path().steps)
    assert path[0]["n"] > 100
    assert path[0]["whole"] == path[0]["stop"] - path[0]["begin"] == measured

"""The importer's parts against slow oracles."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.importers.common.nvtx import count_overlapping
from stepscope.importers.common.texts import StringTable, clean, clean_array
from stepscope.importers.nsys.gpu import CorrelationFlags
from stepscope.importers.nsys.rows import merged
from stepscope.importers.nsys.samples import Points, paired
from stepscope.importers.nsys.sink import NameColumn, Strings
from stepscope.importers.nsys.source import prefetched
from stepscope.trace.frame import NULL


def numbers(values):
    return np.array(values, np.int64)


# merging -----------------------------------------------------------------------------------------

batches = st.lists(st.lists(st.integers(0, 50), max_size=6), max_size=5)


@given(st.lists(batches, max_size=4))
@settings(deadline=None)
def test_merging_sorted_streams_gives_sorted_rows(streams):
    def stream(number, parts):
        values = iter(sorted(value for part in parts for value in part))
        for part in parts:
            starts = [next(values) for _ in part]
            rows = {"start_ns": pa.array(starts, pa.int64())}
            rows["stream"] = pa.array([number] * len(starts), pa.int64())
            if number % 2:
                rows["extra"] = pa.array(starts, pa.int64())
            yield rows

    out = list(merged([stream(number, parts) for number, parts in enumerate(streams)]))
    starts = [s for batch in out for s in batch["start_ns"].to_pylist()]
    owners = [s for batch in out for s in batch["stream"].to_pylist()]
    assert starts == sorted(starts)
    expected = [(v, n) for n, parts in enumerate(streams) for part in parts for v in part]
    assert sorted(zip(starts, owners, strict=True)) == sorted(expected)
    for batch in out:
        extra = batch.get("extra", pa.nulls(len(batch["start_ns"]))).to_pylist()
        for start, owner, value in zip(
            batch["start_ns"].to_pylist(), batch["stream"].to_pylist(), extra, strict=True
        ):
            assert value == (start if owner % 2 else None)


@given(st.lists(batches, max_size=3))
@settings(deadline=None)
def test_merging_loses_nothing_of_unsorted_streams(streams):
    def stream(parts):
        for part in parts:
            yield {"start_ns": pa.array(part, pa.int64())}

    out = [
        s for b in merged([stream(parts) for parts in streams]) for s in b["start_ns"].to_pylist()
    ]
    assert sorted(out) == sorted(v for parts in streams for part in parts for v in part)


# nesting -----------------------------------------------------------------------------------------


def crosses(a, b):
    """Whether two ranges of one thread overlap without nesting."""
    (s, e), (t, f) = sorted([a, b])
    return s < t < e < f


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(1, 6)), max_size=12))
def test_overlaps_are_found_exactly_when_ranges_cross(ranges):
    thread = numbers([r[0] for r in ranges])
    start = numbers([r[1] for r in ranges])
    end = start + numbers([r[2] for r in ranges])
    real = [(t, (int(s), int(e))) for t, s, e in zip(thread, start, end, strict=True)]
    expected = any(
        t == u and crosses(a, b) for i, (t, a) in enumerate(real) for u, b in real[i + 1 :]
    )
    assert (count_overlapping([(thread, start, end)]) > 0) == expected


def test_overlaps_of_no_ranges():
    assert count_overlapping([]) == 0
    assert count_overlapping([(numbers([1]), numbers([5]), numbers([5]))]) == 0


# scheduling -------------------------------------------------------------------------------------

points = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 1), st.booleans(), st.integers(1, 2)), max_size=14
)


@given(points)
def test_scheduling_pairs(events):
    events = sorted(events, key=lambda e: (e[3], e[0], e[2]))
    first, end, unpaired = paired(
        Points(
            numbers([e[0] for e in events]),
            numbers([e[1] for e in events]),
            np.array([e[2] for e in events], bool),
            numbers([e[3] for e in events]),
            numbers([NULL] * len(events)),
        ),
        100,
    )
    expected, used = [], 0
    for i, (time, cpu, into, thread) in enumerate(events):
        following = events[i + 1] if i + 1 < len(events) and events[i + 1][3] == thread else None
        if into and following is None:
            expected.append((time, 100, cpu, thread))
            used += 1
        elif into and following is not None and not following[2] and following[1] == cpu:
            expected.append((time, following[0], cpu, thread))
            used += 2
    got = [
        (events[i][0], int(e), events[i][1], events[i][3])
        for i, e in zip(first.tolist(), end, strict=True)
    ]
    assert got == expected
    assert unpaired == len(events) - used


# correlation -------------------------------------------------------------------------------------

ids = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([0, 1, 2, 65535, 65536, 2**32 - 1])), max_size=20
)


@given(ids, ids)
def test_correlation_flags(calls, work):
    flags = CorrelationFlags()

    def columns(pairs):
        return numbers([p for p, _ in pairs]), numbers([i for _, i in pairs])

    flags.mark(*columns(calls), 1)
    assert flags.lacking(*columns(work), 1) == sum(pair not in calls for pair in work)
    flags.mark(*columns(work), 2)
    assert flags.count(1, 2) == len(set(calls) - set(work))


def test_scattered_correlation_ids_are_given_up(monkeypatch):
    monkeypatch.setattr("stepscope.importers.nsys.gpu._MAX_PAGES", 2)
    flags = CorrelationFlags()
    flags.mark(numbers([1, 1, 1]), numbers([0, 1 << 20, 1 << 30]), 1)
    assert not flags.complete


# text --------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), st.binary(max_size=12), st.text(max_size=8))))
def test_cleaning_arrays_equals_cleaning_each(values):
    raw = [v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v for v in values]
    counted = []
    texts = clean_array(pa.array(raw, pa.binary()), lambda n, first: counted.append(n))
    expected = [None if v is None else clean(v) for v in raw]
    assert texts.to_pylist() == expected
    changed = sum(
        1 for a, b in zip(raw, expected, strict=True) if a is not None and b.encode() != a
    )
    assert sum(counted) == changed
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for t in expected if t for c in t)


@given(
    st.dictionaries(st.integers(-5, 10**13), st.text("ab", max_size=3), max_size=8),
    st.lists(st.one_of(st.none(), st.integers(-5, 40), st.integers(0, 10**13)), max_size=10),
)
def test_names_by_string_id(table, wanted):
    strings = Strings(
        numbers(list(table)), pa.array([t.encode() for t in table.values()], pa.binary())
    )
    string_table, unknown = StringTable(), []
    column = NameColumn(
        strings, string_table, lambda n, d: unknown.append(n), lambda n, d: None, str.upper
    )
    half = len(wanted) // 2
    got = [
        text
        for part in (wanted[:half], wanted[half:])
        for text in string_table.encode(column(pa.array(part, pa.int64()))).to_pylist()
    ]
    assert got == [
        None if i is None else table[i].upper() if i in table else f"[string {i}]" for i in wanted
    ]
    assert sum(unknown) == sum(1 for i in wanted if i is not None and i not in table)


def test_a_huge_dictionary_is_cut_to_what_a_batch_uses(monkeypatch):
    monkeypatch.setattr("stepscope.importers.common.texts._LARGE_DICTIONARY", 3)
    string_table = StringTable()
    codes = string_table.codes(pa.array(["a", "b", "c", "d", None, "a"]))
    encoded = string_table.encode(codes.slice(3))
    assert encoded.to_pylist() == ["d", None, "a"]
    assert sorted(encoded.dictionary.to_pylist()) == ["a", "d"]


# reading ahead -----------------------------------------------------------------------------------


def test_prefetched_items_in_order():
    assert list(prefetched(lambda: iter(range(100)))) == list(range(100))


def test_prefetch_passes_errors_on_after_the_items_before():
    def items():
        yield 1
        raise OSError("gone")

    stream = prefetched(items)
    assert next(stream) == 1
    with pytest.raises(OSError, match="gone"):
        next(stream)


def test_prefetch_ends_its_thread_when_the_consumer_stops():
    closed = []

    def items():
        try:
            yield from range(10_000)
        finally:
            closed.append(True)

    before = threading.active_count()
    stream = prefetched(items)
    assert next(stream) == 0
    stream.close()
    assert threading.active_count() == before
    assert closed == [True]

"""Damaged captures: each ends in a diagnosis or in one clear sentence, and never takes long.

The cases are seeded, so every run tries the same ones; STEPSCOPE_FUZZ_ROUNDS=50 tries more, and
STEPSCOPE_FUZZ_FIRST=1000 others.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from tests.fuzz.damage import in_bytes
from tests.support.captures import DATA
from tests.support.perfetto import timeline
from tests.support.rocprof import Run, as_database, as_json
from tests.support.xspace import training

from stepscope.api import Job
from stepscope.cache.store import Cache
from stepscope.trace.errors import StepscopeError

ROUNDS = int(os.environ.get("STEPSCOPE_FUZZ_ROUNDS", "1"))
CASES = 5 * ROUNDS
FIRST = int(os.environ.get("STEPSCOPE_FUZZ_FIRST", "0"))
LIMIT_S = 60  # for one case; usual ones take a tenth of a second
IMPORTERS = Path(__file__).parents[1] / "importers"
KEPT_EVENTS = 900

ODD_VALUES: list[Any] = [
    None, 0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63), 1.5, -1e300, 9e999,
    "", "text", "\x1b[31m", "x" * 5000, b"\xff\xfe\x00", True,
]  # fmt: skip
ODD_JSON: list[Any] = [
    None, 0, -1, 1.5, 10**30, -(2**63), 2**63, 1e308, "", "text", "12", "\ud800", "\x1b", [], {},
    [1, [2, [3]]], {"a": {"b": 1}}, True, float("nan"), float("inf"), -float("inf"),
]  # fmt: skip


def outcome(path: Path, cache: Path) -> str:
    """Import, explain and diagnose; the message of the refusal, or empty."""
    before = path.read_bytes()
    begun = time.monotonic()
    try:
        job = Job([path], cache=Cache(cache))
        diagnosis = job.diagnose()
        for gpu in diagnosis.accounting:
            parts = gpu.compute_ns + gpu.exposed_communication_ns + gpu.exposed_copy_ns
            assert gpu.wall_ns == parts + gpu.memset_ns + gpu.idle_ns
            assert gpu.idle_ns == sum(gpu.idle_by_cause_ns.values())
        msgspec.json.encode(diagnosis)
        output = ""
    except StepscopeError as error:
        output = str(error)
        assert output
        assert "\n" not in output
    assert time.monotonic() - begun < LIMIT_S
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert list(cache.glob("tmp-*")) == []
    return output


@pytest.fixture(scope="module")
def kineto_text() -> bytes:
    """The beginning of a real trace, laid out as the profiler writes it."""
    text = gzip.decompress((DATA / "kineto" / "cnn_small.json.gz").read_bytes())
    document = json.loads(text)
    events = document["traceEvents"]
    timed = [event for event in events if event.get("ph") == "X"]
    timed.sort(key=lambda event: event["ts"])
    rest = [event for event in events if event.get("ph") == "M"]
    document["traceEvents"] = timed[:KEPT_EVENTS] + rest
    return json.dumps(document, indent=2).encode()


@pytest.fixture(scope="module")
def originals(kineto_text: bytes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    rocpd = tmp_path_factory.mktemp("rocpd") / "results.db"
    as_database(Run(), rocpd, tracks=True)
    nsys, kineto = IMPORTERS / "nsys_data", IMPORTERS / "kineto_data"
    return {
        "ddp.sqlite": lzma.decompress((nsys / "ddp_2steps.sqlite.xz").read_bytes()),
        "host.sqlite": lzma.decompress((nsys / "host_2023_4.sqlite.xz").read_bytes()),
        "host.arrows": lzma.decompress((nsys / "host_2023_4.arrows.xz").read_bytes()),
        "cnn.json": kineto_text,
        "cnn.json.gz": gzip.compress(kineto_text, 1),
        "cnn.json.zst": zstandard.compress(kineto_text, 1),
        "ddp.json.zst": (kineto / "ddp_rank2.json.zst").read_bytes(),
        "jax.xplane.pb": training(steps=6, host_ns=4_000_000),
        "rocprof.json": as_json(Run()),
        "rocprof.db": rocpd.read_bytes(),
        "loop.pftrace": timeline(),
    }


def test_the_originals_are_read(originals: dict[str, bytes], tmp_path: Path) -> None:
    for name, data in originals.items():
        folder = tmp_path / name
        folder.mkdir()
        path = folder / name
        path.write_bytes(data)
        output = outcome(path, tmp_path / "cache")
        assert output == "" or "no GPU work" in output
        assert output == "" or name.startswith("host")


def each(
    name: str, tmp_path: Path, cases: int, make: Callable[[Path, random.Random], None]
) -> list[str]:
    """Make and try a number of cases; returns what was said."""
    folder = tmp_path / "input"
    folder.mkdir()
    path = folder / name
    output = []
    for case in range(FIRST, FIRST + cases):
        seed = f"{name} {case}"
        make(path, random.Random(seed))
        try:
            output.append(outcome(path, tmp_path / "cache"))
        except BaseException as error:
            error.add_note(f"seed {seed!r}")
            raise
    return output


@pytest.mark.parametrize(
    "name",
    ["ddp.sqlite", "host.sqlite", "host.arrows", "cnn.json", "cnn.json.gz", "cnn.json.zst",
     "ddp.json.zst", "jax.xplane.pb", "rocprof.json", "rocprof.db", "loop.pftrace"],
)  # fmt: skip
def test_damaged_bytes(name: str, originals: dict[str, bytes], tmp_path: Path) -> None:
    def make(path: Path, choose: random.Random) -> None:
        path.write_bytes(in_bytes(originals[name], choose).data)

    assert any(each(name, tmp_path, CASES, make))


@pytest.mark.parametrize("name", ["ddp.sqlite", "host.sqlite", "rocprof.db"])
def test_odd_values_in_sqlite(name: str, originals: dict[str, bytes], tmp_path: Path) -> None:
    def make(path: Path, choose: random.Random) -> None:
        path.write_bytes(originals[name])
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA writable_schema=ON")
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = [row[0] for row in listed]
        tables = [n for n in names if not n.startswith(("ENUM_", "sqlite_"))]
        for table in choose.sample(tables, min(len(tables), choose.choice([1, 3, 8]))):
            distort(connection, table, choose)
        connection.commit()
        connection.close()

    assert "" in each(name, tmp_path, CASES, make) or name != "ddp.sqlite"


def distort(connection: sqlite3.Connection, table: str, choose: random.Random) -> None:
    """Change one table so that its declared types no longer hold."""
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    kind = choose.choice(["values", "values", "values", "column", "table", "repeat", "empty"])
    if kind == "table":
        connection.execute(f'DROP TABLE "{table}"')
    elif kind == "column" and len(columns) > 1:
        lost = choose.choice(columns)
        kept = [f'"{name}"' for name in columns if name != lost]
        connection.execute(f'CREATE TABLE odd AS SELECT {", ".join(kept)} FROM "{table}"')
        connection.execute(f'DROP TABLE "{table}"')
        connection.execute(f'ALTER TABLE odd RENAME TO "{table}"')
    elif kind == "empty":
        connection.execute(f'DELETE FROM "{table}"')
    else:
        # a copy has no constraints
        connection.execute(f'CREATE TABLE odd AS SELECT * FROM "{table}"')
        connection.execute(f'DROP TABLE "{table}"')
        connection.execute(f'ALTER TABLE odd RENAME TO "{table}"')
        if kind == "repeat":
            connection.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
            return
        for column in choose.sample(columns, min(len(columns), 2)):
            value, every = choose.choice(ODD_VALUES), choose.choice([1, 2, 50])
            connection.execute(
                f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % {every} = 0', (value,)
            )


def test_odd_values_in_kineto(kineto_text: bytes, tmp_path: Path) -> None:
    whole = json.loads(kineto_text)

    def make(path: Path, choose: random.Random) -> None:
        document = {**whole, "traceEvents": [*whole["traceEvents"]]}
        events = document["traceEvents"]
        for _ in range(choose.choice([1, 20, 400])):
            at = choose.randrange(len(events))
            event = events[at]
            if not isinstance(event, dict) or choose.random() < 0.02:
                events[at] = choose.choice(ODD_JSON)
                continue
            event = events[at] = {**event, "args": event.get("args", {})}
            target = event
            if isinstance(event["args"], dict) and event["args"] and choose.random() < 0.5:
                target = event["args"] = dict(event["args"])
            target[choose.choice([*target])] = choose.choice(ODD_JSON)
        for key in choose.sample([*document], choose.choice([0, 0, 2])):
            document[key] = choose.choice(ODD_JSON) if key != "traceEvents" else events
        path.write_text(json.dumps(document, indent=choose.choice([None, 1])))

    assert "" in each("odd.json", tmp_path, CASES, make)


def test_an_odd_order_of_events(kineto_text: bytes, tmp_path: Path) -> None:
    """Events shuffled, doubled and cut in number: the order in the file means nothing."""
    whole = json.loads(kineto_text)

    def make(path: Path, choose: random.Random) -> None:
        events = choose.sample(whole["traceEvents"], choose.choice([3, 50, 800]))
        path.write_text(json.dumps({**whole, "traceEvents": events + events[:10]}))

    assert len(each("order.json", tmp_path, 6 * ROUNDS, make)) == 6 * ROUNDS

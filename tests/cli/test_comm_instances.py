"""``stepscope comm`` by instance and by split, on a job written by hand, with known truth."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope

from stepscope.collectives.instances import parts_of

RANKS, STEPS, WIDTH = 4, 6, 256
"""Ranks, steps, and elements of float a row (a token) has."""
SHARE = (700, 100, 100, 100)
"""Of each rank's 1,000 tokens, those for the experts of each rank: 70 % go to rank 0."""
SLEEP_US = 400
"""How much later rank 2 begins."""


def _events(rank: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for step in range(STEPS):
        at = step * 10_000.0
        late = SLEEP_US if rank == 2 else 0
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1,
             "tid": 1, "ts": at, "dur": 9_990.0, "args": {"External id": step}}
        )  # fmt: skip
        received = [SHARE[rank]] * RANKS
        output = {
            "Collective name": "all_to_allv", "dtype": "Float",
            "In msg nelems": sum(SHARE) * WIDTH, "Out msg nelems": sum(received) * WIDTH,
            "In split size": str(list(SHARE)), "Out split size": str(received),
            "Group size": RANKS, "Process Group Name": "0",
            "Process Group Ranks": str(list(range(RANKS))),
        }  # fmt: skip
        for number, (name, begin, end, more) in enumerate(
            (
                ("gemm", at + 100, at + 3000, {}),
                ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                 at + 3100 + late, at + 5000, output),
                ("gemm", at + 5100, at + 9000, {}),
            )
        ):  # fmt: skip
            correlation = step * 10 + number + 1
            events += [
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                 "ts": at + 10 + number * 10, "dur": 5.0, "args": {"correlation": correlation}},
                {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": begin,
                 "dur": end - begin,
                 "args": {"device": 0, "stream": 7, "correlation": correlation, **more}},
            ]  # fmt: skip
    return events


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("moe")
    paths = []
    for rank in range(RANKS):
        document = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": _events(rank),
        }
        paths.append(folder / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(document))
    return paths


def _rows(reader: Stepscope, job: list[Path], by: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(reader("comm", *job, "--by", by, "-f", "csv").stdout)))


def test_splits_show_the_rank_that_gets_more(job: list[Path], reader: Stepscope) -> None:
    rows = _rows(reader, job, "split")
    assert len(rows) == RANKS * RANKS
    operations = {int(row["operations"]) for row in rows}
    assert len(operations) == 1
    (count,) = operations
    assert 0 < count <= STEPS
    received = dict.fromkeys(range(RANKS), 0)
    for row in rows:
        assert row["stated_by"] == "sender"
        received[int(row["to_rank"])] += int(row["bytes"])
    assert received == {rank: SHARE[rank] * RANKS * WIDTH * 4 * count for rank in range(RANKS)}
    text = reader("comm", *job, "--by", "split").stdout
    assert "received" in text
    assert "2.9" in text  # MB that rank 0 gets an all-to-all; the others 0.4
    document = reader.json("comm", *job, "--by", "split")
    assert document["schema"] == "stepscope.comm-splits/1"


def test_a_rank_that_is_not_there_is_known_by_its_receivers(
    job: list[Path], reader: Stepscope
) -> None:
    rows = _rows(reader, job[1:], "split")
    by_sender = {row["from_rank"]: row["stated_by"] for row in rows}
    assert by_sender == {"0": "receiver", "1": "sender", "2": "sender", "3": "sender"}
    sent = [int(r["bytes"]) for r in rows if r["from_rank"] == "0" and r["to_rank"] == "3"]
    (count,) = {int(row["operations"]) for row in rows}
    assert sent == [SHARE[3] * WIDTH * 4 * count]


def test_each_collective_on_each_rank(job: list[Path], reader: Stepscope) -> None:
    rows = _rows(reader, job, "instance")
    assert len(rows) == RANKS * STEPS
    for row in rows:
        late = SLEEP_US * 1000 if row["rank"] == "2" else 0
        assert row["kind"] == "all_to_all"
        assert int(row["lateness_ns"]) == late
        assert int(row["skew_ns"]) == SLEEP_US * 1000
        assert int(row["waiting_ns"]) == SLEEP_US * 1000 - late
        assert int(row["transfer_ns"]) == (1900 - SLEEP_US) * 1000
        assert int(row["duration_ns"]) == 1_900_000 - late
        assert row["last_rank"] == "2"
        assert int(row["in_bytes"]) == sum(SHARE) * WIDTH * 4
        assert int(row["out_bytes"]) == SHARE[int(row["rank"])] * RANKS * WIDTH * 4
        speed = int(row["message_bytes"]) / int(row["transfer_ns"]) * 1e9
        assert int(row["algorithm_bandwidth"]) == pytest.approx(speed, abs=1)
        assert int(row["bus_bandwidth"]) == pytest.approx(speed * 3 / 4, abs=1)
    assert "4 more waited less" in reader("comm", *job, "--by", "instance").stdout
    assert reader.json("comm", *job, "--by", "instance")["schema"] == "stepscope.comm-instances/1"
    assert (
        "Collectives by rank" in reader("comm", *job, "--by", "instance", "-f", "markdown").stdout
    )


def test_parts_of_a_message() -> None:
    assert parts_of("[]", 400, 4) == [100] * 4
    assert parts_of("[3, 1, 0, 0]", 400, 4) == [300, 100, 0, 0]
    assert parts_of("[1, 2, ..., 4]", 400, 4) == []  # shortened
    assert parts_of("[1, 2]", 400, 4) == []
    assert parts_of("", 400, 4) == []
    assert parts_of("[0, 0]", 0, 2) == [0, 0]
    assert parts_of("[1, -1]", 10, 2) == []

"""``export --counters`` and ``--critical-path``: against the raw events and the critical path."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope
from tests.support.captures import DATA, unpack

KINETO = DATA / "kineto" / "cnn_disk.json.gz"
RANKS = DATA.parent / "ranks"
Events = list[dict[str, Any]]


def exported(reader: Stepscope, captures: list[Path], folder: Path, *options: str) -> Events:
    target = folder / "timeline.json"
    reader("export", *captures, "-t", "chrome", "-o", target, "--force", *options)
    found: Events = json.loads(target.read_text())["traceEvents"]
    return found


def tracks(events: Events, title: str) -> list[Events]:
    places = [
        (e["pid"], e["tid"])
        for e in events
        if e["ph"] == "M" and e["name"] == "thread_name" and e["args"]["name"] == title
    ]
    return [[e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == p] for p in places]


def test_counters_as_the_raw_events_say(reader: Stepscope, tmp_path: Path) -> None:
    raw = json.loads(gzip.decompress(KINETO.read_bytes()))["traceEvents"]
    work = {
        e["args"]["correlation"]: e
        for e in raw
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    }
    calls = [
        e
        for e in raw
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and e["args"]["correlation"] in work
    ]
    changes = [(e["ts"], 1) for e in calls] + [(e["ts"], -1) for e in work.values()]
    length, naive = 0, []
    for _, change in sorted(changes, key=lambda item: item[0]):
        length += change
        naive.append(length)
    events = exported(reader, [KINETO], tmp_path, "--counters")
    series: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            (value,) = event["args"].values()
            series[event["name"]].append(value)
    assert series["Queue length, stream 7"] == naive
    (copy,) = [e for e in work.values() if e["name"].startswith("Memcpy DtoD")][:1]
    assert series["Copy DtoD bandwidth"][0] == pytest.approx(
        copy["args"]["memory bandwidth (GB/s)"], rel=1e-6
    )
    assert set(series["Copy DtoD bandwidth"][1::2]) == {0.0}
    # without the option there are none, and everything else is the same
    plain = exported(reader, [KINETO], tmp_path)
    assert not [e for e in plain if e["ph"] == "C"]
    assert Counter(e.get("name") for e in plain if e["ph"] == "X") == Counter(
        e.get("name") for e in events if e["ph"] == "X"
    )


@pytest.mark.parametrize("job", ["one", "several"])
def test_the_critical_path_covers_the_steps(reader: Stepscope, tmp_path: Path, job: str) -> None:
    captures = [KINETO]
    if job == "several":
        captures = [unpack(RANKS / f"ddp_imbalance.rank{rank}.sqlite.xz") for rank in range(2)]
    events = exported(reader, captures, tmp_path, "--critical-path")
    found = tracks(events, "Critical path")
    assert found
    path = sorted((e for track in found for e in track), key=lambda e: e["ts"])
    begin = path[0]["ts"]
    for before, after in itertools.pairwise(path):  # neither gap nor overlap
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.002)
    result = reader.json("critical-path", *captures)
    measured = sum(step["measured_ns"] for step in result["steps"])
    assert path[-1]["ts"] + path[-1]["dur"] - begin == pytest.approx(measured / 1000, abs=0.01)
    # kernels on it are drawn where they ran
    ran = {
        (e["name"], e["ts"] + e["dur"])
        for e in events
        if e["ph"] == "X" and e["name"] not in {p["kind"] for p in result["parts"]}
    }
    kernels = [e for e in path if (e["name"], e["ts"] + e["dur"]) in ran]
    assert len(kernels) >= sum("(" in e["name"] for e in path)

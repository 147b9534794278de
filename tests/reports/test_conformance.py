"""Every cell of every report and rule equals what the real tool prints.

The answers of nsys 2023.4 are bundled for a made-up export with every kind of event and for the
bundled real capture, and lie in the shared captures for all others.
"""

from __future__ import annotations

import csv
import io
import lzma
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.nsys_libraries import INTERVALS
from tests.support.separated import as_csv

from stepscope.cache.store import Cache
from stepscope.importers.registry import load
from stepscope.render.report_format import parse_format
from stepscope.reports.arrays import round_half_away
from stepscope.reports.registry import DEFAULT_RULES, reports, rules
from stepscope.reports.report import answer, parse
from stepscope.reports.source import Source

DATA = Path(__file__).parents[1] / "data" / "oracle"
BUNDLED = Path(__file__).parents[2] / "src/stepscope/data/h200_input_starvation.sqlite.xz"
SHARED = ("healthy_osrt", "sync_item", "pageable_h2d", "ddp_straggler.rank2")
"""With them every report and rule that has rows on one of the shared captures has some; they hold
calls of the OS runtime, waits, copies of pageable memory, and communication."""
ALWAYS_ASKED = {
    *("cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "nvtx_sum", "osrt_sum"),
    *("um_sum", "openacc_sum", "openmp_sum", "mpi_event_trace"),
    *(f"rule.{name}" for name in DEFAULT_RULES),
}
Table = list[list[str]]


def answers(packed: Path) -> Iterator[tuple[str, Table]]:
    """(report with arguments, what the real tool printed)."""
    with lzma.open(packed) as stream, tarfile.open(fileobj=stream) as tar:
        for entry in tar:
            if entry.isfile():
                content = tar.extractfile(entry)
                assert content is not None
                name = Path(entry.name).name.removesuffix(".csv").replace("+", ":")
                yield name, parsed(content.read().decode())


def parsed(text: str) -> Table:
    return [row for row in csv.reader(io.StringIO(text)) if row]


def ours(source: Source, name: str) -> Table:
    rule = name.startswith("rule.")
    known = rules() if rule else reports()
    outcome = answer(parse(name.removeprefix("rule."), known), source)
    return [] if outcome.table is None else parsed(as_csv(outcome.table))


def compare(database: Path, packed: Path) -> dict[str, int]:
    """Cells that were compared, by report; fails at the first that differs."""
    source = Source(load(database, Cache()))
    counted: dict[str, int] = {}
    for name, wanted in answers(packed):
        got = ours(source, name)
        assert len(got) == len(wanted), name
        for number, (row, expected) in enumerate(zip(got, wanted, strict=True)):
            assert row == expected, (name, number)
        counted[name] = sum(map(len, wanted))
    # an absent file is an empty answer: at most the header may stand in ours
    for name in ALWAYS_ASKED - counted.keys():
        assert len(ours(source, name)) <= 1, name
    assert sum(counted.values()) > 1000
    return counted


def test_every_kind_of_event(tmp_path: Path) -> None:
    database = tmp_path / "made_up.sqlite"
    database.write_bytes(lzma.decompress((DATA / "made_up.sqlite.xz").read_bytes()))
    packed = dict(answers(DATA / "made_up.tar.xz"))
    source = Source(load(database, Cache()))
    cells = 0
    for name, wanted in packed.items():
        got = ours(source, name)
        for number, (row, expected) in enumerate(zip(got, wanted, strict=True)):
            assert row == expected, (name, number)
        cells += sum(map(len, wanted))
    assert {"um_sum", "mpi_event_trace", "openacc_sum", "openmp_sum", "osrt_sum"} <= packed.keys()
    assert {"nvtx_startend_sum", "rule.gpu_gaps:gap=0"} <= packed.keys()
    assert cells > 90_000
    print(f"{cells:,} cells of {len(packed)} reports")


def test_reports_that_the_tool_lacks(tmp_path: Path) -> None:
    """Their rows, given to the tool as calls of the OS runtime, have the figures it prints."""
    database = tmp_path / "libraries.sqlite"
    database.write_bytes(lzma.decompress((DATA / "libraries.sqlite.xz").read_bytes()))
    source = Source(load(database, Cache()))
    asked = set()
    for name, (_, *wanted) in answers(DATA / "libraries.tar.xz"):
        outcome = answer(parse(name, reports()), source)
        assert outcome.table is not None
        got: dict[str, list[str]] = {}
        for row in parsed(as_csv(outcome.table, parse_format("csv:mem=B")))[1:]:
            figures = row[:7] if name == "mpi_msg_size_sum" else row[:8]
            got["|".join(row[len(figures) :])] = figures
        assert list(got.values()) == sorted(got.values(), key=lambda row: -int(row[-7])) or (
            name == "nccl_sum"  # it has calls before kernels
        )
        assert len(got) == len(wanted) > 1
        for *figures, label in wanted:
            if name == "mpi_msg_size_sum":
                # without share; sizes are rounded only once their unit is known
                assert rounded(got[label]) == rounded(figures[1:]), label
            else:
                assert got[label] == figures, (name, label)
        asked.add(name)
    assert asked == set(INTERVALS)


def rounded(row: list[str]) -> list[float]:
    found: list[float] = round_half_away(np.array([float(cell) for cell in row])).tolist()
    return found


def test_the_bundled_capture(tmp_path: Path) -> None:
    database = tmp_path / "input_starvation.sqlite"
    database.write_bytes(lzma.decompress(BUNDLED.read_bytes()))
    counted = compare(database, DATA / "input_starvation.tar.xz")
    assert {"cuda_gpu_kern_sum", "nvtx_gpu_proj_sum", "cuda_kern_exec_sum"} <= counted.keys()


@pytest.mark.parametrize("name", SHARED)
def test_the_shared_captures(name: str, unpacked: Callable[[str], Path], shared_data: Path) -> None:
    counted = compare(unpacked(name), shared_data / "nsys-oracle" / f"{name}.tar.xz")
    assert len(counted) >= 22
    assert sum(counted.values()) > 300_000
    print(f"{name}: {sum(counted.values()):,} cells of {len(counted)} reports")

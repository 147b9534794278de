"""Limiters of the ten kernels whose limiter is known, and of variants of their reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.ncu import LIMITERS, Row, bundled, changed, printed, written

from stepscope.ncu.decide import Facts, limiter_of
from stepscope.ncu.explain import explanation, kernel_table
from stepscope.ncu.limiters import LIMITERS as KNOWN
from stepscope.ncu.metrics import METRICS
from stepscope.ncu.model import Launch
from stepscope.ncu.reading import read_report
from stepscope.ncu.stalls import STALLS, stall_cycles

PCT = ".avg.pct_of_peak_sustained_elapsed"
ACTIVE = ".avg.pct_of_peak_sustained_active"
WAIT = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def found(path: Path) -> list[str]:
    return [row.limiter for row in kernel_table(read_report(path)).kernels]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("ncu") / "k.csv", *bundled())


def test_the_ten_kernels_get_the_limiter_they_were_written_for(report: Path) -> None:
    rows = kernel_table(read_report(report)).kernels
    assert {row.function: row.limiter for row in rows} == LIMITERS


def test_so_they_do_as_ncu_itself_printed_them(tmp_path: Path) -> None:
    assert found(printed("raw", tmp_path)) == list(LIMITERS.values())


def test_the_details_page_knows_less_and_says_so(tmp_path: Path) -> None:
    table = kernel_table(read_report(printed("details", tmp_path)))
    by_name = {row.function: row.limiter for row in table.kernels}
    assert by_name["k_coalesced_copy"] == "dram_bound"
    assert by_name["k_divergent"] == "divergence"
    assert by_name["k_pointer_chase"] == "latency"
    assert any("what warps wait for" in line and "--page raw" in line for line in table.missing)


def test_names_do_not_matter(tmp_path: Path) -> None:
    def rename(row: Row) -> None:
        row["Kernel Name"] = "kernel(int)"

    assert found(changed(tmp_path / "k.csv", rename)) == list(LIMITERS.values())


def test_older_names_and_scaled_units_say_the_same(tmp_path: Path) -> None:
    """What Nsight Compute 2022 wrote: other names, other spellings of units, scaled to fit."""
    older = {
        f"gpu__dram_throughput{PCT}": f"dram__throughput{PCT}",
        "launch__sm_count": "device__attribute_multiprocessor_count",
        "gpc__cycles_elapsed.avg.per_second": "smsp__cycles_elapsed.avg.per_second",
        f"sm__pipe_fma_cycles_active{PCT}": f"sm__inst_executed_pipe_fma{ACTIVE}",
        WAIT.format("no_instruction"): WAIT.format("no_instructions"),
        "smsp__sass_inst_executed_op_global_ld.sum": "smsp__inst_executed_op_global_ld.sum",
    }
    scaled = {
        "gpu__time_duration.sum": ("usecond", 1e-3),
        "dram__bytes.sum.per_second": ("Gbyte/second", 1e-9),
        "dram__cycles_elapsed.avg.per_second": ("cycle/nsecond", 1e-9),
        "dram__bytes_read.sum": ("Mbyte", 1e-6),
    }
    units, rows = bundled()

    def renamed(row: Row) -> Row:
        return {older.get(name, name): cell for name, cell in row.items() if name not in
                older.values()}  # fmt: skip

    old_units = renamed(units)
    old_rows = [renamed(row) for row in rows]
    for name, (unit, factor) in scaled.items():
        old_units[name] = unit
        for row in old_rows:
            row[name] = repr(float(row[name]) * factor)
    report = read_report(written(tmp_path / "old.csv", old_units, old_rows))
    assert [limiter_of(launch).limiter.id for launch in report.launches] == list(LIMITERS.values())
    newest = read_report(written(tmp_path / "new.csv", units, rows))
    for old, new in zip(report.launches, newest.launches, strict=True):
        for key in ("duration", "dram_bandwidth", "dram_frequency", "dram_read_bytes"):
            assert old.get(key) == pytest.approx(new.get(key), rel=1e-9)


def test_a_basic_report_says_what_it_lacks(tmp_path: Path) -> None:
    """``--set basic``: speed of light, launch, occupancy; no stalls, no memory tables."""
    basic = ("SpeedOfLight", "LaunchStats", "Occupancy")
    kept = {n for m in METRICS.values() if m.section in basic for n in m.names}
    units, rows = bundled()
    known = {n for m in METRICS.values() for n in m.names}
    dropped = [n for n in units if ("__" in n or n in known) and n not in kept]
    for row in (units, *rows):
        for name in dropped:
            row.pop(name, None)
    report = read_report(written(tmp_path / "basic.csv", units, rows))
    table = kernel_table(report)
    by_name = {row.function: row.limiter for row in table.kernels}
    assert by_name["k_coalesced_copy"] == "dram_bound"
    assert by_name["k_compute_bound"] == "compute_bound"
    assert by_name["k_bank_conflict"] == "l1_bound"
    assert by_name["k_tiny_grid"] == "small_grid"
    assert by_name["k_low_occupancy"] == "low_occupancy"
    assert by_name["k_pointer_chase"] == "latency"
    assert any("ncu --section WarpStateStats" in line for line in table.missing)
    assert not any("SpeedOfLight," in line for line in table.missing)
    output = explanation(report, report.launches[3])
    assert output.stalls == []
    assert any("--set full" in line for line in output.missing)


def test_a_report_without_throughputs_is_not_guessed(tmp_path: Path) -> None:
    units, rows = bundled()
    kept = {"gpu__time_duration.sum"}
    for row in (units, *rows):
        for name in [n for n in row if ("__" in n or n.startswith("memory_")) and n not in kept]:
            del row[name]
    assert set(found(written(tmp_path / "k.csv", units, rows))) == {"unknown"}


def launch(**values: float) -> Launch:
    """A launch with metrics by Stepscope's key, or by stall reason with ``stall_``."""
    named = {}
    for key, value in values.items():
        stall = key.removeprefix("stall_")
        name = WAIT.format(STALLS[stall].names[0]) if stall != key else METRICS[key].names[0]
        named[name] = value
    return Launch(0, "kernel", "kernel", values=named)


BUSY = {"grid_size": 10_000.0, "sm_count": 100.0, "theoretical_occupancy": 100.0,
        "achieved_occupancy": 90.0, "duration": 1e6}  # fmt: skip


@pytest.mark.parametrize(
    ("limiter", "values"),
    [
        ("tensor_bound", {"sm_throughput": 80, "memory_throughput": 40, "pipe_tensor": 75,
                          "stall_barrier": 5, "stall_wait": 1}),
        ("compute_bound", {"sm_throughput": 80, "memory_throughput": 40, "pipe_fma": 75,
                           "stall_barrier": 5, "stall_wait": 1}),
        ("l2_bound", {"sm_throughput": 20, "memory_throughput": 70, "l2_throughput": 70,
                      "dram_throughput": 20}),
        ("uncoalesced", {"sm_throughput": 20, "memory_throughput": 70, "dram_throughput": 70,
                         "l2_theoretical_sectors": 100, "l2_ideal_sectors": 20}),
        ("dram_bound", {"sm_throughput": 20, "memory_throughput": 70, "dram_throughput": 70,
                        "l2_theoretical_sectors": 100, "l2_ideal_sectors": 90}),
        ("spills", {"sm_throughput": 20, "memory_throughput": 70, "l1_throughput": 70,
                    "local_ld_requests": 60, "local_st_requests": 30, "global_ld_requests": 10}),
        ("barriers", {"sm_throughput": 20, "memory_throughput": 10, "stall_barrier": 9,
                      "stall_wait": 1}),
        ("low_occupancy", {"sm_throughput": 20, "memory_throughput": 10, "stall_wait": 9,
                           "theoretical_occupancy": 25, "achieved_occupancy": 24}),
        # more warps would wait at the same barrier; and a limit that is not reached is none
        ("barriers", {"sm_throughput": 20, "memory_throughput": 10, "stall_barrier": 9,
                      "theoretical_occupancy": 25, "achieved_occupancy": 24}),
        ("dependencies", {"sm_throughput": 20, "memory_throughput": 10, "stall_wait": 9,
                          "theoretical_occupancy": 25, "achieved_occupancy": 10}),
        ("instruction_fetch", {"sm_throughput": 20, "memory_throughput": 10,
                               "stall_no_instruction": 9, "stall_wait": 1}),
        ("dependencies", {"sm_throughput": 20, "memory_throughput": 10, "stall_wait": 9}),
        ("short_kernel", {"sm_throughput": 20, "memory_throughput": 10, "duration": 2_000,
                          "stall_wait": 9}),
        ("tail_effect", {"sm_throughput": 30, "memory_throughput": 10, "waves": 1.1}),
        ("small_grid", {"sm_throughput": 30, "memory_throughput": 10, "grid_size": 49}),
        ("latency", {"sm_throughput": 30, "memory_throughput": 10}),
    ],
)  # fmt: skip
def test_limiters_by_hand(limiter: str, values: dict[str, float]) -> None:
    assert limiter_of(launch(**{**BUSY, **values})).limiter.id == limiter


def test_a_congested_memory_is_told_from_its_latency() -> None:
    """The same stalls: loads of 900 cycles wait, loads of 9,000 queue."""
    values = {**BUSY, "sm_throughput": 10, "memory_throughput": 30, "stall_long_scoreboard": 90,
              "instructions": 1000, "l2_theoretical_sectors": 100,
              "l2_ideal_sectors": 20}  # fmt: skip
    assert limiter_of(launch(**values, global_loads=100)).limiter.id == "memory_latency"
    assert limiter_of(launch(**values, global_loads=10)).limiter.id == "uncoalesced"
    even = {**values, "l2_ideal_sectors": 100.0}
    assert limiter_of(launch(**even, global_loads=10)).limiter.id == "congested_memory"


def test_every_limiter_is_complete() -> None:
    for key, entry in KNOWN.items():
        assert entry.id == key
        assert entry.meaning.endswith(".")
        assert entry.advice


def test_stalls_from_samples_alone() -> None:
    sampled = Launch(0, "k", "k", values={
        "smsp__pcsamp_warps_issue_stalled_selected": 10.0,
        "smsp__pcsamp_warps_issue_stalled_barrier": 50.0,
    })  # fmt: skip
    assert stall_cycles(sampled) == {"barrier": 5.0, "selected": 1.0}
    assert Facts(sampled).top_wait == "barrier"

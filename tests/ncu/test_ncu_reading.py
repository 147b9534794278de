"""Reading reports: both CSV pages, damage, hostile content, size, and the real report."""

from __future__ import annotations

import csv
import importlib.util
import lzma
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ncu import LIMITERS, bundled, printed, written

from stepscope.ncu.decide import limiter_of
from stepscope.ncu.explain import explanation, kernel_table
from stepscope.ncu.metrics import METRICS
from stepscope.ncu.reading import is_report, read_report
from stepscope.ncu.units import factor, shown
from stepscope.trace.errors import InputError

HEAD = ('"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
        '"Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit",'
        '"Metric Value","Rule Name","Rule Type","Rule Description","Estimated Speedup Type",'
        '"Estimated Speedup"\n')  # fmt: skip


def details(*rows: tuple[str, ...], id_: int = 0, process: int = 9) -> str:
    first = f'"{id_}","{process}","app","host","void copy<float>(float *)","1","7","(256, 1, 1)",'
    first += '"(1024, 2, 1)","0","9.0",'
    return "".join(first + ",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (781408.0, "ns", "781.41 us"),
        (1546893.0, "cycle", "1,546,893 cycle"),
        (2724142348171.5, "byte/s", "2.72 Tbyte/s"),
        (3199000000.0, "hz", "3.20 Ghz"),
        (32768.0, "byte", "32.77 Kbyte"),
        (1024.0, "byte/block", "1.02 Kbyte/block"),
        (100.0, "%", "100 %"),
        (56.615, "%", "56.62 %"),
        (0.00012, "%", "0.00 %"),
        (0.0, "ns", "0 ns"),
    ],
)
def test_figures_are_written_as_ncu_writes_them(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("ns", 1.0), ("nsecond", 1.0), ("usecond", 1e3), ("us", 1e3), ("msecond", 1e6), ("s", 1e9),
     ("Gbyte/second", 1e9), ("Tbyte/s", 1e12), ("Kbyte", 1e3), ("Ghz", 1e9),
     ("cycle/nsecond", 1e9), ("%", 1.0), ("", 1.0), ("register/thread", 1.0),
     ("byte/block", 1.0), ("Kbyte/block", 1e3), ("inst/cycle", 1.0)],
)  # fmt: skip
def test_units_of_all_versions(unit: str, expected: float) -> None:
    assert factor(unit) == pytest.approx(expected, rel=1e-12)


def test_the_details_page(tmp_path: Path) -> None:
    light = "GPU Speed Of Light Throughput"
    path = tmp_path / "details.csv"
    path.write_text(
        "==PROF== Connected to process 9\n" + HEAD + details(
            (light, "Duration", "us", "1,234.56", "", "", "", "", ""),
            (light, "Memory Throughput", "%", "81.17", "", "", "", "", ""),
            (light, "Compute (SM) Throughput", "%", "10.50", "", "", "", "", ""),
            (light, "DRAM Throughput", "%", "81.17", "", "", "", "", ""),
            (light, "", "", "", "SOLBottleneck", "OPT", "Look, here.", "global", "12.5"),
            ("Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "652.1", "", "", "", "",
             ""),
            ("Launch Statistics", "Grid Size", "", "2,048", "", "", "", "", ""),
        ) + details((light, "Duration", "ns", "500", "", "", "", "", ""), id_=1)
    )  # fmt: skip
    report = read_report(path)
    assert report.form == "csv details"
    first, second = report.launches
    assert first.get("duration") == pytest.approx(1_234_560)
    assert first.get("memory_throughput") == 81.17
    assert first.get("dram_bandwidth") == pytest.approx(652.1e9)
    assert first.blocks == 2048
    assert (first.grid, first.block) == ((1024, 2, 1), (256, 1, 1))
    assert (first.function, first.capability) == ("copy", "9.0")
    assert limiter_of(first).limiter.id == "dram_bound"
    assert [(r.identifier, r.kind, r.speedup, r.local) for r in first.rules] == [
        ("SOLBottleneck", "optimization", 0.125, False)
    ]
    assert second.get("duration") == 500
    assert limiter_of(second).limiter.id == "unknown"


def test_figures_of_an_explanation_are_those_of_the_report(tmp_path: Path) -> None:
    units, rows = bundled()
    report = read_report(written(tmp_path / "k.csv", units, rows))
    for launch, row in zip(report.launches, rows, strict=True):
        sections = explanation(report, launch).sections
        named = [figure for s in sections for figure in s.figures if figure.metric]
        assert len(named) > 60
        for figure in named:
            assert figure.value == pytest.approx(
                float(row[figure.metric]) * factor(units[figure.metric]), rel=1e-12
            )


def test_figures_equal_what_ncu_prints(tmp_path: Path) -> None:
    """Every figure that both show, against the details page of the real ncu, digit by digit."""
    report = read_report(written(tmp_path / "k.csv", *bundled()))
    mine = {
        (str(launch.number), section.title, figure.label): figure.text
        for launch in report.launches
        for section in explanation(report, launch).sections
        for figure in section.figures
    }
    with printed("details", tmp_path).open() as file:
        theirs = {
            (row["ID"], row["Section Name"], row["Metric Name"]): row["Metric Value"]
            for row in csv.DictReader(file)
        }
    shared = mine.keys() & theirs.keys()
    assert len(shared) > 500
    wrong = {
        key: (mine[key], theirs[key])
        for key in shared
        if float(mine[key].split()[0].replace(",", "")) != float(theirs[key])
    }
    assert wrong == {}


def test_thousands_of_kernels_take_seconds(tmp_path: Path) -> None:
    units, rows = bundled()
    path = written(tmp_path / "many.csv", units, rows * 300)
    begin = time.perf_counter()
    table = kernel_table(read_report(path))
    assert time.perf_counter() - begin < 30
    assert len(table.kernels) == 3000
    assert [row.id for row in table.kernels[-3:]] == [2997, 2998, 2999]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no Nsight Compute report"),
        (b"hello", "no Nsight Compute report"),
        (b'"ID","Kernel Name","Grid Size"\n', "no kernel below it"),
        (b'"ID","Kernel Name","Grid Size"\n"0","k"\n', "instead of 3"),
        (b"NVR\0", "its header is cut"),
        (b"NVR\0\x02\0\0\0\x08\x07", "nothing but a header"),
        (b"NVR\0\x02\0\0\0\x08\x07\x76\0\0\0\x08", "header of block 1"),
        (b"NVR\0\x02\0\0\0\x08\x07\x02\0\0\0\x28\x40abc", "61 bytes of block 1 are missing"),
    ],
)
def test_damage_is_one_clear_sentence(
    tmp_path: Path, content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", object())
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(content)
    assert is_report(path)
    with pytest.raises(InputError, match=message) as caught:
        read_report(path)
    assert "\n" not in str(caught.value)


def test_without_the_package_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0\x02\0\0\0\x08\x07")
    with pytest.raises(InputError, match="ncu-report package") as caught:
        read_report(path)
    assert "--page raw" in str(caught.value)


@given(st.binary(max_size=200), st.integers(0, 4000))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, noise: bytes,
                                       at: int) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("fuzz") / "x.csv"
    units, rows = bundled()
    whole = written(path, units, rows[:2]).read_bytes()
    path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
    output = ""
    try:
        kernel_table(read_report(path))
    except InputError as error:
        output = str(error)
    assert "\n" not in output


# --- the real report, where it and NVIDIA's package are ------------------------------------------


@pytest.fixture(scope="module")
def real(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("ncu_report") is None:
        pytest.skip("needs the ncu-report package: pip install ncu-report")
    packed = shared_data / "ncu" / "kernels.ncu-rep.xz"
    path = tmp_path_factory.mktemp("real") / "kernels.ncu-rep"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return path


def test_the_real_report(real: Path) -> None:
    report = read_report(real, lambda number, name: number == 1)
    rows = kernel_table(report).kernels
    assert {row.function: row.limiter for row in rows} == LIMITERS
    strided = explanation(report, report.launches[1])
    assert strided.source[0].where.endswith(":4")
    assert "k_strided_copy" in strided.source[0].text
    assert strided.source[0].share == pytest.approx(1.0)
    assert strided.sass[0].text.startswith("STG")
    assert sum(line.excess_sectors for line in strided.sass) == 469_762_048
    assert {"UncoalescedGlobalAccess", "CPIStall"} <= {rule.rule for rule in strided.rules}
    assert max(strided.opcodes, key=lambda name: strided.opcodes[name]) == "IMAD"
    assert strided.device == "NVIDIA H200"
    assert not strided.missing


def test_labels_and_units_are_those_of_the_report(real: Path) -> None:
    """The details page prints the header metrics of each section with these labels."""
    import ncu_report

    context = ncu_report.load_report(str(real))
    range_ = context.range_by_idx(0)
    action = range_.action_by_idx(0)
    sections = {section.identifier(): section for section in action.sections()}
    for metric in METRICS.values():
        if not metric.label:
            continue
        held = action.metric_by_name(metric.names[0])
        assert held.label() == metric.label, metric.key
        assert factor(held.unit()) == 1.0
        assert metric.section in sections


def test_a_cut_real_report_is_refused(real: Path, tmp_path: Path) -> None:
    whole = real.read_bytes()
    for size in (10, 5000, len(whole) // 2, len(whole) - 10):
        path = tmp_path / f"{size}.ncu-rep"
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="ends too early"):
            read_report(path)

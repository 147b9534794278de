"""The bundled Nsight Compute figures, and variants of them."""

from __future__ import annotations

import csv
import io
import lzma
from collections.abc import Callable
from pathlib import Path

PACKED = Path(__file__).parents[1] / "data" / "ncu" / "kernels.csv.xz"
PRINTED = {page: PACKED.with_name(f"ncu-2024.1.1-{page}.csv.xz") for page in ("raw", "details")}
"""The same report as Nsight Compute 2024.1.1 printed it: ``ncu --import ... --csv --page PAGE``."""

LIMITERS = {
    "k_coalesced_copy": "dram_bound",
    "k_strided_copy": "uncoalesced",
    "k_compute_bound": "compute_bound",
    "k_pointer_chase": "memory_latency",
    "k_bank_conflict": "bank_conflicts",
    "k_divergent": "divergence",
    "k_barrier_heavy": "barriers",
    "k_low_occupancy": "low_occupancy",
    "k_atomic_hot": "atomics",
    "k_tiny_grid": "small_grid",
}
"""Function -> the limiter that it was written for."""

Row = dict[str, str]


def bundled() -> tuple[Row, list[Row]]:
    """(units, one row a launch) of the bundled report."""
    text = lzma.decompress(PACKED.read_bytes()).decode()
    units, *rows = csv.DictReader(io.StringIO(text))
    return units, rows


def printed(page: str, folder: Path) -> Path:
    """What ncu printed, unpacked."""
    path = folder / f"{page}.csv"
    path.write_bytes(lzma.decompress(PRINTED[page].read_bytes()))
    return path


def written(path: Path, units: Row, rows: list[Row], before: str = "") -> Path:
    """A CSV of the raw page; ``before`` stands above it, as ncu's own messages do."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(units), quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writeheader()
    writer.writerow(units)
    writer.writerows(rows)
    path.write_text(before + out.getvalue(), encoding="utf-8")
    return path


def changed(path: Path, change: Callable[[Row], None], units: Row | None = None) -> Path:
    """The bundled report with every row changed."""
    own, rows = bundled()
    for row in rows:
        change(row)
    return written(path, units or own, rows)

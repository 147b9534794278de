"""Measured ceilings: what ``stepscope ceilings`` wrote, and how it compares with data sheets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.trace.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.kernels.ceilings import Ceilings


def read_ceilings(path: str | Path) -> Ceilings:
    """Read what ``stepscope ceilings`` wrote.

    Raises:
        InputError: it is no such file.
    """
    from stepscope.kernels.ceilings import SCHEMA, Ceilings
    from stepscope.trace.text import JsonError, from_json

    advice = "stepscope ceilings -o FILE writes one on the GPU"
    try:
        found: Ceilings = from_json(Path(path).read_bytes(), Ceilings)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {advice}") from error
    except JsonError as error:
        raise InputError(f"{path} holds no ceilings: {error}; {advice}") from error
    rates = [v for n in Ceilings.__struct_fields__ if n.endswith("_per_s")
             if (v := getattr(found, n)) is not None]  # fmt: skip
    if found.schema != SCHEMA or not all(0 < rate < float("inf") for rate in rates):
        raise InputError(f"{path} holds no ceilings of {SCHEMA}; {advice}")
    return found


def ceilings_beside_data_sheet(document: bytes) -> pa.Table:
    """What was measured, beside the device's data sheet: one row a figure.

    Args:
        document: what was measured, as JSON.

    Returns:
        Columns ceiling, unit, measured, data_sheet (null where unknown), share.
    """
    import msgspec
    import pyarrow as pa

    from stepscope.kernels.ceilings import CEILINGS, Ceilings, peaks_of

    found = msgspec.json.decode(document, type=Ceilings)
    sheet = peaks_of(found.device)
    rows = []
    for name, (title, of_sheet) in CEILINGS.items():
        measured = getattr(found, name)
        if measured is None:
            continue
        stated = (getattr(sheet, of_sheet) or None) if sheet and of_sheet else None
        rows.append(
            {
                "ceiling": title,
                "unit": "byte/s" if name.endswith("bytes_per_s") else "FLOP/s",
                "measured": measured,
                "data_sheet": stated,
                "share": measured / stated if stated else None,
            }
        )
    kinds = {"ceiling": pa.string(), "unit": pa.string(), "measured": pa.float64(),
             "data_sheet": pa.float64(), "share": pa.float64()}  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(list(kinds.items())))

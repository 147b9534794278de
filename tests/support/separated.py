"""Report tables as separated text, in one piece."""

from __future__ import annotations

import pyarrow as pa

from stepscope.render.report_csv import csv_pieces, tsv_pieces
from stepscope.render.report_format import Format


def as_csv(table: pa.Table, format_: Format | None = None) -> str:
    """Comma-separated values."""
    return b"".join(csv_pieces(table, format_ or Format("csv"))).decode()


def as_tsv(table: pa.Table, format_: Format) -> str:
    """Tab-separated values."""
    return b"".join(tsv_pieces(table, format_)).decode()

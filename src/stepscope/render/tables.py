"""Arrow tables as text: aligned columns, CSV, JSON, Markdown."""

from __future__ import annotations

import csv
import io
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.render.text import clean, no_formula
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

# C0 and C1 without tab and line ends, and what changes the direction of text
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def rows_of(table: pa.Table) -> list[list[Any]]:
    """The cells row by row; exact decimals that are whole become integers."""
    columns = [_values(table, at) for at in range(table.num_columns)]
    return [list(row) for row in zip(*columns, strict=True)] if columns else []


def as_columns(table: pa.Table) -> str:
    """Aligned columns; numbers to the right, null as an empty cell."""
    head = [clean(name) for name in table.column_names]
    body = [[_cell(value) for value in row] for row in rows_of(table)]
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    right = [_numeric(table.schema.field(i).type) for i in range(len(head))]
    lines = ["  ".join(_pad(c, w, r) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
             for row in [head, ["-" * w for w in widths], *body]]  # fmt: skip
    return "\n".join(lines) + "\n"


def as_csv(table: pa.Table) -> str:
    """CSV with a header; null is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_uncontrolled(no_formula(name)) for name in table.column_names])
    writer.writerows([_csv_cell(value) for value in row] for row in rows_of(table))
    return out.getvalue()


def as_json(table: pa.Table, schema: str) -> str:
    """``{"schema", "columns", "rows"}``: one object a row would repeat every name."""
    document = {"schema": schema, "columns": table.column_names, "rows": rows_of(table)}
    return msgspec.json.encode(document, enc_hook=str).decode() + "\n"


def as_markdown(table: pa.Table) -> str:
    """A Markdown table."""
    from stepscope.render.markdown import escape

    lines = [
        "| " + " | ".join(escape(name) for name in table.column_names) + " |",
        "|" + "---|" * len(table.column_names),
    ]
    lines += ["| " + " | ".join(escape(_cell(v)) for v in row) + " |" for row in rows_of(table)]
    return "\n".join(lines) + "\n"


def _values(table: pa.Table, at: int) -> list[Any]:
    try:
        return [_plain(value) for value in table.column(at).to_pylist()]
    except (OverflowError, ValueError) as error:
        name = table.schema.field(at).name
        raise UsageError(
            f"column {name} holds dates or times too far away to be shown; cast them to text"
        ) from error


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    return _uncontrolled(no_formula(value)) if isinstance(value, str) else value


def _uncontrolled(text: str) -> str:
    """Text that a terminal shows as it is: CSV may hold line ends, but no control sequences."""
    return _CONTROL.sub("\ufffd", text)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - NaN has no JSON form
        return None
    # a negative zero is a zero
    return value + 0.0 if isinstance(value, float) else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:z.12g}"
    return clean(str(value))


def _numeric(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _pad(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)

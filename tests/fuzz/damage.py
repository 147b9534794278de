"""Seeded damage of input files: bytes, JSON, SQLite tables, tables of text.

A piece of damage says whether a reader can tell it: a wrong type, an impossible number, a missing
part, a broken checksum. A digit that became another digit cannot be told by anybody.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ODD_VALUES: list[Any] = [
    None, 0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63), 1.5, -1e300, 9e999,
    "", "text", "\x1b[31m", "x" * 5000, b"\xff\xfe\x00", True,
]  # fmt: skip
"""Cells that SQLite takes whatever type a column has."""

ODD_JSON: list[Any] = [
    None, 0, -1, 1.5, 10**30, -(2**63), 2**63, 1e308, "", "text", "12", "\ud800", "\x1b", [], {},
    [1, [2, [3]]], {"a": {"b": 1}}, True, float("nan"), float("inf"), -float("inf"), 10**5000,
]  # fmt: skip
_DEEP = 20_000


@dataclass(frozen=True)
class Damaged:
    """Bytes of a damaged file.

    Attributes:
        data: them.
        answer: whether a reader can tell the damage.
        what: what was done, for messages.
    """

    data: bytes
    answer: bool
    what: str


Damage = Callable[[bytes, random.Random], Damaged]


def in_bytes(data: bytes, choose: random.Random) -> Damaged:
    """Bytes flipped, overwritten, left out, repeated, or cut."""
    changed = bytearray(data)
    kind = choose.choice(["flip", "flip", "flips", "zero", "noise", "drop", "repeat", "cut"])
    at = choose.randrange(len(changed))
    size = choose.choice([1, 7, 64, 500, 4096])
    if kind in ("flip", "flips"):
        for _ in range(1 if kind == "flip" else choose.randrange(2, 200)):
            changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
    elif kind == "zero":
        changed[at : at + size] = bytes(len(changed[at : at + size]))
    elif kind == "noise":
        changed[at : at + size] = choose.randbytes(len(changed[at : at + size]))
    elif kind == "drop":
        del changed[at : at + size]
    elif kind == "repeat":
        changed[at:at] = changed[at : at + size]
    else:
        del changed[at:]
    return Damaged(bytes(changed), False, f"{kind} at {at}")


def checked(damage: Damage) -> Damage:
    """The same for a format with checksums: any change can be told."""

    def answer(data: bytes, choose: random.Random) -> Damaged:
        made = damage(data, choose)
        return Damaged(made.data, True, made.what)

    return answer


def cut(data: bytes, choose: random.Random) -> Damaged:
    """The end is missing."""
    at = choose.randrange(len(data.rstrip()) - 1)
    return Damaged(data[:at], True, f"cut at {at}")


def in_text(data: bytes, choose: random.Random) -> Damaged:
    """Bytes that are no UTF-8, somewhere."""
    at = choose.randrange(len(data))
    odd = choose.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x00"])
    return Damaged(data[:at] + odd + data[at:], False, f"{odd!r} at {at}")


def in_json(data: bytes, choose: random.Random) -> Damaged:
    """Values of a JSON document: of another type, impossible, missing, doubled, nested deeply."""
    document = json.loads(data)
    places = _places(document)
    output = []
    for _ in range(choose.choice([1, 1, 1, 3, 20])):
        holder, key = choose.choice(places)
        if isinstance(holder, dict) and key not in holder:
            continue
        if isinstance(holder, list) and key >= len(holder):
            continue
        kind = choose.choice(["odd", "odd", "odd", "missing", "doubled", "deep"])
        output.append(f"{kind} {key!r}")
        if kind == "missing":
            del holder[key]
        elif kind == "doubled" and isinstance(holder, list):
            holder.append(holder[key])
        elif kind == "deep":
            holder[key] = "@deep@"
        else:
            holder[key] = odd = choose.choice(ODD_JSON)
            output[-1] += f"={str(odd)[:30]!r}" if odd != 10**5000 else "=huge"
    text = _dumped(document)
    if choose.random() < 0.1:  # a key twice: which one counts is not said by JSON
        text = text.replace("{", '{"schema": "x", ', 1)
        output.append("key twice")
    deep = "[" * _DEEP + "]" * _DEEP
    return Damaged(
        text.replace('"@deep@"', deep).encode("utf-8", "surrogatepass"), False, ", ".join(output)
    )


def _dumped(document: Any) -> str:
    import sys

    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(document)
    finally:
        sys.set_int_max_str_digits(before)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document; those high up as often as those deep down."""
    found: list[tuple[Any, Any]] = []
    levels = [[value]]
    while levels[-1]:
        below = []
        level = []
        for holder in levels[-1]:
            keys = holder.keys() if isinstance(holder, dict) else range(len(holder))
            for key in keys:
                level.append((holder, key))
                if isinstance(holder[key], dict | list):
                    below.append(holder[key])
        found += level[:: max(len(level) // 500, 1)]
        levels.append(below)
    return found


def distort(connection: sqlite3.Connection, table: str, choose: random.Random) -> str:
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
        return f"{table} without {lost}"
    elif kind == "empty":
        connection.execute(f'DELETE FROM "{table}"')
    else:
        # a copy has no constraints
        connection.execute(f'CREATE TABLE odd AS SELECT * FROM "{table}"')
        connection.execute(f'DROP TABLE "{table}"')
        connection.execute(f'ALTER TABLE odd RENAME TO "{table}"')
        if kind == "repeat":
            connection.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
            return f"{table} twice"
        output = table
        for column in choose.sample(columns, min(len(columns), 2)):
            value, every = choose.choice(ODD_VALUES), choose.choice([1, 2, 50])
            connection.execute(
                f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % {every} = 0', (value,)
            )
            output += f" {column}={str(value)[:20]!r}/{every}"
        return output
    return f"{kind} {table}"


def in_sqlite(data: bytes, choose: random.Random, folder: Path) -> Damaged:
    """Cells, columns and tables of a SQLite file."""
    path = folder / "work.sqlite"
    path.write_bytes(data)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys=OFF")
    connection.execute("PRAGMA legacy_alter_table=ON")
    names = [
        row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    tables = [n for n in names if not n.startswith(("ENUM_", "sqlite_"))]
    output = [
        distort(connection, table, choose)
        for table in choose.sample(tables, min(len(tables), choose.choice([1, 1, 3, 8])))
    ]
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    made = path.read_bytes()
    path.unlink()
    return Damaged(made, False, "; ".join(output))


def in_cells(data: bytes, choose: random.Random) -> Damaged:
    """Cells of comma-separated lines."""
    lines = data.split(b"\n")
    output = []
    for _ in range(choose.choice([1, 1, 5, 50])):
        at = choose.randrange(len(lines))
        cells = lines[at].split(b'","') if b'","' in lines[at] else lines[at].split(b",")
        cell = choose.randrange(len(cells))
        odd = choose.choice(
            [b"", b"nan", b"inf", b"-1", b"1e308", b"-1e308", b"9" * 400, b"text", b"\xff", b"0",
             b"\x00", b"1e400", b"=1+1", b"(1,2)", b"x" * 70_000, b"1,234,5"]
        )  # fmt: skip
        output.append(f"line {at} cell {cell} = {odd[:12]!r}")
        cells[cell] = odd
        lines[at] = (b'","' if b'","' in lines[at] else b",").join(cells)
    return Damaged(b"\n".join(lines), False, "; ".join(output))


def in_lines(data: bytes, choose: random.Random) -> Damaged:
    """Lines of a text: values swapped, lines doubled or missing."""
    lines = data.split(b"\n")
    at = choose.randrange(len(lines))
    kind = choose.choice(["value", "value", "value", "missing", "double"])
    odd = b""
    if kind == "value" and b"=" in lines[at]:
        key, _, _ = lines[at].partition(b"=")
        odd = choose.choice(
            [b"nan", b"inf", b"-inf", b"-1", b"1e400", b"9" * 5000, b'"text"', b"true", b"[]",
             b"{}", b"[" * 5000 + b"]" * 5000, b"1979-05-27", b'"\\u0000"', b"0x7fffffffffffffffff",
             b"'''", b"[{a=1}]"]
        )  # fmt: skip
        lines[at] = key + b"= " + odd
    elif kind == "missing":
        del lines[at]
    else:
        lines.insert(at, lines[at])
    return Damaged(b"\n".join(lines), False, f"{kind} in line {at} {odd[:20]!r}")

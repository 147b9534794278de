"""Derived tables are found by the names of their modules."""

from __future__ import annotations

from stepscope.derived import derived_tables, names


def test_every_module_registers_the_table_of_its_name() -> None:
    found = derived_tables()
    assert tuple(found) == names()
    assert all(name == table.name for name, table in found.items())

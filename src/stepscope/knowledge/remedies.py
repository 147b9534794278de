"""What usually helps against a cause, for who asks about the cause and has no capture."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).with_name("remedies.toml")


@cache
def remedies() -> dict[str, list[str]]:
    """By the id of a cause: what to do, the most effective first."""
    found: dict[str, list[str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return found

"""Hooks of MkDocs: the navigation of the site follows the headings and links of the index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_HEADING = re.compile(r"^(##|###) (.+)$")
_LINK = re.compile(r"\]\(([\w./-]+\.md)\)")


def on_config(config: Any) -> Any:
    """Fill in the navigation: what a test asks of the index, the site then has as well."""
    index = Path(config["docs_dir"]) / "index.md"
    config["nav"] = [{"Start": "index.md"}, *navigation(index.read_text(encoding="utf-8"))]
    return config


def navigation(index: str) -> list[Any]:
    """The pages under the headings of the index, each where it is linked first."""
    found: list[Any] = []
    entries = found
    known: set[str] = set()
    for line in index.splitlines():
        if heading := _HEADING.match(line):
            entries = []
            parent = found if heading[1] == "##" else found[-1][_title(found[-1])]
            parent.append({heading[2]: entries})
        for page in _LINK.findall(line):
            if page not in known:
                known.add(page)
                entries.append(page)
    return found


def _title(section: dict[str, Any]) -> str:
    (title,) = section
    return title

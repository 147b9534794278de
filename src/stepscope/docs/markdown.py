"""Docstrings and declarations as Markdown."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

_ROLE = re.compile(r":[a-z]+:`~?(?:[\w.]+\.)?(\w+)`")
_SECTION = re.compile(r"^(Attributes|Args|Returns|Raises|Yields):\s*$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n(?: {8}.*)?)*)", re.MULTILINE)


def prose(text: str) -> str:
    """Docstring prose as Markdown on one line."""
    text = _ROLE.sub(r"`\1`", text).replace("``", "`")
    return " ".join(text.split()).replace("<", "&lt;")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; cells hold Markdown already."""
    lines = [list(head)]
    lines += [["---"] * len(lines[0]), *(list(row) for row in rows)]
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def code(text: str) -> str:
    """Inline code; empty stays empty."""
    return f"`{text}`" if text else ""


def first_sentence(thing: Any) -> str:
    """The first line of a docstring."""
    return prose(summary(thing).split("\n\n")[0])


def summary(thing: Any) -> str:
    """A docstring without its sections."""
    return _SECTION.split(inspect.cleandoc(thing.__doc__ or ""))[0].strip()


def attributes(thing: Any) -> dict[str, str]:
    """The entries of a docstring's ``Attributes`` section."""
    parts = _SECTION.split(inspect.cleandoc(thing.__doc__ or ""))
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        if name == "Attributes":
            return {found[1]: " ".join(found[2].split()) for found in _ATTRIBUTE.finditer(text)}
    return {}


def constants(module: ModuleType) -> dict[str, tuple[Any, str]]:
    """Value and docstring of a module's public constants, in the order they are declared."""
    body = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body
    found = {}
    for node, following in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name.isupper() and not name.startswith("_"):
                    doc = ""
                    match following:
                        case ast.Expr(value=ast.Constant(value=str() as text)):
                            doc = inspect.cleandoc(text)
                    found[name] = (getattr(module, name), doc)
    return found


def text_constants(folder: Path) -> dict[str, set[str]]:
    """Every text constant in the Python files below a folder, with the files it stands in."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.setdefault(node.value, set()).add(path.relative_to(folder).as_posix())
    return found

"""The notebook on the Python API: its cells are run in one namespace, and their outputs stored.

Needs no Jupyter. What a cell prints becomes a stream, and the value of its last expression a
result, as HTML where the object shows itself so.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from typing import Any

from tools.docs.consoles import among_captures

PATH = "examples/api.ipynb"


def executed_notebook(text: str) -> str:
    """A notebook with the outputs of its cells made again.

    Raises:
        Exception: whatever a cell raises.
    """
    notebook = json.loads(text)
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with among_captures():
        for number, cell in enumerate(cells, 1):
            cell["execution_count"] = number
            cell["outputs"] = _outputs("".join(cell["source"]), names, number)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run one cell; its outputs in the notebook's format."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), PATH, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), PATH, "eval"), names)
    found: list[dict[str, Any]] = []
    if text := printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": _lines(text)})
    if value is not None:
        html = getattr(value, "_repr_html_", None)
        data = {"text/html": _lines(html())} if html else {"text/plain": _lines(repr(value))}
        found.append(
            {
                "data": data,
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return found


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)

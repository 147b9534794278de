"""The page's source: which folder knows which, and the unit tests of its pure parts."""

from __future__ import annotations

import re
import shutil
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import stepscope

UI = Path(stepscope.__file__).parent / "server" / "ui"
SOURCE = UI / "src"
ARROWS = {
    "data": set[str](),
    "shared": {"data"},
    "panels": {"data", "shared"},
    "timeline": {"panels", "data", "shared"},
    "steps": {"data", "shared"},
    "compare": {"steps", "data", "shared"},
    "job": {"panels", "steps", "data", "shared"},
}
"""Folder -> the folders that its files may import; the files above the folders may import all."""

pytestmark = pytest.mark.skipif(
    not SOURCE.is_dir(), reason="needs the page's source, which an installed package leaves out"
)


def imports() -> dict[Path, set[Path]]:
    """The files that each file imports, types included."""
    return {
        file.relative_to(SOURCE): {
            (file.parent / f"{name}.ts").resolve().relative_to(SOURCE.resolve())
            for name in re.findall(r'from "(\.[^"]+)"', file.read_text(encoding="utf-8"))
        }
        for file in SOURCE.rglob("*.ts")
    }


def test_folders_know_only_those_above_them() -> None:
    seen: dict[str, set[str]] = {folder: set() for folder in ARROWS}
    for file, others in imports().items():
        if file.parent.name:
            seen[file.parent.name] |= {other.parent.name for other in others} - {file.parent.name}
    assert seen == ARROWS


def test_no_file_imports_itself_by_a_detour() -> None:
    TopologicalSorter(imports()).prepare()  # raises where there is a circle


def test_pure_parts() -> None:
    node, vitest = shutil.which("node"), UI / "node_modules" / ".bin" / "vitest"
    if node is None or not vitest.exists():
        pytest.skip("needs Node and the page's packages: python3 dev.py ui installs these")
    done = subprocess.run(
        [node, vitest, "run"], cwd=UI, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

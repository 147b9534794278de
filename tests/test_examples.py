"""The examples: they compile, their annotations work, and the notebook's outputs are current.

What they train needs PyTorch; the repair is compared on a GPU by hand.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepscope
from tools.docs.notebook import PATH, executed_notebook

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = ("train.py", "train_repaired.py")


def calls(script: str) -> Iterator[str]:
    """Names of ``stepscope`` that a script calls, as ``annotate.end_steps``."""
    for node in ast.walk(ast.parse((EXAMPLES / script).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.startswith("stepscope."):
                yield name.removeprefix("stepscope.")


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_annotate_the_same_way_by_names_that_exist(script: str) -> None:
    compile((EXAMPLES / "model.py").read_text(encoding="utf-8"), "model.py", "exec")
    called = sorted(calls(script))
    assert called == sorted(calls(SCRIPTS[0]))
    assert {"step", "range", "step_time", "annotate.end_steps"} == set(called)
    for name in called:
        found: object = stepscope
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found)


def test_the_annotations_work_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    times = stepscope.step_time()
    for _ in range(4):
        stepscope.step()
        times.step()
        with stepscope.range("forward"):
            pass
    stepscope.annotate.end_steps()
    times.step()
    assert times.summary(skip=1)["steps"] == 3
    assert capsys.readouterr().out == ""


def test_outputs_of_the_notebook_are_current() -> None:
    text = (ROOT / PATH).read_text(encoding="utf-8")
    assert executed_notebook(text) == text, "run python3 dev.py docs"


def test_a_cell_that_prints_and_shows_a_value_has_both_outputs() -> None:
    source = ["print('a')\n", "1 + 1"]
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": source}
    made = json.loads(executed_notebook(json.dumps({"cells": [cell]})))["cells"][0]
    printed, shown = made["outputs"]
    assert printed["text"] == ["a\n"]
    assert shown["data"] == {"text/plain": ["2"]}
    with pytest.raises(ZeroDivisionError):
        executed_notebook(json.dumps({"cells": [{**cell, "source": ["1 / 0"]}]}))

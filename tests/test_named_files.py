"""Files that texts of the registries name are there, so that who looks for them finds them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.capture.tries import declared
from stepscope.diagnosis.cause import causes
from stepscope.diagnosis.lever import levers
from stepscope.jobs.recipes.recipe import recipes
from stepscope.knowledge.entry import entries
from stepscope.knowledge.goal import goals
from stepscope.ncu.limiters import LIMITERS
from stepscope.reports.registry import reports, rules
from stepscope.simulation.settings.base import settings

ROOT = Path(__file__).parents[1]
FILE = re.compile(r"(?<![\w.{/-])[\w.-]+(?:/[\w.-]+)+\.(?:py|md|cpp|cu|h|sh|toml)\b")
"""With a folder: a name alone, such as train.py, is the user's."""
FOREIGN = ("torch/",)
REGISTRIES: dict[str, Any] = {
    "causes": causes,
    "levers": levers,
    "entries": entries,
    "goals": goals,
    "reports": reports,
    "rules": rules,
    "recipes": recipes,
    "settings": settings,
    "tries": declared,
    "limiters": lambda: LIMITERS,
}


def texts(value: object) -> Iterator[str]:
    """All texts in a declaration."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from texts(one)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from texts(getattr(value, field.name, None))
    elif type(value).__module__.startswith("stepscope.") and hasattr(value, "__dict__"):
        yield from texts(vars(value))


def named(text: str) -> list[str]:
    """The files of this project that a text names, of the package or of the repository."""
    return [name for name in FILE.findall(text) if not name.startswith(FOREIGN)]


def is_there(name: str) -> bool:
    return any((ROOT / folder / name).is_file() for folder in ("", "docs", "src/stepscope"))


@pytest.mark.parametrize("registry", REGISTRIES)
def test_files_that_texts_name_are_there(registry: str) -> None:
    declarations = REGISTRIES[registry]()
    assert sum(1 for _ in texts(declarations)) > len(declarations)  # more than their ids
    missing = {name for text in texts(declarations) for name in named(text) if not is_there(name)}
    assert not missing


def test_a_file_that_is_not_there_is_found_in_a_text() -> None:
    found = named("as kernels/fusion.py and (kernels/gone.py), torch/a.py; python train.py")
    assert found == ["kernels/fusion.py", "kernels/gone.py"]
    assert [is_there(name) for name in found] == [True, False]
    prediction = causes()["fusion_opportunity"].prediction
    assert named(prediction) == ["kernels/merging.py", "kernels/written_out.py"]

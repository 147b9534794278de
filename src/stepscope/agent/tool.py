"""What a tool is: one file each under ``tools``, registered by its ``TOOL``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

from stepscope.agent.answers import Answer, encoded
from stepscope.agent.session import Session
from stepscope.render.text import clean
from stepscope.trace.errors import UsageError

Capture = Annotated[
    str | list[str],
    msgspec.Meta(
        description="id that `open` gave, or the path of a capture, or the paths of its ranks"
    ),
]
"""An argument that says which capture is asked."""
Offset = Annotated[int, msgspec.Meta(ge=0, description="first row; next_offset of the last page")]

A = TypeVar("A", bound=msgspec.Struct)


@dataclass(frozen=True)
class Tool:
    """One question that an agent asks.

    Attributes:
        name: public name.
        title: what it is for, a few words.
        description: when to use it, what it answers.
        arguments: a structure of what it takes; descriptions stand in the types.
        ask: (session, arguments) -> the answer.
        choices: values of arguments that registries know, by argument.
    """

    name: str
    title: str
    description: str
    arguments: type[msgspec.Struct]
    ask: Callable[[Session, Any], Answer]
    choices: Callable[[], Mapping[str, list[str]]] = field(default=dict)

    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        _, components = msgspec.json.schema_components([self.arguments])
        found: dict[str, Any] = components[self.arguments.__name__]
        for name in ("title", "description"):
            found.pop(name, None)
        for name, values in self.choices().items():
            place = found["properties"][name]
            place.get("items", place)["enum"] = values
        return found

    def answer(self, session: Session, given: Mapping[str, object]) -> str:
        """The answer as JSON.

        Raises:
            UsageError: an argument is missing, unknown or of the wrong kind.
            StepscopeError: what the facade says.
        """
        try:
            arguments = msgspec.convert(dict(given), self.arguments)
        except msgspec.ValidationError as error:
            raise UsageError(f"{self.name}: {clean(str(error), 300)}") from error
        for name, values in self.choices().items():
            asked = given.get(name, [])
            wrong = [one for one in (asked if isinstance(asked, list) else [asked])
                     if one not in values]  # fmt: skip
            if wrong:
                known = ", ".join(filter(None, values))
                raise UsageError(f"{name} knows no {clean(str(wrong[0]))!r}; it knows {known}")
        return encoded(self.ask(session, arguments))


@cache
def tools() -> dict[str, Tool]:
    """Every tool by name.

    Raises:
        TypeError: a module of ``tools`` holds none, or one of another name.
    """
    import stepscope.agent.tools as package

    found: dict[str, Tool] = {}
    for module in pkgutil.iter_modules(package.__path__):
        tool = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "TOOL", None)
        if not isinstance(tool, Tool) or tool.name != module.name:
            raise TypeError(f"agent/tools/{module.name}.py holds no TOOL of that name")
        found[tool.name] = tool
    return found

"""HTML pages: ``templates/`` beside this file, into which every text goes cleaned and escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.render.text import clean

if TYPE_CHECKING:
    from jinja2 import Environment

_LONGEST = 1 << 30


def page(template: str, **values: Any) -> str:
    """What a template makes of some values.

    Args:
        template: name of its file.
        values: what it names; of texts, only those that a template itself marks stay as they are.
    """
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        finalize=_cleaned,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _cleaned(value: Any) -> Any:
    return clean(value, _LONGEST) if type(value) is str else value  # markup is a type of its own

"""What a recipe writes about itself: ``recipe.json``, the contract ``stepscope.recipe/1``."""

from __future__ import annotations

import msgspec

SCHEMA = "stepscope.recipe/1"


class RecipeInput(msgspec.Struct, frozen=True):
    """One capture that was asked.

    Attributes:
        path: its path or URL.
        rank: its rank in the result; null where it is not in it.
        state: ``done``; ``lacking`` where it holds none of what the recipe needs; ``failed``,
            ``killed`` where it is not in the result for another reason.
        message: why it is not in the result, and what to do; empty where it is.
    """

    path: str
    rank: int | None
    state: str
    message: str = ""


class RecipeFigure(msgspec.Struct, frozen=True):
    """One figure of the result.

    Attributes:
        name: stays the same in later versions.
        doc: what it says.
        unit: ns, bytes, count, share (0 to 1), ratio or empty for a text.
        value: its value; null where the rows tell none.
    """

    name: str
    doc: str
    unit: str
    value: float | int | str | None


class RecipeTable(msgspec.Struct, frozen=True):
    """One table of the result.

    Attributes:
        name: of the table.
        doc: what a row is.
        rows: how many.
        columns: their names.
        files: beside this file.
    """

    name: str
    doc: str
    rows: int
    columns: list[str]
    files: list[str]


class RecipeResult(msgspec.Struct, frozen=True):
    """The result of ``stepscope recipe``: the contract ``stepscope.recipe/1``.

    Attributes:
        schema: name and version of this contract.
        version: of Stepscope.
        recipe: name of the recipe.
        title: one line.
        doc: definition.
        options: what it was told.
        inputs: what was asked.
        complete: whether every input is in the result, those aside that lack what is asked.
        figures: of the result.
        tables: of the result, the one to read first being the first.
        page: file name of the page; empty where none was written.
        notes: what was assumed, and what the captures say was lost.
    """

    schema: str
    version: str
    recipe: str
    title: str
    doc: str
    options: dict[str, int | float | str | bool]
    inputs: list[RecipeInput]
    complete: bool
    figures: list[RecipeFigure]
    tables: list[RecipeTable]
    page: str
    notes: list[str]

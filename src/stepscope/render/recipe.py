"""A recipe's result in the terminal, and what recipes there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stepscope.jobs.recipes.recipe import Recipe
from stepscope.jobs.recipes.result import RecipeResult
from stepscope.render.recipe_page import about, shown_figure
from stepscope.render.text import clean

_MOST_LEFT_OUT = 10


def recipe_summary(result: RecipeResult, folder: Path) -> str:
    """What a person reads when a recipe has ended."""
    lines = [f"{result.recipe}: {clean(result.title)}", *(clean(fact) for fact in about(result))]
    width = max((len(f.doc) for f in result.figures), default=0)
    lines += ["", *(f"  {clean(f.doc):{width}}  {shown_figure(f)}" for f in result.figures), ""]
    left_out = [i for i in result.inputs if i.rank is None]
    for one in left_out[:_MOST_LEFT_OUT]:
        name = "" if Path(one.path).name in one.message else f"{clean(one.path, 200)}: "
        lines.append(f"left out: {name}{clean(one.message, 300)}")
    if len(left_out) > _MOST_LEFT_OUT:
        lines.append(f"and {len(left_out) - _MOST_LEFT_OUT:,} more, in recipe.json")
    lines += [f"note: {clean(note, 300)}" for note in result.notes[:_MOST_LEFT_OUT]]
    written = ", ".join(f"{t.name} ({t.rows:,} rows)" for t in result.tables)
    lines.append(f"tables: {written}")
    if result.page:
        lines.append(f"page: {clean(str(folder / result.page), 1000)}")
    return "\n".join(lines) + "\n"


def recipe_list(known: Mapping[str, Recipe]) -> str:
    """Every recipe with its line."""
    width = max(map(len, known))
    return "".join(f"{name:{width}}  {recipe.title}\n" for name, recipe in known.items())


def recipe_help(recipe: Recipe) -> str:
    """What one recipe counts, takes and makes."""
    lines = [f"{recipe.name}: {recipe.title}", "", recipe.doc, ""]
    if recipe.options:
        lines.append("Options (--set NAME=VALUE):")
        lines += [
            f"  {o.name}  {o.doc} "
            f"({'required' if o.required else 'default ' + _written(o.default)})"
            for o in recipe.options
        ]
        lines.append("")
    for need in recipe.needs:
        lines.append(f"Needs {need.what}: {need.flag}")
    for output in recipe.tables:
        lines += ["", f"Table {output.name}: {output.doc}"]
        lines += [f"  {name}  {meaning}" for name, meaning in output.columns.items()]
    return "\n".join(lines) + "\n"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"

"""The reference page of recipes."""

from __future__ import annotations

from stepscope.jobs.recipes.recipe import Recipe, recipes
from tools.docs.markdown import code, prose, table


def recipes_page() -> list[str]:
    """Parts of the page."""
    known = recipes()
    return [
        "# Recipes",
        "What `stepscope recipe` asks of every capture, and the tables it makes of the answers. "
        "Each table is written as Parquet and as CSV; a name that ends in `_ns` or `_bytes` tells "
        "the unit, `_share` is from 0 to 1, `_percent` from 0 to 100. How to use them, and how to "
        "write one, is in [the guide](../guides/recipes.md); `recipe.json` is described in "
        "[JSON of a recipe's result](recipe-json.md).",
        table(
            ("name", "title", "definition from"),
            [(f"[`{n}`](#{n})", r.title, prose(r.source)) for n, r in known.items()],
        ),
        *(part for recipe in known.values() for part in _entry(recipe)),
    ]


def _entry(recipe: Recipe) -> list[str]:
    parts = [f"## {recipe.name}", f"**{recipe.title}.** {prose(recipe.doc)}"]
    if recipe.needs:
        needs = "; ".join(f"{n.what} ({n.flag})" for n in recipe.needs)
        parts.append(f"Needs {prose(needs)}.")
    if recipe.options:
        rows = [
            (
                code(o.name),
                "required" if o.required else code(_written(o.default)) if o.default != "" else "",
                prose(o.doc),
            )
            for o in recipe.options
        ]
        parts.append(table(("option", "default", "meaning"), rows))
    for output in recipe.tables:
        parts.append(f"Table `{output.name}`. {prose(output.doc)}")
        columns = [(code(name), prose(meaning)) for name, meaning in output.columns.items()]
        parts.append(table(("column", "meaning"), columns))
    return parts


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

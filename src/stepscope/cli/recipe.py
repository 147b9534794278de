"""``stepscope recipe``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    from stepscope.api.items import Engine


@registry.command(
    "As nsys",
    order=3,
    examples={
        "stepscope recipe --list": "the recipes",
        "stepscope recipe straggler_map runs/ -o out": "which rank the others wait for",
        "stepscope recipe nvtx_pace *.sqlite --set name=forward -o pace": "the pace of one range",
        "stepscope recipe diff before/ after/ -o changes": "two results, row by row",
    },
)
@click.argument("words", nargs=-1, metavar="[NAME] PATH...")
@click.option(
    "-o", "--output", type=click.Path(), help="Folder for the tables, page and recipe.json."
)
@click.option(
    "-s",
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the recipe; --list NAME tells which there are.",
)
@click.option(
    "--file",
    default="",
    type=click.Path(),
    help="A recipe of your own: a Python file that sets RECIPE. NAME is then left out.",
)
@click.option("--list", "list_", is_flag=True, help="List the recipes, or explain the one named.")
@click.option("--strict", is_flag=True, help="One capture that cannot be read is an error.")
@click.option("--force", is_flag=True, help="Replace a result that is there.")
@click.option("--no-page", is_flag=True, help="Write tables only; Plotly is then not needed.")
@options.formats(options.TEXT, "json")
@options.spread
def command(
    words: tuple[str, ...],
    output: str | None,
    settings: tuple[str, ...],
    file: str,
    list_: bool,
    strict: bool,
    force: bool,
    no_page: bool,
    format_: str,
    engine: Engine,
) -> None:
    """Ask one question of every capture of a job, and put the answers together.

    NAME is a recipe, with the names that nsys recipe has. A PATH is a capture, a folder of
    captures, or a URL that fsspec knows (S3, GCS, HTTP), also with *; diff takes two results
    instead. -o becomes a folder with tables (Parquet and CSV), a page that opens without a network,
    and recipe.json, which --format json also prints. A capture that cannot be read is left out and
    named, and the exit code is then 1; with --strict it is an error. What was interrupted goes on
    when the same command is given again.
    """
    options.import_numpy()
    from stepscope.api.recipes import recipe_named, recipe_of_file, run_recipe

    if list_:
        _list(words, file)
        return
    if not words:
        raise UsageError("name a recipe and captures: stepscope recipe NAME PATH... -o FOLDER")
    if file:
        recipe, paths = recipe_of_file(file), words
    else:
        recipe, paths = recipe_named(words[0]), words[1:]
    if not paths:
        raise UsageError(f"name the captures: stepscope recipe {recipe.name} PATH... -o FOLDER")
    if not output:
        raise UsageError(f"name a folder for the result: -o FOLDER, as in -o {recipe.name}")
    given = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        given[name.strip().lstrip("-")] = value if equals else ""
    result = run_recipe(
        recipe,
        paths,
        output,
        options=given,
        file=file,
        engine=engine,
        strict=strict,
        force=force,
        page=not no_page,
    )
    if format_ == "json":
        options.write(options.as_json(result))
    else:
        from stepscope.render.recipe import recipe_summary

        options.write(recipe_summary(result, Path(output)))
    if not result.complete:
        raise click.exceptions.Exit(options.INCOMPLETE)


def _list(words: tuple[str, ...], file: str) -> None:
    from stepscope.api.recipes import known_recipes, recipe_named, recipe_of_file
    from stepscope.render.recipe import recipe_help, recipe_list

    if file:
        options.write(recipe_help(recipe_of_file(file)))
    elif not words:
        options.write(recipe_list(known_recipes()))
    for name in words:
        options.write(recipe_help(recipe_named(name)))

"""``stepscope analyze``."""

from __future__ import annotations

from typing import Any

import click

from stepscope.cli import options, outputs, registry


@registry.command(
    "As nsys",
    order=2,
    examples={
        "stepscope analyze run.sqlite": "the rules of nsys analyze",
        "stepscope analyze -r all run1": "all rules",
    },
)
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[PATH]...")
@click.option(
    "-r",
    "--rule",
    "names",
    multiple=True,
    shell_complete=options.known_terms("rule"),
    help="NAME[:ARGUMENT...][,NAME...], or all; may be given several times.",
)
@outputs.filters
@outputs.help_option("rule")
@options.opening
def command(
    paths: tuple[str, ...],
    names: tuple[str, ...],
    **asked: Any,
) -> None:
    """Check rules, as nsys analyze does, on any capture.

    Each rule gives advice and a table of the places where it applies. Without -r the rules of
    nsys analyze are checked; -r all adds those that it lacks.
    """
    options.import_numpy()
    from stepscope.api.reports import known_rules, rule_requests

    outputs.answer("rule", paths, known_rules(), rule_requests, names, outputs.Asked(**asked))

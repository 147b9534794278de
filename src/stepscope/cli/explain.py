"""``stepscope explain``."""

from __future__ import annotations

import click

from stepscope.cli import options, registry


@registry.command(
    "Explain",
    order=6,
    examples={
        "stepscope explain host_sync": "a cause",
        "stepscope explain pt_autograd_0": "a thread, as a capture shows it",
        "stepscope explain ERR_NVGPUCTRPERM": "an error message",
        "stepscope explain host_sync --in run1": "the figures behind a finding, with their SQL",
    },
)
@click.argument("term", nargs=-1, shell_complete=options.known_terms())
@click.option("--list", "listing", is_flag=True, help="List everything that can be explained.")
@click.option(
    "--in",
    "captures",
    multiple=True,
    type=click.Path(readable=False),
    metavar="CAPTURE",
    help="TERM is a finding of this capture (of its ranks, repeated): show the figures behind it.",
)
@options.formats(options.TEXT, "json")
def command(term: tuple[str, ...], listing: bool, captures: tuple[str, ...], format_: str) -> None:
    """Explain a term: a cause, a column, a thread, a CUDA call, an error message, a tool ...

    TERM is an id, or a name as a capture or a terminal shows it; --list shows all of them.
    """
    from stepscope.api.terms import explain_term, terms

    if captures:
        _evidence(" ".join(term), captures, format_)
        return
    if listing:
        known = terms()
        if format_ == "json":
            document = {"schema": "stepscope.terms/1", "terms": [[m.kind, m.id] for m in known]}
            options.write(options.as_json(document))
            return
        from stepscope.render.fitted import prose_width
        from stepscope.render.knowledge import names_text

        options.write(names_text(known, prose_width()))
        return
    answer = explain_term(" ".join(term))
    if format_ == "json":
        options.write(options.as_json(answer))
        return
    from stepscope.render.fitted import prose_width
    from stepscope.render.knowledge import explanation_text

    options.write(explanation_text(answer, prose_width()))


def _evidence(finding: str, captures: tuple[str, ...], format_: str) -> None:
    """Print the figures behind a finding, each with the statement that recomputes it."""
    from stepscope.api import Job

    found = Job(captures).finding(finding)
    if format_ == "json":
        document = {"schema": "stepscope.evidence/1", "finding": found}
        options.write(options.as_json(document))
        return
    from stepscope.render.text import clean, figure, figure_title, plural

    options.write(clean(found.message, 1000) + "\n")
    for one in found.evidence:
        value = f"{figure(one.value, one.unit)} ({plural(one.rows, 'row')})"
        options.write(f"\n{clean(figure_title(one.figure))}  {value}\n  {clean(one.sql, 4000)}\n")

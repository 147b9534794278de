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
    },
)
@click.argument("term", nargs=-1)
@click.option("--list", "listing", is_flag=True, help="List everything that can be explained.")
@options.formats("text", "json")
def command(term: tuple[str, ...], listing: bool, format_: str) -> None:
    """Explain a term: a cause, a column, a thread, a CUDA call, an error message, a tool ...

    TERM is an id, or a name as a capture or a terminal shows it; --list shows all of them.
    """
    from stepscope.api.terms import explain_term, terms

    if listing:
        known = terms()
        if format_ == "json":
            document = {"schema": "stepscope.terms/1", "terms": [[m.kind, m.id] for m in known]}
            options.write(options.as_json(document))
            return
        from stepscope.render.knowledge import names_text

        options.write(names_text(known, options.prose_width()))
        return
    answer = explain_term(" ".join(term))
    if format_ == "json":
        options.write(options.as_json(answer))
        return
    from stepscope.render.knowledge import explanation_text

    options.write(explanation_text(answer, options.prose_width()))

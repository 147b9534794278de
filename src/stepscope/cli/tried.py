"""``stepscope run --try``: what of the options of ``run`` goes with it, and what is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.api.tries import TryOptions

_WITH_TRY = {
    *("try_", "each", "rounds", "against", "steps", "warmup", "output", "backend", "format_"),
    *("no_diagnose", "strict", "dry_run", "program"),
}
"""Parameters of ``run`` that have a meaning with ``--try``; all others are refused, not ignored."""
_FAILED = ("failed", "refused", "changed_nothing", "not_measured")


def refuse_alone(*, each: bool, against: str) -> None:
    """Refuse options that belong to ``--try`` without it.

    Raises:
        UsageError: one was given.
    """
    from stepscope.trace.errors import UsageError

    for name, given in (("--each", each), ("--against", against)):
        if given:
            raise UsageError(f"{name} is for --try; give --try NAME, too")


def try_fixes_of(context: click.Context, say: Callable[[str], None], **given: Any) -> int:
    """Try fixes; returns the exit code of the program, or 2 with ``--strict``.

    Raises:
        UsageError: an option that is of no use with ``--try``, or options that make no sense.
    """
    from stepscope.api.tries import TryOptions, plan_of_tries, try_fixes

    _refuse_others(context)
    wanted = TryOptions(**given, backend=context.params["backend"])
    if context.params["dry_run"]:
        for line in plan_of_tries(wanted):
            options.write(line + "\n")
        return 0
    _refuse_used(wanted)
    result, code = try_fixes(wanted, say)
    format_ = context.params["format_"]
    if format_ == "json":
        options.write(options.as_json(result))
    else:
        from stepscope.render.tried import tried_markdown, tried_text

        options.write(tried_markdown(result) if format_ == "markdown" else tried_text(result))
    wrong = not result.tried or any(one.verdict in _FAILED for one in result.tried)
    return 2 if context.params["strict"] and not code and wrong else code


def _refuse_used(wanted: TryOptions) -> None:
    """An output folder that is in use is refused before anything is said."""
    from stepscope.api.recording import refuse_used_folder

    if wanted.output:
        refuse_used_folder(wanted.output)


def _refuse_others(context: click.Context) -> None:
    from stepscope.trace.errors import UsageError

    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in _WITH_TRY or source is not click.core.ParameterSource.COMMANDLINE:
            continue
        raise UsageError(
            f"{option.opts[0]} is about a recording, and --try compares runs that nothing records; "
            "leave it out"
        )
    if context.params["backend"] == "ncu":
        raise UsageError(
            "--backend ncu records single kernels, and --try needs a prediction of the step; give "
            "--backend collector, nsys or torch, or --against CAPTURE"
        )

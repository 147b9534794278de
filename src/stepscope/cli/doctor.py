"""``stepscope doctor``."""

from __future__ import annotations

import click

from stepscope.cli import options, registry

_MARKS = {"ok": "ok", "warning": "!", "missing": "-"}


@registry.command(
    "Capture",
    order=3,
    examples={
        "stepscope doctor": "this machine",
        "stepscope doctor -- python train.py": "with the Python that runs the program",
    },
    context_settings={"allow_interspersed_args": False},
)
@options.formats(options.TEXT, "json")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def command(format_: str, program: tuple[str, ...]) -> None:
    """Show what can be captured on this machine, and what to do where it cannot.

    Give the program after --, as in: stepscope doctor -- python train.py; then its Python is the
    one that is examined.
    """
    from stepscope.api.recording import examine_machine

    if program:
        import shutil

        from stepscope.trace.errors import UsageError

        if shutil.which(program[0]) is None:
            raise UsageError(f"{program[0]} is no program that can be found; check its name")
    checks = examine_machine(program)
    if format_ == "json":
        document = {"schema": "stepscope.doctor/2", "checks": checks}
        options.write(options.as_json(document))
        return
    from stepscope.render.fitted import terminal_width, wrapped
    from stepscope.render.text import clean

    columns = terminal_width()
    width = max(len(check["name"]) for check in checks)
    for check in checks:
        line = f"{_MARKS[check['status']]:2} {check['name']:{width}}  {check['message']}"
        hang = width + 5
        lines = wrapped(clean(line, 1000), columns, hang=hang)
        if check["remedy"]:
            lines += wrapped(clean(check["remedy"], 1000), columns, indent=hang, hang=hang)
        options.write("\n".join(lines) + "\n")

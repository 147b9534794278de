"""``stepscope completion``."""

from __future__ import annotations

import click

from stepscope.cli import options, registry

_SHELLS = ("bash", "zsh", "fish")


@registry.command(
    "Automate",
    order=9,
    examples={
        "stepscope completion bash > stepscope.bash": "a file to source in .bashrc",
        "stepscope completion zsh > _stepscope": "for a folder of $fpath",
        "stepscope completion fish | source": "in this shell",
    },
)
@click.argument("shell", type=click.Choice(_SHELLS))
@options.formats(options.TEXT, "json")
def command(shell: str, format_: str) -> None:
    """Print the completion of commands, options and files for bash, zsh or fish.

    For this shell alone: eval "$(stepscope completion bash)". To keep it, write it to the file that
    the shell reads: bash (4.4 or newer) ~/.local/share/bash-completion/completions/stepscope; zsh a
    file _stepscope in a folder of $fpath; fish ~/.config/fish/completions/stepscope.fish. It asks
    stepscope itself, so it knows the commands and options of the version that is installed.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows it"
    context = click.get_current_context()
    script = kind(context.find_root().command, {}, "stepscope", "_STEPSCOPE_COMPLETE").source()
    script = script.replace('string split ","', 'string split -m 1 ","')  # helps hold commas, too
    if format_ == "json":
        schema = "stepscope.completion/1"
        options.write(options.as_json({"schema": schema, "shell": shell, "script": script}))
    else:
        options.write(script)

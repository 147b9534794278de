"""``stepscope gate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry

if TYPE_CHECKING:
    from stepscope.api import OpenOptions


@registry.command(
    "Compare",
    order=2,
    examples={
        "stepscope gate run1 --budget step_ms=25": "a fixed limit",
        "stepscope gate run1 --baseline baseline.json": "against stored runs",
        "stepscope gate run1 run2 run3 --save-baseline baseline.json": "store them",
    },
)
@options.paths
@click.option(
    "--baseline",
    multiple=True,
    type=click.Path(),
    help="Stored baseline, or a capture, to compare with; repeat it for several runs of the same"
    " code.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="NAME=VALUE",
    help="Largest value allowed, for example step_ms=25; can be repeated, and all are checked.",
)
@click.option(
    "--config",
    type=click.Path(),
    help="TOML file with a [gate] table; by default stepscope.toml in the working directory.",
)
@click.option(
    "--allow-missing", is_flag=True, help="Pass checks whose value the captures do not hold."
)
@click.option(
    "--save-baseline",
    type=click.Path(),
    help="Add the captures to this baseline, which is created if needed; the latest 20 are kept.",
)
@options.formats(options.TEXT, "markdown", "json")
@click.option("--junit", "junit_file", type=click.Path(), help="Write JUnit XML to this file.")
@click.option(
    "--gitlab",
    "gitlab_file",
    type=click.Path(),
    help="Write GitLab's code-quality JSON to this file.",
)
@click.option("--github", is_flag=True, help="Also print annotations for GitHub Actions.")
@click.option(
    "--summary",
    "summary_file",
    type=click.Path(),
    help="Append the result as Markdown to this file, for example $GITHUB_STEP_SUMMARY.",
)
@options.opening
def command(
    paths: tuple[str, ...],
    baseline: tuple[str, ...],
    budgets: tuple[str, ...],
    config: str | None,
    allow_missing: bool,
    save_baseline: str | None,
    format_: str,
    junit_file: str | None,
    gitlab_file: str | None,
    github: bool,
    summary_file: str | None,
    opening: OpenOptions,
) -> int:
    """Fail when a run is slower than its baseline, or over a budget.

    The exit code is 1 when it fails. Each PATH is one capture of the code under test, or a folder
    with the ranks of one. With several captures the run-to-run variation is measured instead of
    assumed.
    """
    from stepscope.api.runs import gate_runs
    from stepscope.render import gate as render
    from stepscope.trace.errors import UsageError

    for file in filter(None, (junit_file, gitlab_file, summary_file)):
        options.refuse_inputs(file)  # before a verdict is printed
    if save_baseline and any(options.same_file(save_baseline, path) for path in paths):
        raise UsageError(f"{save_baseline} is read by this call and would be lost; name another")
    result = gate_runs(
        paths,
        baseline=baseline,
        budgets=budgets,
        config=config,
        allow_missing=allow_missing,
        save_baseline=save_baseline,
        **opening,
    )
    if format_ == "json":
        options.write(options.as_json(result))
    elif format_ == "markdown":
        options.write(render.gate_markdown(result))
    else:
        from stepscope.render.fitted import terminal_width

        options.write(render.gate_text(result, terminal_width()))
    if github:
        # beside JSON, on standard error, where the system reads them as well
        click.echo(render.github(result), nl=False, err=format_ == "json")
    if junit_file:
        options.write_to(render.junit(result), junit_file)
    if gitlab_file:
        options.write_to(render.gitlab(result), gitlab_file)
    if summary_file:
        options.write_to(render.gate_markdown(result), summary_file, append=True)
    return 0 if result.passed else 1

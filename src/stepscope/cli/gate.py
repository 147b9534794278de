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
    help="A stored baseline, or a capture, to compare with; several are runs of the same code.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="NAME=VALUE",
    help="Largest value allowed, as in step_ms=25; several are all checked.",
)
@click.option(
    "--config",
    type=click.Path(),
    help="TOML file with a [gate] table; stepscope.toml in the working directory by default.",
)
@click.option("--allow-missing", is_flag=True, help="Pass what the captures cannot tell.")
@click.option(
    "--save-baseline",
    type=click.Path(),
    help="Add the captures to this baseline (the latest 20 are kept); it is made if need be.",
)
@options.formats("terminal", "markdown", "json")
@click.option("--junit", "junit_file", type=click.Path(), help="Write JUnit XML to this file.")
@click.option(
    "--gitlab", "gitlab_file", type=click.Path(), help="Write GitLab's code-quality JSON here."
)
@click.option("--github", is_flag=True, help="Print annotations for GitHub Actions as well.")
@click.option(
    "--summary",
    "summary_file",
    type=click.Path(),
    help="Append the verdict as Markdown to this file, as to $GITHUB_STEP_SUMMARY.",
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
    """Fail when a run is slower than its baseline, or over a budget. Exit code 1 means it is.

    Each PATH is one capture of the code under test, a folder holding the ranks of one. Several
    captures let the test against the baseline measure how much runs vary.
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
    else:
        shown = render.gate_markdown if format_ == "markdown" else render.gate_text
        options.write(shown(result))
    if github:
        options.write(render.github(result))
    if junit_file:
        options.write_to(render.junit(result), junit_file)
    if gitlab_file:
        options.write_to(render.gitlab(result), gitlab_file)
    if summary_file:
        options.write_to(render.gate_markdown(result), summary_file, append=True)
    return 0 if result.passed else 1

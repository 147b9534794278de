"""``stepscope export``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli import options, registry
from stepscope.trace.errors import StorageError, UsageError

if TYPE_CHECKING:
    from stepscope.api import Job, OpenOptions

_BY_SUFFIX = {
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
    ".speedscope.json": "speedscope",
    ".json": "chrome",
    ".sqlite": "sqlite",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_FOLDERS = ("parquet", "arrow")
_TIMELINES = ("perfetto", "chrome", "speedscope")


@registry.command(
    "Automate",
    order=3,
    examples={
        "stepscope export run1 -o run1.pftrace": "for Perfetto",
        "stepscope export run1 -o run1.sqlite": "for nsys stats and its readers",
        "stepscope export run1 -o tables.parquet": "a folder of Parquet files",
    },
)
@options.paths
@click.option(
    "--type",
    "-t",
    "kind",
    type=click.Choice(["perfetto", "chrome", "speedscope", "sqlite", *_FOLDERS]),
    help="Format; by default the output's suffix says which: .pftrace, .json, .speedscope.json, "
    ".sqlite, .parquet, .arrow.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(),
    required=True,
    help="File to write, for parquet and arrow a folder; .gz packs a timeline.",
)
@click.option(
    "--counters",
    is_flag=True,
    help="Add the queue length of each stream and the bandwidth of copies.",
)
@click.option(
    "--critical-path", is_flag=True, help="Draw the chain that decided how long the steps took."
)
@click.option("--force", is_flag=True, help="Overwrite the file or folder.")
@options.formats(options.TEXT, "json")
@options.opening
def command(
    paths: tuple[str, ...],
    kind: str | None,
    output: str,
    counters: bool,
    critical_path: bool,
    force: bool,
    format_: str,
    opening: OpenOptions,
) -> None:
    """Write the capture in the format of another tool.

    perfetto and chrome open in Perfetto, speedscope in speedscope: the tracks, launch flows and
    counters of stepscope ui, with steps and with idle time by cause. sqlite has the schema of
    Nsight Systems' exports, so nsys stats and other tools read it. parquet and arrow make a folder
    with a file for each table of stepscope query. Nothing is printed; --format json prints one line
    that says what was written.
    """
    from stepscope.api import Job

    path = Path(output)
    kind = kind or _kind_of(path)
    if path.is_dir() and kind not in _FOLDERS:
        raise UsageError(f"{output} is a folder; name a file")
    if path.is_file() and kind in _FOLDERS:
        raise UsageError(f"{output} is a file; {kind} is written as a folder")
    if path.exists() and not force:
        raise UsageError(f"{output} exists; --force overwrites it")
    if kind in (*_FOLDERS, "sqlite") and path.suffix == ".gz":
        raise UsageError(f"{kind} is not packed; leave .gz out of {output}")
    if path.is_dir():
        _refuse_other_files(path, kind)
    options.refuse_inputs(output)
    if (counters or critical_path) and kind not in _TIMELINES:
        raise UsageError(
            f"--counters and --critical-path are drawn in a timeline; {kind} holds none"
        )
    job = Job(paths, **opening)
    try:
        _write(job, kind, path, counters=counters, critical_path=critical_path)
    except OSError as error:
        raise StorageError(
            f"cannot write {output}: {error.strerror}; choose another file"
        ) from error
    if format_ == "json":
        written = {"schema": "stepscope.export/1", "type": kind, "file": output}
        options.write(json.dumps(written) + "\n")


def _kind_of(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    for suffix, kind in _BY_SUFFIX.items():
        if name.endswith(suffix):
            return kind
    raise UsageError(
        f"the suffix of {path} says no format; end it in {', '.join(_BY_SUFFIX)}, or give --type"
    )


def _write(job: Job, kind: str, path: Path, *, counters: bool, critical_path: bool) -> None:
    """Write the file or folder; it appears under its name only when it is whole."""
    import gzip

    if kind in _TIMELINES:
        parts = job.exported(kind, counters=counters, critical_path=critical_path)
        with gzip.open(path, "wb", 6) if path.suffix == ".gz" else path.open("wb") as file:
            for part in parts:
                file.write(part)
        return
    partial = path.with_name(f".{path.name}.partial")
    _remove(partial)
    try:
        if kind == "sqlite":
            job.views.write_database(partial)
        else:
            partial.mkdir(parents=True)
            job.views.write_tables(partial, kind)
        _remove(path)
        partial.replace(path)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _refuse_other_files(folder: Path, kind: str) -> None:
    """Only a folder that an earlier export wrote is overwritten."""
    others = sorted(child.name for child in folder.iterdir() if child.suffix != f".{kind}")
    if others:
        raise UsageError(f"{folder} holds {others[0]}, which no export wrote; name another folder")

"""``stepscope cache``."""

from __future__ import annotations

import datetime

import click

from stepscope.cli import options, registry


@registry.command(
    "Automate",
    order=4,
    examples={
        "stepscope cache": "what is stored, and how large",
        "stepscope cache clear": "remove all of it",
    },
)
@click.argument("action", type=click.Choice(["show", "clear"]), default="show")
@click.option(
    "--kind",
    type=click.Choice(["captures", "timeline", "answers"]),
    default="captures",
    help="What clear removes: imported captures with everything derived from them (default), "
    "only stored timelines, or only stored answers.",
)
@options.formats("text", "json")
def command(action: str, kind: str, format_: str) -> None:
    """Show ("show", the default) or remove ("clear") the cached imports of captures.

    STEPSCOPE_CACHE_DIR names the folder, STEPSCOPE_CACHE_MAX_BYTES the largest size (20 GB by
    default).
    """
    from stepscope.cache.store import Cache

    store = Cache()
    if action == "clear":
        freed = store.clear(kind)
        click.echo(f"{freed / 1e6:.1f} MB freed in {store.folder}")
        return
    entries = store.entries()
    total = sum(entry.bytes for entry in entries)
    if format_ == "json":
        document = {
            "schema": "stepscope.cache/1",
            "folder": str(store.folder),
            "bytes": total,
            "limit_bytes": store.limit,
            "entries": [
                {
                    "folder": str(entry.folder),
                    "input": entry.input_name,
                    "source": entry.source,
                    "bytes": entry.bytes,
                    "bytes_by_kind": entry.bytes_by_kind,
                    "used_epoch_s": entry.used_at,
                }
                for entry in entries
            ],
        }
        options.write(options.as_json(document))
        return
    from stepscope.render.text import clean, plural

    held = plural(len(entries), "capture")
    click.echo(f"{store.folder}: {held}, {total / 1e6:.1f} MB of {store.limit / 1e9:g} GB")

    for entry in entries:
        used = datetime.datetime.fromtimestamp(entry.used_at).strftime("%Y-%m-%d %H:%M")
        size = f"{entry.bytes / 1e6:8.1f} MB"
        made = [
            f"{count / 1e6:.1f} MB {kind}"
            for kind, count in entry.bytes_by_kind.items()
            if kind != "captures"
        ]
        of_it = f" (of it {', '.join(sorted(made))})" if made else ""
        click.echo(f"  {used}  {size}  {entry.source:8} {clean(entry.input_name)}{of_it}")

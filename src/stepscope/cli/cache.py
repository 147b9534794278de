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
@options.formats(options.TEXT, "json")
def command(action: str, kind: str, format_: str) -> None:
    """Show ("show", the default) or remove ("clear") the cached imports of captures.

    STEPSCOPE_CACHE_DIR names the folder, STEPSCOPE_CACHE_MAX_BYTES the largest size (20 GB by
    default).
    """
    from stepscope.cache.store import Cache

    store = Cache()
    if action == "clear":
        freed = store.clear(kind)
        if format_ == "json":
            cleared = {"schema": "stepscope.cache-clear/1", "folder": str(store.folder)}
            options.write(options.as_json({**cleared, "kind": kind, "freed_bytes": freed}))
        else:
            click.echo(f"{freed / 1e6:,.1f} MB freed in {options.plain(str(store.folder))}")
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
    from stepscope.render.fitted import ALWAYS, Column, fitted, name_column, terminal_width, wrapped
    from stepscope.render.text import clean, figure, plural

    width = terminal_width()
    held = f"{plural(len(entries), 'capture')}, {figure(total, 'bytes')}"
    head = f"{clean(str(store.folder), 1000)}: {held} of {figure(store.limit, 'bytes')}"
    lines = wrapped(head, width)
    if entries:
        used = [datetime.datetime.fromtimestamp(entry.used_at) for entry in entries]
        columns = [
            Column("used", [f"{at:%Y-%m-%d %H:%M}" for at in used], 20),
            Column("size", [figure(entry.bytes, "bytes") for entry in entries]),
            *(
                Column(kind, [_size(entry.bytes_by_kind.get(kind, 0)) for entry in entries], 10)
                for kind in ("answers", "timeline")
            ),
            name_column("source", [entry.source for entry in entries], least=6, weight=15),
            name_column(
                "capture", [entry.input_name for entry in entries], least=20, weight=ALWAYS
            ),
        ]
        lines += ["", *fitted(columns, width)]
    options.write("\n".join(lines) + "\n")


def _size(count: int) -> str:
    from stepscope.render.text import figure

    return figure(count, "bytes") if count else ""

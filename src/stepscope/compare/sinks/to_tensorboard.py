"""TensorBoard: a folder of event files, one series a name."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from pathlib import Path

from stepscope.compare.history.model import Entry
from stepscope.compare.history.remote import needed
from stepscope.compare.sinks.base import PREFIX, Sink, by_name


def _send(entries: Sequence[Entry], where: str) -> None:
    """Write one event file a name; TensorBoard joins the files of a folder."""
    writers = needed("tensorboardX", "tensorboardX", "logging to TensorBoard")
    for name, runs in by_name(entries).items():
        folder = Path(where or "runs") / (re.sub(r"[^\w.-]+", "_", name).strip(".") or "run")
        # files are named by the second and the host: a second one would replace the first
        suffix = f".{uuid.uuid4().hex[:12]}"
        with writers.SummaryWriter(str(folder), filename_suffix=suffix) as writer:
            for entry in runs:
                moment = entry.added_ns / 1e9
                for figure, value in entry.figures.items():
                    writer.add_scalar(PREFIX + figure, value, entry.id, walltime=moment)
                writer.add_text(
                    PREFIX + "run", f"{entry.revision} {entry.label}".strip(), entry.id, moment
                )


SINK = Sink("tensorboard", "folder; runs by default", _send)

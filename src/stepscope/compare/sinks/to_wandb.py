"""Weights & Biases: a run for each recorded run, grouped by name."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.compare.history.model import Entry
from stepscope.compare.history.remote import needed
from stepscope.compare.sinks.base import PREFIX, Sink


def _send(entries: Sequence[Entry], where: str) -> None:
    """Log each run on its own; offline where ``WANDB_MODE=offline`` says so."""
    wandb = needed("wandb", "wandb", "logging to Weights & Biases")
    settings = wandb.Settings(
        # only the figures are sent: no code, no host's name, no console
        console="off", silent=True, disable_code=True, disable_git=True, save_code=False,
        x_disable_stats=True, x_disable_machine_info=True,
    )  # fmt: skip
    for entry in entries:
        run = wandb.init(
            project=where or "stepscope", group=entry.name, name=entry.revision[:12] or None,
            job_type="stepscope", reinit="create_new", settings=settings,
            config={"name": entry.name, "revision": entry.revision, "label": entry.label,
                    "stepscope_entry": entry.id, "added_ns": entry.added_ns},
        )  # fmt: skip
        run.log({PREFIX + figure: value for figure, value in entry.figures.items()})
        run.finish()


SINK = Sink("wandb", "project; stepscope by default", _send)

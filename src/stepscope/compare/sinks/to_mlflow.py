"""MLflow: a run of an experiment for each recorded run, the experiment being the name."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.compare.history.model import Entry
from stepscope.compare.history.remote import needed
from stepscope.compare.sinks.base import PREFIX, Sink, by_name


def _send(entries: Sequence[Entry], where: str) -> None:
    """Log through the client, which leaves the program's active run alone."""
    needed("mlflow", "mlflow-skinny", "logging to MLflow")
    tracking = needed("mlflow.tracking", "mlflow-skinny", "logging to MLflow")
    entities = needed("mlflow.entities", "mlflow-skinny", "logging to MLflow")
    client = tracking.MlflowClient(tracking_uri=where or None)
    for name, runs in by_name(entries).items():
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)
        for entry in runs:
            moment = entry.added_ns // 1_000_000
            tags = {"stepscope.entry": str(entry.id), "stepscope.label": entry.label}
            if entry.revision:
                tags["mlflow.source.git.commit"] = entry.revision
            run = client.create_run(
                experiment, start_time=moment, tags=tags, run_name=entry.revision[:12] or None
            )
            metrics = [
                entities.Metric(PREFIX + figure, value, moment, 0)
                for figure, value in entry.figures.items()
            ]
            client.log_batch(run.info.run_id, metrics=metrics)
            client.set_terminated(run.info.run_id, end_time=moment)


SINK = Sink("mlflow", "tracking URI; MLflow's own setting by default", _send)

"""Experiment trackers, with the real packages where they are installed, read back by themselves."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope

from stepscope.compare.history.model import Entry
from stepscope.compare.sinks import base
from stepscope.trace.errors import StorageError, UsageError

ENTRIES = [
    Entry(1, 1_700_000_000_000_000_000, "gpt/small", "abc123def4567890", "first",
          {"step_ms": 10.5, "idle_share": 0.25}),
    Entry(2, 1_700_000_100_000_000_000, "gpt/small", "", "", {"step_ms": 11.5}),
    Entry(3, 1_700_000_200_000_000_000, "../evil", "bcd", "", {"step_ms": 1.0}),
]  # fmt: skip


def test_tensorboard_shows_a_series_a_name(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs tensorboardX, which the lock holds")
    from tensorboardX.proto.event_pb2 import Event

    folder = tmp_path / "runs"
    assert base.send(f"tensorboard={folder}", ENTRIES) == "tensorboard"
    assert sorted(path.name for path in folder.iterdir()) == ["_evil", "gpt_small"]
    (file,) = (folder / "gpt_small").iterdir()
    content, found, at = file.read_bytes(), [], 0
    while at < len(content):  # the framing of TFRecord: length, its checksum, data, its checksum
        (length,) = struct.unpack_from("<Q", content, at)
        event = Event.FromString(content[at + 12 : at + 12 + length])
        found += [
            (value.tag, event.step, round(value.simple_value, 3), event.wall_time)
            for value in event.summary.value
            if value.WhichOneof("value") == "simple_value"
        ]
        at += length + 16
    assert found == [
        ("stepscope/step_ms", 1, 10.5, 1.7e9),
        ("stepscope/idle_share", 1, 0.25, 1.7e9),
        ("stepscope/step_ms", 2, 11.5, 1.7e9 + 100),
    ]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs tensorboardX, which the lock holds")
    accumulators: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs tensorboard: pip install tensorboard",
    )
    base.send(f"tensorboard={tmp_path}", ENTRIES[:1])
    base.send(f"tensorboard={tmp_path}", ENTRIES[1:2])  # another file of the same series
    read = accumulators.EventAccumulator(str(tmp_path / "gpt_small"))
    read.Reload()
    # files of one second are read in the order of their names, which end at random
    points = sorted((e.step, e.value) for e in read.Scalars("stepscope/step_ms"))
    assert points == [(1, 10.5), (2, 11.5)]
    assert "stepscope/run/text_summary" in read.Tags()["tensors"]


def test_mlflow_has_a_run_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="needs mlflow: pip install mlflow-skinny")
    pytest.importorskip("sqlalchemy", reason="needs MLflow's SQLite store: pip install mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    before = mlflow.get_tracking_uri()
    for _ in range(2):
        base.send(f"mlflow={uri}", ENTRIES[:2])
    client = mlflow.tracking.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("gpt/small")
    runs = client.search_runs([experiment.experiment_id], order_by=["start_time ASC"])
    assert len(runs) == 4
    assert runs[0].data.metrics == {"stepscope/step_ms": 10.5, "stepscope/idle_share": 0.25}
    assert runs[0].data.tags["mlflow.source.git.commit"] == "abc123def4567890"
    assert runs[0].info.status == "FINISHED"
    assert runs[0].info.start_time == 1_700_000_000_000
    assert mlflow.get_tracking_uri() == before  # the program's own setting stands
    assert mlflow.active_run() is None


def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb: pip install wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    base.send("wandb=speed", ENTRIES[:2])
    files = list(tmp_path.rglob("run-*.wandb"))
    assert len(files) == 2
    held = b"".join(file.read_bytes() for file in files)
    for text in (b"stepscope/step_ms", b"stepscope/idle_share", b"speed", b"abc123def4567890"):
        assert text in held


def test_what_is_wrong_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no tracker 'x'; known: tensorboard, mlflow, wandb"):
        base.send("x=1", ENTRIES)
    for name, module, package in (
        ("tensorboard", "tensorboardX", "tensorboardX"), ("mlflow", "mlflow", "mlflow-skinny"),
        ("wandb", "wandb", "wandb"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(UsageError, match=rf"pip install '{package}'"):
                base.send(name, ENTRIES)
    pytest.importorskip("tensorboardX", reason="needs tensorboardX, which the lock holds")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="tensorboard did not take the figures"):
        base.send(f"tensorboard={tmp_path}/file", ENTRIES)


def test_every_tracker_is_described() -> None:
    import importlib

    for name in base.NAMES:
        sink = importlib.import_module(f"stepscope.compare.sinks.to_{name}").SINK
        assert sink.name == name
        assert sink.where


def test_a_missing_package_is_told_before_a_run_is_added(tmp_path: Path) -> None:
    if importlib.util.find_spec("mlflow"):
        pytest.skip("MLflow is installed here")
    stepscope, history = Stepscope(tmp_path / "cache"), tmp_path / "history.sqlite"
    capture = tmp_path / "absent.sqlite"  # not looked at before the package is
    message = stepscope("history", "add", capture, "--file", history, "--log", "mlflow", expect=2)
    assert "mlflow" in message.stderr
    assert not history.exists()

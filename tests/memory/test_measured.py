"""Peaks, categories, leaks and predictions against what PyTorch's allocator measured on an H100.

``data`` was made by ``benchmarks/captures/memory_pairs.py``; Python functions of libraries were
left out of the traces, and folders out of the names of files. ``peaks.jsonl`` is what
``torch.cuda.max_memory_allocated`` and the model's own tensors said.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Stepscope

DATA = Path(__file__).parent / "data"
MODELS = ("gpt", "resnet", "mlp", "encoder")


@cache
def measured() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "peaks.jsonl").read_text().splitlines()]


def truth(kind: str, model: str = "", batch: int = 1, again: bool = False, ranks: int = 1) -> Any:
    wanted = (kind, model, batch, again, ranks)
    (found,) = (
        row for row in measured()
        if (row["kind"], row["model"], row["batch"], row["again"], row["ranks"]) == wanted
    )  # fmt: skip
    return found


@pytest.mark.parametrize("model", MODELS)
def test_the_peak_of_a_trace_is_the_measured_one(model: str, reader: Stepscope) -> None:
    (device,) = reader.json("memory", DATA / f"{model}.json.gz")["devices"]
    stated = truth("measure", model)
    assert device["peak"]["allocated_bytes"] == truth("stacks", model)["max_allocated"]
    parts = device["peak"]["by_category_bytes"]
    assert sum(parts.values()) == device["peak"]["allocated_bytes"]
    assert parts["parameter"] == pytest.approx(stated["parameter_bytes"], rel=1e-3)
    assert parts["optimizer_state"] == pytest.approx(stated["optimizer_bytes"], rel=1e-3)
    line = device["timeline"]
    for at, total in enumerate(line["allocated_bytes"]):
        assert sum(values[at] for values in line["by_category_bytes"].values()) == total


@pytest.mark.parametrize(
    ("name", "kind", "model"),
    [("gpt", "snapshot", "gpt"), ("oom", "oom", ""), ("fragments", "fragments", ""),
     ("expandable", "expandable", ""), ("expandable_run", "expandable_run", "mlp")],
)  # fmt: skip
def test_the_peak_of_a_snapshot_is_the_measured_one(
    name: str, kind: str, model: str, reader: Stepscope
) -> None:
    (device,) = reader.json("memory", DATA / f"{name}.pickle.gz")["devices"]
    stated = truth(kind, model)
    assert device["peak"]["allocated_bytes"] == stated["max_allocated"]
    f = device["fragmentation"]
    assert (f["allocated_bytes"], f["reserved_bytes"]) == (stated["allocated"], stated["reserved"])


def test_a_snapshot_knows_parameters_and_state_by_their_stacks(reader: Stepscope) -> None:
    (device,) = reader.json("memory", DATA / "gpt.pickle.gz")["devices"]
    stated = truth("measure", "gpt")
    parts = device["peak"]["by_category_bytes"]
    # blocks are up to 1 MiB larger than what was asked for
    assert parts["parameter"] == pytest.approx(stated["parameter_bytes"], rel=0.03)
    assert parts["optimizer_state"] == pytest.approx(stated["optimizer_bytes"], rel=0.03)


def test_the_leak_is_found_to_the_byte(reader: Stepscope) -> None:
    (device,) = reader.json("memory", DATA / "leak.pickle.gz")["devices"]
    growth = device["growth"]
    assert growth["grows"]
    assert growth["bytes_per_step"] == truth("leak")["bytes_per_step"]
    assert growth["holders"][0]["line"].startswith("forward() memory_pairs.py:")


def test_a_limit_of_the_process_is_told_from_a_full_device(reader: Stepscope) -> None:
    (device,) = reader.json("memory", DATA / "oom.pickle.gz", "--at", "oom")["devices"]
    refused = device["out_of_memory"][-1]
    assert f"{refused['requested_bytes'] / 2**20:.2f} MiB" in truth("oom")["message"]
    assert "set_per_process_memory_fraction" in refused["message"]
    text = reader("memory", DATA / "oom.pickle.gz", "--at", "oom").stdout
    assert "request that was refused" in text


def predicted(reader: Stepscope, model: str, *options: str) -> Any:
    (found,) = reader.json("memory", DATA / f"{model}.json.gz", *options)["prediction"]
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("batch", [2, 4])
def test_another_batch_needs_what_was_measured(model: str, batch: int, reader: Stepscope) -> None:
    found = predicted(reader, model, "--batch", str(batch))
    stated = truth("measure", model, batch)["max_allocated"]
    assert found["peak_bytes"] == pytest.approx(stated, rel=0.05)


@pytest.mark.parametrize(("model", "within"), [("gpt", 0.06), ("resnet", 0.01), ("mlp", 0.03),
                                               ("encoder", 0.09)])  # fmt: skip
@pytest.mark.parametrize("batch", [1, 2])
def test_checkpointing_needs_what_was_measured(
    model: str, within: float, batch: int, reader: Stepscope
) -> None:
    found = predicted(reader, model, "--checkpoint", "--batch", str(batch))
    stated = truth("measure", model, batch, again=True)["max_allocated"]
    assert found["peak_bytes"] == pytest.approx(stated, rel=within)
    assert found["low_bytes"] <= stated <= found["high_bytes"]


@pytest.mark.parametrize("model", ["gpt", "mlp", "encoder"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 8])
def test_sharding_needs_what_was_measured(
    model: str, stage: int, ranks: int, reader: Stepscope
) -> None:
    found = predicted(reader, model, "--zero", str(stage), "--over", str(ranks))
    stated = truth(f"zero{stage}", model, ranks=ranks)["max_allocated"]
    assert found["peak_bytes"] == pytest.approx(stated, rel=0.05)


def test_whether_it_fits(reader: Stepscope) -> None:
    found = predicted(reader, "resnet", "--batch", "2", "--fits", "1G")
    assert (found["fits"], found["limit_bytes"]) == (False, 10**9)
    assert predicted(reader, "resnet", "--batch", "2", "--fits", "2G")["fits"] is True
    text = reader("memory", DATA / "resnet.json.gz", "--batch", "2", "--fits", "1G").stdout
    assert "does not fit in 1.0 GB" in text


def test_what_cannot_be_told_is_said(reader: Stepscope) -> None:
    line = reader("memory", DATA / "gpt.pickle.gz", "--checkpoint", expect=2).stderr
    assert "with_stack=True" in line
    assert len(line.splitlines()) == 1
    for wrong in (("--batch", "0"), ("--zero", "1", "--over", "0"), ("--fits", "much")):
        assert reader("memory", DATA / "mlp.json.gz", *wrong, expect=2).stderr


def test_formats(reader: Stepscope) -> None:
    path = DATA / "gpt.json.gz"
    document = reader.json("memory", path)
    assert document["schema"] == "stepscope.memory/1"
    rows = reader("memory", path, "-f", "csv").stdout.splitlines()
    assert len(rows) == 1 + len(document["devices"][0]["holders"])
    steps = reader("memory", path, "-f", "csv", "--by", "step").stdout.splitlines()
    assert len(steps) == 1 + len(document["devices"][0]["steps"])
    times = reader("memory", path, "-f", "csv", "--by", "time").stdout.splitlines()
    assert len(times) == 1 + len(document["devices"][0]["timeline"]["time_ns"])
    assert "| category |" in reader("memory", path, "-f", "markdown").stdout
    text = reader("memory", path).stdout
    assert "more rows (--limit 0" in text


def test_a_trace_without_allocations_names_the_flag(reader: Stepscope) -> None:
    path = Path(__file__).parents[1] / "data" / "captures" / "kineto" / "lstm_tiny.json.gz"
    assert "profile_memory=True" in reader("memory", path, expect=2).stderr

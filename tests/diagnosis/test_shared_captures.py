"""Captures of ../shared: the step, what repeats in it and the first cause, as the READMEs say."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.captures import shared

from stepscope.api import Job

HEALTHY = "gpu_bound_healthy"
CLOSE = 0.05
"""Every step length is known to this share."""


@dataclass(frozen=True)
class Known:
    """What is known of a capture; None for what is not."""

    file: str
    step_ms: float
    steps: int
    kind: str | None = None
    inner: tuple[str, int] | None = None
    verdict: str | None = None
    never: tuple[str, ...] = ()


KNOWN = [
    Known("public/timesformer.h100.json.gz", 382, 1, "forward", ("layer", 12), "input_starvation"),
    Known("public/timesformer.mi300.json.gz", 391, 1, "forward", ("layer", 12), "input_starvation"),
    Known("public/qwen.mi300.json.gz", 42.7, 1, "forward", ("layer", 24),
          never=("unfused_optimizer", "input_starvation", "launch_bound", "step_jitter")),
    Known("public/bert_small.h100.json.gz", 4.4, 1, "forward", ("layer", 4),
          never=(HEALTHY, "unfused_optimizer", "step_jitter")),
    Known("public/sglang_decode.json.gz", 474, 1, "decode_step", never=("step_jitter", HEALTHY)),
    Known("public/vllm_decode.json.gz", 10.7, 1, "decode_step", None, HEALTHY, ("step_jitter",)),
    Known("public/deepseek_train.json.gz", 112, 1, "training_step", ("layer", 4),
          never=("inefficient_kernel", "pipeline_bubble")),
    Known("public/xdit_sd35.json.gz", 1195, 1, "engine_iteration", ("denoising_step", 4),
          never=("compilation_or_warmup",)),
    Known("public/tb_resnet50_w0.json.gz", 178, 6, "training_step", None, "input_starvation"),
    Known("h200-2/graph_healthy.sqlite.xz", 14.2, 12, "graph_replay", None, HEALTHY),
    Known("h200-2/graph_healthy.own.tar.xz", 14.2, 12, "graph_replay", None, HEALTHY),
    Known("h200-2/cpu_offload.sqlite.xz", 2413, 12, None, None, "cpu_offload"),
    Known("h200-2/diffusion_pointwise.sqlite.xz", 62.6, 12, None, None, "fusion_opportunity"),
    Known("h200-2/v_starved.own.tar.xz", 36, 12, "training_step", None, "input_starvation"),
    Known("h200-2/run_steps10.own.tar.xz", 30, 10, "training_step", None, "host_sync"),
    Known("h200-2/run_torch_stacks.json.gz", 47.8, 5, "training_step", None, "host_sync"),
]  # fmt: skip


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.file)
def test_what_is_known_of_a_capture(known: Known) -> None:
    job = Job([shared(known.file)])
    found = job.diagnose()
    assert found.trace.steps == known.steps
    assert found.step_ns.mean == pytest.approx(known.step_ms * 1e6, rel=CLOSE)
    if known.kind is not None:
        assert found.trace.step.kind == known.kind
    if known.inner is not None:
        assert [(part.kind, part.count) for part in found.trace.step.inner] == [known.inner]
    causes = [finding.cause for finding in found.findings]
    if known.verdict is not None:
        assert found.verdict == known.verdict, causes
    assert not set(known.never) & {found.verdict, *causes}
    for finding in found.findings:
        if finding.cause != "insufficient_data":
            step = next(e.value for e in finding.evidence if e.figure == "step_ns")
            gain = step - finding.predicted_step_ns
            assert gain >= 0.49 * finding.time_ns_per_step
    assert job.verify(msgspec.json.encode(found)).verified


def test_one_step_cut_out_of_a_capture_says_the_same(tmp_path: Path) -> None:
    """The third of six steps, with the host's events in it and the work that they launched."""
    packed = shared("public/tb_resnet50_w0.json.gz")
    document = json.loads(gzip.decompress(packed.read_bytes()))
    events: list[dict[str, Any]] = document["traceEvents"]
    step = sorted(
        (e for e in events if e.get("name", "").startswith("ProfilerStep#")),
        key=lambda e: float(e["ts"]),
    )[2]
    begin, end = float(step["ts"]), float(step["ts"]) + float(step["dur"])

    def inside(event: dict[str, Any]) -> bool:
        return "ts" not in event or event.get("ph") == "M" or begin <= float(event["ts"]) <= end

    document["traceEvents"] = [event for event in events if inside(event)]
    cut = tmp_path / "one_step.json"
    cut.write_text(json.dumps(document))
    found = Job([cut]).diagnose()
    assert (found.trace.steps, found.verdict) == (1, "input_starvation")
    assert found.step_ns.mean == pytest.approx((end - begin) * 1e3, rel=CLOSE)
    assert any("one sample" in warning for warning in found.warnings)

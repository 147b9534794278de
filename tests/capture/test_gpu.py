"""On a real GPU: the collector's counts against torch.profiler's, and what a killed run leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.capture.conftest import read, texts

from stepscope.capture.launcher import record
from stepscope.capture.options import Options

pytestmark = pytest.mark.gpu

TRAIN = """
import os, signal, sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 256, device="cuda")
def step(i):
    torch.cuda.nvtx.range_push(f"step_{i}")
    model(x).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
    torch.cuda.nvtx.range_pop()
for i in range(5): step(i)
torch.cuda.synchronize()
"""
RANGE = (
    TRAIN
    + """
torch.cuda.cudart().cudaProfilerStart()
for i in range(20): step(i)
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
"""
)
PROFILED = (
    TRAIN
    + """
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
    for i in range(20): step(i)
    torch.cuda.synchronize()
p.export_chrome_trace(sys.argv[1])
"""
)


def options(tmp_path: Path, text: str, **more: object) -> Options:
    script = tmp_path / "train.py"
    script.write_text(text)
    values = {"backend": "collector", "counters": False} | more
    return Options((sys.executable, str(script)), tmp_path / "run", **values)  # type: ignore[arg-type]


def test_counts_equal_those_of_torch_profiler(tmp_path: Path) -> None:
    outcome = record(options(tmp_path, RANGE, range="cudaProfilerApi"), "test", print)
    assert (outcome.exit_code, outcome.warnings) == (0, [])
    trace = read(outcome.raw[0])
    script = tmp_path / "profiled.py"
    script.write_text(PROFILED)
    subprocess.run([sys.executable, script, tmp_path / "trace.json"], check=True)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    theirs = Counter(e["name"] for e in events if e.get("cat") == "kernel")
    kinds = texts(trace, "gpu_op", "kind")
    names = texts(trace, "gpu_op", "name")
    ours = Counter(n for n, k in zip(names, kinds, strict=True) if k == "kernel")
    assert sum(ours.values()) == sum(theirs.values())
    assert sorted(ours.values()) == sorted(theirs.values())
    launches = sum(
        e["name"] == "cudaLaunchKernel" for e in events if e.get("cat") == "cuda_runtime"
    )
    assert texts(trace, "api_call", "name").count("cudaLaunchKernel") == launches
    assert texts(trace, "range", "name") == [f"step_{i}" for i in range(20)]
    assert trace.meta.problems == []
    calls = trace.frame("api_call", "correlation_id", "start_ns")
    begun = dict(zip(calls["correlation_id"].tolist(), calls["start_ns"].tolist(), strict=True))
    ops = trace.frame("gpu_op", "correlation_id", "start_ns")
    lag = [
        start - begun[correlation]
        for correlation, start in zip(
            ops["correlation_id"].tolist(), ops["start_ns"].tolist(), strict=True
        )
    ]
    assert min(lag) > 0


def test_a_killed_run_keeps_its_records(tmp_path: Path) -> None:
    text = TRAIN + "import time\nfor i in range(50): step(i)\ntorch.cuda.synchronize()\n"
    text += "time.sleep(1.5)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    outcome = record(options(tmp_path, text), "test", print)
    assert outcome.exit_code == 128 + 9
    trace = read(outcome.raw[0])
    assert trace.rows("range") == 55
    assert trace.rows("gpu_op") > 50 * 20
    assert [p.id for p in trace.meta.problems if p.severity == "data_loss"] == [
        "unfinished_capture"
    ]


def test_steps_of_a_real_optimizer(tmp_path: Path) -> None:
    text = TRAIN + "for i in range(20): step(i)\n"
    outcome = record(options(tmp_path, text, steps=4, warmup=8), "test", print)
    trace = read(outcome.raw[0])
    ranges = trace.frame("range", "name", "domain")
    ours = ranges.take(ranges.equals("domain", "stepscope"))
    assert [ours.text("name", row) for row in range(len(ours))] == [f"step_{i}" for i in range(4)]

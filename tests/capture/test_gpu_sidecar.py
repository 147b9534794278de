"""On a real GPU: what is recorded beside CUDA and NVTX, and torch.profiler inside a recording."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.capture.conftest import read, texts
from tests.capture.test_gpu import TRAIN, options

from stepscope.capture.doctor import examine
from stepscope.capture.launcher import record

pytestmark = pytest.mark.gpu

LOADING = (  # some 2 s a worker: shorter-lived processes may escape the launcher
    TRAIN
    + """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((256,), float(sum(range(2_000_000)) % 7))
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2)
    for i, batch in enumerate(loader): step(i)
    torch.cuda.synchronize()
"""
)
PROFILED = (
    TRAIN
    + """
from torch.profiler import ProfilerActivity, profile
for i in range(5): step(i)
torch.cuda.synchronize()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
    for i in range(20): step(i)
    torch.cuda.synchronize()
found = [e for e in p.events() if "CUDA" in str(e.device_type)]
print("torch saw", len(found))
for i in range(5): step(i)
torch.cuda.synchronize()
"""
)


def test_batches_workers_states_stacks_and_counters(tmp_path: Path) -> None:
    wanted = options(tmp_path, LOADING, counters=True, counters_hz=50, threads_hz=50, sample_hz=50)
    outcome = record(wanted, "test", print)
    assert outcome.exit_code == 0
    trace = read(outcome.raw[0])
    names = texts(trace, "range", "name")
    assert names.count("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__") == 17
    assert names.count("DataLoader fetch") == 16
    states = trace.frame("thread_state", "process_id", "state")
    assert len(set(states["process_id"].tolist())) >= 3  # the program and its workers
    assert {"running", "sleeping"} <= set(texts(trace, "thread_state", "state"))
    functions = texts(trace, "stack_frame", "function")
    assert any(name.endswith("__getitem__") for name in functions)
    counters = set(texts(trace, "metric_sample", "metric"))
    assert {"sm_clock_mhz", "power_watt", "throttled_by_power"} <= counters
    able = any(c.name == "gpu activity" and c.status == "ok" for c in examine())
    assert ("sm_active_percent" in counters) == able


def test_torch_profiler_inside_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = record(options(tmp_path, PROFILED), "test", print)
    assert outcome.exit_code == 0
    print(capfd.readouterr().out)
    trace = read(outcome.raw[0])
    problems = [p for p in trace.meta.problems if p.id in ("other_profiler", "cupti_taken")]
    assert len(problems) == 1
    assert problems[0].detail.startswith("torch.profiler in process")
    if problems[0].id == "other_profiler":  # measured so with CUDA 13.0: ours goes on
        assert texts(trace, "gpu_op", "kind").count("kernel") > 30 * 20

"""Steps, garbage collections and torch.profiler through the hook, with a torch made of paper."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.capture.conftest import Program, read, texts

from stepscope.api import Job
from stepscope.cache.store import Cache
from stepscope.importers.registry import load
from stepscope.trace.trace import Trace

TORCH = {
    "torch/__init__.py": """
        from torch import optim, profiler
        class cuda:
            synchronized = 0
            @staticmethod
            def is_initialized(): return True
            @classmethod
            def synchronize(cls): cls.synchronized += 1
    """,
    "torch/optim/__init__.py": "from torch.optim.optimizer import Optimizer",
    "torch/optim/optimizer.py": """
        before, after = [], []
        def register_optimizer_step_pre_hook(hook): before.append(hook)
        def register_optimizer_step_post_hook(hook): after.append(hook)
        class Optimizer:
            def step(self):
                for hook in before: hook(self, (), {})
                for hook in after: hook(self, (), {})
    """,
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": "",
    "torch/utils/data/_utils/__init__.py": "",
    "torch/utils/data/_utils/fetch.py": """
        class _MapDatasetFetcher:
            def fetch(self, indices): return [i * 10 for i in indices]
    """,
    "torch/utils/data/dataloader.py": """
        import os
        from torch.utils.data._utils.fetch import _MapDatasetFetcher
        class _BaseDataLoaderIter:
            def __init__(self, batches): self.batches = iter(batches)
            def __iter__(self): return self
            def __next__(self): return self._next_data()
        class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
            def _next_data(self): return _MapDatasetFetcher().fetch(next(self.batches))
        class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
            def _next_data(self):
                batch = next(self.batches)
                read, write = os.pipe()
                if os.fork() == 0:
                    os.write(write, bytes(_MapDatasetFetcher().fetch(batch)))
                    os._exit(0)
                os.wait()
                return list(os.read(read, 100))
    """,
    "torch/profiler.py": """
        import json
        class ProfilerActivity: CPU, CUDA = "cpu", "cuda"
        class ProfilerAction: RECORD = "record"
        class profile:
            def __init__(self, *, schedule, **options):
                self.options, self.steps = options, 0
                # torch.profiler marks steps only where it is given a schedule
                assert [schedule(n) for n in range(3)] == ["record"] * 3
            def start(self): pass
            def step(self): self.steps += 1
            def stop(self): pass
            def export_chrome_trace(self, path):
                with open(path, "w") as file: json.dump([self.options, self.steps], file)
    """,
}

TRAIN = """
    from torch.optim import Optimizer
    one, other = Optimizer(), Optimizer()
    for i in range(12):
        launch(10)
        one.step(); other.step()
    import torch
    print(torch.cuda.synchronized)
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import textwrap

    folder = tmp_path / "packages"
    for name, text in TORCH.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def test_steps_of_the_first_optimizer(
    program: Program, torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = program.trace(TRAIN, steps=4, warmup=3)
    assert texts(trace, "gpu_op", "kind") == ["kernel"] * 40
    assert texts(trace, "range", "name") == [f"step_{i}" for i in range(4)]
    assert set(texts(trace, "range", "domain")) == {"stepscope"}
    assert capfd.readouterr().out.split() == ["2"]  # before and after, not in between


@pytest.mark.parametrize(
    ("before", "turns", "steps"),
    [
        pytest.param("other.step()", "one.step()", 30, id="dropped after a step"),
        pytest.param(
            "pass", "one.step(); [(launch(1), other.step()) for _ in range(5)]", 12, id="turns"
        ),
    ],
)
def test_steps_of_the_optimizer_that_goes_on(
    program: Program, torch: Path, before: str, turns: str, steps: int
) -> None:
    """Of two that take turns the first stays: a step of it holds five of the other one."""
    text = f"""
        from torch.optim import Optimizer
        one, other = Optimizer(), Optimizer()
        launch(1); {before}
        for i in range({steps}):
            launch(2); {turns}
    """
    trace = program.trace(text, steps=4, warmup=3)
    launched = 2 if before != "pass" else 7
    assert texts(trace, "gpu_op", "kind") == ["kernel"] * 4 * launched
    assert texts(trace, "range", "name") == [f"step_{i}" for i in range(4)]


def test_the_training_thread_writes_no_file_while_steps_are_timed_or_recorded(
    program: Program, torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a disk makes it wait for would be part of the steps."""
    text = """
        import sys, threading, time
        from torch.optim import Optimizer
        hook, one, told = sys.modules["_stepscope_hook"], Optimizer(), []
        write = hook.note
        def note(name, text):
            if name.startswith("steps-made"):
                told.append((threading.current_thread() is threading.main_thread(), int(text)))
            write(name, text)
        hook.note = note
        for i in range(20):
            launch(1); one.step(); i == 14 and time.sleep(1)
        print(told)
    """
    program.trace(text, steps=4, warmup=12)
    told = eval(capfd.readouterr().out)
    # up to the sixth, from which on steps are timed; and after the last that is recorded
    assert [made for own, made in told if own] == [*range(1, 7), 16]
    # the other thread: while the program sleeps, and whenever else it wakes in time
    assert 15 in (others := [made for own, made in told if not own])
    assert others == sorted(others)


def test_steps_that_the_program_marks_are_not_marked_again(program: Program, torch: Path) -> None:
    root = str(Path(__file__).parents[2] / "src")
    trace = program.trace(
        f"""
        sys.path.insert(0, {root!r})
        import stepscope
        from torch.optim import Optimizer
        one = Optimizer()
        for i in range(12):
            stepscope.step(); launch(10); one.step()
        """,
        steps=4,
        warmup=3,
    )
    assert texts(trace, "gpu_op", "kind").count("kernel") == 40
    rows = sorted(trace.arrow("range").to_pylist(), key=lambda row: row["start_ns"])
    assert [row["name"] for row in rows] == [f"step_{i}" for i in range(3, 7)]
    assert all(a["end_ns"] <= b["start_ns"] for a, b in itertools.pairwise(rows))


def test_a_program_without_steps_is_told(program: Program, torch: Path) -> None:
    outcome = program.record("launch(5)", steps=4)
    assert any("did not import torch.optim" in text for text in outcome.warnings)


def test_the_program_can_be_ended_with_the_capture(program: Program, torch: Path) -> None:
    outcome = program.record(TRAIN + "\n    launch(10**6)", steps=2, warmup=1, stop_program=True)
    assert outcome.exit_code == 128 + 15
    assert read(outcome.raw[0]).rows("gpu_op") == 20


def test_another_sitecustomize_still_runs(
    program: Program, torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (torch / "sitecustomize.py").write_text("print('the other one')")
    program.record("print('program')", steps=1)
    assert capfd.readouterr().out.splitlines() == ["the other one", "program"]


def test_garbage_collections(program: Program) -> None:
    trace = program.trace(
        """
        import gc
        keep = [[i] for i in range(300_000)]
        push("around"); gc.collect(); pop(); launch()
        """,
        gc=True,
    )
    found = [n for n in texts(trace, "range", "name") if n == "garbage collection, generation 2"]
    assert found
    assert "python gc" in texts(trace, "range", "domain")


def test_torch_profiler_without_a_change(program: Program, torch: Path) -> None:
    outcome = program.record(TRAIN, backend="torch", steps=4, warmup=3, stacks=True)
    (path,) = outcome.results
    options, steps = json.loads(path.read_text())
    assert path.name == "torch.rank0.json.gz"
    assert options["with_stack"] is True
    assert steps == 3  # after the first, at each boundary


SNAPSHOTS = """
class memory:
    @staticmethod
    def _record_memory_history(enabled="all", **options):
        print("history", enabled, sorted(options))

    @staticmethod
    def _dump_snapshot(name):
        import pickle
        with open(name, "wb") as file:
            pickle.dump({"segments": [], "device_traces": [[
                {"action": "alloc", "addr": 512, "size": 100, "time_us": 3, "frames": []}]]}, file)

cuda.memory = memory

class _C:
    @staticmethod
    def _cuda_attach_out_of_memory_observer(observer):
        observer(0, 1, 2, 3)
"""


def test_memory_and_its_snapshots(
    program: Program, torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (torch / "torch" / "__init__.py").open("a") as file:
        file.write(SNAPSHOTS)
    outcome = program.record(
        TRAIN, backend="torch", steps=4, warmup=3, memory=True, memory_snapshot=True
    )
    (path,) = outcome.results
    options, _ = json.loads(path.read_text())
    assert options["profile_memory"] is True
    found = sorted((path.parent / "memory").iterdir())
    assert [f.name.split(".")[0] for f in found] == ["oom1", "rank0"]
    (device,) = Job(found[1]).memory().devices
    assert device.peak.allocated_bytes == 512
    said = capfd.readouterr().out
    assert said.index("history all") < said.index("history None")


def test_a_torch_without_snapshots_is_recorded_all_the_same(
    program: Program, torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = program.record(TRAIN, backend="torch", steps=4, warmup=3, memory_snapshot=True)
    assert len(outcome.results) == 1
    assert "no memory snapshot" in capfd.readouterr().err


def test_batches_are_ranges_in_the_program_and_its_workers(program: Program, torch: Path) -> None:
    trace = program.trace(
        """
        from torch.utils.data.dataloader import (
            _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter)
        found = list(_SingleProcessDataLoaderIter([[1, 2], [3]])); launch(5)
        found += list(_MultiProcessingDataLoaderIter([[4], [5]])); launch(5)
        assert found == [[10, 20], [30], [40], [50]], found
        """
    )
    rows = trace.arrow("range").to_pylist()
    names = [row["name"] for row in rows]
    # once more each than there are batches: the end of the data is a call too
    assert names.count("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__") == 3
    assert names.count("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__") == 3
    assert names.count("DataLoader fetch") == 4
    assert all(row["closed"] for row in rows)
    (main,) = set(trace.frame("gpu_op", "process_id")["process_id"].tolist())
    fetching = [row["process_id"] for row in rows if row["name"] == "DataLoader fetch"]
    assert fetching.count(main) == 2
    assert len(set(fetching)) == 3


def write_profiler(site: Path, text: str) -> None:
    """Give the torch in a folder a module ``torch.autograd.profiler``."""
    folder = site / "torch" / "autograd"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "profiler.py").write_text(text)


def test_operators_with_shapes_in_the_recorded_steps_only(
    program: Program, torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_profiler(
        torch,
        "class emit_nvtx:\n"
        "    on = 0\n"
        "    def __init__(self, record_shapes): assert record_shapes\n"
        "    def __enter__(self): emit_nvtx.on += 1\n"
        "    def __exit__(self, *_): emit_nvtx.on -= 1\n",
    )
    trace = program.trace(
        """
        from torch.optim import Optimizer
        from torch.autograd.profiler import emit_nvtx
        one = Optimizer()
        for i in range(6):
            print(emit_nvtx.on)
            if emit_nvtx.on: push(f"aten::mm, seq = {i}, op_id = 9, sizes = [[2, 3], [3, 4]]")
            launch()
            if emit_nvtx.on: pop()
            one.step()
        """,
        steps=3,
        warmup=1,
        ops=True,
    )
    assert capfd.readouterr().out.split() == list("011100")
    rows = trace.arrow("operator", ["name", "sequence_number", "input_shapes"]).to_pylist()
    assert rows == [
        {"name": "aten::mm", "sequence_number": i, "input_shapes": "[[2,3],[3,4]]"}
        for i in (1, 2, 3)
    ]


def test_operators_are_named_until_the_next_forward_pass(
    program: Program, torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The optimizer's own range began while they were: it must end before they are no more."""
    write_profiler(
        torch,
        "class emit_nvtx:\n"
        "    on = 0\n"
        "    def __init__(self, record_shapes): pass\n"
        "    def __enter__(self): emit_nvtx.on += 1\n"
        "    def __exit__(self, *_): emit_nvtx.on -= 1\n",
    )
    folder = torch / "torch" / "nn" / "modules"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "module.py").write_text(
        "hooks = {}\n"
        "class Handle:\n"
        "    def remove(self): del hooks[self]\n"
        "def register_module_forward_pre_hook(hook):\n"
        "    handle = Handle()\n"
        "    hooks[handle] = hook\n"
        "    return handle\n"
    )
    program.trace(
        """
        from torch.optim import Optimizer
        from torch.nn.modules.module import hooks
        from torch.autograd.profiler import emit_nvtx
        one = Optimizer()
        for i in range(6):
            for hook in tuple(hooks.values()): hook(one, ())
            launch()
            one.step()
            print(emit_nvtx.on)
        """,
        steps=2,
        warmup=1,
        ops=True,
    )
    assert capfd.readouterr().out.split() == list("111000")


def test_without_operators_steps_are_recorded_all_the_same(
    program: Program, torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_profiler(torch, "def emit_nvtx(**_): raise AssertionError('no CUDA')")
    trace = program.trace(
        "\n    import torch.autograd.profiler" + TRAIN, steps=4, warmup=3, ops=True
    )
    assert trace.rows("gpu_op") == 40
    assert "no operators are recorded: AssertionError('no CUDA')" in capfd.readouterr().err


def test_without_the_hook_the_program_is_as_it_was(program: Program, torch: Path) -> None:
    trace = program.trace(
        """
        from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
        list(_SingleProcessDataLoaderIter([[1, 2], [3]])); launch(5)
        """,
        hook=False,
    )
    assert trace.rows("range") == 0


def test_what_follows_the_recording_is_no_part_of_it(program: Program, torch: Path) -> None:
    trace = program.trace(
        """
        from torch.optim import Optimizer
        one = Optimizer()
        push("run")
        for i in range(6):
            push(f"mine {i}"); launch(10); push("optimizer"); one.step(); pop(); pop()
        pop()
        time.sleep(0.5)
        """,
        steps=3,
        warmup=1,
    )
    rows = trace.arrow("range").to_pylist()
    hooks = [row for row in rows if row["domain"] == "stepscope"]
    cut = [row for row in rows if row["end_missing"]]
    # the recording ends inside the optimizer of the program's last recorded step
    assert sorted(row["name"] for row in cut) == ["mine 3", "optimizer"]
    assert not any(row["closed"] for row in cut)
    last = max(row["end_ns"] for row in hooks)
    (end,) = {row["end_ns"] for row in cut}
    assert 0 <= end - last < 100_000_000  # half a second of the program follows
    assert trace.meta.window_end_ns - last < 100_000_000


def test_ranges_that_the_program_leaves_open_end_with_it(program: Program) -> None:
    trace = program.trace('push("left open"); launch(); time.sleep(0.1)', flush_ms=5000)
    (row,) = trace.arrow("range").to_pylist()
    assert row["end_missing"]
    assert row["end_ns"] == trace.meta.window_end_ns
    assert row["end_ns"] - row["start_ns"] > 90_000_000


SLOW = """
    from torch.optim import Optimizer
    one = Optimizer()
    for i in range(400):
        launch(1); time.sleep(0.01); one.step()
"""


def stretches(trace: Trace) -> list[dict[str, Any]]:
    return trace.arrow("timed_stretch").to_pylist()


def test_steps_are_timed_recorded_and_not(program: Program, torch: Path) -> None:
    trace = program.trace(SLOW, steps=4, warmup=10)
    rows = stretches(trace)
    timed = [(row["recorded"], row["steps"]) for row in rows]
    assert timed == [(False, 5), (True, 4), *[(False, 4)] * 3]
    for row in rows:
        assert 10e6 <= (row["end_ns"] - row["start_ns"]) / row["steps"] < 40e6
    # those afterwards begin when the collector is gone: two flushes and half a second later
    assert rows[2]["start_ns"] - rows[1]["end_ns"] > 700e6
    assert rows[2]["end_ns"] > trace.meta.window_end_ns  # no part of what was recorded
    # a step between them, in which the one before is written
    for one, other in itertools.pairwise(rows[2:]):
        assert other["start_ns"] - one["end_ns"] >= 10e6


def test_a_program_that_ends_with_its_recording_has_no_other_steps(
    program: Program, torch: Path
) -> None:
    rows = stretches(program.trace(TRAIN, steps=4, warmup=3))
    assert [(row["recorded"], row["steps"]) for row in rows] == [(True, 4)]


def test_a_recording_that_the_programs_end_cuts_short_is_not_timed(
    program: Program, torch: Path
) -> None:
    trace = program.trace(TRAIN, steps=40, warmup=3)
    assert trace.rows("timed_stretch") == 0


def test_times_of_steps_go_into_torchs_own_trace(program: Program, torch: Path) -> None:
    (torch / "torch" / "profiler.py").write_text(
        (torch / "torch" / "profiler.py")
        .read_text()
        .replace(
            'with open(path, "w") as file: json.dump([self.options, self.steps], file)',
            "import gzip, time\n"
            '        with gzip.open(path, "wt") as file:\n'
            '            file.write("\\n  ")  # as PyTorch 2.11 begins\n'
            '            json.dump({"schemaVersion": 1,\n'
            '            "baseTimeNanoseconds": time.time_ns(), "traceEvents": [\n'
            '            {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1,\n'
            '             "ts": 1, "dur": 1}]}, file)',
        )
    )
    outcome = program.record(SLOW, backend="torch", steps=4, warmup=3)
    (path,) = outcome.results
    assert outcome.warnings == []
    assert not list(path.parent.glob("*.tsv"))
    rows = stretches(load(path, Cache(program.folder / "cache")))
    timed = [(row["recorded"], row["steps"]) for row in rows]
    assert timed == [(True, 4), *[(False, 4)] * 3]
    assert rows[0]["end_ns"] <= 1_000_000_000
    assert rows[0]["end_ns"] < rows[1]["start_ns"]


LOADED = """
    import queue
    from torch.utils.data import dataloader
    from torch.optim import Optimizer
    class Tasks(dataloader._BaseDataLoaderIter):
        # four workers with four batches each, of which one is made anew every so many steps
        _num_workers, _prefetch_factor, _task_info = 4, 4, {{}}
        def __init__(self):
            self._data_queue = self._worker_result_queue = queue.Queue()
            self.read = 0
            for _ in range(16): self._data_queue.put(0)
        def _next_data(self):
            self.read += 1
            if self.read % {every} == 0 or self._data_queue.empty(): self._data_queue.put(0)
            return self._data_queue.get()
    one, batches = Optimizer(), Tasks()
    for i in range({steps}):
        next(batches)
        push(f"batch {{i}}"); launch(1); pop()
        one.step()
"""


def recorded_batches(trace: Trace) -> list[int]:
    names = texts(trace, "range", "name")
    return sorted(int(name.split()[1]) for name in names if name.startswith("batch"))


@pytest.mark.parametrize(
    ("every", "first"),
    [
        pytest.param(1, 8, id="as many ready: eight steps tell"),
        pytest.param(1000, 16, id="used up"),
        pytest.param(2, 31, id="used up while others are made"),
        pytest.param(4, 21, id="used up while few others are made"),
    ],
)
def test_recording_waits_until_ready_batches_are_used_up(
    program: Program, torch: Path, every: int, first: int
) -> None:
    outcome = program.record(LOADED.format(every=every, steps=50), steps=3, warmup=5, settle=True)
    assert recorded_batches(read(outcome.raw[0])) == [first, first + 1, first + 2]
    (told,) = outcome.warnings
    assert told.startswith(f"recorded after {first} steps, not 5")


def test_a_warm_up_that_is_asked_for_is_kept(program: Program, torch: Path) -> None:
    trace = program.trace(LOADED.format(every=1000, steps=50), steps=3, warmup=5)
    assert recorded_batches(trace) == [5, 6, 7]


def test_ranks_of_a_job_record_the_same_steps(
    program: Program, torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait for its own loader."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    trace = program.trace(LOADED.format(every=1000, steps=50), steps=3, warmup=5, settle=True)
    assert recorded_batches(trace) == [5, 6, 7]


def test_a_program_that_ends_while_recording_waits_is_told(program: Program, torch: Path) -> None:
    outcome = program.record(LOADED.format(every=1000, steps=12), steps=3, warmup=5, settle=True)
    assert not outcome.raw
    (told,) = outcome.warnings
    assert told.startswith(
        "nothing was recorded: the program made 12 optimizer steps of torch.optim, which used up "
        "batches that the DataLoader had ready; give --warmup 5, which does not wait for that"
    )

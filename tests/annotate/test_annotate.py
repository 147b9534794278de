"""What a training script may import: under the collector, under other tools, and alone."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.capture.conftest import Program, collector, program, stand_ins, texts  # noqa: F401

import stepscope
from stepscope.annotate import StepTimes, end_steps, ranges
from stepscope.annotate.recording import _wants

LOOP = """
    import stepscope
    @stepscope.range("validate")
    def validate(): launch(1)
    for i in range(5):
        stepscope.step()
        with stepscope.range("dataload"): time.sleep(0.001)
        launch(10)
    validate()
    stepscope.annotate.end_steps()
    launch(3)
"""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPSCOPE_CAPTURE", raising=False)
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    monkeypatch.setattr(ranges._state, "number", -1)
    ranges._state.forget()


# --- under the collector --------------------------------------------------------------------------


def test_steps_and_ranges_are_recorded(program: Program) -> None:  # noqa: F811
    trace = program.trace(LOOP)
    names = texts(trace, "range", "name")
    assert sorted(names) == sorted(
        [*(f"step_{i}" for i in range(5)), *["dataload"] * 5, "validate"]
    )
    rows = {row["name"]: row for row in trace.arrow("range").to_pylist()}
    assert rows["step_4"]["start_ns"] < rows["validate"]["start_ns"]
    assert rows["validate"]["end_ns"] < rows["step_4"]["end_ns"]
    assert set(texts(trace, "range", "domain")) == {"stepscope"}
    assert all(texts(trace, "range", "closed"))


def test_a_schedule_records_its_steps_only(program: Program) -> None:  # noqa: F811
    trace = program.trace(
        """
        import stepscope
        with stepscope.profile(schedule=stepscope.schedule(wait=1, warmup=1, active=2)):
            for i in range(6):
                stepscope.step()
                launch(10 + i)
        """,
        paused=True,
    )
    assert texts(trace, "range", "name") == ["step_2", "step_3"]
    assert trace.rows("gpu_op") == 12 + 13


def test_a_block_without_a_schedule(program: Program) -> None:  # noqa: F811
    trace = program.trace(
        """
        import stepscope
        launch(5)
        with stepscope.profile() as recorder:
            recorder.step(); launch(7)
        launch(9)
        """,
        paused=True,
    )
    assert trace.rows("gpu_op") == 7


def test_forked_workers_say_it_too(program: Program) -> None:  # noqa: F811
    trace = program.trace(
        """
        import stepscope
        stepscope.step()
        if os.fork() == 0:
            with stepscope.range("collate"): pass
            os._exit(0)
        os.wait(); launch(3)
        """
    )
    assert sorted(texts(trace, "range", "name")) == ["collate", "step_0"]


# --- alone, and under other tools -----------------------------------------------------------------


def test_alone_nothing_happens_and_nothing_is_loaded() -> None:
    code = (
        "import sys, stepscope\n"
        "assert 'stepscope.annotate' not in sys.modules\n"
        "with stepscope.range('a'): pass\n"
        "assert [stepscope.step(), stepscope.step()] == [0, 1]\n"
        "with stepscope.profile(schedule=stepscope.schedule(active=1)): stepscope.step()\n"
        "print([m for m in sys.modules if m.split('.')[0] not in"
        " {*sys.stdlib_module_names, 'stepscope'} and m != '__main__'])\n"
        "print([m for m in sys.modules if m.startswith('stepscope.') and 'annotate' not in m])"
    )
    root = str(Path(stepscope.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {root!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[]\n[]\n", "")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = stepscope.nothing


class Paper:
    """A torch made of paper that notes what it is told."""

    def __init__(self) -> None:
        self.output: list[str] = []
        self.profiling = False
        self.ready = True
        self.events: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def profile(self, activities: list[str]) -> Iterator[types.SimpleNamespace]:
        assert activities == ["cuda"]

        def event(name: str, device: str) -> types.SimpleNamespace:
            return types.SimpleNamespace(name=name, device_type=f"DeviceType.{device}")

        found = [event(*one) for one in self.events]
        self.output.append("profile")
        yield types.SimpleNamespace(events=lambda: found)
        self.output.append("profiled")

    def module(self) -> types.SimpleNamespace:
        outer = self

        class Record:
            def __init__(self, name: str) -> None:
                self.name = name

            def __enter__(self) -> None:
                outer.output.append(f"record {self.name}")

            def __exit__(self, *_: object) -> None:
                outer.output.append("recorded")

        class Event:
            made = 0

            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                Event.made += 1
                self.number = Event.made

            def record(self) -> None:
                pass

            def query(self) -> bool:
                return outer.ready

            def synchronize(self) -> None:
                outer.ready = True

            def elapsed_time(self, other: Event) -> float:
                return 10.0 * other.number - 10.0 * self.number

        def say(text: str) -> Any:
            return lambda *more: self.output.append(" ".join([text, *map(str, more)]))

        return types.SimpleNamespace(
            autograd=types.SimpleNamespace(
                _profiler_enabled=lambda: self.profiling,
                profiler=types.SimpleNamespace(record_function=Record),
            ),
            cuda=types.SimpleNamespace(
                nvtx=types.SimpleNamespace(range_push=say("push"), range_pop=say("pop")),
                is_available=lambda: True,
                is_initialized=lambda: True,
                synchronize=say("sync"),
                profiler=types.SimpleNamespace(start=say("start"), stop=say("stop")),
                Event=Event,
                max_memory_allocated=lambda: 4096,
            ),
            profiler=types.SimpleNamespace(
                ProfilerActivity=types.SimpleNamespace(CUDA="cuda"), profile=self.profile
            ),
        )


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Paper:
    found = Paper()
    monkeypatch.setitem(sys.modules, "torch", found.module())  # type: ignore[arg-type]
    return found


def test_torch_profiler_hears_ranges_while_it_records(paper: Paper) -> None:
    with stepscope.range("quiet"):
        pass
    paper.profiling = True
    with stepscope.range("loud"):
        pass
    assert paper.output == ["record loud", "recorded"]


def test_tools_that_read_nvtx_hear_ranges(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    stepscope.step()
    with stepscope.range("a"):
        pass
    end_steps()
    assert paper.output == ["push step_0", "push a", "pop", "pop"]


def test_other_recorders_are_switched_by_the_profiler_api(paper: Paper) -> None:
    with stepscope.profile(schedule=lambda number: number == 1):
        for _ in range(4):
            stepscope.step()
    assert paper.output == ["sync", "start", "sync", "stop"]


def test_schedules() -> None:
    wanted = stepscope.schedule(wait=2, warmup=1, active=2, repeat=2)
    assert [n for n in range(30) if wanted(n)] == [3, 4, 8, 9]
    forever = stepscope.schedule(active=1, wait=1, repeat=0)
    assert [n for n in range(6) if forever(n)] == [1, 3, 5]
    with pytest.raises(ValueError, match="must not be negative"):
        stepscope.schedule(wait=-1)
    for name, expected in (("RECORD_AND_SAVE", True), ("RECORD", True), ("WARMUP", False)):
        assert _wants(types.SimpleNamespace(name=name)) is expected


def test_step_times_on_the_gpu(paper: Paper) -> None:
    timer = stepscope.step_time()
    paper.ready = False  # nothing has finished yet: nothing is waited for
    for _ in range(4):
        timer.step()
    assert timer._gpu_ms == []
    assert timer.times() == [10.0, 10.0, 10.0]
    assert timer.summary(skip=1) == {
        "steps": 2,
        "mean_ms": 10.0,
        "median_ms": 10.0,
        "shortest_ms": 10.0,
        "longest_ms": 10.0,
        "peak_memory_bytes": 4096,
    }


def test_kernels_are_counted_and_nothing_else(paper: Paper) -> None:
    paper.events = [
        ("gemm", "CUDA"),
        ("add", "CUDA"),
        ("gemm", "CUDA"),
        ("cudaLaunchKernel", "CPU"),
        ("Memcpy HtoD (Pageable -> Device)", "CUDA"),
        ("Memset (Device)", "CUDA"),
    ]
    with stepscope.kernel_count() as kernels:
        assert kernels.count is None
    assert (kernels.count, kernels.names) == (3, {"gemm": 2, "add": 1})
    assert paper.output == ["sync", "profile", "sync", "profiled"]


def test_without_a_gpu_no_kernels_are_counted() -> None:
    with stepscope.kernel_count() as kernels:
        pass
    assert kernels.count is None


def test_step_times_without_a_gpu() -> None:
    timer = StepTimes()
    assert timer.summary() == {"steps": 0}
    for _ in range(3):
        timer.step()
    assert len(timer.times()) == 2
    assert timer.times() == timer.host_ms


# --- frameworks -----------------------------------------------------------------------------------


def test_hugging_face_and_lightning(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="needs transformers"):
        stepscope.huggingface_callback()
    with pytest.raises(ImportError, match="needs lightning"):
        stepscope.lightning_callback()
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")

    class Base:
        pass

    for name, attribute in (("transformers", "TrainerCallback"), ("pytorch_lightning", "Callback")):
        module = types.ModuleType(name)
        setattr(module, attribute, Base)
        monkeypatch.setitem(sys.modules, name, module)
    theirs = stepscope.huggingface_callback()
    assert isinstance(theirs, Base)
    theirs.on_train_begin(None, None, None, model=None)
    theirs.on_step_end(None, None, None, model=None)
    theirs.on_step_end(None, None, types.SimpleNamespace(should_training_stop=True))
    assert paper.output == ["push step_0", "pop", "push step_1", "pop"]
    theirs.on_train_end(None, None, None)
    assert paper.output == ["push step_0", "pop", "push step_1", "pop"]
    paper.output.clear()
    other = stepscope.lightning_callback()
    other.on_train_start(None, None)
    other.on_train_batch_end(None, None, {}, None, 0)
    other.on_train_end(None, None)
    assert paper.output == ["push step_2", "pop", "push step_3", "pop"]

"""Records some optimizer steps of PyTorch, by the collector or another recorder; on request."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    _Configuration = dict[str, str]

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def _private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read, whatever the program's umask."""
    return os.open(path, flags, 0o600)


class _ProfilerApi:
    """Recording by another tool that watches cudaProfilerStart and cudaProfilerStop."""

    def __init__(self, configuration: _Configuration) -> None:
        self._torch = sys.modules["torch"]

    def start(self) -> None:
        self._torch.cuda.cudart().cudaProfilerStart()

    def stop(self) -> None:
        self._torch.cuda.cudart().cudaProfilerStop()

    def push(self, name: str) -> None:
        self._torch.cuda.nvtx.range_push(name)

    def pop(self) -> None:
        self._torch.cuda.nvtx.range_pop()


class _TorchProfiler:
    """Recording by torch.profiler, into one file a process."""

    def __init__(self, configuration: _Configuration) -> None:
        self._configuration = configuration
        self._profiler: Any = None
        self._snapshots: _Snapshots | None = None
        self.written = ""

    def start(self) -> None:
        import importlib

        profiler = importlib.import_module("torch.profiler")
        kinds = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
        # without a schedule torch.profiler counts steps and marks none of them
        record = profiler.ProfilerAction.RECORD
        options = {
            "activities": kinds,
            "schedule": lambda _: record,
            "record_shapes": True,
            "with_stack": self._configuration.get("stacks") == "1",
            "profile_memory": self._configuration.get("memory") == "1",
        }
        if self._configuration.get("memory_snapshot") == "1":
            try:  # the trace is recorded all the same
                self._snapshots = _Snapshots(self._configuration["output"])
            except Exception as error:
                print(f"stepscope: no memory snapshot: {error!r}", file=sys.stderr)
        try:  # all steps are one cycle; newer versions warn unless told that nothing is cleared
            self._profiler = profiler.profile(**options, acc_events=True)
        except TypeError:
            self._profiler = profiler.profile(**options)
        self._profiler.start()

    def stop(self) -> None:
        self._profiler.stop()
        self.written = _free_name(self._configuration["output"])
        self._profiler.export_chrome_trace(self.written)
        if self._snapshots is not None:
            self._snapshots.end(os.path.basename(self.written).split(".")[1])  # noqa: PTH119

    def push(self, name: str) -> None:
        if name != "step_0":
            self._profiler.step()

    def pop(self) -> None:
        pass


class _Snapshots:
    """The history of PyTorch's allocator, dumped at the end and where memory runs out."""

    def __init__(self, folder: str) -> None:
        self._folder = f"{folder}/memory"
        self._memory = sys.modules["torch"].cuda.memory
        self._refused = 0
        os.makedirs(self._folder, mode=0o700, exist_ok=True)  # noqa: PTH103
        self._memory._record_memory_history(max_entries=_MOST_ENTRIES, stacks="python")
        bindings = getattr(sys.modules["torch"], "_C", None)
        attach = getattr(bindings, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(self._refuse)

    def _refuse(self, *_: object) -> None:
        """Memory ran out: the program may end by it, so the history is dumped at once."""
        if self._refused < _MOST_REFUSALS:
            self._refused += 1
            self._dump(f"oom{self._refused}.{os.getpid()}.pickle")

    def end(self, rank: str) -> None:
        self._dump(f"{rank}.pickle")
        self._memory._record_memory_history(enabled=None)

    def _dump(self, name: str) -> None:
        try:
            self._memory._dump_snapshot(f"{self._folder}/{name}")
        except Exception as error:
            print(f"stepscope: no memory snapshot: {error!r}", file=sys.stderr)


_MOST_ENTRIES = 200_000
"""Events that the allocator's history keeps: some hundred bytes each."""
_MOST_REFUSALS = 3


def _free_name(folder: str) -> str:
    """The file of this process's rank; the first free number where it does not tell its rank."""
    rank = next((os.environ[name] for name in _RANKS if os.environ.get(name, "").isdigit()), None)
    if rank is None and "torch.distributed" in sys.modules:
        distributed = sys.modules["torch.distributed"]
        if distributed.is_available() and distributed.is_initialized():
            rank = str(distributed.get_rank())
    if rank is not None:
        return f"{folder}/torch.rank{rank}.json.gz"
    number = 0
    while True:
        name = f"{folder}/torch.rank{number}.json.gz"
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            number += 1
            continue
        return name


_TIMED_STEPS = 10
"""Steps that are timed after the recording; as many as are recorded, where these are fewer."""
_SKIPPED_STEPS = 2
"""Steps after the recording before any is timed."""
_TIMED_STRETCHES = 3
"""Times that so many steps are timed after the recording: a host that is slow for a while, which
tens of milliseconds are enough for, lengthens one of them."""
_LONG_WARMUP = 8
"""Steps of warm-up from which on those of its second half are timed."""
_LETTING_GO_NS = 500_000_000
_WRITTEN_EVERY_S = 0.5
"""How often another thread tells how many steps there were, while the training thread must not."""
_RECORDERS = {"profiler": _ProfilerApi, "torch": _TorchProfiler}


class _Operators:
    """Ranges of NVTX around PyTorch's operators, with shapes, while it is on."""

    def __init__(self) -> None:
        self._ranges: Any = None

    def on(self) -> None:
        self._ranges = sys.modules["torch.autograd.profiler"].emit_nvtx(record_shapes=True)
        self._ranges.__enter__()

    def off(self) -> None:
        ranges, self._ranges = self._ranges, None
        if ranges is not None:
            ranges.__exit__(None, None, None)

    def off_later(self) -> None:
        """Off at the next forward pass: within the optimizer's own range PyTorch would complain."""
        modules = sys.modules.get("torch.nn.modules.module")
        if self._ranges is None or modules is None:
            self.off()
            return

        def before_forward(*_: object) -> None:
            handle.remove()
            self.off()

        handle = modules.register_module_forward_pre_hook(before_forward)


class _StepTimes:
    """How long steps take, recorded and not, by which a capture tells what recording costs.

    Both stretches are timed alike: the GPU has done all its work at their begin and at their end.
    """

    def __init__(self, steps: int, warmup: int, settle_ns: int) -> None:
        self._length = min(steps, _TIMED_STEPS)
        self._settle_ns = settle_ns
        # the first half of a long warm-up is compilation and allocation
        self.begin_at = warmup - warmup // 2 if warmup >= _LONG_WARMUP else -1
        self._begin_ns = self._steps = self._ended_ns = self._skipped = self._afterwards = 0
        self._lines: list[str] = []
        self.done = False

    def open(self) -> None:
        """The GPU is idle, and a stretch begins."""
        self._begin_ns, self._steps = time.monotonic_ns(), 0

    def step(self) -> None:
        """A step has ended."""
        self._steps += 1

    def close(self, *, recorded: bool) -> None:
        """The GPU is idle again, and the stretch ends."""
        if self._begin_ns and self._steps:
            now = time.monotonic_ns()
            self._lines.append(f"{int(recorded)}\t{self._begin_ns}\t{now}\t{self._steps}\n")
        self._begin_ns = 0

    def ended(self) -> None:
        """Recording has ended."""
        self._ended_ns = time.monotonic_ns()

    def afterwards(self, synchronize: Callable[[], None]) -> None:
        """A step has ended after the recording: time some, once nothing of it is left.

        Between two stretches is a step in which the first one is written to the file.
        """
        if not self._begin_ns:
            self._skipped += 1
            settled = time.monotonic_ns() - self._ended_ns >= self._settle_ns
            if settled and self._skipped >= _SKIPPED_STEPS:
                synchronize()
                self.open()
            return
        self.step()
        if self._steps >= self._length:
            synchronize()
            self.close(recorded=False)
            self._afterwards += 1
            self.done = self._afterwards == _TIMED_STRETCHES

    def write(self, name: str) -> None:
        """Write what was timed: after a line that ties the clocks, a line a stretch."""
        lines, self._lines = self._lines, []
        if lines:
            clocks = f"C\t{time.monotonic_ns()}\t{time.time_ns()}\n"
            with open(name, "a", encoding="utf-8", opener=_private) as file:
                file.write(clocks + "".join(lines))


class _StepsMade:
    """Tells the launcher how many steps there were, which a killed process cannot any more.

    Opening and writing a file takes a tenth of a millisecond and more, and tens of them while the
    disk writes what the program has just saved. What is timed or recorded must not hold that:
    meanwhile another thread writes the number, now and then.

    Attributes:
        let_pass: what stands behind the number: how many were let pass, where it were more than
            those of the warm-up.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._made = self._written = -1
        self.let_pass = ""
        self._ended: Any = None  # an event, while the other thread runs

    def count(self, made: int) -> None:
        """So many steps were made."""
        self._made = made
        # a forked process has no other thread
        if self._ended is None or os.getpid() != self._process:
            self._write()

    def aside(self) -> None:
        """From now on the training thread does not write."""
        import atexit
        import threading

        if self._ended is None:
            atexit.register(self.end)
            self._ended = threading.Event()
            threading.Thread(target=self._now_and_then, name="stepscope", daemon=True).start()

    def end(self) -> None:
        """The training thread may write again, and does."""
        if self._ended is not None:
            self._ended.set()
            self._ended = None
            self._write()

    def _now_and_then(self) -> None:
        ended = self._ended
        while ended is not None and not ended.wait(_WRITTEN_EVERY_S):
            if self._written != self._made:
                self._write()

    def _write(self) -> None:
        hook = sys.modules["_stepscope_hook"]
        self._written = self._made
        hook.note(hook.STEPS_MADE.format(os.getpid()), f"{self._written}{self.let_pass}")


class _Steps:
    """Counts the steps of an optimizer, and records some of them."""

    def __init__(self, configuration: _Configuration, ready: Any) -> None:
        self._configuration = configuration
        self._warmup = int(configuration.get("warmup", "0"))
        self._steps = int(configuration["steps"])
        self._followed: Any = sys.modules["_stepscope_hook"].Followed()
        self._made = 0
        self._ready: Any = ready if self._warmup else None  # until recording begins
        self._written = _StepsMade()
        self._recorder: Any = None
        self._operators = _Operators()
        self._failed = False
        self._marks = True
        # the collector takes CUPTI out of the process two flushes after the recording
        flush_ns = int(configuration.get("flush_ms") or 0) * 1_000_000
        self._sidecar = ""
        self._times = _StepTimes(self._steps, self._warmup, 2 * flush_ns + _LETTING_GO_NS)

    def before(self, optimizer: object, *_: object) -> None:
        """Without warm-up the first step is recorded from its optimizer on: nothing is earlier."""
        if self._followed.begins(optimizer) and self._warmup == 0:
            self._safely(self._begin)

    def after(self, optimizer: object, *_: object) -> None:
        recording = self._made >= self._warmup
        if not self._followed.counts(optimizer, fixed=recording) or self._failed:
            return
        self._made += 1
        if self._ready is not None:
            self._safely(self._wait_for_batches)
        recorded = self._made - self._warmup
        if recorded <= self._steps:
            self.note()
        if recorded <= 0 or recorded > self._steps:
            self._time(recorded)
        else:
            self._times.step()
        if self._warmup and recorded == 0:
            self._safely(self._begin)
        elif 0 < recorded < self._steps:
            self._safely(self._next)
        elif recorded == self._steps:
            self._safely(self._end)
            if self._configuration.get("stop_program") == "1":
                import signal

                os.kill(os.getpid(), signal.SIGTERM)

    def _wait_for_batches(self) -> None:
        """One step more of warm-up, where batches that were ready are still being used up."""
        ready = self._ready
        ready.step()
        if self._made < self._warmup:
            return
        if ready.get_fewer() and self._made - int(self._configuration["warmup"]) < ready.most:
            self._warmup += 1
            self._written.let_pass = f" {self._warmup}"
        else:
            self._ready = None

    def note(self) -> None:
        """Tell the launcher how many steps there were."""
        self._written.count(self._made)

    def _time(self, recorded: int) -> None:
        """A step ended that was not recorded."""
        if recorded > 0:
            if not self._times.done and self._times_name():
                self._safely(self._time_afterwards)
            return
        self._times.step()
        if self._made == self._times.begin_at:
            self._safely(self._time_before)

    def _time_before(self) -> None:
        self._written.aside()
        self._synchronize()
        self._times.open()

    def _time_afterwards(self) -> None:
        self._times.afterwards(self._synchronize)
        self._write_times()

    def _times_name(self) -> str:
        """The file of the steps' times; empty where nobody would read it."""
        if self._configuration.get("hook") == "collector":
            return f"{self._configuration['folder']}/steps.{os.getpid()}.tsv"
        return self._sidecar

    def _write_times(self) -> None:
        if name := self._times_name():
            self._times.write(name)

    def _safely(self, what: Callable[[], None]) -> None:
        """Whatever fails here must not stop the program."""
        if self._failed:
            return
        try:
            what()
        except Exception as error:
            self._failed = True
            print(f"stepscope: recording by steps failed: {error!r}", file=sys.stderr)

    def _begin(self) -> None:
        import atexit

        self._written.aside()
        self._synchronize()
        self._times.close(recorded=False)
        hook, kind = sys.modules["_stepscope_hook"], self._configuration["hook"]
        recorder = hook._Collector if kind == "collector" else _RECORDERS[kind]
        self._recorder = recorder(self._configuration)
        self._recorder.start()
        # torch.profiler crashes where it still records while the process ends
        atexit.register(self._safely, self._end)
        if self._configuration.get("ops") == "1":
            self._name_operators()
        self._marks = kind == "torch" or not hook.program_marks_steps
        if self._marks:
            self._recorder.push("step_0")
        if self._warmup:  # else the first one is only its optimizer
            self._times.open()

    def _name_operators(self) -> None:
        try:
            self._operators.on()
        except Exception as error:  # the steps are recorded all the same
            self._operators = _Operators()
            print(f"stepscope: no operators are recorded: {error!r}", file=sys.stderr)

    def _next(self) -> None:
        if self._marks:
            self._recorder.pop()
            self._recorder.push(f"step_{self._made - self._warmup}")

    def _end(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        self._synchronize()
        if self._made == self._warmup + self._steps:
            self._times.close(recorded=True)  # else the program ends, and so did no step
        if self._marks:
            recorder.pop()
        self._operators.off_later()
        recorder.stop()
        if written := getattr(recorder, "written", ""):
            self._sidecar = written[: -len(".json.gz")] + ".steps.tsv"
        self._times.ended()
        self._written.end()
        self._write_times()

    def _synchronize(self) -> None:
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized():
            cuda.synchronize()


def count_steps(configuration: _Configuration, module: Any, ready: Any) -> None:
    """Watch all optimizers from now on.

    Args:
        configuration: of the recording.
        module: ``torch.optim.optimizer``.
        ready: the batches that must be used up before recording begins; None: it does not wait.
    """
    steps = _Steps(configuration, ready)
    steps.note()
    try:
        module.register_optimizer_step_pre_hook(steps.before)
        module.register_optimizer_step_post_hook(steps.after)
    except AttributeError:
        print("stepscope: this torch is too old for --steps; it needs 2.1", file=sys.stderr)

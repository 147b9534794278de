"""Records some optimizer steps of PyTorch, by the collector or another recorder; on request."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    _Configuration = dict[str, str]

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


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

    def start(self) -> None:
        import importlib

        profiler = importlib.import_module("torch.profiler")
        kinds = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
        self._profiler = profiler.profile(
            activities=kinds,
            record_shapes=True,
            with_stack=self._configuration.get("stacks") == "1",
        )
        self._profiler.start()

    def stop(self) -> None:
        self._profiler.stop()
        self._profiler.export_chrome_trace(_free_name(self._configuration["output"]))

    def push(self, name: str) -> None:
        if name != "step_0":
            self._profiler.step()

    def pop(self) -> None:
        pass


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
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            number += 1
            continue
        return name


_RECORDERS = {"profiler": _ProfilerApi, "torch": _TorchProfiler}


class _Operators:
    """Ranges of NVTX around PyTorch's operators, with shapes, while it is on."""

    def __init__(self) -> None:
        self._ranges: Any = None

    def on(self) -> None:
        self._ranges = sys.modules["torch.autograd.profiler"].emit_nvtx(record_shapes=True)
        self._ranges.__enter__()

    def off(self) -> None:
        if self._ranges is not None:
            self._ranges.__exit__(None, None, None)
            self._ranges = None


class _Steps:
    """Counts the steps of the first optimizer that makes one, and records some of them."""

    def __init__(self, configuration: _Configuration) -> None:
        self._configuration = configuration
        self._warmup = int(configuration.get("warmup", "0"))
        self._steps = int(configuration["steps"])
        self._optimizer: int | None = None
        self._made = 0
        self._recorder: Any = None
        self._operators = _Operators()
        self._failed = False
        self._marks = True

    def before(self, optimizer: object, *_: object) -> None:
        """Without warm-up the first step is recorded from its optimizer on: nothing is earlier."""
        if self._optimizer is None:
            self._optimizer = id(optimizer)
            if self._warmup == 0:
                self._safely(self._begin)

    def after(self, optimizer: object, *_: object) -> None:
        if id(optimizer) != self._optimizer or self._failed:
            return
        self._made += 1
        recorded = self._made - self._warmup
        if self._warmup and recorded == 0:
            self._safely(self._begin)
        elif 0 < recorded < self._steps:
            self._safely(self._next)
        elif recorded == self._steps:
            self._safely(self._end)
            if self._configuration.get("stop_program") == "1":
                import signal

                os.kill(os.getpid(), signal.SIGTERM)

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

        self._synchronize()
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
        if self._marks:
            recorder.pop()
        self._operators.off()
        recorder.stop()

    def _synchronize(self) -> None:
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized():
            cuda.synchronize()


def count_steps(configuration: _Configuration, module: Any) -> None:
    """Watch all optimizers from now on.

    Args:
        configuration: of the recording.
        module: ``torch.optim.optimizer``.
    """
    steps = _Steps(configuration)
    try:
        module.register_optimizer_step_pre_hook(steps.before)
        module.register_optimizer_step_post_hook(steps.after)
    except AttributeError:
        print("stepscope: this torch is too old for --steps; it needs 2.1", file=sys.stderr)

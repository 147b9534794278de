"""The hook in the recorded program: notes batches and other profilers; on request steps and more.

Loaded by ``path/sitecustomize.py``, whose folder the launcher puts in front of ``PYTHONPATH``,
unless it is told not to. It imports the standard library only, reads the collector's configuration,
and waits for modules of torch and triton without importing them.
"""

# Every Python of the run pays for what is imported here, a compiler's helper too: only modules that
# the interpreter has loaded anyway. The rest is imported where it is used.
from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    _Configuration = dict[str, str]

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs start-up
_OPTIMIZER = "torch.optim.optimizer"
_TORCH_PROFILER = "torch.autograd.profiler"
_PROTON = "triton.profiler.profile"
_LOADER = "torch.utils.data.dataloader"
_FETCHERS = "torch.utils.data._utils.fetch"
_LOADED = "hook-loaded.txt"
_LEFT_OUT = "left-out-rank{}.txt"
STEPS_MADE = "steps-made.{}.txt"
"""Names of notes to the launcher: capture/hooknotes.py."""
_RANKS = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
)
program_marks_steps = False
"""Set by ``stepscope.step()`` in the program: two series of steps would cross."""
_LONG_COLLECTION_NS = 100_000
"""Collections below this are not noted: young generations take microseconds and are many."""


def _configuration() -> _Configuration:
    """The collector's configuration; empty where there is none."""
    found: _Configuration = {}
    try:
        with open(os.environ["STEPSCOPE_CAPTURE"], encoding="utf-8") as lines:  # noqa: PTH123
            for line in lines:
                key, _, value = line.rstrip("\n").partition("=")
                found[key] = value
    except (OSError, KeyError):
        return {}
    return found


def _private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read, whatever the program's umask."""
    return os.open(path, flags, 0o600)


def note(name: str, text: str) -> None:
    """Leave a note for the launcher beside the configuration."""
    try:
        folder = os.path.dirname(os.environ["STEPSCOPE_CAPTURE"])  # noqa: PTH120
        with open(f"{folder}/{name}", "w", encoding="ascii", opener=_private) as file:
            file.write(text)
    except (OSError, KeyError):
        pass  # the program has become another user, say: the launcher then knows less


class _Collector:
    """Recording by the collector's library."""

    def __init__(self, configuration: _Configuration) -> None:
        import ctypes

        self._library = ctypes.CDLL(configuration["library"])
        self._library.stepscope_range.argtypes = (
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.c_uint64,
        )
        self._library.stepscope_remark.argtypes = (ctypes.c_char_p, ctypes.c_char_p)

    def start(self) -> None:
        self._library.stepscope_start()

    def stop(self) -> None:
        self._library.stepscope_end()

    def push(self, name: str) -> None:
        self._library.stepscope_push(name.encode())

    def pop(self) -> None:
        self._library.stepscope_pop()

    def range(self, domain: str, name: str, begin_ns: int, end_ns: int) -> None:
        self._library.stepscope_range(domain.encode(), name.encode(), begin_ns, end_ns)

    def stand_aside(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._library.stepscope_stand_aside()

    def note(self, text: str) -> None:
        self._library.stepscope_remark(b"info", text.encode())

    def finish(self, how: bytes) -> None:
        self._library.stepscope_finish(how)


class _Watch:
    """Waits for modules to be imported, and calls what is registered for each afterwards."""

    def __init__(self) -> None:
        self.wanted: dict[str, Callable[[Any], None]] = {}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        hook = self.wanted.pop(name, None)
        if hook is None:
            return None
        if not self.wanted:
            sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                try:
                    hook(module)
                except Exception as error:
                    print(f"stepscope: {name} is not watched: {error!r}", file=sys.stderr)

            loader.exec_module = exec_module
        return spec


_ready_batches: list[Any] = []


def _ready(configuration: _Configuration) -> Any:
    """The batches that must be used up before steps are recorded; None where it does not wait."""
    if configuration.get("settle") != "1":
        return None
    if not _ready_batches:
        _ready_batches.append(_part("ready").ReadyBatches())
    return _ready_batches[0]


def _count_steps(configuration: _Configuration, module: Any) -> None:
    _part("steps").count_steps(configuration, module, _ready(configuration))


class _OtherProfiler:
    """Notes in the capture when another profiler that uses CUPTI began and ended."""

    def __init__(self, configuration: _Configuration, name: str) -> None:
        self._configuration = configuration
        self._name = name
        self._on = False
        self._recorder: Any = None

    def note(self, on: bool) -> None:
        if on == self._on:
            return
        self._on = on
        try:
            if self._recorder is None:
                self._recorder = _Collector(self._configuration)
            if on and self._configuration.get("stand_aside") == "1":
                self._recorder.stand_aside()
            self._recorder.note(f"other profiler {'began' if on else 'ended'}: {self._name}")
        except Exception:
            self._recorder = None  # the program's own profiling goes on whatever happens here

    def around(self, module: Any, name: str, on: bool, when: Any = lambda *_: True) -> None:
        """Wrap a function of a module so that calls are noted."""
        call = getattr(module, name, None)
        if call is None:
            return

        def noted(*arguments: Any, **named: Any) -> Any:
            if on and when(*arguments):
                self.note(True)
            try:
                return call(*arguments, **named)
            finally:
                if not on:
                    self.note(False)

        noted.__name__ = name
        setattr(module, name, noted)


def _of_gpu(*arguments: Any) -> bool:
    """Whether torch's profiler was asked for CUDA: its second argument is a set of activities."""
    return len(arguments) > 1 and any("CUDA" in str(one) for one in arguments[1])


def _note_torch(configuration: _Configuration, module: Any) -> None:
    other = _OtherProfiler(configuration, "torch.profiler")
    for name in ("_prepare_profiler", "_enable_profiler"):
        other.around(module, name, True, _of_gpu)
    other.around(module, "_disable_profiler", False)


def _note_proton(configuration: _Configuration, module: Any) -> None:
    other = _OtherProfiler(configuration, "Proton (triton.profiler)")
    other.around(module, "start", True)
    other.around(module, "finalize", False)


def _ranged(recorder: Any, kind: Any, method: str, name: Callable[[Any], str]) -> None:
    """Put a range around a method of a class."""
    call = kind.__dict__.get(method)
    if call is None:
        return

    def ranged(self: Any, *arguments: Any, **named: Any) -> Any:
        recorder.push(name(self))
        try:
            return call(self, *arguments, **named)
        finally:
            recorder.pop()

    ranged.__name__ = method
    setattr(kind, method, ranged)


def _note_loader(configuration: _Configuration, module: Any) -> None:
    """What is ready where recording waits for it; the collector's range around getting a batch.

    The range is named as torch.profiler names it.
    """
    ready = _ready(configuration)
    if ready is not None:
        ready.watch(module)
    if configuration.get("hook") != "collector":
        return
    _ranged(
        _Collector(configuration),
        module._BaseDataLoaderIter,
        "__next__",
        lambda loader: f"enumerate(DataLoader)#{type(loader).__name__}.__next__",
    )


def _note_fetchers(configuration: _Configuration, module: Any) -> None:
    """A range around making a batch, which is what a worker does."""
    recorder = _Collector(configuration)
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        kind = getattr(module, name, None)
        if kind is not None:
            _ranged(recorder, kind, "fetch", lambda _: "DataLoader fetch")


def _watch_collections(configuration: _Configuration) -> None:
    import gc

    recorder = _Collector(configuration)
    begun = [0]

    def note(phase: str, info: dict[str, int]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            begun[0] = now
        elif begun[0] and now - begun[0] >= _LONG_COLLECTION_NS:
            name = f"garbage collection, generation {info['generation']}"
            recorder.range("python gc", name, begun[0], now)

    gc.callbacks.append(note)


def _finish_when_interrupted(configuration: _Configuration) -> None:
    """After an interrupt that nobody caught, Python ends itself by the signal.

    The C library's exit handlers do not run then, in which the collector writes the rest.
    """
    import atexit

    def finish() -> None:
        if getattr(sys, "last_type", None) is not KeyboardInterrupt:
            return
        import ctypes

        try:
            # not where neither CUDA nor NVTX has loaded it
            ctypes.CDLL(configuration["library"], mode=os.RTLD_NOLOAD)
        except OSError:
            return
        _Collector(configuration).finish(b"SIGINT")

    atexit.register(finish)


def _sample_stacks(configuration: _Configuration) -> None:
    sampler = _part("sampling").Sampler
    sampler(configuration["folder"], float(configuration["sample_hz"])).start()


def _watch_slow_steps(configuration: _Configuration, module: Any) -> None:
    slow = _part("slow").SlowSteps(configuration["folder"], float(configuration["slow_step"]))
    module.register_optimizer_step_post_hook(slow.after)


class Followed:
    """Tells which of a program's optimizers has its steps counted.

    The first one that makes a step, unless another one makes many while it makes none: a program
    may drop an optimizer after a step (to allocate its state, or to load an older one's). Of
    several that take turns the first stays.

    Attributes:
        changed: whether the last step that counted was the first one of another optimizer.
    """

    _LEFT = 10  # steps in a row from which on an optimizer is no longer waited for

    def __init__(self) -> None:
        self._followed: int | None = None
        self._others: dict[int, int] = {}
        self.changed = False

    def begins(self, optimizer: object) -> bool:
        """Whether this is the first step of all, before it is made."""
        first = self._followed is None
        if first:
            self._followed = id(optimizer)
        return first

    def counts(self, optimizer: object, *, fixed: bool = False) -> bool:
        """Whether a step counts that an optimizer has made.

        Args:
            optimizer: the optimizer.
            fixed: whether it is too late for another one than the one that is followed.
        """
        self.begins(optimizer)
        this = id(optimizer)
        other = this != self._followed
        if other:
            made = self._others[this] = self._others.get(this, 0) + 1
            if fixed or made <= self._LEFT:
                return False
        self._followed, self.changed = this, other
        self._others.clear()
        return True


def _part(name: str) -> Any:
    """Load a file beside this one, under a name that is no program's."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(f"_stepscope_{name}", f"{_HERE}/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rank() -> str:
    """The rank that the environment gives this process; empty for none."""
    return next((os.environ[name] for name in _RANKS if name in os.environ), "")


def _is_left_out(ranks: str) -> bool:
    """Whether this process has a rank that is not asked for; the collector judges alike."""
    here = next((os.environ[name] for name in _RANKS if name in os.environ), None)
    if not ranks or here is None or f",{here}," in ranks:
        return False
    if here.isdigit() and len(here) < 10:
        note(_LEFT_OUT.format(here), "")
    return True


def _install() -> None:
    configuration = _configuration()
    if _is_left_out(configuration.get("ranks", "")):
        return
    if configuration.get("gc") == "1":
        _watch_collections(configuration)
    if float(configuration.get("sample_hz") or 0) > 0:
        _sample_stacks(configuration)
    watch = _Watch()
    if int(configuration.get("steps") or 0) > 0 or float(configuration.get("slow_step") or 0) > 0:
        note(_LOADED, "")
    if int(configuration.get("steps") or 0) > 0:
        watch.wanted[_OPTIMIZER] = lambda module: _count_steps(configuration, module)
        watch.wanted[_LOADER] = lambda module: _note_loader(configuration, module)
    elif float(configuration.get("slow_step") or 0) > 0:
        watch.wanted[_OPTIMIZER] = lambda module: _watch_slow_steps(configuration, module)
    if configuration.get("hook") == "collector":
        watch.wanted[_TORCH_PROFILER] = lambda module: _note_torch(configuration, module)
        watch.wanted[_PROTON] = lambda module: _note_proton(configuration, module)
        watch.wanted[_LOADER] = lambda module: _note_loader(configuration, module)
        watch.wanted[_FETCHERS] = lambda module: _note_fetchers(configuration, module)
        _finish_when_interrupted(configuration)
    if configuration.get("hook") == "trial":
        note(_LOADED, "")
        _part("trial").install(configuration, watch.wanted)
    if watch.wanted:
        sys.meta_path.insert(0, watch)


_install()

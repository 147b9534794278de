"""Times the steps of a run that nothing records, keeps its losses, and applies fixes. On request.

The runs with a fix and those without are watched alike: by a mark after each optimizer step (an
event on the GPU where there is one, which nobody waits for) and a copy of each loss, which stays on
its device and is read when the steps are over.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    _Configuration = dict[str, str]

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_PACKAGE = "_stepscope_tries"
_MOST_STEPS = 5000
"""Steps that are timed where the program goes on for longer."""
_MOST_LOSSES = 20_000
_INHERITED = "STEPSCOPE_TRY_PARENT"
"""Tells processes that the program starts that a try has set variables for them already."""


def _tries(text: str) -> list[Any]:
    """The files of the fixes, with their values."""
    import importlib.util

    folder = os.path.join(os.path.dirname(_HERE), "tries")  # noqa: PTH118, PTH120
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    package: Any = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    found: list[Any] = package.chosen(text)
    return found


def _is_worker() -> bool:
    """Whether this process is a loader's worker (or another daemon of multiprocessing)."""
    processes = sys.modules.get("multiprocessing.process")
    return bool(processes is not None and processes.current_process().daemon)


class _Losses:
    """The roots of backward passes that are single numbers, on their device."""

    def __init__(self) -> None:
        self._values: Any = None
        self._steps: list[int] = []
        self._failed = ""

    def keep(self, torch: Any, root: Any, step: int) -> None:
        """Copy a loss on its device; nobody waits for it."""
        if self._failed or len(self._steps) >= _MOST_LOSSES:
            return
        try:
            if root.numel() != 1:
                return
            if root.is_cuda and torch.cuda.is_current_stream_capturing():
                return
            with torch.no_grad():
                value = root.detach().reshape(())
                if self._values is None:
                    kind = torch.float64 if value.dtype == torch.float64 else torch.float32
                    self._values = torch.zeros(_MOST_LOSSES, dtype=kind, device=value.device)
                self._values[len(self._steps)].copy_(value)
            self._steps.append(step)
        except Exception as error:
            self._failed = repr(error)

    def read(self) -> tuple[list[list[float]], str]:
        """Step and value of each, once the GPU has done its work; and why there are no more."""
        if self._values is None:
            return [], self._failed
        values = self._values[: len(self._steps)].tolist()
        return list(map(list, zip(self._steps, values))), self._failed  # noqa: B905 - Python 3.8


class Hook:
    """A forward hook of ours; a module that is stored or copied has one that does nothing."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        """As PyTorch calls it."""
        return self._call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("lambda *_: None",)


def _call_before_compiled(module: Any, call: Callable[..., None]) -> None:
    compiled = module._compiled_call_impl

    def both(*arguments: Any, **named: Any) -> Any:
        call()
        return compiled(*arguments, **named)

    module._compiled_call_impl = both


class Trial:
    """One process of a run.

    Attributes:
        warmup: steps to let pass.
        last: number of the last step that is timed; 0 where the program's end decides.
        inherited: whether a process above this one applies the same fixes.
        accepted: parameters of the optimizer that is being made.
        hook: makes a forward hook of a function.
    """

    hook = Hook

    def __init__(self, configuration: _Configuration) -> None:
        self._folder = configuration["folder"]
        self.warmup = int(configuration.get("warmup", "0"))
        steps = int(configuration.get("steps", "0"))
        self.last = self.warmup + steps if steps else 0
        self.inherited = os.environ.get(_INHERITED) == configuration["folder"]
        self.accepted: tuple[str, ...] = ()
        self._process = os.getpid()
        self._followed: Any = sys.modules["_stepscope_hook"].Followed()
        self._made = 0
        self._host: list[int] = []
        self._events: list[Any] = []
        self._losses = _Losses()
        self._waits: dict[str, int] = {}
        self._before: dict[int, tuple[Any, Callable[..., None]]] = {}
        self._building: set[int] = set()
        self._built: list[Callable[[], None]] = []
        self._at_work = False
        self._outermost: Any = None
        self._written = False
        self._changes: list[tuple[Any, Any]] = []
        if text := configuration.get("tries", ""):
            change = None
            for module, value in _tries(text):
                base = sys.modules[f"{_PACKAGE}.base"]
                change = base.Change(module.TRY, value, self)
                self._changes.append((module, change))
            os.environ[_INHERITED] = configuration["folder"]

    # what happens in the program

    def tell(self, event: str, *arguments: Any) -> None:
        """Hand an event to the fixes; what fails in one must not stop the program."""
        for module, change in self._changes:
            handler = getattr(module, event, None)
            if handler is None or change.refused:
                continue
            try:
                handler(change, *arguments)
            except Exception as error:
                change.refuse(f"it failed here ({type(error).__name__}: {str(error)[:200]})")

    def handles(self, *events: str) -> bool:
        """Whether a fix waits for one of these events."""
        return any(hasattr(module, event) for module, _ in self._changes for event in events)

    def torch_is_there(self, torch: Any) -> None:
        """The program has imported torch."""
        import functools

        self.tell("on_torch", torch)
        tensor = getattr(torch, "Tensor", None)
        if tensor is not None and hasattr(tensor, "backward"):
            self._watch_losses(torch, tensor)
        if self.handles("at_work", "on_module"):
            hook: Any = sys.modules["_stepscope_hook"]
            tell_of = functools.partial(self.tell, "on_module")
            self._outermost = hook._part("modules").Outermost(self._begin_work, tell_of)
            self._outermost.watch(torch)

    def _watch_losses(self, torch: Any, tensor: Any) -> None:
        call = tensor.backward
        ends_autocast = self.handles("on_backward")

        def backward(root: Any, *arguments: Any, **named: Any) -> Any:
            if not self._written and os.getpid() == self._process:
                self._losses.keep(torch, root, self._made)
            if ends_autocast:
                self.tell("on_backward")
            return call(root, *arguments, **named)

        backward.__doc__ = call.__doc__
        tensor.backward = backward

    def _begin_work(self) -> None:
        if not self._at_work:
            self._at_work = True
            self.tell("at_work")

    def before_forward(self, module: Any, call: Callable[..., None]) -> None:
        """Call something whenever a module's forward pass begins."""
        if getattr(module, "_compiled_call_impl", None) is not None:
            _call_before_compiled(module, call)
        else:
            self._before[id(module)] = module.register_forward_pre_hook(Hook(call)), call

    def call_before(self, module: Any) -> None:
        """What is called before a module that has just been compiled stays outside of that."""
        handle, call = self._before.pop(id(module), (None, None))
        if handle is not None and call is not None:
            handle.remove()
            _call_before_compiled(module, call)

    def wait(self, place: str) -> None:
        """A line of the program waited for the GPU."""
        self._waits[place] = self._waits.get(place, 0) + 1

    # what is made

    def watch_loaders(self, module: Any) -> None:
        """Let fixes change the arguments of every ``DataLoader`` of this process."""
        if self.handles("on_loader"):
            self._watch_building(module.DataLoader, "on_loader")

    def watch_optimizers(self, module: Any) -> None:
        """The same of every optimizer of ``torch.optim``."""
        if self.handles("on_optimizer"):
            for kind in list(vars(module).values()):
                is_one = isinstance(kind, type) and issubclass(kind, module.Optimizer)
                if is_one and kind is not module.Optimizer and "__init__" in vars(kind):
                    self._watch_building(kind, "on_optimizer")

    def _watch_building(self, kind: Any, event: str) -> None:
        import functools
        import inspect

        build = kind.__init__
        signature = inspect.signature(build)

        @functools.wraps(build)
        def watched(made: Any, *arguments: Any, **named: Any) -> None:
            if id(made) in self._building or _is_worker():
                build(made, *arguments, **named)
                return
            try:
                given = signature.bind(made, *arguments, **named)
            except TypeError:
                given = None
            if given is None:  # the program's own mistake, told as without us
                build(made, *arguments, **named)
                return
            self._building.add(id(made))
            self.accepted = tuple(signature.parameters)
            self._built = []
            try:
                self._build(build, made, event, given)
            finally:
                self._building.discard(id(made))

        kind.__init__ = watched

    def _build(self, build: Any, made: Any, event: str, given: Any) -> None:
        """Make something of changed arguments; of its own ones where they are not accepted."""
        own = dict(given.arguments)
        self.tell(event, made, given.arguments)
        if "params" in own:  # a generator can be read only once
            own["params"] = given.arguments["params"]
        try:
            build(*given.args, **given.kwargs)
        except Exception as error:
            same = all(given.arguments.get(name) is value for name, value in own.items())
            if same and len(own) == len(given.arguments):
                raise
            problem = f"{type(made).__name__} does not take it: {str(error)[:200]}"
        else:
            problem = ""
        if problem:
            given.arguments.clear()
            given.arguments.update(own)
            build(*given.args, **given.kwargs)  # may fail as it would without us
            for module, change in self._changes:
                if hasattr(module, event):
                    change.refuse(problem)
            return
        for call in self._built:
            call()

    def after_build(self, made: Any, call: Callable[[], None]) -> None:
        """Do something once what is being made is there."""
        self._built.append(call)

    # steps

    def watch_steps(self, module: Any) -> None:
        """Count the steps of an optimizer."""
        import atexit

        hook: Any = sys.modules["_stepscope_hook"]
        hook.note(hook.STEPS_MADE.format(self._process), "0")
        module.register_optimizer_step_pre_hook(self._step_begins)
        module.register_optimizer_step_post_hook(self._step_ends)
        atexit.register(self.write)

    def _step_begins(self, optimizer: object, *_: object) -> None:
        if self._followed.begins(optimizer):
            self._begin_work()

    def _step_ends(self, optimizer: object, *_: object) -> None:
        if self._written or os.getpid() != self._process:
            return
        if not self._followed.counts(optimizer, fixed=self._made >= max(self.warmup, 1)):
            return
        self._made += 1
        if self._made == 1:
            if self._outermost is not None:
                self._outermost.end()
            hook: Any = sys.modules["_stepscope_hook"]
            hook.note(hook.STEPS_MADE.format(self._process), "1")
        if self._made >= self.warmup and len(self._host) <= _MOST_STEPS:
            self._mark()
        self.tell("after_step", self._made)
        if self._made == self.last:
            self.write()
            raise SystemExit(0)

    def _mark(self) -> None:
        """Note when the step has ended: on the host, and on the GPU once it comes there."""
        cuda: Any = getattr(sys.modules["torch"], "cuda", None)
        used = cuda is not None and cuda.is_initialized() and hasattr(cuda, "Event")
        if used and not cuda.is_current_stream_capturing():
            event = cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        self._host.append(time.perf_counter_ns())

    def write(self) -> None:
        """Write what was found, once; the GPU has done its work then."""
        if self._written or os.getpid() != self._process or not self._made:
            return
        self._written = True
        try:
            self._write()
        except Exception as error:
            print(f"stepscope: the steps of this run are lost: {error!r}", file=sys.stderr)

    def _write(self) -> None:
        import json

        lengths, clock = self._lengths()
        losses, why_no_more = self._losses.read()
        hook: Any = sys.modules["_stepscope_hook"]
        found = {
            "rank": hook.rank(),
            "steps": self._made,
            "lengths_ns": lengths,
            "clock": clock,
            "losses": losses,
            "losses_failed": why_no_more,
            "changes": [change.document() for _, change in self._changes],
            "waits": self._waits,
        }
        name = f"{self._folder}/trial.{self._process}.json"
        with open(f"{name}.part", "w", encoding="utf-8", opener=hook._private) as file:
            json.dump(found, file)
        os.replace(f"{name}.part", name)  # noqa: PTH105

    def _lengths(self) -> tuple[list[int], str]:
        """How long the steps after the warm-up took, ns, and by which clock."""
        if self._events and len(self._events) == len(self._host):
            self._events[-1].synchronize()
            marks = self._events
            lengths = [a.elapsed_time(marks[i]) for i, a in enumerate(marks[:-1], 1)]
            return [round(ms * 1e6) for ms in lengths], "gpu"
        return [self._host[i] - a for i, a in enumerate(self._host[:-1], 1)], "host"


def _without_our_frames(
    show: Callable[..., None], kind: Any, error: BaseException, trace: Any
) -> None:
    """Show an exception that ends the program as it would be without us."""
    import types

    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        left += [one.__cause__, one.__context__]
        steps, at = [], one.__traceback__
        while at is not None:
            if not at.tb_frame.f_code.co_filename.startswith(os.path.dirname(_HERE)):  # noqa: PTH120
                steps.append(at)
            at = at.tb_next
        kept = None
        for step in reversed(steps):
            kept = types.TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
        one.__traceback__ = kept
    show(kind, error, error.__traceback__)


def install(configuration: _Configuration, wanted: dict[str, Callable[[Any], None]]) -> None:
    """Watch this process of the program.

    Args:
        configuration: of the run.
        wanted: receives what to call once a module was imported.
    """
    import functools

    trial = Trial(configuration)
    trial.tell("at_start")
    sys.excepthook = functools.partial(_without_our_frames, sys.excepthook)
    wanted["torch"] = trial.torch_is_there
    wanted["torch.optim"] = trial.watch_optimizers
    wanted["torch.optim.optimizer"] = trial.watch_steps
    wanted["torch.utils.data.dataloader"] = trial.watch_loaders

"""Notices the modules that a program calls itself, without leaving a trace in what it compiles.

PyTorch's global hooks of modules would do, but the compiler follows them: it warns of them, fails
in them, or compiles everything once more when they are gone. The code of ``Module.__call__`` is
exchanged instead, while no module runs: the function stays the one that the compiler knows, and
has its own code again by the time that anything is compiled.
"""

from __future__ import annotations

import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CALLED = "_stepscope_module_called"
_UNCHANGED = "_stepscope_module_call"
_COMPILING = "_stepscope_is_compiling"


def _call(self, *args, **kwargs):  # type: ignore[no-untyped-def] # its code runs as Module.__call__
    if _stepscope_is_compiling():  # type: ignore[name-defined] # noqa: F821
        return _stepscope_module_call(self, *args, **kwargs)  # type: ignore[name-defined] # noqa: F821
    return _stepscope_module_called(self, args, kwargs)  # type: ignore[name-defined] # noqa: F821


class Outermost:
    """Watches calls of modules that no other module makes, until told to end.

    Attributes:
        modules: those that were called.
    """

    def __init__(self, begins: Callable[[], None], first: Callable[[Any], None]) -> None:
        """Watch nothing yet.

        Args:
            begins: is called before each call of an outermost module.
            first: is called with an outermost module before it is called for the first time.
        """
        self.modules: list[Any] = []
        self._begins, self._first = begins, first
        self._function: Any = None
        self._code: Any = None
        self._unchanged: Any = None

    def watch(self, torch: Any) -> None:
        """From now on, if this PyTorch has its modules called by a function without a closure."""
        modules = sys.modules.get("torch.nn.modules.module")
        function = vars(modules.Module).get("__call__") if modules is not None else None
        if not isinstance(function, types.FunctionType) or function.__code__.co_freevars:
            return
        compiler = getattr(torch, "compiler", None)
        self._function, self._code = function, function.__code__
        self._unchanged = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__
        )
        function.__globals__[_CALLED] = self._called
        function.__globals__[_UNCHANGED] = self._unchanged
        function.__globals__[_COMPILING] = getattr(compiler, "is_compiling", bool)
        function.__code__ = _call.__code__

    def end(self) -> None:
        """Watch no more."""
        if self._function is not None:
            self._function.__code__ = self._code
            self._function = None

    def _called(self, module: Any, arguments: Any, named: Any) -> Any:
        if self._function is None:
            return self._unchanged(module, *arguments, **named)
        self._function.__code__ = self._code
        try:
            self._begins()
            if not any(module is one for one in self.modules):
                self.modules.append(module)
                self._first(module)
            return self._unchanged(module, *arguments, **named)
        finally:
            if self._function is not None:
                self._function.__code__ = _call.__code__

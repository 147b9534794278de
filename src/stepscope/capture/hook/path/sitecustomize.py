"""What Python imports when it starts in a recorded program: loads the hook beside this folder.

This folder is in front of ``PYTHONPATH``, so nothing else may lie in it: it would hide the
program's own modules. Every Python of the run executes this file, the oldest, too; those that the
hook is not written for are left alone. A ``sitecustomize`` that this one hides is run as usual.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - for every Python
_HOOK = "_stepscope_hook"
_OLDEST = (3, 8)


def _load_hook():  # type: ignore[no-untyped-def]
    """Run the hook, once: another tool's ``sitecustomize`` may run this one again."""
    if _HOOK in sys.modules or sys.version_info < _OLDEST:
        return
    try:
        # importlib.util would cost every start some milliseconds
        from importlib.machinery import SourceFileLoader

        path = os.path.join(os.path.dirname(_HERE), "inside.py")  # noqa: PTH118, PTH120
        module = type(sys)(_HOOK)
        module.__file__ = path
        sys.modules[_HOOK] = module
        exec(SourceFileLoader(_HOOK, path).get_code(_HOOK), module.__dict__)  # type: ignore
    except Exception as error:  # whatever goes wrong here must not stop the program
        sys.stderr.write("stepscope: the hook does nothing here: %r\n" % (error,))  # noqa: UP031


def _run_other():  # type: ignore[no-untyped-def]
    """Run the sitecustomize that this one hides; it takes this one's name, as without us."""
    elsewhere = [p for p in sys.path if os.path.abspath(p or os.curdir) != _HERE]  # noqa: PTH100
    if sys.version_info < (3, 5):  # noqa: UP036 - see above
        import imp

        try:
            found = imp.find_module("sitecustomize", elsewhere)
        except ImportError:
            return
        imp.load_module("sitecustomize", *found)
        return
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_load_hook()  # type: ignore[no-untyped-call]
_run_other()  # type: ignore[no-untyped-call]

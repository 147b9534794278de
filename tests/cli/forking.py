"""Runs commands in children of one process that has imported everything already.

Starting Python and importing numpy, pyarrow and DuckDB takes longer than most commands work. A
child that is forked is a process of its own all the same: own arguments, environment, streams, exit
code, nothing left behind for the next one. Tests of how the program *starts* (encodings, closed
streams, signals, what is imported when) start Python themselves.

Run as a program this file is the process that forks; standard input is the socket that asks it to.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from typing import Any, NoReturn

LIMIT_S = 120
STARTED = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "OPENBLAS_", "ARROW_", "MALLOC_")
"""Beginnings of variables that Python or a library reads when it starts."""
COMMAND = "from stepscope.cli.main import main; main()"
HEAVY = (
    "adbc_driver_sqlite.dbapi", "duckdb", "numpy.ma", "numpy.random", "pyarrow.compute",
    "pyarrow.csv", "pyarrow.dataset", "pyarrow.parquet", "rich.console", "rich.table", "rich.text",
)  # fmt: skip


class Forks:
    """The process that forks, from this one's side."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=theirs.fileno(), stdout=subprocess.DEVNULL
            )
        self._started_with = _of_start(os.environ)

    def can(self, env: dict[str, str]) -> bool:
        """Whether a child would behave as a process that is started."""
        return _of_start(env) == self._started_with

    def run(
        self, arguments: list[str], env: dict[str, str], program: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """``python -m stepscope ARGUMENTS``, or ``python -c PROGRAM ARGUMENTS``, to its end."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            fork = self.start(arguments, env, out.fileno(), err.fileno(), program)
            code = fork.wait()
            words = [program or "stepscope", *arguments]
            return subprocess.CompletedProcess(words, code, _text(out), _text(err))

    def start(
        self, arguments: list[str], env: dict[str, str], out: int, err: int, program: str = ""
    ) -> Fork:
        """The same, without waiting for its end."""
        ours, theirs = socket.socketpair()
        with theirs, open(os.devnull, "rb") as nothing:  # noqa: PTH123
            streams = [theirs.fileno(), nothing.fileno(), out, err]
            socket.send_fds(self._control, [b"!"], streams)
        asked = {"words": arguments, "env": env, "folder": os.getcwd(), "program": program}  # noqa: PTH109
        ours.sendall(json.dumps(asked).encode() + b"\n")
        return Fork(ours)

    def close(self) -> None:
        """End the process."""
        self._control.close()
        self._process.wait(LIMIT_S)


class Fork:
    """A child: a process of its own whose parent is not this one."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        self._answer = asked.makefile("r")
        asked.settimeout(LIMIT_S)
        number = self._answer.readline()
        assert number, "the process that forks has ended; its error stands above"
        self.pid = int(number)

    def wait(self) -> int:
        """Its exit code, negative where a signal ended it; killed where it takes too long."""
        try:
            return os.waitstatus_to_exitcode(int(self._answer.readline()))
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            raise
        finally:
            self._answer.close()
            self._asked.close()


def _of_start(env: Any) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(STARTED)}


def _text(stream: Any) -> str:
    stream.seek(0)
    text: str = stream.read().decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as subprocess does


# --- the process that forks ----------------------------------------------------------------------


def _serve() -> str | None:
    """Fork for every request and tell how each child ends; in a child, its program; at last None.

    No process stands between: to fork one with all this loaded takes as long as many a command.
    """
    control = socket.socket(fileno=os.dup(0))
    ended, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _tell_ends(running)
        if control not in ready:
            continue
        message, streams, _, _ = socket.recv_fds(control, 1, 4)
        if not message:  # the tests have ended
            return None
        asking = socket.socket(fileno=streams.pop(0))
        if child := _fork():
            running[child] = asking
            _send(asking, child)
            for stream in streams:
                os.close(stream)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream in (ended, wakes):
            os.close(stream)
        for other in (control, *running.values()):
            other.close()
        return _become(asking, *streams)


def _tell_ends(running: dict[int, socket.socket]) -> None:
    """Tell those who asked how their children ended."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            with running.pop(found[0]) as asking:
                _send(asking, found[1])


def _send(asking: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        asking.sendall(f"{number}\n".encode())


def _fork() -> int:
    """``os.fork``; the threads of numpy's library, which it warns about, look after themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become(asking: socket.socket, *streams: int) -> str:
    """In a child: take on what was asked for; returns the program."""
    with asking, asking.makefile("r") as lines:
        asked = json.loads(lines.readline())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    encoding = asked["env"].get("PYTHONIOENCODING")
    for name, number in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, _opened(number, getattr(sys, name), encoding))
    sys.argv[1:] = asked["words"]
    return asked["program"] or COMMAND


def _opened(number: int, like: Any, encoding: str | None) -> io.TextIOWrapper:
    """A standard stream, opened as Python opens it when it starts."""
    return io.TextIOWrapper(
        open(number, "wb", closefd=False),
        encoding=encoding or like.encoding,
        errors=like.errors,
        line_buffering=number == 2 or os.isatty(number),
        write_through=like.write_through,
    )


def _import_all() -> None:
    import importlib
    import pkgutil

    import stepscope.cache.revisions
    from stepscope.native.library import load, names

    for name in HEAVY:
        importlib.import_module(name)
    apart = {"annotate", "capture", "docs"}
    for room in [m.name for m in pkgutil.iter_modules(stepscope.__path__) if m.ispkg]:
        if room in apart:  # they have processes of their own, or are not for users
            continue
        inside = importlib.import_module(f"stepscope.{room}")
        for module in pkgutil.walk_packages(inside.__path__, f"{inside.__name__}."):
            with contextlib.suppress(ImportError):  # of what is not installed: commands say so
                importlib.import_module(module.name)
    stepscope.cache.revisions.code_digest()  # of the code that is loaded now; children need it
    for name in names():
        load(name)  # a command with an empty cache would compile it


def _run(program: str) -> NoReturn:
    """Run a program and end as Python does, but for taking every module apart."""
    import atexit
    import threading

    code: object = 0
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    sys.path = [path for path in sys.path if path != os.path.dirname(__file__)]  # noqa: PTH120
    _import_all()
    os.fsync = lambda _: None  # what tests write need not outlive a power cut
    gc.freeze()  # a child need not search what is never garbage
    if asked_for := _serve():
        _run(asked_for)
    os._exit(0)

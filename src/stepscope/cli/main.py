"""Entry point: finds the command, loads only its module, turns errors into one line."""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import io
import os
import re
import signal
import sys
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from stepscope import __version__
from stepscope.cli import registry
from stepscope.trace.errors import DamageWarning, LimitError, StepscopeError

_PLAINER = {"→": "->", "·": "-", "█": "#", "▓": "=", "▒": "+", "░": ".", "…": "..."}
_OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_LONGEST_MESSAGE = 4000
_SAME_INTERRUPT_S = 0.5
_ASK_AGAIN_S = 0.02
_LONGEST_LOADING_S = 5.0
_IMPORTING = "<frozen importlib._bootstrap>"
_NO_MEMORY = ("OutOfMemory", "Out of Memory", "out of memory", "Cannot allocate memory",
              "bad_alloc", "failed to map segment", "can't start new thread",
              "Unable to allocate", "Failed to launch worker thread")  # fmt: skip
_TOO_LITTLE = (
    "the memory is not enough for this; close other programs, raise ulimit -v, or name fewer "
    "captures"
)
_RANGE = re.compile(r"is not in the range (-?[\d.]+)<=x<=(-?[\d.]*\d)")
_interrupted: list[float] = []


class _Commands(click.Group):
    """Loads a command's module only when it is run: start-up is felt in every call."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(registry.commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return registry.find(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, registry.commands()))
        for heading, members in registry.by_group().items():
            with formatter.section(heading):
                rows = [(f"{n:{width}}", registry.summary(one)) for n, one in members.items()]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            names = list(registry.commands())
            near = difflib.get_close_matches(args[0], names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"commands: {', '.join(names)}"
            raise click.UsageError(f"no command {args[0]!r}; {hint}", ctx) from error


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Help is as wide as the terminal, up to what still reads well."""


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="stepscope", message="%(prog)s %(version)s")
def cli() -> None:
    """Why is my training step slow, and what happens if I fix it?"""


def main() -> NoReturn:
    """Run the command line and exit: 0 it worked, 1 a gate failed, 2 bad input, 3 a bug."""
    _prepare_streams()
    _answer_interrupts()
    damage = _collect_damage()
    try:
        code = _run()
        sys.stdout.flush()
        _say_damage(damage)
    except StepscopeError as error:
        _refuse(error)
    except click.exceptions.Exit as error:
        _say_damage(damage)
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        _show_help(error)
    except click.ClickException as error:
        _fail(_in_words(error), 2)
    except (click.Abort, KeyboardInterrupt):
        _end_interrupted()
    except BrokenPipeError:
        _discard_output()  # the reader went away (| head): not an error
        sys.exit(0)
    except Exception as error:
        _answer_unexpected(error)
    _ignore_interrupts()  # the work is done: nothing is left to interrupt
    if "duckdb" not in sys.modules:  # it would report what is not collected as leaked
        gc.freeze()  # the last search for garbage takes longer than a small report
    sys.exit(code if isinstance(code, int) else 0)


def _answer_unexpected(error: Exception) -> None:
    """End for what no part of Stepscope foresaw: the machine lacks something, or it is a bug."""
    if _interrupted:  # a library that was being loaded made another error of it
        _end_interrupted()
    if _lacks_memory(error):
        _discard_output()
        _fail(_TOO_LITTLE, 2)
    if isinstance(error, OSError) and error.errno in _OUTPUT_ERRORS and not error.filename:
        _discard_output()
        _fail(f"cannot write the output: {error.strerror}; write it to another place", 2)
    if os.environ.get("STEPSCOPE_DEBUG"):
        raise error
    if isinstance(error, ModuleNotFoundError) and (package := _package(error)):
        _fail(
            f"the Python package {package} is missing; install Stepscope again, together with "
            "what it needs",
            2,
        )
    _fail(
        f"internal error, a bug in Stepscope: {type(error).__name__}: {error}; "
        "STEPSCOPE_DEBUG=1 shows where",
        3,
    )


def _package(error: ModuleNotFoundError) -> str:
    """The package of others that could not be found; empty where it is a module of our own."""
    package = (error.name or "").partition(".")[0]
    return "" if package == "stepscope" else package


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether an error says that there is no more memory: every library says it in its own way."""
    while error is not None:
        stated = f"{type(error).__name__} {error}"
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        if any(words in stated for words in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def _run() -> object:
    if "_STEPSCOPE_COMPLETE" in os.environ:
        return cli.main(prog_name="stepscope", standalone_mode=False)
    # click's main() would turn a closed pipe into exit code 1 and answer Ctrl+C itself
    from stepscope.cli.progress import shown

    with cli.make_context("stepscope", sys.argv[1:]) as context, shown():
        return cli.invoke(context)


def _collect_damage() -> list[str]:
    """What of captures is damaged, from now on: who is refused for it need not hear it twice."""
    damage: list[str] = []
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, DamageWarning):
            damage.append(str(message))
        else:
            usual(message, category, *rest, **more)

    warnings.showwarning = show
    warnings.simplefilter("always", DamageWarning)
    return damage


def _say_damage(damage: list[str]) -> None:
    for message in dict.fromkeys(damage):
        _say(f"warning: {message}")


def _end_interrupted() -> NoReturn:
    """End at once and cleanly: no thread, library or second signal may change how."""
    _ignore_interrupts()
    _end_at_once(130, "interrupted")


def _end_at_once(code: int, message: str) -> NoReturn:
    """End without waiting for any thread: it may run a statement that heeds no interrupt."""
    if "stepscope.cache.store" in sys.modules:
        from stepscope.cache.store import remove_leftovers

        remove_leftovers()
    _say(message)
    os._exit(code)


def _prepare_streams() -> None:
    """Make sure that output never fails for want of a stream or of a character."""
    codecs.register_error("stepscope", _plainer)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="stepscope")


def _answer_interrupts() -> None:
    """Answer Ctrl+C once: libraries pass the same signal on, which would cut the cleaning short.

    While a module is being loaded the answer waits: what is raised within the first lines of a
    library is lost there, or aborts the process where C++ called them.
    """
    answered = -_SAME_INTERRUPT_S
    waits_since = 0.0

    def answer(number: int, frame: FrameType | None) -> None:
        nonlocal answered, waits_since
        now = time.monotonic()
        if now - answered < _SAME_INTERRUPT_S:
            return
        waits_since = waits_since or now
        if now - waits_since < _LONGEST_LOADING_S and _loads_a_module(frame):
            signal.setitimer(signal.ITIMER_REAL, _ASK_AGAIN_S)
            return
        answered, waits_since = now, 0.0
        _interrupted.append(now)
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, answer)
    signal.signal(signal.SIGINT, answer)


def _ignore_interrupts() -> None:
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def _loads_a_module(frame: FrameType | None) -> bool:
    """Whether Python's import is at work in a frame, or in one that called it."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False


def _plainer(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the terminal's encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAINER.get(character, "?") for character in lacking), error.end


def _discard_output() -> None:
    """Let nothing be written any more: Python would complain about it at shutdown."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_help(error: click.exceptions.NoArgsIsHelpError) -> NoReturn:
    """Answer a command without its arguments with its help, as click does: nothing was asked.

    It goes to standard error, with the exit code of bad input, so that no script takes it for an
    answer; ``--help`` writes it to standard output and ends with 0.
    """
    with contextlib.suppress(OSError):
        click.echo(error.format_message(), err=True)
    sys.exit(2)


def _in_words(error: click.ClickException) -> str:
    """A message of click's without its notation, and with what to do where it does not say so."""
    message = error.format_message()
    for kind, words in (("integer", "a whole number"), ("float", "a number")):
        for name in (f"a valid {kind} range.", f"a valid {kind}."):
            message = message.replace(f"is not {name}", f"is not {words}")
    message = _RANGE.sub(r"is not from \1 to \2", message).removesuffix(".")
    context = getattr(error, "ctx", None) or click.get_current_context(silent=True)
    if isinstance(error, click.MissingParameter) and context is not None:
        message = f"{message}; {context.command_path} --help shows how it is called"
    return message


def _refuse(error: StepscopeError) -> NoReturn:
    """End with the one line of an error that users can do something about."""
    if isinstance(error, LimitError) and error.left_running:
        _end_at_once(error.exit_code, str(error))
    # a query that was given too little memory says so itself
    lacks = not isinstance(error, LimitError) and _lacks_memory(error.__cause__)
    _fail(_TOO_LITTLE if lacks else str(error), error.exit_code)


def _fail(message: str, code: int) -> NoReturn:
    _say(message)
    sys.exit(code)


def _say(message: str) -> None:
    """One line on the standard error."""
    line = " ".join(message.split())
    try:
        from stepscope.render.text import clean
    except (ImportError, MemoryError):  # there is no room to load anything
        line = "".join(c if " " <= c <= "~" else "?" for c in line[:_LONGEST_MESSAGE])
    else:  # paths and SQL come back in messages: they may hold anything
        line = clean(line, _LONGEST_MESSAGE)
    with contextlib.suppress(OSError):
        click.echo(f"stepscope: {line}", err=True)

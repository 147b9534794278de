"""``stepscope run``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli import options, registry
from stepscope.cli.tried import refuse_alone, try_fixes_of

if TYPE_CHECKING:
    from stepscope.api.recording import Captured, PlannedCommand


def _bytes(_: click.Context, __: click.Parameter, text: str) -> int:
    return options.size_of(text)


def _ranks(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no list of ranks; write 0,3") from error


@registry.command(
    "Capture",
    order=1,
    examples={
        "stepscope run --steps 10 -- python train.py": "ten optimizer steps of PyTorch",
        "stepscope run -o run1 --range train -- python train.py": "inside NVTX ranges called train",
        "stepscope run --ring 30 --slow-step 2 -- torchrun train.py": "30 s before each slow step",
        "stepscope run --try auto -- python train.py": "try the fixes that the diagnosis names",
    },
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option(
    "-o",
    "--output",
    default="",
    help="Folder of the capture; a new one by default. %q{RANK} stands for a variable, %h for the "
    "host, %p for the launcher's process, %% for a percent sign.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "collector", "nsys", "torch", "ncu"]),
    default="auto",
    show_default=True,
    help="What records: Stepscope's own collector, Nsight Systems, torch.profiler, or Nsight "
    "Compute.",
)
@click.option(
    "--examine",
    default="",
    metavar="CAPTURE",
    type=click.Path(readable=False),
    help="Record the kernels that the diagnosis of this capture of the same program is about "
    "(with --backend ncu).",
)
@click.option(
    "--kernel",
    default="",
    metavar="REGEX",
    help="Record kernels whose function name this matches (with --backend ncu).",
)
@click.option(
    "--try",
    "try_",
    multiple=True,
    metavar="NAME[,NAME...]",
    help="Try fixes without touching the script: runs with them and without take turns, and their "
    "steps and losses are compared. 'auto' takes those that the diagnosis names; an unknown name "
    "lists all.",
)
@click.option("--each", is_flag=True, help="Try each fix of --try by itself, not all together.")
@click.option(
    "--rounds", default=2, show_default=True, help="How often the runs of --try take turns."
)
@click.option(
    "--against",
    default="",
    metavar="CAPTURE|DIAGNOSIS",
    type=click.Path(readable=False),
    help="A capture of the same program, or its stored diagnosis, whose prediction --try judges; "
    "without it, a run is recorded first.",
)
@click.option(
    "--steps",
    default=0,
    help="Record so many optimizer steps of PyTorch; with --try, time so many in each run and end "
    "it then.",
)
@click.option(
    "--warmup", type=int, default=None, help="Steps to let pass before --steps; 5 by default."
)
@click.option(
    "--range",
    "range_",
    default="",
    help="Record inside NVTX ranges of this name (NAME or NAME@DOMAIN), or between the program's "
    "calls of cudaProfilerApi.",
)
@click.option("--ranges", default=0, help="Be done after so many of those ranges; 0: record each.")
@click.option("--delay", default=0.0, help="Begin so many seconds after the program's start.")
@click.option("--duration", default=0.0, help="Record so many seconds.")
@click.option("--paused", is_flag=True, help="Begin when 'stepscope capture start' says so.")
@click.option(
    "--ring",
    default=0.0,
    help="Keep only the last so many seconds; 'stepscope capture dump', SIGUSR2 to this command "
    "and --slow-step read them while the program runs on.",
)
@click.option(
    "--slow-step",
    default=0.0,
    metavar="FACTOR",
    help="Dump the ring when an optimizer step of PyTorch takes so many times the usual, as in 2.",
)
@click.option(
    "--max-size",
    default="0",
    callback=_bytes,
    help="End recording when a process's raw file has this size, as in 500M.",
)
@click.option("--ranks", default="", callback=_ranks, help="Record only these ranks, as in 0,3.")
@click.option(
    "--graph",
    type=click.Choice(["graph", "node"]),
    default="graph",
    show_default=True,
    help="CUDA graphs as one operation, or every kernel in them, which costs more.",
)
@click.option(
    "--record",
    multiple=True,
    type=click.Choice(["event", "memory"]),
    help="Also record CUDA events, or allocations of device memory.",
)
@click.option("--every-call", is_flag=True, help="Also record CUDA calls that only query.")
@click.option(
    "--counters/--no-counters",
    default=True,
    help="Sample the GPUs' counters: clocks, what holds them down, power, memory, and from Hopper "
    "on the use of SMs, tensor cores, memory, NVLink and PCIe.",
)
@click.option("--counters-hz", default=10.0, show_default=True, help="How often a second.")
@click.option(
    "--threads-hz",
    default=20.0,
    show_default=True,
    help="Read the states of the program's threads so often a second, from outside; 0: not.",
)
@click.option(
    "--sample-hz",
    default=0.0,
    help="Sample the Python stacks of all threads so often a second, as in 50.",
)
@click.option(
    "--hook/--no-hook",
    default=True,
    help="Load a small hook into Python programs, which notes other profilers.",
)
@click.option(
    "--stand-aside",
    is_flag=True,
    help="Where the program starts torch.profiler or Proton, end the recording and leave the GPU "
    "to it; without this they see no GPU work.",
)
@click.option("--gc", is_flag=True, help="Record Python's garbage collections.")
@click.option(
    "--waits",
    is_flag=True,
    help="Record waits in the C library (locks, files, queues) and for the GIL.",
)
@click.option(
    "--ops",
    is_flag=True,
    help="Record PyTorch's operators with shapes, as NVTX ranges, in the steps of --steps.",
)
@click.option("--stacks", is_flag=True, help="Record Python stacks (torch.profiler only).")
@click.option("--memory", is_flag=True, help="Record what tensors allocate (torch.profiler only).")
@click.option(
    "--memory-snapshot",
    is_flag=True,
    help="Also dump the history of PyTorch's allocator in the recorded steps, and where memory "
    "runs out in them, into the folder memory of the capture (torch.profiler only).",
)
@click.option(
    "--flush-ms",
    default=500,
    show_default=True,
    help="How often GPU records are fetched: what a killed process loses.",
)
@click.option("--stop-program", is_flag=True, help="End the program when recording has ended.")
@click.option("--keep-raw", is_flag=True, help="Keep the raw files after they were read.")
@click.option("--no-diagnose", is_flag=True, help="Only capture.")
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 2 where the program ended with 0 but nothing was recorded, or what was "
    "recorded could not be read or diagnosed.",
)
@options.formats("terminal", "json", "markdown")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the exact command, and do nothing; nsys and ncu need not be installed for it.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def command(
    output: str,
    program: tuple[str, ...],
    range_: str,
    warmup: int | None,
    max_size: int,
    delay: float,
    duration: float,
    ring: float,
    no_diagnose: bool,
    dry_run: bool,
    format_: str,
    strict: bool,
    steps: int,
    examine: str,
    kernel: str,
    try_: tuple[str, ...],
    each: bool,
    rounds: int,
    against: str,
    **rest: object,
) -> int:
    """Run a program, record it, and diagnose what was recorded.

    Give the program after --, as in: stepscope run -- python train.py. Nothing needs to be
    installed for it and the program is not changed. What is recorded survives a crash.

    The exit code is always the program's: 128 + the signal that killed it, 127 where it is not
    found, 126 where it cannot be executed. What goes wrong with recording or diagnosing is said on
    standard error; --strict makes it exit code 2, which is also that of options that make no
    sense.

    With --try the program is run several times, with fixes and without: see the guide on trying.
    """
    from stepscope.api.recording import (
        capture_options,
        capture_program,
        planned_command,
        refuse_used_folder,
    )

    if try_:
        return try_fixes_of(
            click.get_current_context(), _say, command=program, names=try_, output=output,
            each=each, rounds=rounds, steps=steps, warmup=warmup, against=against,
            diagnosed=not no_diagnose,
        )  # fmt: skip
    refuse_alone(each=each, against=against)
    if output:
        refuse_used_folder(output)  # before --examine, which takes its time
    named = _kernels(examine, kernel, in_a_range=bool(steps or range_))
    wanted = capture_options(
        command=program,
        **named,
        output=output,
        range=range_,
        steps=steps,
        warmup=warmup if warmup is not None else 5 * bool(steps),
        max_bytes=max_size,
        delay_s=delay,
        duration_s=duration,
        ring_s=ring,
        **rest,
    )
    if dry_run:
        return _show(planned_command(wanted), format_)
    outcome = capture_program(wanted, _say)
    captured = bool(outcome.traces or outcome.results)
    if captured:
        again = (
            f"stepscope kernels {outcome.results[0]}"
            if outcome.is_kernel_report
            else f"stepscope diagnose {outcome.folder}"
        )
        _say(f"captured in {outcome.folder}; read it again with: {again}")
    diagnosed = not captured or no_diagnose or _diagnose(outcome, format_, examine)
    if strict and not outcome.exit_code and not (outcome.is_whole and diagnosed):
        return 2
    return outcome.exit_code


def _show(plan: PlannedCommand, format_: str) -> int:
    if format_ == "json":
        import json  # not msgspec: names of files may be no UTF-8

        options.write(json.dumps(plan.document()) + "\n")
        return 0
    _say(f"back-end {plan.why}")
    for note in plan.notes:
        _say(note)
    for path in plan.files:
        _say(f"before it, stepscope run writes {path}; --format json shows what")
    options.write(plan.text + "\n")
    return 0


def _diagnose(outcome: Captured, format_: str, examine: str) -> bool:
    """Diagnose what was captured; False where that failed, which it says itself."""
    try:
        code = outcome.diagnose(format_, examine)
    except OSError as error:
        _say(f"the diagnosis could not be started: {error.strerror}")
        return False
    if code:
        _say(f"the diagnosis failed with exit code {code}; the capture is there")
    return not code


def _kernels(examine: str, kernel: str, *, in_a_range: bool) -> dict[str, Any]:
    """Options that name single kernels: those of a diagnosed capture, or those of a pattern."""
    if not examine:
        return {"kernel": f"regex:{kernel}"} if kernel else {}
    from stepscope.api import Job
    from stepscope.trace.errors import UsageError

    if kernel:
        raise UsageError("--examine and --kernel both name kernels; give one of them")
    found = Job([examine]).launches_to_examine()
    _say(f"examining {', '.join(found.functions)}")
    if found.left_out:
        _say(f"left out, with too many launches a step: {', '.join(found.left_out)}")
    if not in_a_range and found.skip:
        _say(
            f"{found.skip:,} launches of them are let pass, as many as the capture has before its "
            "first steady step; where it began later than the program, give --steps 1 instead"
        )
    skip = 0 if in_a_range else found.skip
    return {"kernel": found.pattern, "launch_skip": skip, "launch_count": found.count}


def _say(text: str) -> None:
    from stepscope.render.text import clean

    with contextlib.suppress(OSError):  # nobody reads it, or its disk is full: the program goes on
        click.echo(f"stepscope: {clean(text, 1000)}", err=True)

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
    help="Folder for the capture; a new one by default. %q{RANK} stands for an environment "
    "variable, %h for the host, %p for the launcher's process, %% for a percent sign.",
    metavar="FOLDER",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "collector", "nsys", "torch", "ncu"]),
    default="auto",
    show_default=True,
    help="The recorder: Stepscope's own collector, Nsight Systems, torch.profiler or Nsight "
    "Compute; auto takes the first of collector, nsys and torch that works here.",
)
@click.option(
    "--examine",
    default="",
    metavar="CAPTURE",
    type=click.Path(readable=False),
    help="With --backend ncu: record the kernels that the diagnosis of CAPTURE, of the same "
    "program, is about.",
)
@click.option(
    "--kernel",
    default="",
    metavar="REGEX",
    help="With --backend ncu: record kernels whose function name matches REGEX.",
)
@click.option(
    "--try",
    "try_",
    multiple=True,
    metavar="NAME[,NAME...]",
    help="Try fixes without editing the script: runs with and without them alternate, and their "
    "steps and losses are compared. 'auto' takes those that the diagnosis names; an unknown"
    " name lists all.",
)
@click.option(
    "--each", is_flag=True, help="With --try: try each fix by itself instead of all together."
)
@click.option(
    "--rounds",
    default=2,
    show_default=True,
    help="With --try: how many times the runs alternate.",
    metavar="N",
)
@click.option(
    "--against",
    default="",
    metavar="CAPTURE|DIAGNOSIS",
    type=click.Path(readable=False),
    help="With --try: a capture of the same program, or its stored diagnosis, whose prediction "
    "is checked; by default a run is recorded first.",
)
@click.option(
    "--steps",
    default=0,
    help="Record N optimizer steps of PyTorch; with --try, time N in each run and then end it.",
    metavar="N",
)
@click.option(
    "--warmup",
    type=int,
    default=None,
    help="Skip N steps before --steps; by default 5, and more while steps use up batches that the "
    "DataLoader had ready before.",
    metavar="N",
)
@click.option(
    "--range",
    "range_",
    default="",
    help="Record inside NVTX ranges called NAME or NAME@DOMAIN; cudaProfilerApi: between the "
    "program's calls of cudaProfilerStart and cudaProfilerStop.",
    metavar="NAME",
)
@click.option(
    "--ranges",
    default=0,
    help="Stop recording after N of those ranges; 0 records all.",
    metavar="N",
)
@click.option(
    "--delay",
    default=0.0,
    help="Start recording this long after the program's start.",
    metavar="SECONDS",
)
@click.option("--duration", default=0.0, help="Record for this long.", metavar="SECONDS")
@click.option(
    "--paused", is_flag=True, help="Start without recording; begin on 'stepscope capture start'."
)
@click.option(
    "--ring",
    default=0.0,
    help="Keep only the last SECONDS. 'stepscope capture dump', SIGUSR2 to this command and "
    "--slow-step write them out while the program runs.",
    metavar="SECONDS",
)
@click.option(
    "--slow-step",
    default=0.0,
    metavar="FACTOR",
    help="With --ring: write the ring out when an optimizer step of PyTorch takes longer than "
    "FACTOR times the recent median, for example 2.",
)
@click.option(
    "--max-size",
    default="0",
    callback=_bytes,
    help="Stop recording when a process's raw file reaches SIZE, for example 500M.",
    metavar="SIZE",
)
@click.option(
    "--ranks",
    default="",
    callback=_ranks,
    help="Record only these ranks, for example 0,3.",
    metavar="LIST",
)
@click.option(
    "--graph",
    type=click.Choice(["graph", "node"]),
    default="graph",
    show_default=True,
    help="Record each CUDA graph as one operation, or every kernel in it, which costs more.",
)
@click.option(
    "--record",
    multiple=True,
    type=click.Choice(["event", "memory"]),
    help="Also record CUDA events, or allocations of GPU memory; can be repeated.",
)
@click.option(
    "--every-call",
    is_flag=True,
    help="Also record CUDA calls that only query, such as cudaGetDevice.",
)
@click.option(
    "--counters/--no-counters",
    default=True,
    help="Sample the GPUs' clocks, throttle reasons, power and memory; on Hopper and newer also "
    "the use of SMs, tensor cores, memory, NVLink and PCIe.",
)
@click.option(
    "--counters-hz",
    default=10.0,
    show_default=True,
    help="Samples of the counters per second.",
    metavar="HZ",
)
@click.option(
    "--threads-hz",
    default=20.0,
    show_default=True,
    help="Samples per second of the states of the program's threads, taken from outside; 0 "
    "disables them.",
    metavar="HZ",
)
@click.option(
    "--sample-hz",
    default=0.0,
    help="Sample the Python stacks of all threads this many times per second, for example 50.",
    metavar="HZ",
)
@click.option(
    "--hook/--no-hook",
    default=True,
    help="Load a small hook into Python programs: it marks the DataLoader and notes other "
    "profilers.",
)
@click.option(
    "--stand-aside",
    is_flag=True,
    help="Stop recording when the program starts torch.profiler or Proton; otherwise those tools"
    " see no GPU activity.",
)
@click.option("--gc", is_flag=True, help="Record Python's garbage collections.")
@click.option(
    "--waits",
    is_flag=True,
    help="Record waits for the GIL and in the C library: locks, files, queues.",
)
@click.option(
    "--ops",
    is_flag=True,
    help="Record PyTorch's operators with their shapes, as NVTX ranges, in the steps of --steps.",
)
@click.option("--stacks", is_flag=True, help="With --backend torch: record Python stacks.")
@click.option(
    "--memory", is_flag=True, help="With --backend torch: record the allocations of tensors."
)
@click.option(
    "--memory-snapshot",
    is_flag=True,
    help="With --backend torch: also write the allocator's history of the recorded steps, and "
    "where memory runs out in them, to the folder memory of the capture.",
)
@click.option(
    "--flush-ms",
    default=500,
    show_default=True,
    help="Interval at which GPU records are fetched: at most this much is lost when the program "
    "is killed.",
    metavar="MS",
)
@click.option("--stop-program", is_flag=True, help="End the program when recording has ended.")
@click.option("--keep-raw", is_flag=True, help="Keep the raw files after they have been read.")
@click.option("--no-diagnose", is_flag=True, help="Record only.")
@click.option(
    "--digest",
    is_flag=True,
    help="Also write the digest of each rank, for stepscope job, into digests/ of the capture.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 2 when the program succeeded but nothing was recorded, or the recording "
    "could not be read or diagnosed.",
)
@options.formats(options.TEXT, "json", "markdown")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the exact command and do nothing; nsys and ncu need not be installed for it.",
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
    digest: bool,
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
    """Run a program, record it, and diagnose the recording.

    Give the program after --, as in: stepscope run -- python train.py. The program is not changed,
    and nothing else needs to be installed for it. A recording survives a crash of the program.

    The exit code is the program's, or 128 + the signal that killed it. What goes wrong with
    recording or diagnosing is reported on standard error; with --strict it also makes the exit code
    2. Invalid options, and a program that is not found or cannot be executed, end with 2 before
    anything starts.

    With --try the program is run several times, with fixes and without them: stepscope guide --goal
    before_after.
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
        settle=warmup is None and bool(steps),
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
    if digest and outcome.traces and outcome.digest():
        _say("the digests could not be made; the capture is there")
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

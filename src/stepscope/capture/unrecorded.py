"""What was asked for and not recorded, and what there was instead: sentences for the user."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stepscope.capture.hooknotes import HookNotes
from stepscope.capture.options import PROFILER_RANGE, Options
from stepscope.capture.rawfiles import Recorded

_MOST_NAMES = 8
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Circumstances:
    """What is known of a run beside its files.

    Attributes:
        seconds: how long the program ran, s.
        orders: how often ``stepscope capture start`` or ``stop`` was called.
        notes: what the hook noted of steps.
        left_out: ranks of processes that were not recorded because of ``--ranks``.
    """

    seconds: float = 0.0
    orders: int = 0
    notes: HookNotes = field(default_factory=HookNotes)
    left_out: tuple[int, ...] = ()


def why_nothing(options: Options, found: Sequence[Recorded], known: Circumstances) -> str:
    """Why recording never began, and what there was instead."""
    reason = _too_early(options, found, known) or _never_begun(options, found, known)
    return f"nothing was recorded: {reason}"


def _too_early(options: Options, found: Sequence[Recorded], known: Circumstances) -> str:
    """Why recording could not begin, whatever the program does; empty where it could."""
    if known.left_out and not found:
        there = ", ".join(map(str, known.left_out))
        wanted = ", ".join(map(str, options.ranks))
        return f"--ranks asks for {wanted}, and the processes here have rank {there}"
    if options.delay_s and known.seconds < options.delay_s:
        return (
            f"the program ended after {known.seconds:.1f} s, before the {options.delay_s:g} s of "
            "--delay were over"
        )
    if options.paused and not known.orders:
        ran = f"the {known.seconds:.1f} s that the program ran"
        return f"stepscope capture start was not called in {ran}"
    return ""


def _never_begun(options: Options, found: Sequence[Recorded], known: Circumstances) -> str:
    """Which sign to begin the program never gave."""
    if options.steps:
        return f"{_too_few_steps(options, known.notes)}{_opened(found, 'give')}"
    if not found:
        return (
            "the program used neither CUDA nor NVTX; was it the right program, and do its children "
            "keep its environment?"
        )
    if options.range == PROFILER_RANGE:
        cuda = "" if _with_gpu(found) else ", nor used CUDA at all"
        return (
            "the program never called cudaProfilerStart (in PyTorch torch.cuda.profiler.start())"
            f"{cuda}{_opened(found, 'give')}"
        )
    if options.range:
        return _never_opened(options.range, found)
    what = "stepscope capture start took effect" if options.paused else "recording began"
    return f"the program ended before {what}"


def why_less(options: Options, found: Sequence[Recorded], known: Circumstances) -> list[str]:
    """Where less was recorded than asked for: each in one sentence."""
    metadata = []
    passed = known.notes.passed(options.warmup)
    made, wanted = known.notes.most, passed + options.steps
    if options.steps and known.notes.let_pass:
        metadata.append(
            f"recorded after {passed} steps, not {options.warmup}, so that the batches that the "
            "DataLoader had ready before are used up, or turn out to stay as many (--warmup "
            f"{options.warmup} does not wait for that)"
        )
    if options.steps and known.notes.made and made < wanted:
        done = max(0, made - passed)
        metadata.append(
            f"the program made {_times(made, 'optimizer step')}, so {done} of the {options.steps} "
            f"of --steps were recorded after the {passed} of --warmup"
        )
    if options.ranges:
        most = max((one.begun for one in found), default=0)
        if 0 < most < options.ranges:
            metadata.append(
                f"the range {options.range} was opened {_times(most, 'time')}, of the "
                f"{options.ranges} of --ranges"
            )
    if options.duration_s and any(one.begun for one in found) and not _ended_by_us(found):
        metadata.append(
            f"the program ended before the {options.duration_s:g} s of --duration were over; it "
            f"ran for {known.seconds:.1f} s"
        )
    if options.slow_step and known.notes.most <= SLOW_STEPS_FROM:
        metadata.append(
            f"--slow-step judged no step: {_steps_made(known.notes)}, and it compares with the "
            f"{SLOW_STEPS_FROM} before"
        )
    return metadata


SLOW_STEPS_FROM = 10
"""Steps before the first that is judged; the hook's number."""


def no_gpu_work(options: Options, found: Sequence[Recorded]) -> str:
    """That recording was on and has no GPU work."""
    if not _with_gpu(found):
        return "the program did not use CUDA; only NVTX ranges were recorded"
    begun = sum(one.begun for one in found)
    if options.range == PROFILER_RANGE:
        between = "between the calls of cudaProfilerApi"
        return f"no GPU work was recorded {between} ({_times(begun, 'time')})"
    if options.range:
        what = f"while the range {options.range} was open ({_times(begun, 'time')})"
        return f"no GPU work was recorded {what}"
    if options.steps:
        return "no GPU work was recorded in the steps"
    return "no GPU work was recorded"


def why_no_steps(options: Options, steps: int, warmup: int, known: Circumstances) -> str:
    """Why a tool that records some steps wrote nothing; empty where it is not for want of steps."""
    if known.notes.most > known.notes.passed(warmup):
        return ""
    asked = Options(options.command, options.output, steps=steps, warmup=warmup)
    return f"nothing was recorded: {_too_few_steps(asked, known.notes)}"


def _too_few_steps(options: Options, notes: HookNotes) -> str:
    made = _steps_made(notes)
    if options.warmup < notes.most <= notes.let_pass:
        return (
            f"{made}, which used up batches that the DataLoader had ready; give --warmup "
            f"{options.warmup}, which does not wait for that"
        )
    if notes.most and notes.most <= options.warmup:
        fewer = f"--warmup {notes.most - 1}"
        return f"{made}, and the first {options.warmup} are let pass (--warmup); give {fewer}"
    return f"{made}; record without --steps"


def _steps_made(notes: HookNotes) -> str:
    if notes.made:
        number = _times(notes.most, "optimizer step") if notes.most else "no optimizer steps"
        return f"the program made {number} of torch.optim"
    if notes.loaded:
        return "the program did not import torch.optim, so it made no optimizer steps"
    return (
        "no Python of the program counted optimizer steps (it is no Python, or ignores PYTHONPATH "
        "by -I or -E)"
    )


def _never_opened(wanted: str, found: Sequence[Recorded]) -> str:
    name, _, domain = wanted.partition("@")
    seen = _seen(found)
    other = sorted({where for (what, where) in seen if what == name})
    if domain and other:
        where = f"in the domain {_short(other[0])}" if other[0] else "outside of any domain"
        give = f"{name}@{other[0]}" if other[0] else name
        advice = f"give --range {_short(give)}"
        return f"the range {name} was opened, but {where}, not in {domain}; {advice}"
    near = difflib.get_close_matches(name, {what for what, _ in seen}, 1)
    hint = f" (did you mean {_short(near[0])!r}?)" if near else ""
    return f"the range {wanted} was never opened{hint}{_opened(found, '')}"


def _opened(found: Sequence[Recorded], verb: str) -> str:
    """Which ranges were opened instead, the most frequent first; numbered ones as one."""
    seen = _seen(found)
    if not seen:
        return "; the program opened no NVTX ranges" if found else ""
    kinds: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (name, domain), count in seen.items():
        kinds[re.sub(r"\d+", "#", name), domain][name] += count
    ranked = sorted(kinds.items(), key=lambda item: (-item[1].total(), item[0]))
    shown = [_kind(domain, names) for (_, domain), names in ranked[:_MOST_NAMES]]
    more = len(ranked) - len(shown)
    listed = ", ".join([*shown, f"{more} more"] if more else shown)
    if unlisted := sum(one.unlisted for one in found):
        listed += f", and others {_times(unlisted, 'time')}"
    advice = f"; {verb} one of them with --range" if verb else ""
    return f"; it opened the ranges {listed}{advice}"


def _kind(domain: str, names: Counter[str]) -> str:
    first = min(names, key=lambda name: (len(name), name))
    where = f"@{_short(domain)}" if domain else ""
    like = f" and {len(names) - 1} like it" if len(names) > 1 else ""
    return f"{_short(first)!r}{where}{like} ({_times(names.total(), 'time')})"


def _seen(found: Iterable[Recorded]) -> Counter[tuple[str, str]]:
    total: Counter[tuple[str, str]] = Counter()
    for one in found:
        total.update(one.seen)
    return total


def _with_gpu(found: Iterable[Recorded]) -> bool:
    return any(one.device is not None for one in found)


def _ended_by_us(found: Iterable[Recorded]) -> bool:
    """Whether a process was recorded to an end that was set, and not to its own."""
    return any(one.reached_limit for one in found)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


def _times(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

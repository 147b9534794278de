"""All-reduces of gradients in the backward pass: when gradients are ready, and their buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepscope.simulation.program import LAUNCH, MARK, C
from stepscope.simulation.settings.base import Facts, launch_cost_ns, launches, steps_of
from stepscope.simulation.settings.items import arranged, put_in
from stepscope.simulation.settings.links import Link, Messages
from stepscope.simulation.settings.shapes import gradients
from stepscope.simulation.subject import Subject
from stepscope.trace.frame import IntArray

MIB: Final = 1 << 20

FIRST_BYTES: Final = MIB
"""Limit of the first bucket by default (PyTorch: ``_DEFAULT_FIRST_BUCKET_BYTES``); where
``bucket_cap_mb`` is given, the first is like the others."""

BUCKET_BYTES: Final = 25 * MIB
"""Limit of the others by default (PyTorch: ``bucket_cap_mb``)."""

PIECES: Final = 8
"""Captured buckets whose parameters are not known are cut into so many equal gradients."""


@dataclass(frozen=True)
class Ready:
    """Gradients in the order in which they are ready; one value each.

    Attributes:
        item: item of the program after which it is ready.
        bytes: its size.
        old: item of the captured all-reduce that it is in; -1 where there is none.
    """

    item: IntArray
    bytes: IntArray
    old: IntArray


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced together.

    Attributes:
        item: item of the program after which the last of them is ready.
        bytes: its size.
        old: item of the captured all-reduce that its last gradient is in; -1 for none.
    """

    item: int
    bytes: int
    old: int


def buckets(ready: Ready, step: IntArray, limit: int, first: int) -> list[Bucket]:
    """Buckets as DDP makes them: a bucket is closed by the gradient that reaches its limit.

    Args:
        ready: the gradients.
        step: step of each item of the program; each begins with a bucket of its own.
        limit: bytes from which a bucket is closed.
        first: the same of the first bucket of a step.
    """
    found: list[Bucket] = []
    held, number, in_step = 0, 0, -1
    last = len(ready.item) - 1
    for at, (item, size, old) in enumerate(
        zip(ready.item.tolist(), ready.bytes.tolist(), ready.old.tolist(), strict=True)
    ):
        if int(step[item]) != in_step:
            in_step, number = int(step[item]), 0
        held += size
        ends = at == last or int(step[int(ready.item[at + 1])]) != in_step
        if ends or held >= (limit if number else min(first, limit)):
            found.append(Bucket(item, held, old))
            held, number = 0, number + 1
    return found


def by_operators(subject: Subject, facts: Facts) -> Ready | None:
    """Gradients by the operator that accumulates each; None without recorded shapes."""
    known = gradients(facts.kernels)
    program = subject.program
    if not len(known.at_ns):
        return None
    # calls of the program in the order of the host, and the last one before each gradient
    order = np.argsort(program.at_ns, kind="stable")
    place = np.searchsorted(program.at_ns[order], known.at_ns, side="right") - 1
    inside = (place >= 0) & (known.at_ns < program.at_ns.max())
    item = order[np.maximum(place, 0)][inside]
    sizes = known.bytes[inside]
    arrived = np.argsort(item, kind="stable")
    return Ready(item[arrived], sizes[arrived], np.full(len(item), -1, np.int64))


def by_products(subject: Subject, facts: Facts) -> Ready | None:
    """Gradients of a model whose shapes are not recorded: spread over the GEMMs of the backward.

    None where the capture does not tell how large they are together.
    """
    kernels, program = facts.kernels, subject.program
    heavy = kernels.in_category("matmul", "convolution") & kernels.in_phase("backward")
    items = np.flatnonzero(launches(subject, heavy))
    total = 4 * facts.parameters.count
    if not total or not len(items):
        return None
    step = steps_of(subject)[items]
    time = program.duration_ns[items].astype(np.float64)
    whole = np.bincount(step[step >= 0], weights=time[step >= 0])
    share = np.where(step >= 0, time / np.maximum(whole[np.maximum(step, 0)], 1), 0)
    return Ready(items, np.rint(share * total).astype(np.int64), np.full(len(items), -1, np.int64))


def by_messages(subject: Subject, found: Messages) -> Ready:
    """Gradients of captured buckets: equal parts of each, evenly over the kernels before it."""
    program = subject.program
    step = steps_of(subject)
    items: list[int] = []
    sizes: list[int] = []
    old: list[int] = []
    before = -1
    for item, size in zip(found.item.tolist(), found.bytes.tolist(), strict=True):
        since = before + 1 if before >= 0 and step[before] == step[item] else item
        span = np.arange(since, item)
        span = span[(program.kind[span] == LAUNCH) & ~program.communication[span]]
        for piece in range(PIECES):
            at = span[len(span) * (piece + 1) // PIECES - 1] if len(span) >= PIECES else item
            items.append(int(at) if piece < PIECES - 1 else item)
            sizes.append(size // PIECES + (size % PIECES if piece == PIECES - 1 else 0))
            old.append(item)
        before = item
    return Ready(np.array(items, np.int64), np.array(sizes, np.int64), np.array(old, np.int64))


def regrouped(
    subject: Subject, captured: IntArray, chosen: Sequence[Bucket], link: Link, ranks: int
) -> tuple[Subject, IntArray]:
    """The program with other all-reduces in place of the captured ones; which begin earlier.

    Args:
        subject: the program.
        captured: items of the captured ones.
        chosen: the new ones, each with the captured one that holds its last gradient.
        link: what they take.
        ranks: number of ranks.
    """
    program = subject.program
    m = len(program)
    keep = np.ones(m, bool)
    keep[captured] = False
    plain = np.flatnonzero(keep)
    # a new one stands behind the item after which it is ready
    at = np.array([b.item for b in chosen], np.int64)
    position = np.concatenate((plain * 2, at * 2 + 1))
    source = np.concatenate((plain, np.array([b.old for b in chosen], np.int64)))
    new = np.concatenate((np.full(len(plain), -1), np.arange(len(chosen))))
    order = np.argsort(position, kind="stable")
    source, new = source[order], new[order]
    ends = sorted({b.old for b in chosen})
    instead = {
        int(item): ends[min(int(np.searchsorted(ends, item)), len(ends) - 1)]
        for item in captured.tolist()
        if item not in ends
    }
    stride = m + 1
    after = arranged(subject, source, stride=stride, instead=instead)
    duration = after.program.duration_ns.copy()
    instance = after.program.instance.copy()
    depends = dict(after.program.depends)
    placed = np.flatnonzero(new >= 0)
    earlier: list[int] = []
    for number, item in enumerate(placed.tolist()):
        bucket = chosen[int(new[item])]
        duration[item] = round(link.all_reduce_ns(bucket.bytes, ranks))
        if instance[item] >= 0:
            instance[item] = _FIRST_NEW + number
        if bucket.item < bucket.old:
            earlier.append(item)
        if bucket.item != bucket.old:
            gap = max((ns for _, ns in depends.get(item, ())), default=0)
            source_item = _compute_before(after, item)
            depends[item] = ((source_item, gap),) if source_item >= 0 else ()
    changed = replace(
        after.program,
        duration_ns=duration,
        instance=instance,
        depends={item: on for item, on in depends.items() if on},
    )
    return replace(after, program=changed), np.array(earlier, np.int64)


def slowed(subject: Subject, reductions: IntArray, share: float) -> Subject:
    """The kernel behind each of some all-reduces takes a share of its time longer."""
    program = subject.program
    duration = program.duration_ns.copy()
    plain = np.flatnonzero((program.op >= 0) & ~program.communication)
    for item in reductions.tolist():
        at = int(np.searchsorted(plain, item))
        if at < len(plain):
            duration[plain[at]] += round(share * int(program.duration_ns[item]))
    return replace(subject, program=replace(program, duration_ns=duration))


_FIRST_NEW: Final = 1 << 40
"""Ids of collectives from here on are of regrouped ones: the same on all ranks by their order."""


def _compute_before(subject: Subject, item: int) -> int:
    """The last operation before an item that is no communication; -1 for none."""
    program = subject.program
    for at in range(item - 1, max(item - 4096, -1), -1):
        if program.kind[at] == LAUNCH and not program.communication[at]:
            return at
    return -1


BUCKET_LAUNCHES: Final = 4
"""Host cost of an all-reduce of DDP, in launches: events between streams, the work, the kernel."""

COPY_BYTES: Final = 16
"""Bytes moved for a gradient by DDP: scaled into its bucket, and copied back (four read and four
written each, without gradient_as_bucket_view)."""


def reduced(subject: Subject, facts: Facts, ready: Ready, chosen: Sequence[Bucket],
            link: Link, ranks: int) -> Subject:  # fmt: skip
    """The program of one rank with the all-reduces of DDP put in.

    Args:
        subject: the program.
        facts: its device.
        ready: the gradients.
        chosen: their buckets.
        link: what an all-reduce takes.
        ranks: number of ranks.
    """
    if not chosen:
        return subject
    program = subject.program
    m = len(program)
    at = np.array([b.item for b in chosen], np.int64)
    position = np.concatenate((np.arange(m) * 2, at * 2 + 1))
    source = np.concatenate((np.arange(m), at))
    is_new = np.concatenate((np.zeros(m, bool), np.ones(len(at), bool)))
    order = np.argsort(position, kind="stable")
    after = arranged(subject, source[order])
    is_new = is_new[order]
    placed = np.flatnonzero(is_new)
    of_bucket = np.argsort(at, kind="stable")
    return _filled_in(
        after, facts, placed, [chosen[int(n)] for n in of_bucket.tolist()], link, ranks, ready
    )


def _filled_in(
    after: Subject,
    facts: Facts,
    placed: IntArray,
    chosen: Sequence[Bucket],
    link: Link,
    ranks: int,
    ready: Ready,
) -> Subject:
    """What the all-reduces take, what they wait for, and what waits for them."""
    cost = launch_cost_ns(after, 25)  # by C++, without Python in between
    stream = int(after.program.stream.max()) + 1
    values = {"stream": stream, "call_ns": cost * BUCKET_LAUNCHES, "communication": 1, "hosted": 1}
    program = put_in(after.program, placed, values)
    work, duration = program.work_ns, program.duration_ns
    duration[placed] = [round(link.all_reduce_ns(b.bytes, ranks)) for b in chosen]
    depends = dict(program.depends)
    step = steps_of(after)
    copies = facts.bandwidth and COPY_BYTES / 2 / facts.bandwidth
    tensors = len(ready.item) * cost // max(int(step.max(initial=0)) + 1, 1)
    for item, bucket in zip(placed.tolist(), chosen, strict=True):
        source = _compute_before_all(after, placed, item)
        if source >= 0:
            depends[item] = ((source, 0),)
            duration[source] += round(bucket.bytes / 4 * copies)
    for number in sorted(set(step[placed].tolist())):
        mine = placed[step[placed] == number]
        following = _first_after(after, int(mine[-1]), placed)
        total = sum(
            b.bytes for b, s in zip(chosen, step[placed].tolist(), strict=True) if s == number
        )
        work[mine[0], C["launch_bound"]] += tensors  # copies into buckets, one launch a gradient
        if following >= 0:
            pairs = ((int(mine[-1]), 0),)
            depends[following] = (*depends.get(following, ()), *pairs)
            duration[following] += round(total / 4 * copies)
            work[following, C["launch_bound"]] += tensors
    return replace(after, program=replace(program, depends=depends))


def _in(ascending: IntArray, value: int) -> bool:
    at = int(np.searchsorted(ascending, value))
    return at < len(ascending) and int(ascending[at]) == value


def _compute_before_all(subject: Subject, placed: IntArray, item: int) -> int:
    """The last operation before an item that was there before."""
    program = subject.program
    for at in range(item - 1, max(item - 4096, -1), -1):
        if program.kind[at] == LAUNCH and not program.communication[at] and not _in(placed, at):
            return at
    return -1


def _first_after(subject: Subject, item: int, placed: IntArray) -> int:
    """The first operation of the same step behind the last all-reduce, on the busiest stream."""
    program = subject.program
    ops = np.flatnonzero((program.kind == LAUNCH) & ~program.communication)
    main = int(np.argmax(np.bincount(program.stream[ops]))) if len(ops) else -1
    marks = np.flatnonzero(program.kind == MARK)
    later = marks[marks > item]
    end = int(later[0]) if len(later) else len(program)
    for at in range(item + 1, end):
        if program.kind[at] == LAUNCH and program.stream[at] == main and not _in(placed, at):
            return at
    return -1

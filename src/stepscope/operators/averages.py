"""Host and device time by operator, as ``torch.profiler``'s ``key_averages`` counts it.

Total time of an event is all of it, self time is what its direct children leave. Device time of an
event is that of the kernels launched within it, however many run at once: it may exceed the time
that passes. Totals are inclusive, so they must not be added up over rows; self times add up to all
that was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stepscope.activity.device import Reader
from stepscope.intervals.distinct import distinct_rows
from stepscope.operators.averages_result import (
    SCHEMA,
    OperatorAverages,
    OperatorKernel,
    OperatorRow,
)
from stepscope.operators.calltree import ANNOTATION, OPERATOR, PYTHON, CallTree, call_tree
from stepscope.operators.compiled import compiled_code, compiled_readings, shows_compiled_code
from stepscope.operators.flops import elementwise_flop, works_of
from stepscope.operators.grouping import GROUPINGS, MISSING, NOTHING, Key, groups, outermost
from stepscope.operators.scope import Source, in_scope
from stepscope.trace.errors import UsageError
from stepscope.trace.frame import BoolArray, IntArray
from stepscope.trace.units import percent

PYTHON_TIME: Final = "(Python functions)"
NOBODY: Final = "(no operator)"

_SUMS: Final = (
    *("calls", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns", "kernels"),
    *("backward_cpu_ns", "backward_device_ns", "flop", "eligible_ns", "tensor_core_ns"),
    *("self_cpu_memory_bytes", "cpu_memory_bytes"),
    *("self_device_memory_bytes", "device_memory_bytes"),
)


def operator_averages(
    sources: Sequence[Source],
    paths: list[str],
    by: str = "name",
    *,
    join: bool = False,
    kernels: bool = False,
    python: bool = False,
    sort: str = "",
) -> OperatorAverages:
    """Host and device time by operator, of all traces together.

    Args:
        sources: the traces.
        paths: the inputs as the user named them.
        by: key of ``GROUPINGS``.
        join: whether the backward pass of an operator counts as its own row's.
        kernels: whether to list the kernels under each operator.
        python: whether traced Python functions are taken out of the self time of what called them.
        sort: a column of numbers, the largest first; by default device time, else host time.

    Raises:
        UsageError: there is no such grouping or column.
    """
    if by not in GROUPINGS:
        raise UsageError(f"cannot group by {by[:40]!r}; choose {', '.join(GROUPINGS)}")
    numbers = [name for name in OperatorRow.__struct_fields__ if name not in _TEXTS]
    if sort and sort not in numbers:
        raise UsageError(f"cannot sort by {sort[:40]!r}; choose {', '.join(numbers)}")
    held = _Held()
    sums, facts = held.sums, held.facts
    for source in sources:
        _add(source, by, held, join=join, kernels=kernels, python=python)
    compiled = compiled_code(held.trees)
    self_cpu = round(sum(row[_SUMS.index("self_cpu_ns")] for row in sums.values()))
    rows = [
        _row(key, values, self_cpu, facts, join=join, flop=key in held.flop_known)
        for key, values in sums.items()
    ]
    chosen = sort or ("self_device_ns" if facts.device_ns else "self_cpu_ns")

    def place(row: OperatorRow) -> tuple[float, ...]:
        value = getattr(row, chosen)
        if join and not sort:
            value += row.backward_device_ns if facts.device_ns else row.backward_cpu_ns
        return (-1.0 if value is None else -value, -row.self_cpu_ns)

    rows.sort(key=lambda row: (place(row), row.name, row.kind, row.shapes))
    warnings = [] if facts.has(by) else [MISSING[by]]
    alone = sums.get(("unlinked", NOBODY, ""))
    if alone is not None and facts.linked_device and by in ("name", "shape"):
        share = alone[_SUMS.index("device_ns")] / facts.device_ns
        warnings.append(
            f"{percent(share)} of the device time belongs to no operator: its launches are not "
            "recorded (made before the capture began, or by threads that were not traced), or were "
            "made outside of any"
        )
    if any(row.self_cpu_ns < 0 for row in rows):
        warnings.append(
            "events of this trace overlap on their threads without holding each other, so that "
            "some self times are negative, as in PyTorch's own table"
        )
    if join and not facts.linked:
        warnings.append(
            "no operator of the backward pass is linked to one of the forward pass, so nothing is "
            "joined"
        )
    return OperatorAverages(
        schema=SCHEMA,
        paths=paths,
        by=by,
        scope="steady" if any(source.window_ns for source in sources) else "capture",
        steps=sum(source.steps for source in sources) or None,
        self_cpu_ns=self_cpu,
        device_ns=facts.device_ns,
        has_device=facts.device_ns > 0,
        operators=rows,
        kernels=_kernel_rows(held.under, rows),
        compiled=compiled,
        readings=[
            *(readings(rows, facts.device_ns) if by in ("name", "shape") else []),
            *(compiled_readings(compiled) if compiled else []),
        ],
        warnings=warnings,
    )


_TEXTS: Final = ("kind", "name", "shapes")


@dataclass
class _Facts:
    """What the traces hold."""

    device_ns: int = 0
    host_memory: bool = False
    device_memory: bool = False
    shapes: bool = False
    python: bool = False
    ranges: bool = False
    linked: bool = False
    linked_device: bool = False

    def has(self, by: str) -> bool:
        """Whether the traces tell what is grouped by."""
        known = {"shape": self.shapes, "range": self.ranges, "category": self.device_ns > 0}
        return known.get(by, by == "name" or self.python)


def sampled_averages(
    lines: Sequence[dict[str, Any]], paths: list[str], steps: int
) -> OperatorAverages:
    """Device time by line of the program, of captures whose stacks were sampled.

    Args:
        lines: rows of the view by ``source``: device time of the steady steps.
        paths: the inputs as the user named them.
        steps: steady steps, of all devices.
    """
    held = _Held()
    for line in lines:
        held.add(
            ("", line["source"].replace("(none)", NOTHING["source"]), ""),
            self_device_ns=line["time_ns"],
            device_ns=line["time_ns"],
            kernels=line["kernels"],
        )
    held.facts.device_ns = sum(line["time_ns"] for line in lines)
    rows = [
        _row(key, values, 0, held.facts, join=False, flop=False)
        for key, values in held.sums.items()
    ]
    rows.sort(key=lambda row: (-row.self_device_ns, row.name))
    return OperatorAverages(
        schema=SCHEMA,
        paths=paths,
        by="source",
        scope="steady",
        steps=steps,
        self_cpu_ns=0,
        device_ns=held.facts.device_ns,
        has_device=held.facts.device_ns > 0,
        operators=rows,
        kernels=[],
        compiled=None,
        readings=[],
        warnings=[
            "lines are those that the nearest sample of the main thread shows at a launch; samples "
            "tell no host time by line"
        ],
    )


@dataclass
class _Held:
    """What has been summed over the traces so far.

    Attributes:
        sums: values in the order of ``_SUMS``.
        under: launches and time of each kernel under a group.
        flop_known: groups of which some operations are known.
        facts: what the traces hold.
        trees: the host events of each trace that shows compiled code.
    """

    sums: dict[Key, list[float]] = field(default_factory=dict)
    under: dict[tuple[Key, str], list[int]] = field(default_factory=dict)
    flop_known: set[Key] = field(default_factory=set)
    facts: _Facts = field(default_factory=_Facts)
    trees: list[tuple[CallTree, Reader]] = field(default_factory=list)

    def add(self, key: Key, **values: float) -> None:
        """Add to a group."""
        self.add_row(key, [float(values.get(name, 0)) for name in _SUMS])

    def add_row(self, key: Key, row: list[float]) -> None:
        """Add all values of a group."""
        before = self.sums.get(key)
        self.sums[key] = (
            row if before is None else [a + b for a, b in zip(before, row, strict=True)]
        )


def _add(source: Source, by: str, held: _Held, *, join: bool, kernels: bool, python: bool) -> None:
    """Add what one trace holds."""
    stacked = by in ("stack", "module", "source")
    tree = call_tree(source.read, python=python or stacked)
    wanted, on_device = in_scope(tree, source)
    _note_facts(tree, on_device, held.facts)
    by_name = by in ("name", "shape")
    if shows_compiled_code(tree):
        held.trees.append((tree, source.read))
    if by_name:
        tree = tree.linked()
    columns = _columns(tree, source.read, held.facts)
    back_cpu, back_device, absorbed = _backward(tree)
    columns["backward_cpu_ns"], columns["backward_device_ns"] = back_cpu, back_device
    held.facts.linked |= bool(absorbed.any())
    if join:
        wanted = wanted & ~absorbed
    first, group, keys = groups(tree, by)
    outer = np.ones(len(tree), bool) if by_name else outermost(tree, group)
    hidden = (tree.kind == PYTHON) & by_name
    counted = np.flatnonzero(wanted & ~hidden)
    of, size = group[counted], len(first)
    table = np.zeros((size, len(_SUMS)))
    for at, name in enumerate(_SUMS):
        values = columns[name][counted]
        if not name.startswith("self_") and name != "calls":
            values = np.where(outer[counted], values, 0)
        table[:, at] = np.bincount(of, weights=values, minlength=size)
    knows = np.bincount(of, weights=columns["flop"][counted] > 0, minlength=size) > 0
    for at in np.flatnonzero(np.bincount(of, minlength=size)).tolist():
        held.add_row(keys[at], table[at].tolist())
        if knows[at]:
            held.flop_known.add(keys[at])
    functions = wanted & hidden
    if functions.any():
        spent = int(tree.self_cpu_ns[functions].sum())
        held.add(("python", PYTHON_TIME, ""), calls=int(functions.sum()), self_cpu_ns=spent)
    alone = on_device & (tree.launcher < 0)
    if alone.any():
        time = int(tree.gpu_ns[alone].sum())
        held.add(
            ("unlinked", NOBODY, ""),
            self_device_ns=time,
            device_ns=time,
            kernels=int(alone.sum()),
        )
    if kernels and len(tree.gpu):
        _add_kernels(tree, group, keys, on_device, held.under)


def _note_facts(tree: CallTree, on_device: BoolArray, facts: _Facts) -> None:
    facts.device_ns += int(tree.gpu_ns[on_device].sum())
    facts.python |= bool((tree.kind == PYTHON).any())
    facts.ranges |= bool((tree.kind == ANNOTATION).any())
    facts.shapes |= len(tree.operators) > 0 and bool((tree.operators["input_shapes"] >= 0).any())
    facts.linked_device |= bool((~tree.by_call & (tree.launcher >= 0)).any())


def _columns(tree: CallTree, read: Reader, facts: _Facts) -> dict[str, Any]:
    """The values that are summed, one an event."""
    return {
        "calls": np.ones(len(tree), np.int64),
        "self_cpu_ns": tree.self_cpu_ns,
        "cpu_ns": tree.duration_ns,
        "self_device_ns": tree.self_device_ns,
        "device_ns": tree.device_ns,
        "kernels": tree.kernels,
        "flop": flop_of(tree),
        "eligible_ns": tree.eligible_ns,
        "tensor_core_ns": tree.tensor_core_ns,
        **_memory(tree, read, facts),
    }


def flop_of(tree: CallTree) -> IntArray:
    """Floating-point operations of each event with all inside, as far as shapes tell them.

    An operator that hands its work to a known one inside (``aten::linear`` to ``aten::addmm``)
    counts what is inside.
    """
    own = np.zeros(len(tree), np.int64)
    mine = np.flatnonzero(tree.kind == OPERATOR)
    if not len(mine):
        return own
    works, code = works_of(tree.operators)
    # a row past the last work stands for none
    flops = np.array([*(round(work.flop) for work in works), 0], np.int64)
    flops = np.maximum(flops[code], elementwise_flop(tree.operators))
    own[mine] = flops[tree.row[mine]]
    known = (own > 0).astype(np.int64)
    own[(tree.with_children(known) - known) > 0] = 0
    return tree.with_children(own)


def _memory(tree: CallTree, read: Reader, facts: _Facts) -> dict[str, Any]:
    """Bytes allocated less released while an event was open, whichever thread did it, as torch."""
    events = read("memory_event", "time_ns", "kind", "device", "bytes")
    events = events.take(events.equals("kind", "cache")) if len(events) else events
    found: dict[str, Any] = {}
    for place in ("cpu", "device"):
        total = np.zeros(len(tree), np.int64)
        if len(events):
            mine = events.take((events["device"] < 0) == (place == "cpu"))
            time = mine["time_ns"]
            grown = np.concatenate(([0], np.cumsum(mine["bytes"])))
            first = np.searchsorted(time, tree.start_ns, side="left")
            total = grown[np.searchsorted(time, tree.end_ns, side="right")] - grown[first]
            if place == "cpu":
                facts.host_memory |= len(mine) > 0
            else:
                facts.device_memory |= len(mine) > 0
        own = np.where(tree.asynchronous, 0, tree.without_children(total))
        found[f"{place}_memory_bytes"] = total
        found[f"self_{place}_memory_bytes"] = own
    return found


def _backward(tree: CallTree) -> tuple[IntArray, IntArray, BoolArray]:
    """Host and device time of the backward pass of each event, and which events are part of it."""
    target = tree.forward
    root = (target >= 0) & ((tree.parent < 0) | (target[np.maximum(tree.parent, 0)] != target))
    # the engine's own operator around the gradient's carries no link, and belongs to it
    rows = np.flatnonzero(root)
    cpu = np.bincount(target[rows], weights=tree.duration_ns[rows], minlength=len(tree))
    device = np.bincount(target[rows], weights=tree.device_ns[rows], minlength=len(tree))
    totals = [tree.with_children(np.rint(t).astype(np.int64)) for t in (cpu, device)]
    return totals[0], totals[1], target >= 0


def _add_kernels(
    tree: CallTree,
    group: IntArray,
    keys: list[Key],
    on_device: BoolArray,
    under: dict[tuple[Key, str], list[int]],
) -> None:
    rows = np.flatnonzero(on_device)
    launcher = tree.launcher[rows]
    of = np.where(launcher >= 0, group[np.maximum(launcher, 0)] if len(group) else -1, -1)
    names = tree.gpu["name"][rows]
    first, pair = distinct_rows([of, names])
    count = np.bincount(pair)
    time = np.bincount(pair, weights=tree.gpu_ns[rows])
    for at, row in enumerate(first.tolist()):
        key = keys[int(of[row])] if of[row] >= 0 else ("unlinked", NOBODY, "")
        slot = under.setdefault((key, tree.gpu.texts["name"][int(names[row])]), [0, 0])
        slot[0] += int(count[at])
        slot[1] += round(time[at])


def _kernel_rows(
    under: dict[tuple[Key, str], list[int]], rows: Sequence[OperatorRow]
) -> list[OperatorKernel]:
    own = {(row.kind, row.name, row.shapes): row.self_device_ns for row in rows}
    place = {key: at for at, key in enumerate(own)}
    found = [
        OperatorKernel(*key, kernel, calls, time, time / max(own[key], 1))
        for (key, kernel), (calls, time) in under.items()
        if key in own
    ]
    found.sort(key=lambda k: (place[k.kind, k.name, k.shapes], -k.time_ns, k.kernel))
    return found


def _row(
    key: Key, values: list[float], self_cpu: int, facts: _Facts, *, join: bool, flop: bool
) -> OperatorRow:
    of = dict(zip(_SUMS, values, strict=True))
    whole = {name: round(value) for name, value in of.items()}
    calls = max(whole["calls"], 1)
    time = whole["device_ns"] or (0 if facts.device_ns else whole["cpu_ns"])
    host = facts.host_memory
    device = facts.device_memory
    return OperatorRow(
        kind=key[0],
        name=key[1],
        shapes=key[2],
        calls=whole["calls"],
        self_cpu_ns=whole["self_cpu_ns"],
        self_cpu_share=whole["self_cpu_ns"] / max(self_cpu, 1),
        cpu_ns=whole["cpu_ns"],
        cpu_mean_ns=whole["cpu_ns"] / calls,
        self_device_ns=whole["self_device_ns"],
        self_device_share=whole["self_device_ns"] / max(facts.device_ns, 1),
        device_ns=whole["device_ns"],
        device_mean_ns=whole["device_ns"] / calls,
        kernels=whole["kernels"],
        backward_cpu_ns=whole["backward_cpu_ns"] if join else None,
        backward_device_ns=whole["backward_device_ns"] if join else None,
        flop=of["flop"] if flop else None,
        flop_per_s=of["flop"] / time * 1e9 if flop and time else None,
        tensor_core_share=of["tensor_core_ns"] / of["eligible_ns"] if of["eligible_ns"] else None,
        self_cpu_memory_bytes=whole["self_cpu_memory_bytes"] if host else None,
        cpu_memory_bytes=whole["cpu_memory_bytes"] if host else None,
        self_device_memory_bytes=whole["self_device_memory_bytes"] if device else None,
        device_memory_bytes=whole["device_memory_bytes"] if device else None,
    )


_MUCH: Final = 0.1
"""Share of the host's or device's time from which an operator is worth a sentence."""
_UNLIKE: Final = 4
"""... where the other share is so many times smaller."""
_MOST: Final = 3


def readings(rows: Sequence[OperatorRow], device_ns: int) -> list[str]:
    """Operators whose host and device shares differ much, in sentences.

    Args:
        rows: the operators.
        device_ns: all device time.
    """
    operators = [row for row in rows if row.kind == "operator"]
    if not any(row.self_device_ns for row in operators):
        return []
    host = [
        row
        for row in operators
        if row.self_cpu_share >= _MUCH and row.self_cpu_share * device_ns > _UNLIKE * row.device_ns
    ]
    device = [
        row
        for row in operators
        if row.self_device_share >= _MUCH and row.self_device_share > _UNLIKE * row.self_cpu_share
    ]
    host.sort(key=lambda row: -row.self_cpu_share)
    device.sort(key=lambda row: -row.self_device_share)
    return [
        *(
            f"{row.name}: {percent(row.self_cpu_share)} of the host's time, "
            f"{percent(row.device_ns / device_ns)} of the device's ({row.calls:,} calls): its cost "
            "is launching and dispatch, not the kernels; fewer, fused or compiled calls, or CUDA "
            "graphs, help, faster kernels do not"
            for row in host[:_MOST]
        ),
        *(
            f"{row.name}: {percent(row.self_device_share)} of the device's time, "
            f"{percent(row.self_cpu_share)} of the host's: its kernels are what it costs"
            for row in device[:_MOST]
        ),
    ]

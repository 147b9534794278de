"""Some steps take far longer than the others."""

from __future__ import annotations

import numpy as np

from stepscope.activity import names as words
from stepscope.breakdown.explain import Explanation
from stepscope.breakdown.outliers import PARTS, Outliers
from stepscope.breakdown.recurrence import is_disturbed, recurrence
from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, located
from stepscope.diagnosis.result import Location
from stepscope.diagnosis.workloads import in_inference
from stepscope.intervals.algebra import clip
from stepscope.intervals.distinct import among, distinct_values
from stepscope.kernels.categories import classify
from stepscope.trace.frame import IntArray

_ID = "step_jitter"
_LATE = ("launch_bound", "small_kernels", "unexplained")
_MOST = 0.5  # what takes this share of the excess is what makes the steps odd
_NEARLY_ALL = (
    0.8  # a cause with this share of its time in the outlier steps is no cause of the others
)

_LARGER = 1.1
"""Steps whose kernels launch so many times the threads of a normal one have more to do."""

_ALONE = 0.1
"""A rank that computes less than this part of what another one does in outlier steps waits."""

_ODD = "(SELECT DISTINCT rank, step, step_excess_ns, wall_ns FROM step_outlier WHERE {gpu})"


@in_inference(
    "keep long prompts from holding the others: chunked prefill, or prefill on other GPUs",
    "take scheduling, sampling and detokenising off the thread that launches (asynchronous "
    "scheduling), so that a busy CPU does not delay a step",
    "replay steps as CUDA graphs for all batch sizes that occur; sizes without a graph run slower",
    "rule out Python's garbage collector (gc.freeze() after warm-up) and other programs on the "
    "machine",
)
def detect(case: Case) -> Detection | None:
    """What outlier steps take over a normal one, where no more specific cause explains it."""
    e = case.explanation
    odd = e.outliers
    if not len(odd) or is_disturbed(e):
        return None
    rows = odd.parts["excess_ns"]
    excess = int(rows.sum())
    rest = int(rows[~odd.is_specific].sum())
    # as with launch_bound: late launches that twice the cost of recording would explain
    overhead = min(max(odd.excess_ns("idle", "launch_bound"), 0), _recording_ns(e, len(odd)))
    # what recording takes more in them follows from what they do, and explains nothing
    recorded = max(odd.excess_ns("idle", "profiler_overhead"), 0)
    if rest - overhead < _MOST * (excess - recorded):
        return None
    time = rest / e.n_steady
    # where idle time is charged to recording, that of outlier steps is in ``rest`` no more
    launching = 0 if recorded else max(sum(odd.excess_ns("idle", cause) for cause in _LATE), 0)
    kind, name, where = _what(case, odd)
    place = (
        " in {range}"
        if where.range
        else " at {source}"
        if where.source
        else " in {function}"
        if where.function
        else ""
    )
    shared = _share_elsewhere(case, odd) if kind == "evaluation" else 0.0
    return Detection(
        time_ns=time,
        direct_ns=time,
        added_ns=shared * time,
        # what outlier steps execute beside the normal ones goes with them
        floor_ns=0.0,
        rare=recurrence(odd.steps - e.first, _excess_by_step(odd), e.n_steady),
        work_ns=max(odd.excess_ns("idle", "host_compute"), 0) / e.n_steady,
        launching_ns=min(launching / e.n_steady, time),
        message="{outlier_steps} of {steady_steps} steps take {odd_step_ns} instead of "
        "{normal_step_ns}: " + _MESSAGE[kind].format(place=place) + "; what a repair "
        "shortens is the mean step, while the median stays",
        texts=where.texts() | ({"name": repr(classify(name).label)} if name else {}),
        recommendations=[*([_SHARE] if shared else []), *_DO[kind]],
        figures=[
            Figure("steady_steps", "count", "SELECT count(*) FROM step WHERE steady AND {gpu}"),
            Figure("outlier_steps", "count", f"SELECT count(*) FROM {_ODD}"),
            Figure("odd_step_ns", "ns", f"SELECT median(wall_ns)::BIGINT FROM {_ODD}"),
            Figure(
                "normal_step_ns",
                "ns",
                f"SELECT median(wall_ns - step_excess_ns)::BIGINT FROM {_ODD}",
            ),
            Figure("excess_ns", "ns", f"SELECT sum(step_excess_ns)::BIGINT FROM {_ODD}"),
            *(
                Figure(
                    f"excess_{part}_ns",
                    "ns",
                    "SELECT coalesce(sum(excess_ns), 0)::BIGINT FROM step_outlier "
                    f"WHERE part = '{part}' AND {{gpu}}",
                )
                for part in ("idle", "compute", "copy")
            ),
            Figure(
                "more_operations",
                "count",
                "SELECT coalesce(sum(more), 0)::BIGINT FROM step_outlier WHERE {gpu}",
            ),
        ],
        where=where,
        absorbs=_absorbed(case, odd),
        next_capture=_NEXT.get(kind),
    )


_MESSAGE = {
    "evaluation": "they also run an evaluation{place}, most of all {{name}}",
    "extra": "they run further kernels{place}, most of all {{name}}",
    "slower": "the same kernels run slower, most of all {{name}}; the GPU's clocks were lowered, "
    "or another program used it",
    "larger": "the same kernels have more to do, most of all {{name}}: longer sequences, or more "
    "samples",
    "host": "the training thread does something else in them{place}",
    "collection": "Python collects garbage in them ({{range}})",
    "untraced_cpu": "the training thread pauses in them, and nothing in the capture says why",
    "launch": "their launches come later",
}
_DO = {
    "evaluation": [
        "evaluate less often, on fewer batches, or in another process from a saved state",
        "leave evaluation steps out when the speed of training is compared",
    ],
    "extra": [
        "look at what these kernels belong to (stepscope query, table step_outlier) and do it less "
        "often or outside the loop",
    ],
    "slower": [
        "watch clocks, temperature and power: nvidia-smi -q -d CLOCK,PERFORMANCE,POWER",
        "check that no other process uses the GPU (nvidia-smi pmon), and that no power limit holds",
    ],
    "larger": [
        "cut or pad inputs to a few usual sizes, or sort them by size so that each batch holds as "
        "much work (a sampler that counts tokens, not samples)",
    ],
    "host": [
        "do the work less often, in another thread or process, or after the next step was enqueued",
    ],
    "collection": [
        "gc.freeze() after warm-up: what lives as long as the program is not walked through again",
        "take gc.collect() out of the loop; or gc.disable(), and gc.collect() at a chosen step, "
        "such as after an evaluation",
        "make fewer reference cycles: what counting references frees is not left to the collector",
    ],
    "untraced_cpu": [
        "rule out Python's garbage collector: gc.freeze() after warm-up, gc.disable() and "
        "gc.collect() at a chosen step",
        "rule out other Python threads of the program (a logger, a reader of messages): while one "
        "computes, it holds the GIL",
        "check the machine: other processes on its cores, CPU limits of the container, swapping",
    ],
    "launch": [
        "check the machine: other processes on its cores, CPU limits of the container",
        "launch further ahead: fewer synchronisations, CUDA graphs",
    ],
}
_SHARE = (
    "let every rank evaluate a part of it, so that none waits: a sampler that splits the "
    "validation set, and an all-reduce of the results"
)
_NEXT = {
    "untraced_cpu": captures.COLLECTIONS,
    "slower": captures.PLAIN,
    "launch": "nsys profile -t cuda,nvtx,osrt --cpuctxsw=process-tree python train.py",
}


def _excess_by_step(odd: Outliers) -> IntArray:
    """What each outlier step takes over the normal one, ns."""
    found = np.zeros(len(odd.steps), np.int64)
    np.add.at(found, np.searchsorted(odd.steps, odd.parts["step"]), odd.parts["excess_ns"])
    return found


def _share_elsewhere(case: Case, odd: Outliers) -> float:
    """The share of a rank's evaluation that remains where all ranks of its job evaluate as much.

    The others wait for what a rank evaluates alone. 0 where they evaluate as well, or there are
    none.
    """
    if not odd.excess_ns("compute"):
        return 0.0
    part = [
        c.explanation.outliers.excess_ns("compute") / odd.excess_ns("compute")
        for c in case.job.cases
        if c is not case
    ]
    return 1 / (len(part) + 1) if part and max(part) < _ALONE else 0.0


def _recording_ns(e: Explanation, steps: int) -> float:
    """Estimated cost of recording in so many steps."""
    return e.recording_ns / e.n_steady * steps


def _what(case: Case, odd: Outliers) -> tuple[str, str, Location]:
    """What makes the steps odd, the operation that does most of it, and where in the program."""
    part, ns, more = (odd.parts[c] for c in ("part", "excess_ns", "more"))
    compute = part == PARTS.index("compute")
    amounts = {
        "extra": int(ns[compute & (more > 0)].sum()),
        "slower": int(ns[compute & (more <= 0)].sum()),
        "host": odd.excess_ns("idle", "host_compute"),
        "launch": sum(odd.excess_ns("idle", cause) for cause in _LATE),
    }
    kind = max(amounts, key=amounts.__getitem__)
    if kind == "launch":
        return kind, "", Location()
    if kind == "host":
        where = _where_idle(case, odd)
        if where.range and words.COLLECTION_RANGE.match(where.range):
            return "collection", "", where
        facts = where.range or where.source or where.function
        return "host" if facts else "untraced_cpu", "", where
    rows = np.flatnonzero(compute & ((more > 0) == (kind == "extra")))
    sums = np.bincount(odd.parts["name"][rows], weights=ns[rows])
    name = odd.names[int(np.argmax(sums))]
    if kind == "slower":
        return "larger" if _more_threads(case.explanation) else kind, name, Location()
    where = _where_launched(case, odd, {odd.names[i] for i in odd.parts["name"][rows].tolist()})
    named = bool(where.range and words.EVALUATION_RANGE.search(where.range))
    return "evaluation" if named or _forward_only(case, odd) else "extra", name, where


def _more_threads(e: Explanation) -> bool:
    """Whether the kernels of the outlier steps launch more threads than those of the normal step.

    Updates of the parameters do not count: some loops make one every few steps.
    """
    kernels, odd = e.kernels, e.outliers
    step = np.searchsorted(e.bounds_ns, e.gpu.ops["start_ns"], side="right") - 1
    mine = e.gpu.is_compute & ~kernels.in_phase("optimizer")
    threads = np.where(mine, kernels.blocks * kernels.threads, 0).astype(float)
    usual = threads[step == odd.reference].sum()
    return bool(threads[among(step, odd.steps)].sum() > _LARGER * len(odd) * usual > 0)


def _forward_only(case: Case, odd: Outliers) -> bool:
    """Whether the further kernels are those of normal steps again, the optimizer's left out."""
    gpu, normal = case.explanation.gpu, odd.reference
    bounds = case.explanation.bounds_ns
    start = gpu.ops["start_ns"]
    usual = distinct_values(
        gpu.ops["name"][(start >= bounds[normal]) & (start < bounds[normal + 1])]
    )
    known = {gpu.ops.texts["name"][code] for code in usual.tolist()}
    rows = (odd.parts["part"] == PARTS.index("compute")) & (odd.parts["more"] > 0)
    more = odd.parts["more"][rows]
    names = [odd.names[code] for code in odd.parts["name"][rows].tolist()]
    again = sum(int(m) for m, name in zip(more, names, strict=True) if name in known)
    optimizer = any(words.OPTIMIZER_KERNEL.search(name) for name in names)
    return again >= _NEARLY_ALL * int(more.sum()) and not optimizer


def _where_idle(case: Case, odd: Outliers) -> Location:
    """Where the pauses of the outlier steps are."""
    e = case.explanation
    rows = e.segments_of("host_compute")
    start, end = (e.gaps.segments[name][rows] for name in ("start_ns", "end_ns"))
    # a pause may begin at the end of the step before
    parts = [clip((start, end), e.bounds_ns[step], e.bounds_ns[step + 1]) for step in odd.steps]
    return located(e.places.of(*(np.concatenate(side) for side in zip(*parts, strict=True))))


def _where_launched(case: Case, odd: Outliers, names: set[str]) -> Location:
    """Where the outlier steps launch the kernels of some names."""
    e = case.explanation
    ops = e.gpu.ops
    step = np.searchsorted(e.bounds_ns, ops["start_ns"], side="right") - 1
    rows = np.flatnonzero(among(step, odd.steps) & ops.that("name", names.__contains__))
    at = e.gpu.enqueue_begin_ns[rows]
    rows, at = rows[np.argsort(at, kind="stable")], np.sort(at)
    where = e.places.of(at, at + (ops["end_ns"] - ops["start_ns"])[rows])
    return located(where)


def _absorbed(case: Case, odd: Outliers) -> frozenset[tuple[str, int]]:
    """Causes whose time lies in the outlier steps nearly all: they say less than these do."""
    e = case.explanation
    return frozenset(
        (cause, case.rank)
        for cause in ("host_compute", "launch_bound", "small_kernels")
        if odd.excess_ns("idle", cause) >= _NEARLY_ALL * e.idle_by_cause_ns.get(cause, 1)
    )


CAUSE = Cause(
    id=_ID,
    title="Step jitter",
    definition=(
        "A few steps take far longer than a normal one: longer than the median by more than a "
        "fifth and by more than three and a half standard deviations, estimated robustly. Each is "
        "compared with a normal step, part by part; the parts add up to the difference."
    ),
    differential=(
        "It is reported only where most of the excess has no more specific cause: long steps that "
        "wait for input are input_starvation, those that save state checkpoint_stall, those that "
        "allocate allocator_churn, those that compile compilation_or_warmup. A slow beginning is "
        "warm-up and set aside. Steps that all differ a little are noise. Outlier steps of which "
        "the run holds less than half as many, by its steps that were timed and not recorded, are "
        "by chance."
    ),
    prediction=(
        "the mean step with the outlier steps as long as the normal one; where these come back "
        "after the same number of steps each time, the run holds as many as that says; what one "
        "rank of a job evaluates while the others wait, all of them share"
    ),
    reference="Iglewicz and Hoaglin: How to Detect and Handle Outliers (1993)",
    min_share=0.05,
    time_sql=(
        "SELECT round(coalesce((SELECT sum(excess_ns) FROM step_outlier WHERE NOT specific "
        "AND {gpu}), 0) / count(*))::BIGINT FROM step WHERE steady AND {gpu}"
    ),
    remedies=(
        "see which steps are long, and what is in them: `stepscope steps CAPTURE`",
        "garbage collection: gc.freeze() after the warm-up, and gc.collect() at moments of your"
        " choice",
        "evaluation, logging and uploads: in another process, or less often",
    ),
    detect=detect,
)

"""The capture cannot answer the question."""

from __future__ import annotations

import re

from stepscope.diagnosis import captures
from stepscope.diagnosis.cause import Case, Cause, Detection, Figure, causes
from stepscope.diagnosis.evidence import STEP_SQL, idle_time_sql
from stepscope.diagnosis.unexplained import enqueued_ns
from stepscope.diagnosis.unrecorded import busy_call, unrecorded_ns, unrecorded_warnings
from stepscope.gaps.migrations import MIGRATION
from stepscope.gaps.unrecorded import BUSY, HOLE

_MANY = 20
_STEPS = 5
"""Steady steps that say enough where each is one CUDA graph: one operation, many kernels."""
_TOO_MUCH = 0.25


def detect(case: Case) -> Detection | None:
    """Too little work, no kernels or launches, or too much idle time that nothing explains."""
    explanation = case.explanation
    gpu = explanation.gpu
    idle = explanation.steady_total("idle_ns") / explanation.n_steady
    figures = [
        Figure("gpu_operations", "count", "SELECT count(*) FROM gpu_op WHERE {gpu}"),
        Figure("cuda_calls", "count", "SELECT count(*) FROM api_call WHERE {process}"),
    ]
    # idle time beside which more passes in communication is not what the answer lacks
    covered = explanation.steady_total("exposed_communication_ns") / explanation.n_steady
    # pages of managed memory move when they are touched, and no call asks for it
    asked = ~gpu.ops.matches("copy_kind", MIGRATION)
    unlinked = float((gpu.call[asked] < 0).mean()) if asked.any() else 0.0
    unrecorded = [figure for one in unrecorded_warnings(case) for figure in one.figures]
    reason = capture = None
    whole = explanation.steps.source == "whole_capture"
    # without steps, copies at the program's start say nothing about any
    counted = gpu.is_kernel if whole and gpu.is_kernel.any() else asked
    if int(counted.sum()) < _MANY and not _steps_are_graphs(case):
        reason = "the capture holds too few GPU operations for a statement about steps"
        capture = "capture at least five whole steps after warm-up"
    elif not gpu.is_kernel.any():
        # then all computing would look like idle time
        reason = (
            "the capture holds copies and memory sets but no kernel, so that what the GPU computed "
            "is not in it"
        )
        capture = captures.PLAIN
    elif unlinked > 0.5 and idle > 0.1 * case.step_ns and idle > covered:
        reason = (
            "most GPU operations have no recorded launching call, so idle time cannot be "
            "attributed to what the host did"
        )
        capture = captures.PLAIN
    elif (hole := unrecorded_ns(case, HOLE)) > _TOO_MUCH * case.step_ns:
        reason = (
            "nothing was recorded for {hole_ns} of {whole_ns}, neither a call nor an operator nor "
            "a sample of the program, so that nobody can tell what the time passed with"
        )
        capture = captures.STACKS
    elif (busy := unrecorded_ns(case, BUSY)) > (1 - _TOO_MUCH) * case.step_ns:
        reason = (
            "{busy_unrecorded_ns} of the {whole_ns} are a wait for work that was launched before "
            "the recording began"
        )
        if any(figure.name == "waiting_call_ns" for figure in unrecorded):
            reason += f": the host waits {{waiting_call_ns}} in {busy_call(case)}"
        capture = (
            "begin to record one step earlier, or synchronise before the recording begins: "
            "torch.profiler.schedule(wait=..., warmup=1, active=3)"
        )
    elif case.idle_ns("unexplained") - hole - busy > _TOO_MUCH * case.step_ns:
        reason = "the device waits for something that the capture does not show"
        capture = captures.WAITS_AND_NODES
        if 2 * enqueued_ns(case) > case.idle_ns("unexplained") * explanation.n_steady:
            reason = (
                "for {unexplained_ns} of the {whole_ns} the GPU runs nothing, mostly although work "
                "is enqueued: another process or context has it, it wakes from a power state, or "
                "the work waits for what is not recorded"
            )
            figures.append(Figure("unexplained_ns", "ns", idle_time_sql("unexplained")))
            capture = (
                f"{captures.PLAIN} (it records clocks and power), with nvidia-smi pmon beside it"
            )
    elif stated := _hidden_in_communication(case):
        reason, capture = stated
        own = max(explanation.idle_by_cause_ns, key=case.idle_ns, default="unexplained")
        if own in causes() and case.idle_ns(own) > _TOO_MUCH * case.step_ns:
            # the others may be waiting for this rank
            reason += (
                "; for {own_idle_ns} more of the step its own GPU idles, because of "
                f"{causes()[own].title.lower()}"
            )
            figures.append(Figure("own_idle_ns", "ns", idle_time_sql(own)))
    if reason is None:
        return None
    figures += unrecorded
    if "{whole_ns}" in reason:
        figures.append(Figure("whole_ns", "ns", STEP_SQL))
    return Detection(
        time_ns=max(idle, 1.0),
        direct_ns=0.0,
        message=reason,
        recommendations=["make the next capture that is named here, then diagnose again"],
        figures=figures,
        next_capture=capture,
    )


def _steps_are_graphs(case: Case) -> bool:
    """Whether steps hold whole graphs, as JAX's and PyTorch's compiled steps do."""
    explanation = case.explanation
    graphs = int(explanation.gpu.ops.equals("kind", "graph").sum())
    return (
        (explanation.steps.marked or explanation.steps.source == "graph_replay")
        and explanation.n_steady >= _STEPS
        and graphs >= explanation.n_steady
    )


def _hidden_in_communication(case: Case) -> tuple[str, str] | None:
    """(why, what to add) where communication may be waiting for ranks that are not there."""
    c = case.job.view.collectives
    if c is None:
        return None
    explanation, n = case.explanation, case.explanation.n_steady
    several = bool((c.matched.instances.members > 1).any())
    matched = bool(len(c.parts)) and (c.alone or c.by_step or several)
    if not matched:
        hidden = explanation.steady_total("exposed_communication_ns") / n
    elif c.matched.complete:
        return None
    else:
        me = next(i for i, device in enumerate(case.job.view.devices) if device is case.device)
        hidden = float((c.parts.missing + c.parts.unmatched).mean(axis=0)[me])
        if c.alone:
            hidden += float(c.parts.transfer.mean(axis=0)[me])
    idle = max(explanation.idle_by_cause_ns.values(), default=0) / n
    if hidden <= max(_TOO_MUCH * case.step_ns, idle):
        return None
    rest = "the captures of the other ranks, given together with this one"
    name = case.meta.input_name
    pattern = re.sub(r"(?i)(rank[_\-.]?)\d+", r"\g<1>*", name)
    if pattern != name:
        rest = f"stepscope diagnose {pattern}, with the captures of all ranks there"
    if not matched and not c.alone:
        why = (
            "much of the step is exposed communication, and none of it has a "
            "counterpart in the other captures, so that these may be of different runs"
        )
        rest = "captures of all ranks of one run, taken at the same time"
    elif c.alone:
        why = (
            "much of the step is exposed communication, and the capture of one rank "
            "cannot tell moving data from waiting for a late rank"
        )
    else:
        why = (
            "the ranks that are there wait together inside collectives, most likely for a rank "
            "that is not there"
        )
    return why, rest


CAUSE = Cause(
    id="insufficient_data",
    title="Not enough data",
    definition="The capture lacks what an answer needs; the finding says what to capture instead.",
    differential=(
        "unexplained idle time is a part of the step that no cause claims; here so much is not "
        "known that naming a cause would be a guess"
    ),
    prediction="nothing is predicted",
    reference="docs/how-it-works.md",
    min_share=0.0,
    takes_time=False,
    remedies=("make the next capture that the finding names, then diagnose again",),
    detect=detect,
)

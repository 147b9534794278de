"""The step budget: where the mean steady step of a device goes, as parts that sum to it."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.diagnosis.result import SAME_STEP, DeviceAccounting, Diagnosis, Finding

_SMALL = 0.01
_NOTABLE = 0.10
_SAME_STEP = 0.05
"""What recording costs less of the step than this is noise, and no second pair of figures."""
_STANDS_FOR_ALL = 0.5
"""Steps that hold less of the capture do not stand for it."""


@dataclass(frozen=True)
class Part:
    """One part of the step: name, ns in the steady window, whether it is idle time."""

    name: str
    ns: int
    idle: bool


def parts(gpu: DeviceAccounting) -> list[Part]:
    """Parts of a device's steady window, busy first; idle causes under 1 % are one part."""
    busy = [
        Part("compute", gpu.compute_ns, False),
        Part("exposed communication", gpu.exposed_communication_ns, False),
        Part("exposed copy", gpu.exposed_copy_ns, False),
        Part("memset", gpu.memset_ns, False),
    ]
    causes = sorted(gpu.idle_by_cause_ns.items(), key=lambda item: -item[1])
    large = [Part(name, ns, True) for name, ns in causes if ns >= _SMALL * gpu.wall_ns]
    rest = sum(ns for _, ns in causes) - sum(part.ns for part in large)
    other = [Part("other idle", rest, True)] if rest else []
    return [part for part in [*busy, *large, *other] if part.ns]


def headline(diagnosis: Diagnosis) -> str:
    """The whole answer in one sentence, or in two where the steps do not stand for the capture."""
    from stepscope.render.text import MAX_SENTENCE, clean, percent

    step, findings = diagnosis.trace.step, diagnosis.findings
    if findings and findings[0].cause == "insufficient_data":
        return clean(findings[0].message, MAX_SENTENCE) + "."
    lever = _largest_lever(diagnosis)
    answer = (
        _costs(diagnosis, findings[0])
        if findings
        else _without_findings(diagnosis, healthy=not lever)
    ) + lever
    holds = "holds" if diagnosis.trace.steps == 1 else "hold"
    found = f"The {_counted(diagnosis)} found {holds} only"
    if step.coverage_gpu < _STANDS_FOR_ALL:
        return (
            f"{found} {percent(step.coverage_gpu)} of the GPU's work, so that this is not about "
            f"all of the capture. {answer}"
        )
    if step.coverage_time < _STANDS_FOR_ALL and not findings:
        return (
            f"{found} {percent(step.coverage_time)} of the captured time; most of it lies outside. "
            f"{answer}"
        )
    return answer


def utilisation(diagnosis: Diagnosis) -> str:
    """What nvidia-smi would have shown for a single NVIDIA GPU; empty where that is not known."""
    from stepscope.render.text import percent

    share, split = diagnosis.gpu_utilization, diagnosis.kernels
    if share is None or split is None or split.vendor != "NVIDIA":
        return ""
    return (
        f"nvidia-smi would call this {percent(share)} utilisation: the share of time in which a "
        "kernel ran, however well"
    )


def unrecorded_text(finding: Finding) -> str:
    """What a finding's step takes without recording, today and fixed; empty where that is the same.

    Both are estimates, and stand in the relation of the captured to the predicted step.
    """
    from stepscope.render.text import milliseconds

    value = {e.figure: e.value for e in finding.evidence}
    if not {"unrecorded_before_ns", "unrecorded_step_ns", "step_ns"} <= value.keys():
        return ""
    before, after = value["unrecorded_before_ns"], value["unrecorded_step_ns"]
    if abs(before - value["step_ns"]) < _SAME_STEP * value["step_ns"]:
        return ""
    return f"; without the profiler, about {milliseconds(before)} become {milliseconds(after)}"


def or_less(finding: Finding) -> str:
    """What a predicted step is followed by: whether the capture bounds the gain from below only."""
    return " or less" if finding.at_least else ""


def _costs(diagnosis: Diagnosis, first: Finding) -> str:
    """What the first finding costs, and the step without it."""
    from stepscope.diagnosis.cause import causes
    from stepscope.diagnosis.sentence import costing
    from stepscope.render.text import milliseconds

    noun = step_noun(diagnosis)
    on_rank = f" on {ranks_text(first.ranks)}" if diagnosis.trace.ranks > 1 else ""
    cause = f"{causes()[first.cause].title}{on_rank}"
    verb = costing(causes()[first.cause].title)
    step = f"{_each(diagnosis)} {milliseconds(first.value('step_ns') or 0)} {noun}"
    start = f"{cause} {verb} {milliseconds(cost_ns(first))} {step}"
    if cost_ns(first) > first.time_ns_per_step:
        recovered = milliseconds(first.time_ns_per_step)
        return f"{start}; fixing it alone recovers {recovered}."
    return (
        f"{start}; once fixed, the {noun} takes about "
        f"{milliseconds(first.predicted_step_ns)}{or_less(first)}{and_more(first)}."
    )


def cost_ns(finding: Finding) -> float:
    """What a cause costs, ns per step: the time that was seen to pass in it."""
    observed = finding.value("observed_ns_per_step")
    return finding.time_ns_per_step if observed is None else observed


def and_more(finding: Finding) -> str:
    """What a repair recovers, where that is notably more than the cause costs; empty elsewhere."""
    from stepscope.render.text import milliseconds

    gain = (finding.value("step_ns") or 0) - finding.predicted_step_ns
    if gain < (1 + _NOTABLE) * cost_ns(finding):
        return ""
    return f", {'at least ' if finding.at_least else ''}{milliseconds(gain)} less"


def _without_findings(diagnosis: Diagnosis, *, healthy: bool) -> str:
    """That all is well, or what is large without being a cause.

    Args:
        diagnosis: the diagnosis.
        healthy: whether the kernels are left nothing large to gain.
    """
    from stepscope.render.text import milliseconds, percent

    gpu = reference_gpu(diagnosis)
    wall = max(gpu.wall_ns, 1)
    step = f"{_each(diagnosis)} {milliseconds(diagnosis.step_ns.mean)} {step_noun(diagnosis)}"
    large = [
        (
            gpu.exposed_communication_ns,
            "No cause found outside communication, which is exposed for {share} {step}: it may "
            "move data or wait for another rank.",
        ),
        (
            gpu.idle_ns,
            "No cause found: what the GPU did or waited for is not recorded for {share} {step}."
            if 2 * gpu.idle_by_cause_ns.get("unexplained", 0) > gpu.idle_ns
            else "No single cause found, though the GPU is idle for {share} {step}.",
        ),
        (
            gpu.exposed_copy_ns,
            "No single cause found, though exposed copies take {share} {step}.",
        ),
    ]
    for ns, sentence in large:
        if ns > _NOTABLE * wall:
            return sentence.format(share=percent(ns / wall), step=step)
    busy = f"he GPU is busy {percent((wall - gpu.idle_ns) / wall)} {step}; no cause outside the "
    covered = min(diagnosis.trace.step.coverage_gpu, diagnosis.trace.step.coverage_time)
    if covered < _STANDS_FOR_ALL:
        return f"T{busy}kernels is worth fixing there."
    if not healthy:
        return f"T{busy}kernels is worth fixing."
    return f"Healthy: t{busy}kernels is worth fixing."


def _largest_lever(diagnosis: Diagnosis) -> str:
    """A sentence on the lever that gains most, where that is notable and more than a finding's.

    Settings, such as another batch, are no answer to what makes this step slow.
    """
    from stepscope.diagnosis.lever import levers
    from stepscope.render.text import milliseconds

    first = diagnosis.findings[0].time_ns_per_step if diagnosis.findings else 0.0
    for lever in diagnosis.levers:
        step = lever.value("step_ns") or 0.0
        gain = step - lever.predicted_step_ns
        if gain < _NOTABLE * step or gain < (1 + _NOTABLE) * first:
            break
        if lever.after_findings or levers()[lever.cause].setting is not None:
            continue
        about = "at least" if lever.at_least else "about"
        return (
            f" The largest lever inside the kernels, '{levers()[lever.cause].title}', saves "
            f"{about} {milliseconds(gain)}."
        )
    return ""


def steady(diagnosis: Diagnosis) -> str:
    """``steady 0 to 11``; of which rank, where those of the ranks differ in number."""
    first, last = diagnosis.trace.steady_steps
    counts = {steps_of(gpu, diagnosis) for gpu in diagnosis.accounting}
    whose = f" on rank {slowest_gpu(diagnosis).rank}" if len(counts) > 1 else ""
    return f"steady {first} to {last}{whose}"


def slowest_gpu(diagnosis: Diagnosis) -> DeviceAccounting:
    """The device with the longest mean step."""
    return max(diagnosis.accounting, key=lambda gpu: gpu.wall_ns / steps_of(gpu, diagnosis))


def longest(diagnosis: Diagnosis) -> str:
    """`` on rank 1, the longest`` where the steps of a job's ranks differ; empty elsewhere."""
    steps = {gpu.rank: gpu.wall_ns / steps_of(gpu, diagnosis) for gpu in diagnosis.accounting}
    rank = max(steps, key=lambda rank: steps[rank])
    differ = min(steps.values()) <= SAME_STEP * steps[rank]
    return f" on rank {rank}, the longest" if differ else ""


def _each(diagnosis: Diagnosis) -> str:
    return "of the" if diagnosis.trace.steps == 1 else "of each"


_NOUNS = {
    "forward": "forward pass",
    "decode_step": "decode step",
    "engine_iteration": "iteration",
    "denoising_step": "denoising step",
    "graph_replay": "graph replay",
    "whole_capture": "capture",
}


def per_step(diagnosis: Diagnosis) -> str:
    """What a time is of: ``per step``; where there is but one, ``of the step``."""
    return f"of the {step_noun(diagnosis)}" if diagnosis.trace.steps == 1 else "per step"


def step_noun(diagnosis: Diagnosis) -> str:
    """What one step of this capture is called: a step, a forward pass, a decode step."""
    return _NOUNS.get(diagnosis.trace.step.kind, "step")


def _counted(diagnosis: Diagnosis) -> str:
    """``12 steps``, ``one decode step``."""
    count, noun = diagnosis.trace.steps, step_noun(diagnosis)
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count} {plural}" if count > 1 else f"one {noun}"


def reference_gpu(diagnosis: Diagnosis) -> DeviceAccounting:
    """The device that the headline speaks of: the first finding's first rank, else the first."""
    if diagnosis.findings:
        rank = diagnosis.findings[0].ranks[0]
        for gpu in diagnosis.accounting:
            if gpu.rank == rank:
                return gpu
    return diagnosis.accounting[0]


def steps_of(gpu: DeviceAccounting, diagnosis: Diagnosis) -> int:
    """Steps that a device's accounting is about; ranks may differ in them."""
    first, last = diagnosis.trace.steady_steps
    return gpu.steps or last - first + 1


def all_devices(diagnosis: Diagnosis) -> DeviceAccounting:
    """The accounting of all devices of the job together, as if they were one."""
    gpus = diagnosis.accounting
    idle: dict[str, int] = {}
    for gpu in gpus:
        for cause, ns in gpu.idle_by_cause_ns.items():
            idle[cause] = idle.get(cause, 0) + ns
    return DeviceAccounting(
        rank=-1,
        device=-1,
        wall_ns=sum(gpu.wall_ns for gpu in gpus),
        compute_ns=sum(gpu.compute_ns for gpu in gpus),
        exposed_communication_ns=sum(gpu.exposed_communication_ns for gpu in gpus),
        exposed_copy_ns=sum(gpu.exposed_copy_ns for gpu in gpus),
        memset_ns=sum(gpu.memset_ns for gpu in gpus),
        idle_ns=sum(gpu.idle_ns for gpu in gpus),
        idle_by_cause_ns=idle,
        steps=sum(steps_of(gpu, diagnosis) for gpu in gpus),
    )


def ranks_text(ranks: list[int]) -> str:
    """``rank 0``, ``ranks 0, 1``; eight at most are named."""
    noun = "rank" if len(ranks) == 1 else "ranks"
    return (
        f"{noun} "
        + ", ".join(str(rank) for rank in ranks[:8])
        + (", ..." if len(ranks) > 8 else "")
    )

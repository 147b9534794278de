"""A scripted agent: it knows the rules of the skill and the answers of the tools, nothing else."""

from __future__ import annotations

from bench import Answer, Desk, given
from cases import HEALTHY, UNKNOWN, Case

VERIFIED, INFERRED = "verified in the trace", "inferred"


def scripted(case: Case, desk: Desk) -> Answer:
    """Diagnose, check the first figure, answer; plan a capture where nothing is told."""
    found = desk.call("diagnose", capture=given(case), max_tokens=900)
    verdict = found.get("verdict")
    if verdict is None or verdict == "insufficient_data":
        desk.call("plan_capture", program="python train.py")
        return Answer(UNKNOWN)
    if verdict == "gpu_bound_healthy":
        return Answer(HEALTHY)
    first = found["findings"][0]
    # never a number without its source: the figure is computed again from the trace
    figure = desk.call("explain", what=f"{first['id']}/time_ns_per_step", capture=given(case))
    status = VERIFIED if figure.get("verified") else "unverified"
    claims = ((f"{first['id']} costs {first['costs_ms']} ms", status),)
    claims += ((f"the step becomes {first['predicted_step_ms']} ms", INFERRED),)
    present = found["mean_step_ms"]
    low, high = first["range_ms"]
    return Answer(
        verdict=first["id"],
        ratio=first["predicted_step_ms"] / present,
        reach=(low / present, high / present),
        unreliable="unreliable" in first or bool(first.get("or_less")),
        claims=claims,
    )

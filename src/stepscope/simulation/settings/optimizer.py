"""A fused optimizer instead of a loop over the parameters, or of foreach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.kernels.kernels import Repair
from stepscope.kernels.multi_tensor import fused_update
from stepscope.simulation.changed_operations import change_ops
from stepscope.simulation.changes import Bound, RemoveOps, ScaleOps
from stepscope.simulation.setting import Validity
from stepscope.simulation.settings.base import Edit, Facts, Setting
from stepscope.simulation.subject import Subject
from stepscope.trace.errors import UsageError


@dataclass(frozen=True)
class FusedOptimizer(Edit):
    """The update of the parameters is one kernel for many of them, and one pass."""

    order = 3
    text = "a fused optimizer"

    def apply(self, facts: Sequence[Facts], subjects: list[Subject], bound: Bound) -> list[Subject]:
        """The programs with a fused update."""
        changed = []
        for subject, one in zip(subjects, facts, strict=True):
            repair = update(one)
            if repair is None:
                raise UsageError(
                    "optimizer=fused: there is no update of parameters by foreach kernels or one "
                    f"by one on rank {one.rank}; it is fused already, or not recognised"
                )
            changed.append(_repaired(subject, one, repair, bound))
        return changed

    def assumptions(self, facts: Sequence[Facts]) -> list[str]:
        """What is assumed."""
        return [
            "a fused update passes over parameters, gradients and moments once, at the speed that "
            "the kernels of the update achieve here"
        ]

    def validity(self, facts: Sequence[Facts]) -> Validity:
        """Modelled."""
        return "modelled"


def update(facts: Facts) -> Repair | None:
    """What a fused update changes, in the steady steps; None where there is nothing to fuse."""
    looped = facts.explanation.inside_kernels.optimizer
    if looped is not None:
        return looped.repair
    return fused_update(facts.kernels)


def _repaired(subject: Subject, facts: Facts, repair: Repair, bound: Bound) -> Subject:
    """The repair's operations merged or shortened; those of all replayed steps alike."""
    total = {"low": repair.low_ns, "high": repair.high_ns}.get(bound, int(repair.new_ns.sum()))
    ids = facts.gpu.ops["id"][repair.rows]
    if repair.replaced:
        # all but the first of each step go; that one takes a step's share
        from stepscope.simulation.changes import FuseOps

        a_step = total // facts.explanation.n_steady
        return change_ops(subject, FuseOps(tuple(ids.tolist()), a_step))[0]
    kept = ~repair.merged
    after = subject
    if repair.merged.any():
        after, _ = change_ops(after, RemoveOps(tuple(ids[repair.merged].tolist())))
    if kept.any():
        factors = repair.factors(kept, total)
        after, _ = change_ops(after, ScaleOps(tuple(ids[kept].tolist()), tuple(factors.tolist())))
    return after


def read(text: str) -> FusedOptimizer:
    """``fused``."""
    if text != "fused":
        raise ValueError(text)
    return FusedOptimizer()


SETTING = Setting(
    name="optimizer",
    title="Fused optimizer",
    values="fused",
    example="fused",
    help="the optimizer updates all parameters in one pass (fused=True)",
    model=(
        "foreach kernels: their time times the passes over memory that a fused update makes, over "
        "those that they make. An update parameter by parameter: one pass over all of them at "
        "memory speed, and its launches go"
    ),
    assumes="the optimizer has a fused form (Adam, AdamW, SGD, Adagrad)",
    checked="AdamW, foreach and parameter by parameter",
    refuses="where the update is fused already",
    reads=read,
)

"""All that is found inside the kernels of one device.

Each operation is in at most one finding, but for precision, which is independent of how operations
are merged.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from stepscope.gaps.idle import Gaps
from stepscope.kernels.attention import UnfusedAttention, unfused_attention
from stepscope.kernels.efficiency import Inefficient, inefficient_kernel
from stepscope.kernels.fusion import (
    Chains,
    MemoryBound,
    UnfusedOptimizer,
    chains,
    memory_bound,
    taken_rows,
    unfused_optimizer,
)
from stepscope.kernels.kernels import Kernels, Repair
from stepscope.kernels.precision import LowPrecision, low_precision
from stepscope.kernels.runs import short_runs
from stepscope.kernels.written_out import WrittenOut, written_out
from stepscope.trace.frame import BoolArray


def further_id(cause_id: str) -> str:
    """What stands for the further repair of a cause in the tables."""
    return f"{cause_id}.further"


class Findings:
    """Findings of one device, each computed when first asked.

    Args:
        kernels: its kernels.
        gaps: its idle time in the steady window.
    """

    def __init__(self, kernels: Kernels, gaps: Gaps) -> None:
        self._kernels = kernels
        self._gaps = gaps

    @cached_property
    def optimizer(self) -> UnfusedOptimizer | None:
        """An optimizer that loops over the parameters."""
        return unfused_optimizer(self._kernels, self._gaps)

    @cached_property
    def attention(self) -> UnfusedAttention | None:
        """Attention written out."""
        return unfused_attention(self._kernels)

    @cached_property
    def precision(self) -> LowPrecision | None:
        """GEMMs and convolutions in single precision."""
        return low_precision(self._kernels)

    @cached_property
    def chains(self) -> Chains | None:
        """Chains of elementwise operations elsewhere."""
        return chains(self._kernels, self._taken(self.optimizer, self.attention))

    @cached_property
    def compiled(self) -> Repair | None:
        """What a compiler makes of the chains; of the whole model, of the shorter runs, too."""
        if self.chains is None:
            return None
        taken = self._taken(self.optimizer, self.attention, self.chains)
        return replace(self.chains.repair, further=short_runs(self._kernels, taken))

    @cached_property
    def written_out(self) -> WrittenOut | None:
        """Functions of the library that are written out, where there are chains."""
        if self.chains is None:
            return None
        return written_out(self._kernels, self._taken(self.optimizer, self.attention))

    @cached_property
    def memory(self) -> MemoryBound | None:
        """Memory-bound kernels that dominate the step."""
        return memory_bound(self._kernels, self._taken(self.optimizer, self.attention, self.chains))

    @cached_property
    def inefficient(self) -> Inefficient | None:
        """A kernel far below its ceiling."""
        return inefficient_kernel(
            self._kernels, self._taken(self.optimizer, self.attention, self.precision, self.chains)
        )

    @cached_property
    def repairs(self) -> dict[str, Repair]:
        """Repair of every finding, by the id of its cause."""
        found = {
            "unfused_optimizer": self.optimizer,
            "unfused_attention": self.attention,
            "low_precision_unused": self.precision,
            "memory_bound_kernels": self.memory,
            "inefficient_kernel": self.inefficient,
        }
        repairs = {cause: one.repair for cause, one in found.items() if one is not None}
        return (
            repairs if self.compiled is None else {**repairs, "fusion_opportunity": self.compiled}
        )

    @property
    def further_repairs(self) -> dict[str, Repair]:
        """Further repairs of the same kernels, by the id of the cause."""
        found = self.written_out
        return {} if found is None else {"fusion_opportunity": found.repair}

    def _taken(
        self, *others: UnfusedOptimizer | UnfusedAttention | LowPrecision | Chains | None
    ) -> BoolArray:
        return taken_rows(
            self._kernels, [other.repair.rows for other in others if other is not None]
        )

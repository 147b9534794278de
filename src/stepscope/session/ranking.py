"""Look for every cause on every device, predict the step without it, and rank what is found."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from stepscope.session.simulating import Simulating

if TYPE_CHECKING:
    from stepscope.diagnosis.cause import Case, Detection
    from stepscope.diagnosis.predictions import Predicted
    from stepscope.diagnosis.ranking import Ranked


class Ranking(Simulating):
    """The job's causes."""

    @cached_property
    def _cases(self) -> list[Case]:
        """Every device as causes see it."""
        from stepscope.diagnosis.cause import Case, JobCase

        job = JobCase(self._view)
        several = len(self.job.members) > 1
        job.cases += [Case(device, job, several) for device in self._view.devices]
        return job.cases

    @cached_property
    def _ranked(self) -> list[Ranked]:
        """The job's causes, ranked."""
        from stepscope.diagnosis.predictions import simulated
        from stepscope.diagnosis.ranking import ranked

        def predict(case: Case, cause: str, detection: Detection) -> Predicted | None:
            return simulated(self.simulation, case, cause, detection)

        return ranked(self._cases, predict)

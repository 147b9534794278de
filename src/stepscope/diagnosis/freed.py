"""The step without a cause of idle time, as the diagnosis predicts it."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.diagnosis.cause import Case, causes, of_job
from stepscope.diagnosis.predictions import simulated
from stepscope.simulation import Free, Prediction, Simulation
from stepscope.simulation.summary import Freed, describe
from stepscope.trace.units import milliseconds


@dataclass(frozen=True)
class AsDiagnosed:
    """What the diagnosis of a job adds to the replay without a cause.

    That is what else limits the repair: how fast input is brought, how often the cause comes back,
    what the repaired program does instead.

    Attributes:
        simulation: the replay.
        cases: one a device.
    """

    simulation: Simulation
    cases: list[Case]

    def __call__(self, cause: str) -> Freed | None:
        """The step without a cause; None where the diagnosis sees nothing of it."""
        if cause not in causes():
            return None
        seen = [(case, causes()[cause].detect(case)) for case in self.cases]
        found = [(case, detection) for case, detection in seen if detection is not None]
        if not found:
            return None
        case, detection = of_job(found)
        predicted = simulated(self.simulation, case, cause, detection)
        if predicted is None:
            return Freed(
                None,
                f"the diagnosis predicts the step without {cause} by arithmetic, as the unchanged "
                "replay misses the measured step by more than a tenth",
            )
        step = round(predicted.step_ns)
        change = detection.change
        if predicted.by_further and detection.further is not None:
            change = detection.further.change
        if change is not None and change != Free(cause):
            return Freed(
                None,
                f"here all idle time of {cause} is gone; the diagnosis predicts its repair "
                f"({describe(change)}), {milliseconds(step)}",
            )
        apart = predicted.unrecorded
        prediction = Prediction(
            step_ns=step,
            low_ns=round(predicted.low_ns),
            high_ns=round(predicted.high_ns),
            replay_error=self.simulation.replay_error,
            message=self.simulation.message(),
            unrecorded=apart and (round(apart[0]), round(apart[1])),
        )
        return Freed(prediction, "")

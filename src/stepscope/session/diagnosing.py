"""Name the causes of the step time, recompute their figures, and keep what runs are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.session.inside_kernels import launches_to_examine, with_insides
from stepscope.session.kernel_reports import read_report
from stepscope.session.opening import OpenOptions
from stepscope.session.querying import Querying
from stepscope.trace import progress
from stepscope.trace.errors import LimitError, UsageError
from stepscope.trace.given import listed

if TYPE_CHECKING:
    from stepscope.compare.profile import Profile
    from stepscope.diagnosis.result import Diagnosis
    from stepscope.diagnosis.verify import Verification
    from stepscope.operators.roofline import Launches

_SHORTEST_S = 1e-3
"""What is left for a statement when the time is up: too little, which is then said."""


def stored_options(report: bytes) -> OpenOptions:
    """What the user said a step is when a stored diagnosis was made.

    Raises:
        InputError: it is no diagnosis of a known version.
    """
    from stepscope.diagnosis.verify import decoded

    options = decoded(report).trace.step.options
    return {"step": options.step, "step_kernel": options.step_kernel}


class Diagnosing(Querying):
    """The job's diagnosis."""

    def diagnose(self, ncu: str | Path | Sequence[str | Path] = ()) -> Diagnosis:
        """Name the causes of the job's step time.

        Args:
            ncu: Nsight Compute report of the same program, or several: findings about kernels go
                on to the cause inside them.

        Raises:
            InputError: a report cannot be read.
        """
        from stepscope.diagnosis.result import Diagnosis

        reports = [(str(path), read_report(path)) for path in listed(ncu)]
        what = self.paths[0] if len(self.paths) == 1 else f"{len(self.paths)} captures"
        for _ in progress.each((Path(what).name,), "Diagnosing", str):
            found = self._answers.find("diagnosis", Diagnosis, self._diagnosis)
        return with_insides(found, self.query, reports) if reports else found

    def _diagnosis(self) -> Diagnosis:
        """The diagnosis, by a fresh look."""
        from stepscope.diagnosis.engine import diagnose
        from stepscope.diagnosis.result import StepOptions

        return diagnose(
            self._cases,
            self._ranked,
            cache(self.figure),  # most findings hold the figures of the step, too
            paths=self.paths,
            source="+".join(sorted({trace.meta.source for trace in self.job.traces})),
            remarks=self.job.remarks,
            problems=self.problems,
            options=StepOptions(self.choice.mark, self.choice.kernel),
        )

    def verify(self, report: bytes, timeout_s: float | None = None) -> Verification:
        """Recompute every figure of a stored diagnosis from its evidence.

        Args:
            report: what ``diagnose --format json`` wrote; its statements may be anybody's.
            timeout_s: seconds that all its statements may take together; by default
                ``STEPSCOPE_QUERY_TIMEOUT``, else 300.

        Raises:
            InputError: it is no diagnosis.
            LimitError: its statements take too much time or memory.
        """
        from stepscope.diagnosis.verify import verify

        engine = self.engine
        allowed_s = engine.limits.within(timeout_s).timeout_s
        before_s = engine.spent_s

        def compute(sql: str) -> float | int:
            left_s = allowed_s - (engine.spent_s - before_s)
            try:
                return self.figure(sql, max(left_s, _SHORTEST_S))
            except LimitError as error:
                if engine.spent_s - before_s < allowed_s:
                    raise
                told = LimitError(
                    f"verifying was ended: the report's statements took more than {allowed_s:g} s; "
                    "look at them, or allow more with --timeout"
                )
                told.left_running = error.left_running
                raise told from error

        return verify(report, cache(compute))

    def profile(self) -> Profile:
        """What is kept of the run: enough to compare it with others.

        Raises:
            InputError: a trace holds no GPU work.
        """
        from stepscope.compare.profile import Profile

        return self._answers.find("profile", Profile, self._profile)

    def _profile(self) -> Profile:
        from stepscope.compare.collect import profile_of

        return profile_of(self._view, self.diagnose())

    def launches_to_examine(self) -> Launches:
        """The launches that ncu should capture: of findings about kernels, and of slow operators.

        Raises:
            UsageError: no finding is about a kernel, and no operator is far below its roof.
        """
        found = launches_to_examine(self.query, self.diagnose(), self._view)
        if found is None:
            raise UsageError(
                f"nothing in {self.paths[0]} says that a kernel is worth examining: no finding is "
                "about one, and no operator with shapes is far below its roof; name kernels with "
                "--kernel REGEX"
            )
        return found

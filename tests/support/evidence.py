"""Evidence of a diagnosis, recomputed from its statements as a user would."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.api import Job
    from stepscope.diagnosis.result import Diagnosis


def check_evidence(diagnosis: Diagnosis, job: Job) -> None:
    """The figures of every finding are what their statements give.

    They are asked as parts of one statement: each by itself, as ``test_verify.py`` asks those of
    whole captures, takes twice as long.
    """
    values = {each.sql: each.value for finding in diagnosis.findings for each in finding.evidence}
    if values:
        found = job.query(f"SELECT {', '.join(f'({sql})' for sql in values)}")
        assert dict(zip(values, (c[0].as_py() for c in found.columns), strict=True)) == values

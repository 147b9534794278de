"""What the server puts together for the page, out of results and ``timeline/answers.py``."""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec

from stepscope.api.runs import Side
from stepscope.compare.result import Comparison
from stepscope.compare.step_rows import PairDevice, StepPicture
from stepscope.diagnosis.result import Diagnosis
from stepscope.jobs.job_grid import JobGrid
from stepscope.jobs.job_result import JobDiagnosis
from stepscope.timeline.answers import (
    Classes,
    ExtractOfPanels,
    Instance,
    PackedSamples,
    PackedSlices,
    PackedSteps,
    TimelineLayout,
)
from stepscope.trace.notes import NotesAnswer


class ProblemNote(TypedDict):
    """What importing counted, of all captures together, and what to do about it."""

    stated: str
    remedy: str


class Layout(TimelineLayout):
    """... and the address of the job's page that this rank belongs to; empty for none."""

    paths: list[str]
    above: str
    problems: list[ProblemNote]


class Diagnosed(TypedDict):
    """The diagnosis, and where each of its findings is seen."""

    diagnosis: Diagnosis
    instances: list[list[Instance]]


class Refusal(TypedDict):
    """Why there is no answer."""

    error: str


class Progress(TypedDict):
    """What is being made that a question may wait for; empty for nothing."""

    doing: str


class PackedPanels(ExtractOfPanels):
    """What the panels need of a page without a server."""

    notes: NotesAnswer


class Packed(TypedDict):
    """A page without a server."""

    layout: Layout
    tracks: dict[int, PackedSlices | PackedSamples]
    names: dict[int, str]
    steps: PackedSteps | None
    steps_refused: str
    diagnosed: Annotated[msgspec.Raw, Diagnosed] | None
    refused: str
    panels: PackedPanels


class NamedJob(TypedDict):
    """Which job it is."""

    paths: list[str]
    ranks: int


class JobLayout(Classes):
    """A job of digests before it is diagnosed."""

    job: NamedJob


class JobAnswer(TypedDict):
    """A job of digests; ``here`` are positions of the ranks whose full capture is here."""

    diagnosis: JobDiagnosis
    grid: JobGrid
    here: list[int]


class PairLayout(Classes):
    """Two runs before they are compared."""

    pair: dict[Side, list[str]]


class Compared(TypedDict):
    """The comparison, its sentences, and the steps of both."""

    comparison: Comparison
    facts: list[str]
    notes: list[str]
    devices: dict[Side, list[PairDevice]]


class PackedPair(TypedDict):
    """A page of two runs without a server; steps by side, device and number."""

    layout: PairLayout
    comparison: Compared
    pair_steps: dict[str, Annotated[msgspec.Raw, StepPicture]]

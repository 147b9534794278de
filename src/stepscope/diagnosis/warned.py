"""A warning of a diagnosis with the figures that it states."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.diagnosis.cause import Figure


@dataclass(frozen=True)
class Warned:
    """What is said of a device beside the findings.

    Attributes:
        template: the sentences, with ``{name}`` for each figure.
        figures: the figures.
    """

    template: str
    figures: list[Figure]

"""What every setting of a program that can be tried has in common."""

from __future__ import annotations

from typing import Final, Literal

Validity = Literal["measured", "modelled", "at least", "extrapolated"]
"""How a prediction is known, from the surest to the least sure."""

VALIDITIES: Final[dict[Validity, str]] = {
    "measured": "two captures with different settings say how the times change",
    "modelled": "follows from one capture by a model that was compared with measured runs",
    "at least": "a part of the effect is known, and the rest goes the same way",
    "extrapolated": "outside of the range in which the model was compared with measured runs",
}


class SettingChange:
    """One setting with its new value, as a change that can be replayed.

    What it does to the programs is :class:`stepscope.simulation.settings.base.Edit`.
    """

    text: str
    """The change in words."""

    def samples(self, devices: int) -> float:
        """Samples of a step with the change, over those without, on all ranks together.

        Args:
            devices: GPUs that the captures hold.
        """
        return 1.0


def least_sure(known: list[Validity]) -> Validity:
    """The validity of several changes together."""
    return max(known, key=list(VALIDITIES).index, default="modelled")

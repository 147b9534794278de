"""Collectives of several ranks: matched, on one clock, with waiting apart from transferring."""

from __future__ import annotations

from stepscope.collectives.calls import Participant
from stepscope.collectives.match import match
from stepscope.collectives.result import Instances, Matched, RankOps

__all__ = ["Instances", "Matched", "Participant", "RankOps", "match"]

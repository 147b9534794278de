"""Collectives of several ranks: matched, on one clock, with waiting apart from transferring."""

from __future__ import annotations

from stepscope.analysis.collectives.calls import Participant
from stepscope.analysis.collectives.match import match
from stepscope.analysis.collectives.result import Instances, Matched, RankOps

__all__ = ["Instances", "Matched", "Participant", "RankOps", "match"]

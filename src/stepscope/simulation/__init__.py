"""Replay a run as a dependency graph, with or without changes."""

from stepscope.simulation.changes import (
    Change,
    DeviceLike,
    EvenWork,
    Free,
    FuseOps,
    LaunchesFree,
    OverlapCommunication,
    RankLike,
    RemoveOps,
    ScaleKernels,
    ScaleOps,
)
from stepscope.simulation.model import Prediction, Simulation
from stepscope.simulation.ranks import Matched, MatchedJob, MatchedOps

__all__ = [
    "Change",
    "DeviceLike",
    "EvenWork",
    "Free",
    "FuseOps",
    "LaunchesFree",
    "Matched",
    "MatchedJob",
    "MatchedOps",
    "OverlapCommunication",
    "Prediction",
    "RankLike",
    "RemoveOps",
    "ScaleKernels",
    "ScaleOps",
    "Simulation",
]

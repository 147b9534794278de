"""Replay a run as a dependency graph, with or without changes."""

from stepscope.simulation.changes import (
    CallCompiled,
    Change,
    DeviceLike,
    EvenWork,
    Free,
    FuseOps,
    InGraphs,
    LaunchesFree,
    LoadedBeside,
    OverlapCommunication,
    RankLike,
    RemoveOps,
    ScaleKernels,
    ScaleOps,
    WithoutTransfers,
)
from stepscope.simulation.model import Prediction, Simulation
from stepscope.simulation.ranks import Matched, MatchedJob, MatchedOps

__all__ = [
    "CallCompiled",
    "Change",
    "DeviceLike",
    "EvenWork",
    "Free",
    "FuseOps",
    "InGraphs",
    "LaunchesFree",
    "LoadedBeside",
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
    "WithoutTransfers",
]

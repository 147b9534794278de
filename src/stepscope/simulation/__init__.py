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
)
from stepscope.simulation.model import OF_THE_GAIN, RUN_TO_RUN, Prediction, Simulation
from stepscope.simulation.ranks import Matched, MatchedJob, MatchedOps

__all__ = [
    "OF_THE_GAIN",
    "RUN_TO_RUN",
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
]

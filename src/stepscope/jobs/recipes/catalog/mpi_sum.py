"""MPI calls by function."""

from __future__ import annotations

from stepscope.jobs.recipes.summaries import summary_recipe
from stepscope.reports.needs import MPI

RECIPE = summary_recipe(
    "mpi_sum",
    "MPI Summary",
    "MPI calls by function, waiting included.",
    "mpi_event WHERE end_ns > start_ns",
    (MPI,),
    quartiles="linear",
    what="function",
)

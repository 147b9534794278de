"""What goes over the network."""

from __future__ import annotations

from stepscope.jobs.recipes.counters import counter_recipe
from stepscope.reports.needs import NETWORK

RECIPE = counter_recipe(
    "network_sum",
    "Network Summary",
    "Counters of network cards and switch ports: bytes sent and received, ticks waited.",
    "true",
    NETWORK,
    "`nsys recipe` of the same name",
    device="coalesce(device_name, product, hex(guid), 'unnamed')",
    table="network_sample",
)

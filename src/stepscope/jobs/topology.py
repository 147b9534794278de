"""Where ranks stand: nodes by host name, switches and rails by a topology file.

The file is JSON::

    {"schema": "stepscope.topology/1",
     "nodes": {"node000": {"switch": "leaf0", "rack": "A1"}, ...},
     "ranks": {"0": {"rail": "0"}, ...}}

Each key of a node or a rank is a level of its own: its values name the places there. ``ranks`` may
be left out; rails are then the device ordinals of the nodes, where all nodes have as many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stepscope.jobs.digest import Digest
from stepscope.trace.errors import InputError

SCHEMA: Final = "stepscope.topology/1"


@dataclass(frozen=True)
class Place:
    """Some ranks that share a piece of hardware.

    Attributes:
        level: ``node``, ``switch``, ``rail`` or another level of the topology file.
        name: which one.
        devices: positions of the ranks there.
    """

    level: str
    name: str
    devices: list[int]

    @property
    def text(self) -> str:
        """As it is named in a sentence."""
        return f"{self.level} {self.name}"


def places(digests: Sequence[Digest], topology: Mapping[str, Any] | None) -> list[Place]:
    """The places of a job's ranks, each with at least one rank.

    Args:
        digests: the ranks.
        topology: what the topology file holds; None where there is none.

    Raises:
        InputError: the topology is none of this layout.
    """
    found: dict[tuple[str, str], list[int]] = {}
    nodes, ranks = _checked(topology)
    stated_rail = False
    for number, digest in enumerate(digests):
        if digest.hostname:
            found.setdefault(("node", digest.hostname), []).append(number)
        levels = {**nodes.get(digest.hostname, {}), **ranks.get(str(digest.rank), {})}
        for level, name in levels.items():
            stated_rail |= level == "rail"
            found.setdefault((level, name), []).append(number)
    hosts = {digest.hostname for digest in digests}
    if not stated_rail and len(hosts) > 1:
        for number, digest in enumerate(digests):
            ordinal = digest.facts["device"]
            if ordinal is not None:
                found.setdefault(("rail", str(ordinal)), []).append(number)
    return [Place(level, name, devices) for (level, name), devices in found.items()]


def _checked(
    topology: Mapping[str, Any] | None,
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    if topology is None:
        return {}, {}
    advice = f'it must be {{"schema": "{SCHEMA}", "nodes": {{HOST: {{"switch": NAME}}}}}}'
    if not isinstance(topology, dict) or topology.get("schema") != SCHEMA:
        raise InputError(f"the topology file is none of {SCHEMA}; {advice}")
    found = []
    for name in ("nodes", "ranks"):
        table = topology.get(name, {})
        if not isinstance(table, dict) or not all(isinstance(v, dict) for v in table.values()):
            raise InputError(f"{name!r} of the topology file is no table of tables; {advice}")
        found.append(
            {
                str(key): {str(level): str(place) for level, place in levels.items()}
                for key, levels in table.items()
            }
        )
    return found[0], found[1]

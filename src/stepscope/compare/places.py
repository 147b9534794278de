"""Ranges and operators of two runs: what both recorded is compared, the rest is said."""

from __future__ import annotations

from typing import Final, Literal

from stepscope.compare.profile import PlaceUse, Profile
from stepscope.compare.result import NotRecorded, PlaceDifference

_NOTHING: Final = PlaceUse("", 0.0, 0.0)
HOW_RECORDED: Final = {
    "operators": "torch.profiler records them (stepscope run --backend torch), and so do Nsight "
    "Systems with torch.autograd.profiler.emit_nvtx(record_shapes=True) and stepscope run --ops",
    "ranges": "annotate the program (stepscope.annotate, NVTX or record_function), and record "
    "NVTX with Nsight Systems (-t cuda,nvtx)",
}


def place_differences(
    before: Profile, after: Profile, what: Literal["ranges", "operators"]
) -> tuple[list[PlaceDifference], list[NotRecorded]]:
    """Differences by range or by operator, the largest first, and what one side did not record.

    A name that one side lacks took no time there where the same tool recorded both sides; another
    tool may not record it. Where a side has no names at all, none of them was recorded.
    """
    ours, theirs = ({p.name: p for p in getattr(side, what)} for side in (before, after))
    other_tool = before.setup.get("source") != after.setup.get("source")
    lacking = [
        _NOTHING if mine and not other_tool else None for mine in (ours, theirs)
    ]  # what stands for a name that a side lacks
    # profiles of earlier versions tell no host time of operators
    host = all(any(p.host_ns for p in side.values()) for side in (ours, theirs) if side)
    found = [
        _difference(name, ours.get(name, lacking[0]), theirs.get(name, lacking[1]), host=host)
        for name in dict.fromkeys((*ours, *theirs))
    ]
    found.sort(key=lambda p: -max(_moved(p.host_before_ns, p.host_after_ns),
                                  _moved(p.device_before_ns, p.device_after_ns)))  # fmt: skip
    unknown = [
        _not_recorded(what, "before", before, after, len(theirs.keys() - ours.keys()), ours),
        _not_recorded(what, "after", after, before, len(ours.keys() - theirs.keys()), theirs),
    ]
    return found, [one for one in unknown if one is not None]


def _difference(
    name: str, a: PlaceUse | None, b: PlaceUse | None, *, host: bool
) -> PlaceDifference:
    return PlaceDifference(
        name=name,
        host_before_ns=_whole(a.host_ns) if a and host else None,
        host_after_ns=_whole(b.host_ns) if b and host else None,
        device_before_ns=_whole(a.device_ns) if a else None,
        device_after_ns=_whole(b.device_ns) if b else None,
    )


def _whole(ns: float | None) -> int | None:
    return None if ns is None else round(ns)


def _moved(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else abs(after - before)


def _not_recorded(
    what: Literal["ranges", "operators"],
    side: Literal["before", "after"],
    mine: Profile,
    other: Profile,
    count: int,
    held: dict[str, PlaceUse],
) -> NotRecorded | None:
    """What a side did not record of what the other one did; None where that is nothing.

    Args:
        what: what is compared.
        side: the side that may lack something.
        mine: its profile.
        other: that of the other side.
        count: how many names only the other side has.
        held: what this side has, by name.
    """
    tools = [run.setup.get("source", "another tool") for run in (mine, other)]
    if not count or (held and tools[0] == tools[1]):
        return None
    several = count > 1
    if not held:
        message = f"{what} are not recorded {side} ({tools[0]}): {HOW_RECORDED[what]}"
    else:
        message = (
            f"{count:,} {what if several else what[:-1]} of the other run "
            f"{'are' if several else 'is'} not recorded {side}: {tools[0]} and {tools[1]} "
            "mark other things; capture both runs with one tool"
        )
    return NotRecorded(what, side, count, message)

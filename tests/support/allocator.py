"""A caching allocator written for tests, by the rules of PyTorch's: it makes memory snapshots.

It knows block sizes because it splits and joins blocks itself; what reads the snapshots has to find
them from what a snapshot tells.
"""

from __future__ import annotations

from typing import Any

SMALL, MIB = 1 << 20, 1 << 20


class Allocator:
    """One device; sizes in bytes."""

    def __init__(self) -> None:
        self.segments: dict[
            int, list[list[Any]]
        ] = {}  # address -> [begin, size, state, asked, frames]
        self.pools: dict[int, str] = {}
        self.events: list[dict[str, Any]] = []
        self.next = 0x7F0000000000
        self.allocated = self.reserved = self.peak = 0
        self.history: list[int] = []
        self.recording = True

    def alloc(self, asked: int, frames: list[dict[str, Any]] | None = None) -> int:
        size = -(-max(asked, 1) // 512) * 512
        small = size <= SMALL
        fits = [
            (block[1], block[0], segment)
            for segment, blocks in self.segments.items()
            for block in blocks
            if block[2] == "inactive" and block[1] >= size
            and (self.pools[segment] == "small") == small
        ]  # fmt: skip
        if fits:
            _, begin, segment = min(fits)
        else:
            whole = (
                2 * MIB
                if small
                else 20 * MIB
                if size < 10 * MIB
                else -(-size // (2 * MIB)) * 2 * MIB
            )
            segment = begin = self.next
            self.next += whole + 64 * MIB
            self.segments[segment] = [[begin, whole, "inactive", 0, []]]
            self.pools[segment] = "small" if small else "large"
            self.reserved += whole
            self._note("segment_alloc", begin, whole, frames)
        blocks = self.segments[segment]
        at = next(i for i, block in enumerate(blocks) if block[0] == begin)
        left = blocks[at][1] - size
        if left >= 512 if small else left > SMALL:
            blocks.insert(at + 1, [begin + size, left, "inactive", 0, []])
            blocks[at][1] = size
        blocks[at][2:] = ["active_allocated", asked, frames or []]
        self.allocated += blocks[at][1]
        self.peak = max(self.peak, self.allocated)
        self._note("alloc", begin, asked, frames)
        return begin

    def free(self, address: int) -> None:
        segment, at = next(
            (s, i) for s, blocks in self.segments.items()
            for i, block in enumerate(blocks) if block[0] == address
        )  # fmt: skip
        blocks = self.segments[segment]
        asked = blocks[at][3]
        self.allocated -= blocks[at][1]
        self._note("free_requested", address, asked, None)
        blocks[at][2:] = ["inactive", 0, []]
        self._note("free_completed", address, asked, None)
        for i in (at, at - 1):
            if 0 <= i < len(blocks) - 1 and blocks[i][2] == blocks[i + 1][2] == "inactive":
                blocks[i][1] += blocks.pop(i + 1)[1]

    def trim(self) -> None:
        """Give free segments back, as ``torch.cuda.empty_cache()``."""
        for segment, blocks in list(self.segments.items()):
            if len(blocks) == 1 and blocks[0][2] == "inactive":
                self.reserved -= blocks[0][1]
                del self.segments[segment]
                self._note("segment_free", segment, blocks[0][1], None)

    def refuse(self, asked: int, device_free: int) -> None:
        self.events.append({"action": "oom", "size": asked, "device_free": device_free,
                            "stream": 0, "time_us": self._now(), "frames": []})  # fmt: skip

    def snapshot(self) -> dict[str, Any]:
        return {
            "segments": [
                {
                    "device": 0, "address": address, "stream": 0, "is_expandable": False,
                    "total_size": sum(block[1] for block in blocks),
                    "segment_type": self.pools[address], "segment_pool_id": (0, 0),
                    "blocks": [
                        {"address": b[0], "size": b[1], "requested_size": b[3], "state": b[2],
                         "frames": b[4]} for b in blocks
                    ],
                }
                for address, blocks in self.segments.items()
            ],
            "device_traces": [self.events],
            "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
        }  # fmt: skip

    def _now(self) -> int:
        return 1_700_000_000_000_000 + 10 * len(self.history)

    def _note(self, action: str, address: int, size: int, frames: Any) -> None:
        self.history.append(self.allocated)
        if self.recording:
            self.events.append({"action": action, "addr": address, "size": size, "stream": 0,
                                "time_us": self._now(), "frames": frames or []})  # fmt: skip


def frame(function: str, filename: str, line: int) -> dict[str, Any]:
    """One frame of a stack."""
    return {"name": function, "filename": filename, "line": line}

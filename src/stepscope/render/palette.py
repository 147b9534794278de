"""Colours of what is drawn without the browser's page: the same, of the same meaning."""

from __future__ import annotations

from typing import Final

from stepscope.timeline.colours import COLOURS, IDLE

KINDS: Final = {kind: COLOURS[kind].css for kind in ("compute", "communication", "copy", "memset")}
"""Kind of work -> colour; the position is the kind's number in a profile's timeline."""

CAUSES: Final = IDLE
"""Cause of idle time -> colour."""

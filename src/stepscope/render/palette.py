"""Colours of what is drawn without the browser's page: the same, of the same meaning."""

from __future__ import annotations

from typing import Final

from stepscope.analysis.gaps import CAUSES as _CAUSES
from stepscope.analysis.timeline.colours import COLOURS, colour_of

KINDS: Final = {kind: COLOURS[kind].css for kind in ("compute", "communication", "copy", "memset")}
"""Kind of work -> colour; the position is the kind's number in a profile's timeline."""

CAUSES: Final = {cause: colour_of(f"idle_{cause}") for cause in _CAUSES}
"""Cause of idle time -> colour."""

"""``stepscope demo``."""

from __future__ import annotations

from stepscope.cli import options, registry
from stepscope.cli.diagnose import show


@registry.command(
    "Explain",
    order=7,
    examples={
        "stepscope demo": "no GPU and no capture needed",
    },
)
@options.formats("terminal", "json", "markdown")
def command(format_: str) -> None:
    """Diagnose the bundled real trace: a GPT trained on one H200, with a slow data loader."""
    from stepscope.api.inputs import bundled_capture

    show((str(bundled_capture()),), format_)

"""``python -m stepscope`` and the command ``stepscope``."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; Ctrl+C ends it without a word while it is still being loaded."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from stepscope.cli.main import main as run

    run()


if __name__ == "__main__":
    main()

"""What the hook notes about steps, for the launcher: how many there were, where it counts them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

LOADED = "hook-loaded.txt"
"""There as soon as one Python of the run has loaded a hook that counts steps."""
MADE = "steps-made.{}.txt"
"""Optimizer steps of a process, up to the end of its recording; there once it has torch.optim.

Behind a blank, how many were let pass first, where it were more than those of the warm-up.
"""


@dataclass(frozen=True)
class HookNotes:
    """What the hook noted.

    Attributes:
        loaded: whether any Python of the program loaded it.
        made: optimizer steps of each process that has ``torch.optim``, up to the recording's end;
            of a process that was killed, up to half a second before.
        let_pass: the most steps that a process let pass until it had used up the batches that its
            loader had ready; 0 where none did.
    """

    loaded: bool = False
    made: tuple[int, ...] = ()
    let_pass: int = 0

    @property
    def most(self) -> int:
        """Steps of the process that made most."""
        return max(self.made, default=0)

    def passed(self, warmup: int) -> int:
        """Steps that were let pass before the recorded ones: those of the warm-up, or more."""
        return max(warmup, self.let_pass)


def take(folder: Path) -> HookNotes:
    """Read what the hook noted in a folder, and remove it."""
    loaded, made, let_pass = (folder / LOADED).exists(), [], 0
    for path in sorted(folder.glob(MADE.format("*"))):
        with contextlib.suppress(OSError, ValueError):
            number, *passed = map(int, path.read_text(encoding="ascii").split())
            made.append(number)
            let_pass = max(let_pass, *passed, 0)
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        (folder / LOADED).unlink(missing_ok=True)
    return HookNotes(loaded, tuple(made), let_pass)

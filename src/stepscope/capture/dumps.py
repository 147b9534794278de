"""Dumps: what has been recorded up to now, as a capture of its own, while the program runs on.

Whoever wants one leaves a request in the raw folder: ``stepscope capture dump``, a signal to the
launcher, or the hook after a slow step. The launcher copies the raw files as they stand: they are
readable at any moment, as after a crash. With a ring these are the last seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

from stepscope.capture import control
from stepscope.capture.blocks import json_block, whole_blocks
from stepscope.capture.errors import CaptureError
from stepscope.capture.lines import copy_whole

_REQUESTS = "*.request"
_ANSWER = ".answer"
_SLOW = "slow-"
_MOST_SLOW = 10
"""Dumps after slow steps in one run: a program that only becomes slower must not fill the disk."""
_SETTLE_S = 0.3
"""After one more fetch of GPU records: the writer's turn, and time to write."""
_WAIT_S = 60.0
_CHUNK_BYTES = 64 << 10
_CHUNK_HEADER = struct.Struct("<IIHHIIIQ")
_SEQUENCE = 7


class Dumps:
    """Makes the dumps of one run.

    Args:
        raw: folder of the raw files.
        pool: folder in memory, where the newest NVTX events are.
        flush_s: how often GPU records are fetched, s.
        ring_s: how many seconds the ring keeps; slow steps within it make one dump.
        say: shows a line to the user.
    """

    def __init__(
        self,
        raw: Path,
        pool: Path | None,
        flush_s: float,
        ring_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._raw, self._pool, self._say = raw, pool, say
        self._settle_s = flush_s + _SETTLE_S
        self._ring_s = ring_s
        self._asked_at: float | None = None
        self._slow: list[float] = []
        self.of_ring = ring_s > 0
        self.folders: list[Path] = []

    def ask(self, why: str) -> None:
        """Leave a request, as from a signal handler of the launcher."""
        with contextlib.suppress(OSError):  # the folder is gone
            request(self._raw, f"signal-{time.monotonic_ns()}", why)

    def poll(self, *, ended: bool = False) -> None:
        """Make a dump where one is wanted; called often.

        Args:
            ended: the program has ended, so nothing needs to be waited for.
        """
        waiting = sorted(self._raw.glob(_REQUESTS))
        wanted = [path for path in waiting if not self._too_soon(path)]
        if not wanted:
            return
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        if now - self._asked_at < self._settle_s and not ended:
            return  # what led to it is still on its way
        self._asked_at = None
        whys = [_text(path) for path in wanted]
        if any(path.name.startswith(_SLOW) for path in wanted):
            self._slow.append(now)
        folder = self._raw.parent / f"dump{len(self.folders) + 1}"
        try:
            snapshot(self._raw, self._pool, folder, "; ".join(whys))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._say(f"no dump could be made ({error.strerror}): {whys[0]}")
        else:
            self.folders.append(folder)
            self._say(f"dumped into {folder}: {whys[0]}")
        for path in wanted:
            _answer(path, str(folder.resolve()) if folder.exists() else "")

    def _too_soon(self, path: Path) -> bool:
        """Whether a slow step has been dumped already, or enough of them; removes its request."""
        if not path.name.startswith(_SLOW) or not self._slow:
            return False
        if len(self._slow) < _MOST_SLOW and time.monotonic() - self._slow[-1] > self._ring_s:
            return False
        path.unlink(missing_ok=True)
        return True


def request(raw: Path, name: str, why: str) -> Path:
    """Leave a request; returns its path.

    Raises:
        OSError: it cannot be written.
    """
    path = raw / f"{name}.request"
    made = raw / f".{name}.{os.getpid()}"
    made.write_text(why, encoding="utf-8")
    made.rename(path)  # at once: the launcher may look in between
    return path


def ask_for(raw: Path, why: str) -> Path:
    """Ask a running launcher for a dump and wait for it; returns its folder.

    Raises:
        CaptureError: there is no launcher that answers, or it could make none.
    """
    try:
        path = request(raw, f"order-{os.getpid()}-{time.monotonic_ns()}", why)
    except OSError as error:
        raise CaptureError(
            f"cannot write {raw}: {error.strerror}; is the capture yours?"
        ) from error
    answer = path.with_suffix(_ANSWER)
    limit = time.monotonic() + _WAIT_S
    while time.monotonic() < limit:
        if answer.exists():
            folder = answer.read_text(encoding="utf-8")
            answer.unlink(missing_ok=True)
            if not folder:
                raise CaptureError("the launcher could make no dump; it says why")
            return Path(folder)
        if not raw.is_dir():
            break
        time.sleep(0.05)
    path.unlink(missing_ok=True)
    raise CaptureError(
        "stepscope run does not answer; where it was killed, stepscope capture finalise reads what "
        "is there"
    )


def snapshot(raw: Path, pool: Path | None, folder: Path, why: str) -> None:
    """Copy a run's raw files as they stand into ``folder/raw``.

    Memory is copied before files: what moves from one to the other meanwhile is in both, and read
    once.

    Raises:
        OSError: there is no room, or no right.
    """
    target = folder / raw.name
    target.mkdir(parents=True)
    control.prepare(target)
    for path in sorted(pool.glob("*.pool")) if pool else ():
        with contextlib.suppress(FileNotFoundError):
            _copy_pool(path, target / path.name)
    now = time.monotonic_ns()
    mains = sorted(path for path in raw.glob("*.raw") if path.name.count(".") == 1)
    for main in mains:
        segments = sorted(raw.glob(f"{main.stem}.*.raw"))
        for path in segments:
            with contextlib.suppress(FileNotFoundError):  # the ring has just dropped it
                if path == segments[-1] or not _linked(path, target / path.name):
                    _copy_blocks(path, target / path.name)
        _copy_blocks(main, target / main.name)
        with (target / main.name).open("ab") as stream:
            stream.write(json_block({"type": "end", "how": "dump", "time_ns": now}, now))
    for path in raw.iterdir():
        if path.suffix in (".tsv", ".csv", ".json") and path.name != "capture.json":
            copy_whole(path, target / path.name)
    metadata = json.loads((raw / "capture.json").read_text(encoding="utf-8"))
    metadata |= {"pool": None, "dump": why, "options": metadata.get("options", {}) | {"dump": why}}
    (target / "capture.json").write_text(json.dumps(metadata, indent=1), encoding="utf-8")


def _linked(path: Path, target: Path) -> bool:
    """Whether a file that nobody writes any more could be had without copying it."""
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _copy_blocks(path: Path, target: Path) -> None:
    """Copy a file up to its last whole block."""
    with path.open("rb") as source, target.open("wb") as stream:
        shutil.copyfileobj(source, stream)
    at = 0
    with target.open("r+b") as stream:
        for _, _, at in whole_blocks(stream):  # noqa: B007 - the last one's
            pass
        stream.truncate(at)


def _copy_pool(path: Path, target: Path) -> None:
    """Copy the chunks of a process's memory that are not reused meanwhile."""
    with path.open("rb", buffering=0) as source, target.open("wb") as stream:
        at = 0
        while len(chunk := os.pread(source.fileno(), _CHUNK_BYTES, at)) == _CHUNK_BYTES:
            again = os.pread(source.fileno(), _CHUNK_HEADER.size, at)
            was, now = (_CHUNK_HEADER.unpack_from(text)[_SEQUENCE] for text in (chunk, again))
            # reused: it was written to the file before that, which is copied later
            stream.write(chunk if was == now else bytes(_CHUNK_BYTES))
            at += _CHUNK_BYTES


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _answer(path: Path, folder: str) -> None:
    """Tell whoever waits; nobody waits for the answer to a slow step or a signal."""
    try:
        if path.name.startswith("order-"):
            made = path.with_suffix(".made")
            made.write_text(folder, encoding="utf-8")
            made.rename(path.with_suffix(_ANSWER))
        path.unlink(missing_ok=True)
    except OSError:
        pass  # the folder is gone

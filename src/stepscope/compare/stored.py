"""Profiles and baselines as files: JSON with a version, upgraded when an older one is read.

A file of a later Stepscope is refused with a sentence; one of an earlier is upgraded step by step,
each step being one function in ``UPGRADES``. Files are written beside their place and then moved
there, so that an interrupted write leaves the old one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from stepscope.compare.profile import SCHEMA as PROFILE_SCHEMA
from stepscope.compare.profile import Profile
from stepscope.trace.errors import InputError, StorageError
from stepscope.trace.problems import renamed
from stepscope.trace.text import JsonError, from_json

BASELINE_SCHEMA: Final = "stepscope.baseline/1"
KEPT_RUNS: Final = 20
"""Captures that a baseline keeps, the latest: Student's factor hardly shrinks beyond."""

_HEAD_BYTES = 4096
_MOST: Final = 2**62
"""No time is longer, ns, and no count larger."""
_LONGEST_VERSION: Final = 6

Document = dict[str, Any]
UPGRADES: dict[int, Callable[[Document], Document]] = {}
"""Version of a profile's layout -> what makes the next version of it."""


class Baseline(msgspec.Struct, frozen=True):
    """What ``gate`` compares with: the contract ``stepscope.baseline/1``.

    Attributes:
        schema: name and version of this contract.
        stepscope: version of Stepscope that wrote it.
        runs: profiles of captures of the same code, the latest last.
    """

    schema: str
    stepscope: str
    runs: list[Profile]


def is_baseline(path: Path) -> bool:
    """Whether a file is a baseline, by its first bytes."""
    try:
        with path.open("rb") as stream:
            return b'"stepscope.baseline/' in stream.read(_HEAD_BYTES)
    except OSError:
        return False


def read_baseline(path: Path) -> Baseline:
    """Read a baseline, of this or an earlier version.

    Raises:
        InputError: it is none, damaged, or of a later version.
    """
    try:
        document = from_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check the path") from error
    except JsonError as error:
        raise InputError(
            f"{path} is no baseline, or a damaged one ({error}); gate --save-baseline FILE "
            "writes one"
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("runs"), list):
        raise InputError(f"{path} is no baseline; gate --save-baseline FILE writes one")
    _version(document, BASELINE_SCHEMA, str(path))
    runs = [read_profile(run, str(path)) for run in document["runs"]]
    if not runs:
        raise InputError(f"the baseline {path} holds no run; gate --save-baseline FILE writes one")
    return Baseline(BASELINE_SCHEMA, str(document.get("stepscope", "")), runs)


def write_baseline(path: Path, runs: Sequence[Profile], version: str) -> None:
    """Write a baseline of the latest ``KEPT_RUNS`` runs.

    Args:
        path: where to.
        runs: profiles, the latest last.
        version: version of Stepscope.

    Raises:
        StorageError: the file cannot be written.
    """
    kept = [
        msgspec.structs.replace(run, timeline=[], marks=[], idle=[]) for run in runs[-KEPT_RUNS:]
    ]
    write_whole(path, msgspec.json.encode(Baseline(BASELINE_SCHEMA, version, kept)) + b"\n")


def add_to_baseline(path: Path, runs: Sequence[Profile], version: str) -> int:
    """Add runs to a baseline, which is made if need be; a second writer waits.

    Returns:
        How many runs it now holds, of which it keeps the latest ``KEPT_RUNS``.

    Args:
        path: the file.
        runs: profiles, the latest last.
        version: version of Stepscope.

    Raises:
        InputError: what is there is no baseline.
        StorageError: the file cannot be written.
    """
    with _alone(path.parent):
        try:
            kept = read_baseline(path).runs if path.exists() else []
        except InputError as error:
            raise InputError(f"{error}; {path} was left as it is, name another file") from error
        write_baseline(path, [*kept, *runs], version)
    return min(len(kept) + len(runs), KEPT_RUNS)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder against other writers, where the file system knows locks."""
    opened = None
    try:
        with contextlib.suppress(OSError):  # said better when the file is written
            opened = os.open(folder, os.O_RDONLY)
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        if opened is not None:
            os.close(opened)


def write_whole(path: Path, content: bytes, beside: str = "") -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    Args:
        path: the file.
        content: what it shall hold.
        beside: name in the same folder to write under first; made up by default.

    Raises:
        StorageError: it cannot be written.
    """
    partial = None
    try:
        place = path.parent / (beside or f".{path.name}.{uuid.uuid4().hex}")
        with place.open("xb") as stream:
            partial = place
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink()
        raise StorageError(f"cannot write {path}: {error.strerror}; name another file") from error


def read_profile(document: Document, where: str) -> Profile:
    """A stored profile, of this or an earlier version.

    Args:
        document: decoded JSON.
        where: what it was read from, for messages.

    Raises:
        InputError: it is damaged, or of a later version.
    """
    if not isinstance(document, dict):
        raise InputError(f"a run in {where} is damaged; record it again")
    current = _number(PROFILE_SCHEMA)
    for version in range(_version(document, PROFILE_SCHEMA, where), current):
        document = UPGRADES[version](document)
    try:
        profile = msgspec.convert({**document, "schema": PROFILE_SCHEMA}, Profile)
    except msgspec.ValidationError as error:
        raise InputError(f"a run in {where} is damaged ({error}); record it again") from error
    wrong = _wrong(profile)
    if wrong:
        raise InputError(f"a run in {where} is damaged ({wrong}); record it again")
    return profile


_RENAMED: Final = {
    "kernels": {"family": "category"},  # old name: new name
    "findings": {"says": "message"},  # old name: new name
}


def _second(document: Document) -> Document:
    """Version 2: kernels have a category, findings a message."""
    found = dict(document)
    for rows, names in _RENAMED.items():
        if rows in found:
            found[rows] = renamed(found[rows], names)
    return found


def _third(document: Document) -> Document:
    """Version 3: ranges hold what nested ranges launch, which version 2 does not tell."""
    ranges = document.get("ranges")
    if not isinstance(ranges, list) or not all(isinstance(one, dict) for one in ranges):
        return document  # damaged, which is told when it is converted
    return {**document, "ranges": [{**one, "device_ns": None} for one in ranges]}


UPGRADES[1] = _second
UPGRADES[2] = _third


def _wrong(profile: Profile) -> str:
    """What cannot be in a profile whatever the run was; empty where it is sound."""
    steps, parts = len(profile.wall_ns), list(profile.parts_ns.values())
    if not steps or profile.devices < 1 or min(profile.wall_ns) <= 0:
        return "its steps have no time"
    if any(len(values) != steps or min(values) < 0 for values in parts):
        return "parts of its steps are missing"
    checks = {
        "the parts of its steps do not sum to the steps": (
            [sum(values) for values in zip(*parts, strict=True)] == profile.wall_ns
        ),
        "a number is out of all bounds": all(-_MOST < n < _MOST for n in _numbers(profile)),
        "a kernel ran less than never": all(
            used.error >= 0 and used.calls_per_step >= 0 for used in profile.kernels
        ),
        "it has fewer kernels than its steps run": all(
            0 <= at < len(profile.kernels) for at in profile.sequence
        ),
    }
    return next((stated for stated, holds in checks.items() if not holds), "")


def _numbers(value: object) -> Iterator[float]:
    """Every number of a profile, however deep."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _numbers(getattr(value, name))
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


def _version(document: Document, current: str, where: str) -> int:
    name, _, number = str(document.get("schema", "")).rpartition("/")
    if name != current.rpartition("/")[0] or not _is_version(number):
        raise InputError(f"{where} does not say that it is {current}; it may be damaged")
    if int(number) > _number(current):
        raise InputError(
            f"{where} was written by a later Stepscope ({name}/{number}); "
            "update Stepscope, or record it again with this one"
        )
    return int(number)


def _is_version(text: str) -> bool:
    return text.isdecimal() and len(text) <= _LONGEST_VERSION and int(text) > 0


def _number(schema: str) -> int:
    return int(schema.rpartition("/")[2])

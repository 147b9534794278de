"""Inputs behind fsspec: ``s3://``, ``gs://``, ``https://``, ``file://`` and their like."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Any

from stepscope.trace.errors import InputError, UsageError

FOLDER_SUFFIX = ".stepscope"
"""What the name of a folder ends with that is a capture itself."""


def is_remote(place: str) -> bool:
    """Whether a place is a URL."""
    return "://" in place


def without_secret(place: str) -> str:
    """A URL for messages: without password and without what follows a question mark."""
    scheme, _, rest = place.partition("://")
    authority, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


def _opened(place: str) -> tuple[Any, str]:
    """The file system and the path inside it.

    Raises:
        UsageError: fsspec or the package of the scheme is missing, or the scheme is unknown.
    """
    try:
        core = import_module("fsspec.core")
    except ImportError as error:
        raise UsageError(
            f"{without_secret(place)} needs fsspec; pip install fsspec and the "
            "package of the scheme, as s3fs or gcsfs"
        ) from error
    try:
        found: tuple[Any, str] = core.url_to_fs(place)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{without_secret(place)} cannot be reached: {error}") from error
    return found


def _with_readable_errors(place: str, action: Callable[[], Any]) -> Any:
    """Do something with a file system; whatever library it is, its errors become one line."""
    try:
        return action()
    except FileNotFoundError as error:
        raise InputError(f"{without_secret(place)} does not exist; check the address") from error
    except (UsageError, InputError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(
            f"{without_secret(place)} cannot be read: {reason}; check address and credentials"
        ) from error


def listed(place: str, suffixes: Collection[str]) -> list[tuple[str, str, int]]:
    """(URL, identity, bytes) of the captures that a URL stands for, in order of their names.

    Args:
        place: a file, a pattern with ``*``, or a folder of captures.
        suffixes: with which the names of captures end.

    Raises:
        InputError: nothing is there.
    """
    fs, path = _opened(place)

    def found() -> list[dict[str, Any]]:
        if any(character in path for character in "*?["):
            return [value | {"name": key} for key, value in fs.glob(path, detail=True).items()]
        if path.rstrip("/").endswith(FOLDER_SUFFIX) or not fs.isdir(path):
            return [fs.info(path) | {"name": path}]
        children = fs.ls(path, detail=True)
        return [c for c in children if c["name"].rstrip("/") != path.rstrip("/") and _wanted(c)]

    def _wanted(child: dict[str, Any]) -> bool:
        name = posixpath.basename(child["name"].rstrip("/"))
        if child.get("type") == "directory":
            return bool(name.endswith(FOLDER_SUFFIX))
        return any(name.endswith(suffix) for suffix in suffixes)

    infos = _with_readable_errors(place, found)
    if not infos:
        raise InputError(f"{without_secret(place)} holds no captures; check the address")
    answers = []
    for info in sorted(infos, key=lambda info: str(info["name"])):
        keys = ("size", "ETag", "etag", "LastModified", "mtime", "md5Hash", "updated")
        identity = " ".join(str(info[key]) for key in keys if info.get(key) is not None)
        answers.append((fs.unstrip_protocol(info["name"]), identity, int(info.get("size") or 0)))
    return answers


def fetched(place: str, folder: Path) -> Path:
    """Bring a file, or a folder that is a capture, into a folder of this machine.

    Raises:
        InputError: it cannot be read.
        UsageError: what reads it is not installed.
    """
    fs, path = _opened(place)
    name = posixpath.basename(path.rstrip("/").partition("?")[0]) or "capture"
    target = folder / name
    folded = name.endswith(FOLDER_SUFFIX)
    _with_readable_errors(place, lambda: fs.get(path.rstrip("/"), str(target), recursive=folded))
    return target

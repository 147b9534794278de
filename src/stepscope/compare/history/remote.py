"""What another package reaches: a folder of fsspec's (``s3://``, ``gs://``, ``memory://`` ...)."""

from __future__ import annotations

import contextlib
import importlib
import posixpath
from types import ModuleType
from typing import Any

from stepscope.trace.errors import UsageError


class RemoteFiles:
    """A folder behind fsspec.

    Args:
        place: its URL. Credentials and options come from where the file system's package looks for
            them, or from fsspec's own configuration.

    Raises:
        UsageError: fsspec, or the package for this scheme, is not installed, or knows no such one.
    """

    def __init__(self, place: str) -> None:
        fsspec = needed("fsspec", "fsspec", f"a history in {shown(place)}")
        try:
            self._fs, folder = fsspec.core.url_to_fs(place)
        except ImportError as error:  # fsspec names the package that it wants
            raise UsageError(f"{shown(place)} cannot be reached: {error}") from error
        except ValueError as error:
            raise UsageError(
                f"{shown(place)} cannot be reached: {error}; name another place"
            ) from error
        self._folder = folder.rstrip("/")
        self._made = False

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def names(self) -> list[str]:
        """Names of the files in it."""
        # listings are cached by some file systems, and other writers add files
        self._fs.invalidate_cache()
        try:
            paths = self._fs.ls(self._folder, detail=False)
        except FileNotFoundError:
            if self._made:  # an object store has no folder until there is a file
                return []
            raise
        return [posixpath.basename(path) for path in paths]

    def read(self, names: list[str]) -> dict[str, bytes]:
        """Contents of files, at the same time where the file system can; gone ones are left out."""
        if not names:
            return {}
        paths = [self._path(name) for name in names]
        try:
            answers: dict[str, Any] = self._fs.cat(paths, on_error="return")
        except FileNotFoundError:  # all of them are gone
            return {}
        found = {}
        for path, answer in answers.items():
            if isinstance(answer, FileNotFoundError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found[posixpath.basename(path)] = bytes(answer)
        return found

    def write(self, name: str, partial: str, content: bytes) -> None:
        """Write a file under another name, and move it."""
        try:
            self._fs.pipe_file(self._path(partial), content)
            self._fs.mv(self._path(partial), self._path(name))
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm_file(self._path(partial))
            raise
        self._fs.invalidate_cache()

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def make(self) -> None:
        """Make the folder."""
        self._fs.makedirs(self._folder, exist_ok=True)
        self._made = True


def shown(place: str) -> str:
    """A place for messages: a password in it is left out."""
    if "://" not in place:
        return place
    scheme, _, rest = place.partition("://")
    # options behind the question mark may hold one, too
    authority, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    user, at, host = authority.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}{slash}{path}"


def without_password(stated: str, place: str) -> str:
    """What a library says of a place, its password left out."""
    user, _, _ = place.partition("://")[2].partition("/")[0].rpartition("@")
    secret = user.partition(":")[2]
    return stated.replace(secret, "***") if secret else stated


def needed(module: str, package: str, why: str) -> ModuleType:
    """Import an optional package.

    Args:
        module: its name.
        package: what pip installs to bring it.
        why: what it is for, as in "a PostgreSQL history".

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{why} needs the package {module.partition('.')[0]} ({error}); pip install '{package}'"
        ) from error

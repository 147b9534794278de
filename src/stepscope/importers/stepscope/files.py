"""The files of a raw capture beside each other, and a list that tells whether they are whole.

Blocks of the raw files carry checksums of their own; what the launcher and the hook write beside
them (text that is appended to) and the memory of killed processes do not. Where raw files are kept
after they have been read, ``files.json`` lists all of them with size and CRC-32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepscope.trace.checksums import StoredFile, damages, is_sealed, sealed, stored_file
from stepscope.trace.folders import write_private
from stepscope.trace.problems import ProblemLog

LIST_FILE = "files.json"
_TOLERANT = ".raw"
"""Files of which the whole blocks are read, whatever became of the others."""


@dataclass(frozen=True)
class Files:
    """A folder of raw files.

    Attributes:
        folder: the folder.
        left_out: names of files that are damaged, and cannot be read in part.
    """

    folder: Path
    left_out: frozenset[str] = frozenset()

    def path(self, name: str) -> Path:
        """Where a file is; where nothing is, for one that is left out."""
        return self.folder / (f".left-out/{name}" if name in self.left_out else name)

    def like(self, pattern: str) -> list[Path]:
        """Files whose names match a pattern, in order."""
        return [p for p in sorted(self.folder.glob(pattern)) if p.name not in self.left_out]


class _List(msgspec.Struct):
    files: dict[str, StoredFile]


def write_list(folder: Path) -> None:
    """List what is in a folder, once.

    Raises:
        OSError: it cannot be written.
    """
    if not (folder / LIST_FILE).exists():
        listed = [path for path in sorted(folder.iterdir()) if _is_file(path)]
        found = {path.name: stored_file(path) for path in listed}
        text = msgspec.json.format(msgspec.json.encode(_List(found)))
        write_private(folder / LIST_FILE, sealed(text))


def examined(folder: Path, problems: ProblemLog) -> Files:
    """The files of a folder, those that are not as they were written left out and counted."""
    listed = _listed(folder, problems)
    if listed is None:
        return Files(folder)
    bad = {path.name: why for path, why in damages(_paths(folder, listed)).items()}
    known = {*listed, LIST_FILE}
    for path in folder.iterdir():
        if _is_file(path) and path.name not in known:
            bad[path.name] = "it is not of this capture"
    for name, why in sorted(bad.items()):
        problems.count("damaged_file", 1, scope="meta", detail=f"{name}: {why}")
    strange = {name for name in bad if name not in listed}
    return Files(folder, frozenset(n for n in bad if n in strange or not n.endswith(_TOLERANT)))


def _listed(folder: Path, problems: ProblemLog) -> Mapping[str, StoredFile] | None:
    try:
        raw = (folder / LIST_FILE).read_bytes()
    except OSError:
        return None
    try:
        if is_sealed(raw):
            return msgspec.json.decode(raw, type=_List).files
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    detail = f"{LIST_FILE}: its content does not match its checksum"
    problems.count("damaged_file", 1, scope="meta", detail=detail)
    return None


def _paths(folder: Path, listed: Mapping[str, StoredFile]) -> dict[Path, StoredFile]:
    # a name in a list that somebody made up leads nowhere else
    return {folder / Path(name).name: file for name, file in listed.items()}


def _is_file(path: Path) -> bool:
    """Whether a file is of a capture: what is hidden or a pipe is not."""
    return path.is_file() and not path.name.startswith(".")

"""A trace opened for reading, and one of several with its rank."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.trace.checksums import damage, damages
from stepscope.trace.errors import DamageWarning
from stepscope.trace.frame import Frame, from_arrow
from stepscope.trace.meta import Meta
from stepscope.trace.problems import ProblemLog
from stepscope.trace.schema import TABLES
from stepscope.trace.store import damaged, read_meta, read_row, read_table, table_path

if TYPE_CHECKING:
    import pyarrow as pa


class Trace:
    """The canonical tables of one captured process or report, read lazily by column.

    Args:
        folder: a ``NAME.stepscope`` directory.
        path: the file that the user named, for messages; defaults to ``folder``.
        renew: makes the folder's files again from that file, where that is possible: damage is then
            repaired without a word.

    Raises:
        InputError: when the folder is not a readable trace.
    """

    def __init__(
        self, folder: Path, path: Path | None = None, renew: Callable[[], None] | None = None
    ) -> None:
        self.folder = folder
        self.path = path or folder
        self._renew = renew
        self._renewing = threading.Lock()
        self._damaged: dict[str, str] = {}
        self._frames: dict[tuple[str, tuple[str, ...]], Frame] = {}
        self._kept: dict[str, Frame] = {}
        self.meta  # noqa: B018 - fail here, where the path is known

    @cached_property
    def meta(self) -> Meta:
        """Source, window, rank, problems: see :class:`~stepscope.trace.meta.Meta`."""
        return read_meta(self.folder)

    def rows(self, table: str) -> int:
        """Number of rows of a canonical table; 0 when the source does not hold it."""
        return self.meta.rows.get(table, 0)

    def file(self, table: str) -> Path:
        """The file of a table, which is as it was written; it need not exist without rows.

        Whoever reads a file without this trace's help asks for it here.

        Raises:
            InputError: it is damaged, or gone, and cannot be made again.
        """
        path = table_path(self.folder, table)
        if not self._damage(table):
            return path
        with self._renewing:
            if (why := self._damage(table)) and self._renew is not None:
                self._renew()
                self.__dict__.pop("meta", None)
                why = self._damage(table)
        if why:
            raise damaged(path, why, self._others(table))
        return path

    def _damage(self, table: str) -> str:
        """What is wrong with the file of a table; empty where nothing is known to be."""
        files = self.meta.files
        path = table_path(self.folder, table)
        if files is None or table not in TABLES:
            return ""
        if table not in files:
            return "it is not of this capture" if path.exists() else ""
        return damage(path, files[table])

    def _others(self, table: str) -> str:
        """What is known of the tables beside a damaged one, where that is known."""
        if not self._damaged:
            return ""
        others = sorted(self.meta.rows.keys() - {table})
        metadata = ""
        if bad := [name for name in others if name in self._damaged]:
            metadata += f"; so are {', '.join(bad)}"
        if good := [name for name in others if name not in self._damaged]:
            metadata += f"; what needs only the other tables can still be asked ({', '.join(good)})"
        return metadata

    def examine(self) -> None:
        """Look at all tables, of a capture that cannot be made again.

        What is wrong is added to its problems, and said as a :class:`DamageWarning`.
        """
        meta, log = self.meta, ProblemLog()
        if meta.files is None:
            log.count("no_checksums", 1, scope="meta")
        stored = {table_path(self.folder, name): file for name, file in (meta.files or {}).items()}
        self._damaged = {path.stem: why for path, why in damages(stored).items()}
        for table, why in self._damaged.items():
            path = table_path(self.folder, table)
            log.count("damaged_table", 1, scope=table, detail=f"{path.name}: {why}")
            message = f"{path} is damaged ({why}): what needs it is refused"
            warnings.warn(f"{message}{self._others(table)}", DamageWarning, stacklevel=2)
        meta.problems += log.problems()

    def arrow(self, table: str, columns: list[str] | None = None) -> pa.Table:
        """Columns of one table as Arrow, sorted by its time column.

        Raises:
            UsageError: unknown table or column.
            InputError: the stored table is damaged, or gone.
        """
        self.file(table)
        read = read_table(self.folder, table, columns)
        if len(read) != self.rows(table):
            raise damaged(
                table_path(self.folder, table),
                f"it holds {len(read)} rows instead of {self.rows(table)}",
            )
        return read

    def row(self, table: str, row: int) -> dict[str, object]:
        """One row of one table, all columns.

        Raises:
            UsageError: there is no such row.
            InputError: the stored table is damaged, or gone.
        """
        self.file(table)
        return read_row(self.folder, table, row)

    def frame(self, table: str, *columns: str) -> Frame:
        """Columns of one table as numpy, kept: a column is read once, whoever asks for it."""
        key = (table, columns)
        found = self._frames.get(key)
        if found is None:
            if table not in TABLES:
                self.arrow(table)  # says which there are
            wanted = columns or tuple(TABLES[table].column_names())
            kept = self._kept.get(table, Frame({}))
            missing = [name for name in wanted if name not in kept]
            if missing:
                read = from_arrow(self.arrow(table, missing))
                kept = Frame({**kept.columns, **read.columns}, {**kept.texts, **read.texts})
                self._kept[table] = kept  # a new frame: others may be reading the old one
            found = self._frames[key] = kept.only(wanted)
        return found


@dataclass(frozen=True)
class RankTrace:
    """One trace of a job with its rank and where the rank comes from."""

    trace: Trace
    rank: int
    rank_source: str

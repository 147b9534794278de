"""Reports of several captures: which table is of which of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.render.text import clean

if TYPE_CHECKING:
    import pyarrow as pa

_COMPRESSION = {".xz", ".gz", ".zst"}


@dataclass(frozen=True)
class Origin:
    """One of several captures.

    Attributes:
        path: the capture.
        rank: its rank, where the capture or its name tells one that no other has.
        part: what tells it from the others in the name of a file.
        stem: the beginning of the names of files beside it.
    """

    path: Path
    rank: int | None
    part: str
    stem: str

    @property
    def title(self) -> str:
        """The capture as people read it."""
        name = clean(str(self.path), 400)
        return name if self.rank is None else f"rank {self.rank}: {name}"

    def heading(self) -> str:
        """What stands above all that is said of it."""
        return f"\n{self.title}\n{'=' * len(self.title)}\n"

    def marked(self, table: pa.Table) -> pa.Table:
        """A report with its rank and its capture in each row, as the first columns."""
        import pyarrow as pa

        text = str(self.path).encode("utf-8", "replace").decode()
        rows = table.num_rows
        columns = {
            "Rank": pa.array([self.rank] * rows, pa.int64()),
            "Capture": pa.array([text] * rows, pa.string()),
        }
        metadata = table.schema.metadata
        for name in reversed(columns):
            table = table.add_column(0, name, columns[name])
        return table.replace_schema_metadata(metadata)


def origins(captures: Sequence[tuple[Path, int | None]]) -> list[Origin]:
    """What tells captures apart.

    Args:
        captures: (path, rank that it or its name tells).
    """
    ranks = [rank for _, rank in captures]
    paths = [path for path, _ in captures]
    stems = [stem(path) for path in paths]
    beside = Counter(path.with_name(name) for path, name in zip(paths, stems, strict=True))
    own = [
        path.name if beside[path.with_name(name)] > 1 else name
        for path, name in zip(paths, stems, strict=True)
    ]
    if None not in ranks and len(set(ranks)) == len(ranks):
        parts = [f"rank{rank}" for rank in ranks]
    else:
        ranks = [None] * len(paths)
        often = Counter(own)
        parts = [f"{n}.{at}" if often[n] > 1 else n for at, n in enumerate(own)]
    return [Origin(*facts) for facts in zip(paths, ranks, parts, own, strict=True)]


def stem(path: Path) -> str:
    """A capture's name without its suffix and that of its compression."""
    while path.suffix.lower() in _COMPRESSION:
        path = path.with_suffix("")
    return path.stem

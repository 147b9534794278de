"""Stores what a run of ``measure.py`` on a GPU wrote as pairs of the exam.

usage: python benchmarks/predictions/store.py ARCHIVES_FOLDER [NAME...]

The folder holds the archives that ``measure.py all`` packed. Captures go to ``captures/`` here,
packed; nothing is left out of them.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import columns

CAPTURES = Path(__file__).parent / "captures"
COLUMNS = ".columns"
"""What the name of a trace ends in that is kept by column."""
PRESET = 9 | lzma.PRESET_EXTREME
UNSURE = 0.2
"""A pair is not stored whose ratio in one turn differs from the mean by more: it is not known."""


def store_capture(files: dict[str, bytes], target: Path) -> int:
    """Pack the files of a capture; traces of torch.profiler by column. Returns the size, bytes."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as tar:
        for name, data in sorted(files.items()):
            kept, content = name, data
            if name.endswith(".json") and "/" not in name:
                kept, content = name + COLUMNS, columns.packed(data.decode()).encode()
            entry = tarfile.TarInfo(kept)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    target.write_bytes(lzma.compress(inner.getvalue(), preset=PRESET))
    return target.stat().st_size


def unpack_capture(packed: Path, folder: Path) -> list[Path]:
    """The captures of a pair's ranks, unpacked: one path a rank."""
    with tarfile.open(packed) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            if file is None:
                continue
            data = file.read()
            target = folder / member.name.removesuffix(COLUMNS)
            if member.name.endswith(COLUMNS):
                data = columns.unpacked(data.decode()).encode()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return sorted(p for p in folder.iterdir() if p.suffix in (".json", ".stepscope"))


def doubt(truth: dict[str, Any]) -> float:
    """How far the ratio of repaired to faulty step in a single turn is from that of the means."""
    before, after = truth["before"]["mean_ms"], truth["after"]["mean_ms"]
    ratio = sum(after) / sum(before)
    return max(abs(b / a / ratio - 1) for a, b in zip(before, after, strict=True))


def measured_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of what ``measure.py`` packed."""
    for archive in sorted(folder.glob("part*.tar")):
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                file = tar.extractfile(member)
                if file is not None:
                    yield member.name.removesuffix(".xz"), lzma.decompress(file.read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    CAPTURES.mkdir(exist_ok=True)
    files = dict(measured_files(given.folder))
    for name, data in files.items():
        pair, _, kind = name.partition(".")
        if (given.names and pair not in given.names) or f"{pair}.json" not in files:
            continue
        unsure = doubt(json.loads(files[f"{pair}.json"]))
        if unsure > UNSURE:
            print(f"{name}: left out, turns differ by {unsure:.0%}")
        elif kind == "json":
            text = json.dumps(json.loads(data), indent=1) + "\n"
            (CAPTURES / name).write_text(text)
        elif kind == "kineto.json":
            size = store_capture({"rank0.json": data}, CAPTURES / f"{pair}.kineto.tar.xz")
            print(f"{pair} kineto {size / 1e3:.0f} KB", flush=True)
        elif kind == "own.tar":
            with (
                tempfile.TemporaryDirectory() as scratch,
                tarfile.open(fileobj=io.BytesIO(data)) as tar,
            ):
                tar.extractall(scratch, filter="data")
                files = {
                    str(file.relative_to(scratch)): file.read_bytes()
                    for file in Path(scratch).rglob("*")
                    if file.is_file()
                }
            size = store_capture(files, CAPTURES / f"{pair}.own.tar.xz")
            print(f"{pair} own {size / 1e3:.0f} KB", flush=True)
        else:
            print(f"{name}: {data.decode(errors='replace')[-300:]}", flush=True)


if __name__ == "__main__":
    main()

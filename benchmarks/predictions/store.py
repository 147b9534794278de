"""Stores what a run of ``measure.py`` on a GPU wrote as pairs of the exam.

usage: python benchmarks/predictions/store.py ARCHIVES_FOLDER [NAME...]

The folder holds the archives that ``measure.py all`` or ``job_measure.py all`` packed. Captures go
to ``captures/`` here in place of older ones, packed; nothing is left out of them.
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

import columns
from timing import NOISY, disagreement

CAPTURES = Path(__file__).parent / "captures"
COLUMNS = ".columns"
"""What the name of a trace ends in that is kept by column."""
PRESET = 9 | lzma.PRESET_EXTREME


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


def measured_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of what ``measure.py`` packed."""
    for archive in sorted(folder.glob("part*.tar")):
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                file = tar.extractfile(member)
                if file is not None:
                    yield member.name.removesuffix(".xz"), lzma.decompress(file.read())


def unpacked(data: bytes) -> dict[str, bytes]:
    """The files of an archive: those of a capture, one a rank."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        tarfile.open(fileobj=io.BytesIO(data)) as tar,
    ):
        # Python before 3.11.4 knows no filters
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(scratch)
        return {
            str(file.relative_to(scratch)): file.read_bytes()
            for file in Path(scratch).rglob("*")
            if file.is_file()
        }


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
        if kind == "json":
            truth = json.loads(data)
            (CAPTURES / name).write_text(json.dumps(truth, indent=1) + "\n")
            if (apart := disagreement(truth)) > NOISY:
                print(f"{pair}: turns differ by {apart:.0%}")
            continue
        if kind not in ("kineto.json", "kineto.tar", "own.tar"):
            print(f"{name}: {data.decode(errors='replace')[-300:]}", flush=True)
            continue
        source = kind.partition(".")[0]
        content = {"rank0.json": data} if kind == "kineto.json" else unpacked(data)
        size = store_capture(content, CAPTURES / f"{pair}.{source}.tar.xz")
        print(f"{pair} {source} {size / 1e3:.0f} KB", flush=True)


if __name__ == "__main__":
    main()

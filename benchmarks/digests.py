"""Whether digests say what the full captures say, and how large they are.

usage: python benchmarks/digests.py FOLDER_OR_CAPTURE...

Takes every capture below the folders: ``.xz`` is unpacked on the way. Each is diagnosed by itself,
and the ranks of a job (``NAME.rank0.SUFFIX``, ``NAME.rank1.SUFFIX``, or the ranks inside one
archive) together as well: once from the full captures and once from digests that were written and
read again. Prints a JSON line a capture or job, with both verdicts, the ranks of the first finding
and the step that its repair leaves, then the score and the largest digest.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.captures import unpack

from stepscope.api import Job
from stepscope.api.digest_files import SUFFIX, write_digests
from stepscope.api.digest_making import make_digest
from stepscope.api.digests import diagnose_digests
from stepscope.api.inputs import expand
from stepscope.trace.errors import StepscopeError

_RANK = re.compile(r"(.+)\.rank\d+(\..+)")
_CAPTURES = (".sqlite", ".json", ".json.gz", ".xplane.pb", ".xplane.pb.gz", ".xz")


def jobs(given: list[Path], scratch: Path) -> Iterator[tuple[str, list[Path]]]:
    """(name, captures) of each capture, and of the ranks of each job together."""
    packed: dict[str, list[Path]] = {}
    for path in given:
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in below:
            if not file.name.endswith(_CAPTURES):
                continue
            named = _RANK.fullmatch(file.name)
            whole = f"{named[1]}{named[2]}" if named else file.name
            packed.setdefault(f"{file.parent.name}/{whole}", []).append(file)
    for name, files in packed.items():
        folder = scratch / name.replace("/", "-")
        captures = []
        try:
            for file in files:
                (folder / file.name).mkdir(parents=True)
                for there in unpacked(file, folder / file.name):
                    captures += expand(there, [])
        except StepscopeError:
            continue  # not a capture
        for number, capture in enumerate(captures if len(captures) > 1 else []):
            yield f"{name}[{number}]", [capture]
        yield name, captures


def unpacked(file: Path, folder: Path) -> list[Path]:
    """What a file holds: itself, what it unpacks to, or all of an archive."""
    if not file.name.endswith(".tar.xz"):
        return [unpack(file, folder)]
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.iterdir())


def compared(name: str, captures: list[Path], folder: Path) -> dict[str, object] | None:
    """What the captures and their digests say; None where the captures say nothing."""
    try:
        full = Job(captures, apart=True).diagnose()
    except StepscopeError as error:
        print(json.dumps({"capture": name, "not read": str(error)[:200]}), flush=True)
        return None
    files = [folder / f"{number}{SUFFIX}" for number in range(len(captures))]
    digests = 0
    for capture, file in zip(captures, files, strict=True):
        made = make_digest(capture)
        digests += len(made)
        write_digests(made, file)
    brief = diagnose_digests(files)
    size = max(file.stat().st_size for file in files)
    first = [found.findings[0] if found.findings else None for found in (full, brief)]
    row = {
        "capture": name,
        "same": full.verdict == brief.verdict,
        "verdicts": [full.verdict, brief.verdict],
        "ranks": [one.ranks if one else [] for one in first],
        "predicted_ns": [one.predicted_step_ns if one else None for one in first],
        "others": [[f.cause for f in found.findings[1:]] for found in (full, brief)],
        "step_ns": [full.step_ns.mean, brief.step_ns.mean],
        "steps": full.trace.steps,
        "bytes": size,
        "digests": digests,
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Compare all and print the score."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("given", nargs="+", type=Path)
    given = parser.parse_args().given
    rows = []
    with tempfile.TemporaryDirectory(prefix="stepscope-digests-") as scratch:
        for name, captures in jobs(given, Path(scratch)):
            with tempfile.TemporaryDirectory() as folder:
                row = compared(name, captures, Path(folder))
            rows += [row] if row else []
    same = [row for row in rows if row["same"]]
    ranks = [row for row in same if row["ranks"][0] == row["ranks"][1]]
    print(json.dumps({
        "compared": len(rows),
        "same_verdict": len(same),
        "same_ranks": len(ranks),
        "largest_bytes": max((row["bytes"] for row in rows), default=0),
    }))  # fmt: skip


if __name__ == "__main__":
    main()

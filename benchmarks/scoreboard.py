"""Score the diagnosis on labelled captures: is the planted cause named first?

usage: python benchmarks/scoreboard.py [FOLDER...]

A folder holds captures and a ``truth.json`` (a list of objects with ``file`` and ``cause``;
``tests/data/captures`` is the default). ``.xz`` files are unpacked on the way. Prints one line a
capture, then the score; with annotations and, where that can be done, without.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.captures import unpack, without_annotations

from stepscope.api import Job

DEFAULT = Path(__file__).parents[1] / "tests/data/captures"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[DEFAULT])
    right = total = 0
    with tempfile.TemporaryDirectory(prefix="stepscope-score-") as scratch:
        for folder in parser.parse_args().folders:
            for label in json.loads((folder / "truth.json").read_text()):
                if not label["cause"]:
                    continue  # two causes are both real in it
                capture = unpack(folder / label["file"], Path(scratch))
                variants = {"": capture, "bare": without_annotations(capture, Path(scratch))}
                for variant, path in variants.items():
                    result = Job([path]).diagnose()
                    hit = result.verdict == label["cause"]
                    right, total = right + hit, total + 1
                    others = ", ".join(f"{f.cause} {f.share_of_step:.0%}" for f in result.findings)
                    print(
                        f"{'ok ' if hit else 'NO '} {label['file']:36} {variant:5} "
                        f"{label['cause']:20} -> {result.verdict:20} [{others}]"
                    )
    print(f"{right} of {total} first")


if __name__ == "__main__":
    main()

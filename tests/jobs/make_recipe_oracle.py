"""Make the bundled answers of the real tool.

``python -m tests.jobs.make_recipe_oracle NSYS PYTHON``: NSYS is version 2023.4, PYTHON an
interpreter below 3.12 with pandas, pyarrow and psutil. Every file of the archive is one table of
one recipe as CSV; a recipe that found nothing has none.
"""

from __future__ import annotations

import io
import lzma
import sys
import tarfile
import tempfile
from pathlib import Path

from pyarrow import csv
from tests.jobs.recipe_cases import CASES, captures_of
from tests.support import nsys_recipes

TARGET = Path(__file__).parents[1] / "data" / "oracle" / "recipes.tar.xz"


def main(nsys: str, python: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        lzma.open(TARGET, "wb", preset=9) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for number, case in enumerate(CASES):
            captures = captures_of(case)
            inputs = nsys_recipes.stage(captures, Path(folder, case.captures))
            output = Path(folder, f"out{number}")
            try:
                tables = nsys_recipes.run(
                    Path(nsys), Path(python), case.recipe, inputs, output, *case.real_options
                )
            except RuntimeError as error:
                print(case.id, "nothing:", str(error)[-200:])
                continue
            for name, table in tables.items():
                out = io.BytesIO()
                csv.write_csv(table, out)
                entry = tarfile.TarInfo(f"{case.id}/{name}.csv")
                entry.size = len(out.getvalue())
                tar.addfile(entry, io.BytesIO(out.getvalue()))
            print(case.id, {name: table.num_rows for name, table in tables.items()})
    print(TARGET, TARGET.stat().st_size)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What a job is opened from: the captures a path stands for, the bundled one, ceilings."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cache.store import Cache
from stepscope.importers.registry import detect, examined, foreign_message, is_trace_folder
from stepscope.trace.errors import InputError, UsageError
from stepscope.trace.notes import SUFFIX as NOTES

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.kernels.ceilings import Ceilings

_RAW_FOLDER = "raw"  # where a run of ours keeps what the ranks wrote, one folder a rank
CAPTURE_SUFFIXES = {
    *(".sqlite", ".nsys-rep", ".qdstrm", ".json", ".gz", ".zst", ".stepscope", ".pickle"),
    *(".pb", ".pftrace", ".db"),
}
_XPROF_FOLDER = Path("plugins", "profile")
"""Below a log folder, where profiles of JAX and TensorFlow lie: a folder a time, a file a host."""


def captures_of(paths: Sequence[str | Path], left_out: list[str]) -> list[Path]:
    """The captures that the paths of one job stand for, each a rank or several.

    Args:
        paths: captures, or folders of captures.
        left_out: receives the names of files that look like captures by their name only.

    Raises:
        InputError: a path is no capture, and holds none.
        UsageError: a capture is given twice.
    """
    found = [capture for path in paths for capture in expand(Path(path), left_out)]
    _refuse_twice(found)
    for path in found:
        if path.suffix == ".ncu-rep":
            raise InputError(
                f"{path} is an Nsight Compute report, not a trace; stepscope kernels explains "
                "it, and diagnose TRACE --ncu REPORT takes it beside a trace"
            )
    return found


def _refuse_twice(captures: Sequence[Path]) -> None:
    """Each capture is a rank of the job: one that is named twice would be two of them."""
    known: set[Path] = set()
    for path in captures:
        place = path.resolve()
        if place in known:
            raise UsageError(
                f"{path} is given twice; several PATHs are the ranks of one job, each given once"
            )
        known.add(place)


def expand(path: Path, left_out: list[str]) -> list[Path]:
    """The captures that a path stands for: itself, or those inside a folder.

    Args:
        path: a capture or a folder.
        left_out: receives the names of files that look like captures by their name only.

    Raises:
        InputError: nothing is there, or nothing in it is a capture.
    """
    if not stat.S_ISDIR(examined(path)):
        return [path]
    found: list[Path] = []
    try:
        if is_trace_folder(path) or detect(path) is not None:
            return [path]
        # A run of ours whose traces were not made yet, or elsewhere, is read from its raw files.
        for folder in (path, path / _RAW_FOLDER, *_of_xprof(path)):
            if found or not folder.is_dir():
                continue
            for child in sorted(folder.iterdir()):
                if child.name.startswith(".") or child.name.endswith(NOTES):
                    continue
                if _is_capture(child):
                    found.append(child)
                elif child.suffix in CAPTURE_SUFFIXES:
                    left_out.append(child.name)
        left_out += _unread_ranks(path, found)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its rights") from error
    if not found:
        raise InputError(f"{path} holds no capture that Stepscope knows; {_instead(path)}")
    # nsys leaves an export beside its report: these are one capture
    exports = {child.with_suffix("") for child in found if child.suffix == ".sqlite"}
    return [c for c in found if c.suffix != ".nsys-rep" or c.with_suffix("") not in exports]


def _of_xprof(folder: Path) -> list[Path]:
    """The one folder of profiles below a log folder of JAX or TensorFlow.

    Raises:
        InputError: there are several.
    """
    profiles = folder / _XPROF_FOLDER
    if not profiles.is_dir():
        return []
    times = [child for child in sorted(profiles.iterdir()) if child.is_dir()]
    if len(times) > 1:
        raise InputError(
            f"{folder} holds profiles of {len(times)} times; name one of them, as {times[-1]}"
        )
    return times


def _instead(folder: Path) -> str:
    """What to do with a folder without captures, by what lies below it."""
    below = sorted(islice(folder.rglob("*"), _LOOKED_AT))
    for path in below:
        if is_trace_folder(path) or (path.suffix in CAPTURE_SUFFIXES and _is_capture(path)):
            return f"those below it are not looked for: name {path.parent}"
    files = (path for path in below if path.is_file() and path.stat().st_size)
    return next(
        filter(None, map(foreign_message, files)),
        "name a file, or a folder with Nsight Systems exports or PyTorch traces",
    )


_LOOKED_AT = 200


def _unread_ranks(run: Path, found: list[Path]) -> list[str]:
    """Ranks of a run of ours that ``stepscope capture finalise`` could not read, but for others."""
    traces = {path.stem for path in found if is_trace_folder(path)}
    raw = run / _RAW_FOLDER
    if not traces or not raw.is_dir():
        return []
    ranks = [child for child in sorted(raw.iterdir()) if child.is_dir()]
    return [
        f"{_RAW_FOLDER}/{rank.name}"
        for rank in ranks
        if rank.name not in traces and any(rank.glob("*.raw"))
    ]


def _is_capture(path: Path) -> bool:
    if path.is_dir():
        return is_trace_folder(path) or detect(path) is not None
    return path.is_file() and path.stat().st_size > 0 and detect(path) is not None


def bundled_capture() -> Path:
    """The bundled capture, unpacked into the cache folder, where it stays for further questions.

    Raises:
        StorageError: the cache cannot be written.
    """
    import lzma
    from importlib import resources

    name = "h200_input_starvation.sqlite"
    packed = resources.files("stepscope.data").joinpath(f"{name}.xz").read_bytes()
    return Cache().keep(name, lzma.decompress(packed))


def read_ceilings(path: str | Path) -> Ceilings:
    """Read what ``stepscope ceilings`` wrote.

    Raises:
        InputError: it is no such file.
    """
    import msgspec

    from stepscope.kernels.ceilings import SCHEMA, Ceilings
    from stepscope.trace.text import JsonError, from_json

    advice = "stepscope ceilings -o FILE writes one on the GPU"
    try:
        known = from_json(Path(path).read_bytes())
        if isinstance(known, dict) and known.get("schema") == f"{SCHEMA[:-1]}1":
            names = {
                "multiprocessors": "sms",  # old name: new name
                "remarks": "warnings",  # old name: new name
                "fp64_product_flop_per_s": "fp64_gemm_flop_per_s",
            }
            known = {names.get(k, k): v for k, v in known.items()} | {"schema": SCHEMA}
        found = msgspec.convert(known, Ceilings)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {advice}") from error
    except (JsonError, msgspec.ValidationError) as error:
        raise InputError(f"{path} holds no ceilings: {error}; {advice}") from error
    rates = [v for n in Ceilings.__struct_fields__ if n.endswith("_per_s")
             if (v := getattr(found, n)) is not None]  # fmt: skip
    if found.schema != SCHEMA or not all(0 < rate < float("inf") for rate in rates):
        raise InputError(f"{path} holds no ceilings of {SCHEMA}; {advice}")
    return found


def ceilings_beside_data_sheet(document: bytes) -> pa.Table:
    """What was measured, beside the device's datasheet: one row a figure.

    Args:
        document: what was measured, as JSON.

    Returns:
        Columns ceiling, unit, measured, data_sheet (null where unknown), share.
    """
    import msgspec
    import pyarrow as pa

    from stepscope.kernels.ceilings import CEILINGS, Ceilings, peaks_of

    found = msgspec.json.decode(document, type=Ceilings)
    sheet = peaks_of(found.device)
    rows = []
    for name, (title, of_sheet) in CEILINGS.items():
        measured = getattr(found, name)
        if measured is None:
            continue
        stated = (getattr(sheet, of_sheet) or None) if sheet and of_sheet else None
        rows.append(
            {
                "ceiling": title,
                "unit": "byte/s" if name.endswith("bytes_per_s") else "FLOP/s",
                "measured": measured,
                "data_sheet": stated,
                "share": measured / stated if stated else None,
            }
        )
    kinds = {"ceiling": pa.string(), "unit": pa.string(), "measured": pa.float64(),
             "data_sheet": pa.float64(), "share": pa.float64()}  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(list(kinds.items())))

"""The captures that come with the package, unpacked for the tutorials."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.trace.errors import StorageError, UsageError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@dataclass(frozen=True)
class Bundled:
    """One bundled capture.

    Attributes:
        name: file or folder that it is copied to.
        packed: where it lies in ``stepscope/data``; a folder is copied with all its files.
        about: what was recorded, and what is wrong with it.
    """

    name: str
    packed: str
    about: str


CAPTURES = (
    Bundled(
        "starved.sqlite",
        "h200_input_starvation.sqlite.xz",
        "GPT on one H200, 12 steps: the data set works on the training thread (Nsight Systems)",
    ),
    Bundled(
        "healthy.sqlite",
        "tutorials/healthy.sqlite.xz",
        "the same program with its faults repaired, 5 steps (Nsight Systems)",
    ),
    Bundled(
        "sync.sqlite",
        "tutorials/sync.sqlite.xz",
        "the same program, which reads 105 values back in each of 5 steps (Nsight Systems)",
    ),
    Bundled(
        "fp32.sqlite",
        "tutorials/fp32.sqlite.xz",
        "the same program in single precision, 4 steps (Nsight Systems)",
    ),
    Bundled(
        "tiny_kernels.sqlite",
        "tutorials/tiny_kernels.sqlite.xz",
        "a small CNN on one H200, 10 steps: launching takes longer than computing (Nsight Systems)",
    ),
    Bundled(
        "exposed",
        "tutorials/exposed",
        "GPT on two H200s, 3 steps: gradients are summed after the backward pass (torch.profiler)",
    ),
    Bundled(
        "straggler",
        "tutorials/straggler",
        "ranks 0 and 2 of a job of four, 3 steps: rank 2 loads its data slowly (Nsight Systems)",
    ),
    Bundled(
        "memory.json.gz",
        "tutorials/memory.json.gz",
        "a residual network, one step with its allocations (torch.profiler)",
    ),
    Bundled(
        "kernels.csv",
        "tutorials/kernels.csv.xz",
        "six Triton kernels, each with another limiter (Nsight Compute)",
    ),
    Bundled(
        "production",
        "tutorials/production.tar.xz",
        "ResNet-18, 12 steps in the middle of a run: the loader falls behind (stepscope run)",
    ),
)
"""What ``stepscope demo --copy`` writes; recorded on H200 machines, then cut to a few steps."""


def copy_bundled(folder: Path) -> list[Path]:
    """Unpack every bundled capture into a folder, which is made where it does not exist.

    Files that are there already with the same content stay as they are.

    Returns:
        the captures, in the order of ``CAPTURES``.

    Raises:
        UsageError: a file of that name is there and holds something else.
        StorageError: the folder cannot be written.
    """
    data = resources.files("stepscope.data")
    try:
        for capture in CAPTURES:
            _unpack(data.joinpath(capture.packed), folder / capture.name)
    except OSError as error:
        raise StorageError(
            f"cannot write {folder}: {error.strerror}; name another folder"
        ) from error
    return [folder / capture.name for capture in CAPTURES]


def _unpack(packed: Traversable, target: Path) -> None:
    """Write one packed file, or all those of a folder."""
    import io
    import lzma
    import tarfile

    if packed.is_dir():
        for child in sorted(packed.iterdir(), key=lambda child: child.name):
            _unpack(child, target / child.name.removesuffix(".xz"))
        return
    content = packed.read_bytes()
    if packed.name.endswith(".xz"):
        content = lzma.decompress(content)
    if not packed.name.endswith(".tar.xz"):
        _write(target, content)
        return
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is not None:  # the first folder of the archive is the target itself
                _write(target.joinpath(*Path(member.name).parts[1:]), file.read())


def _write(target: Path, content: bytes) -> None:
    """Write a file unless it holds the same already."""
    if target.exists():
        if target.is_file() and target.read_bytes() == content:
            return
        raise UsageError(f"{target} exists and holds something else; name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)

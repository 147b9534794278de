"""Turn a report into SQLite with an installed ``nsys``, in a temporary folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.trace.errors import InputError, StorageError

VARIABLE = "STEPSCOPE_NSYS"
_USUAL_FOLDERS = (
    "/opt/nvidia/nsight-systems",
    "/opt/nvidia/nsight-systems-cli",
    "/usr/local/cuda/nsight-systems",
)
_TOO_OLD = re.compile(r"ProtobufParse|Can't parse message|newer version|unsupported version", re.I)
_NO_SPACE = re.compile(r"No space left|disk (is )?full", re.IGNORECASE)
_NOISE = re.compile(r"^(Throw in function|Dynamic exception type|\[|$)|std::exception::what: ?")


def find_nsys() -> Path | None:
    """The ``nsys`` to use: STEPSCOPE_NSYS, else PATH, else the newest in the usual folders."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    found = shutil.which("nsys")
    if found:
        return Path(found)
    installed = [
        file
        for folder in _USUAL_FOLDERS
        for pattern in ("*/bin/nsys", "bin/nsys")
        for file in Path(folder).glob(pattern)
        if os.access(file, os.X_OK)
    ]
    return max(installed, key=_version_key, default=None)


def _version_key(file: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(file))]


@contextmanager
def exported(report: Path) -> Iterator[Path]:
    """A temporary SQLite export of a report; it is gone afterwards.

    Raises:
        InputError: there is no nsys, or it cannot read the report.
        StorageError: the temporary folder is full.
    """
    nsys = find_nsys()
    here = shlex.quote(report.name)
    if nsys is None:
        raise InputError(
            f"{report} is an Nsight Systems report and no nsys is installed here to read it; run "
            f"nsys export -t sqlite {here} where it was captured and give the .sqlite file, or "
            f"set {VARIABLE} to an nsys"
        )
    with tempfile.TemporaryDirectory(prefix="stepscope-nsys-", ignore_cleanup_errors=True) as name:
        target = Path(name) / "report.sqlite"
        command = [
            str(nsys),
            "export",
            "--type=sqlite",
            "--force-overwrite=true",
            "--quiet=true",
            f"--output={target}",
            str(report.absolute()),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, check=False, cwd=name, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            raise InputError(
                f"cannot run {nsys} to read {report}: {error.strerror}; set {VARIABLE} to a "
                "working nsys"
            ) from error
        if done.returncode or not target.exists():
            output = (done.stderr + b"\n" + done.stdout).decode("utf-8", "replace")
            raise _failure(report, nsys, output, done.returncode)
        yield target


def _failure(report: Path, nsys: Path, output: str, status: int) -> InputError | StorageError:
    if _TOO_OLD.search(output):
        return InputError(
            f"{report} cannot be read by {nsys} ({_version(nsys)}): the report is damaged or was "
            f"written by a newer nsys; run nsys export -t sqlite {shlex.quote(report.name)} with "
            f"the nsys that captured it, or set {VARIABLE} to it"
        )
    if _NO_SPACE.search(output):
        return StorageError(
            f"{nsys} ran out of space below {tempfile.gettempdir()} while it exported {report}; "
            "free some, or set TMPDIR to a larger disk"
        )
    lines = [_NOISE.sub("", line).strip() for line in output.splitlines()]
    reason = next((line for line in lines if line), f"exit status {status}")[:300]
    return InputError(
        f"{nsys} cannot export {report} ({reason}); capture again, or export it with the nsys "
        "that captured it"
    )


def _version(nsys: Path) -> str:
    try:
        done = subprocess.run(
            [str(nsys), "--version"],
            capture_output=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown version"
    match = re.search(rb"version ([\d.]+)", done.stdout)
    return f"version {match[1].decode()}" if match else "unknown version"

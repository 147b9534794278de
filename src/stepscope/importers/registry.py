"""Find the importer of an input by its content, and run it into the cache."""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import stat
from functools import cache
from pathlib import Path

import stepscope.importers as package
from stepscope.cache.store import Cache
from stepscope.importers.base import HEAD_BYTES, Importer
from stepscope.importers.common.stream import first_bytes
from stepscope.importers.foreign import recognised
from stepscope.trace.errors import InputError
from stepscope.trace.folders import private_folder
from stepscope.trace.meta import Meta
from stepscope.trace.problems import ProblemLog
from stepscope.trace.store import (
    META_NAME,
    TraceWriter,
    read_meta,
    storage_errors,
    write_meta,
)
from stepscope.trace.text import without_controls
from stepscope.trace.trace import Trace

TRACE_SUFFIX = ".stepscope"


@cache
def importers() -> tuple[Importer, ...]:
    """Every importer: each sub-package but ``common`` registers one as ``IMPORTER``."""
    found = []
    for module in pkgutil.iter_modules(package.__path__):
        if module.ispkg and module.name != "common":
            loaded = importlib.import_module(f"{package.__name__}.{module.name}")
            found.append(loaded.IMPORTER)
    return tuple(found)


def detect(path: Path) -> Importer | None:
    """The importer most confident that it can read ``path``; None when none is.

    None also for what is known to come from a tool whose files are not read.

    Raises:
        InputError: the path does not exist or cannot be read.
    """
    head = b"" if path.is_dir() else read_head(path)
    if head and recognised(path, head) is not None:
        return None
    scored = [(importer.sniff(path, head), importer) for importer in importers()]
    confidence, best = max(scored, key=lambda pair: pair[0])
    return best if confidence > 0 else None


def foreign_message(path: Path) -> str:
    """What a file is that another tool wrote, and what to do instead; empty for all else.

    Raises:
        InputError: it cannot be read.
    """
    found = recognised(path, read_head(path))
    return "" if found is None else f"{path} is {found.what}; {found.do}"


def read_head(path: Path) -> bytes:
    """The first bytes of a file.

    Raises:
        InputError: with the reason in one sentence.
    """
    if not stat.S_ISREG(examined(path)):
        raise InputError(
            f"{path} is no regular file but a pipe, device or folder; save the capture to a file "
            "and name that"
        )
    return first_bytes(path)


def examined(path: Path) -> int:
    """The mode of what ``path`` leads to.

    Raises:
        InputError: nothing is there, or it may not be looked at.
    """
    try:
        return path.stat().st_mode
    except FileNotFoundError as error:
        if path.is_symlink():
            message = f"{path} is a link to something that does not exist; check where it leads"
        else:
            message = f"{path} does not exist; check the path"
        raise InputError(message) from error
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; check the path and its rights"
        ) from error


def is_trace_folder(path: Path) -> bool:
    """Whether ``path`` is a folder that Stepscope itself wrote."""
    if not path.is_dir():
        return False
    if path.suffix == TRACE_SUFFIX:
        return (path / META_NAME).exists()
    # a folder of captures may hold somebody else's meta.json
    try:
        return b'"schema_version"' in (path / META_NAME).read_bytes()[:HEAD_BYTES]
    except OSError:
        return False


def load(path: Path, cache_store: Cache, *, again: bool = False) -> Trace:
    """Open any supported input as a trace, importing it into the cache first where needed.

    Args:
        path: a Stepscope folder, or a capture that an importer recognises.
        cache_store: where imported files are kept.
        again: import even when the cache holds the file.

    Raises:
        InputError: not a supported capture, or damaged.
        StorageError: the cache cannot be written.
    """
    if is_trace_folder(path):
        found = Trace(path)
        found.examine()
        return found
    importer = detect(path)
    if importer is None:
        raise InputError(_unknown(path))

    def build(folder: Path, digest: str) -> None:
        _fill(importer, path, folder, digest)

    key = f"{importer.name}/{importer.revision}"
    folder = cache_store.get(path, key, build, again=again)
    return Trace(folder, path, lambda: cache_store.renew(path, key, build))


def convert(path: Path, target: Path) -> None:
    """Read any supported input into a trace folder of its own, outside the cache.

    Args:
        path: a capture that an importer recognises.
        target: the trace; replaced as a whole when it exists, and only when reading worked.

    Raises:
        InputError: not a supported capture, or damaged.
        StorageError: the target cannot be written.
    """
    importer = detect(path)
    if importer is None:
        raise InputError(_unknown(path))
    partial = target.with_name(f".{target.name}.partial")
    with storage_errors(target):
        shutil.rmtree(partial, ignore_errors=True)
        private_folder(partial)
    try:
        _fill(importer, path, partial, "")
        with storage_errors(target):
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _fill(importer: Importer, path: Path, folder: Path, digest: str) -> None:
    """Read an input into an empty folder."""
    problems = ProblemLog()
    writer = TraceWriter(folder, problems)
    try:
        meta = importer.read(path, writer)
        meta.rows = writer.close()
    except BaseException:
        writer.abort()
        raise
    _finish(meta, importer, path, digest, problems, folder)


def _finish(
    meta: Meta, importer: Importer, path: Path, digest: str, problems: ProblemLog, folder: Path
) -> None:
    telling = ("gpu_op", "api_call", "range", "operator", "memory_event", "memory_block")
    if not any(meta.rows.get(table) for table in telling):
        lost = next((p for p in problems.problems() if p.severity == "data_loss"), None)
        if lost is not None:
            raise InputError(
                f"{path} is a {importer.title} of which nothing can be used: {lost.count:,} "
                f"{lost.message}; {lost.remedy}"
            )
        raise InputError(
            f"{path} is a {importer.title} but holds no GPU work, no CUDA calls and no ranges; "
            "capture again with CUDA and NVTX tracing on"
        )
    meta.source = importer.name
    meta.input_name = path.name.encode("utf-8", "replace").decode()  # a name may be any bytes
    meta.input_digest = digest
    for name in ("source_version", "hostname", "command", "rank_source"):
        setattr(meta, name, without_controls(getattr(meta, name)))
    for name in ("capture_options", "environment"):
        facts = getattr(meta, name).items()
        setattr(meta, name, {without_controls(k): without_controls(v) for k, v in facts})
    meta.problems = problems.problems()
    write_meta(folder, meta)
    read_meta(folder)  # what was written can be read back


def _unknown(path: Path) -> str:
    if path.is_dir():
        return (
            f"{path} holds no capture that Stepscope knows; name a file, or a folder with "
            "Nsight Systems exports or PyTorch traces"
        )
    if path.stat().st_size == 0:
        return f"{path} is empty; the capture did not finish, make it again"
    foreign = foreign_message(path)
    if foreign:
        return foreign
    known = "; ".join(importer.title for importer in importers())
    return f"{path} is not a capture that Stepscope knows ({known}); check what wrote it"

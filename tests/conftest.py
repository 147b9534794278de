"""What every test shares: an isolated cache, the shared captures, the gate before GPU tests."""

from __future__ import annotations

import fcntl
import gc
import lzma
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from tests.cli.command import Stepscope

SHARED = Path(__file__).parents[2] / "shared" / "data" / "h200"

# A busy machine is no reason to fail: pytest-timeout bounds the time of a whole test. Continuous
# integration tries the same examples every time; a person's runs look for new ones.
settings.register_profile(
    "stepscope", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("stepscope")


def pytest_configure(config: pytest.Config) -> None:
    """What tests start is told of signals as usual, however the tests themselves were started.

    ``nohup`` and a shell's background have signals ignored, which every child inherits. A handler
    is not inherited; it does nothing, so that the tests go on as whoever started them wished.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    gc.disable()  # all that is made until the tests begin stays


def pytest_collection_finish(session: pytest.Session) -> None:
    """Garbage is looked for among what tests make, not among thousands of tests, and less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all xdist workers of a test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def _isolated(run_folder: Path) -> Iterator[None]:
    """No test sees the user's cache or settings.

    One cache serves all workers of the run, so a bundled capture is imported and the collector
    compiled once.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("STEPSCOPE_"):
                patch.delenv(name)
        patch.setenv("STEPSCOPE_CACHE_DIR", str(run_folder / "cache"))
        # tests start Python many times: it need not compile the package each time
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session")
def reader(_isolated: None) -> Stepscope:
    """The command line with the cache of the whole test run, for tests that only read captures.

    Those of imports and of the cache itself take ``stepscope``, whose cache is empty.
    """
    return Stepscope(Path(os.environ["STEPSCOPE_CACHE_DIR"]))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real captures beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("needs the captures of ../shared/data/h200, which are not here")
    return SHARED


@pytest.fixture(scope="session")
def unpacked(shared_data: Path, run_folder: Path) -> Callable[[str], Path]:
    """A function from a capture's name (``healthy``) to its unpacked Nsight Systems export.

    A capture is unpacked once a test run, whichever xdist worker asks first; treat it as read-only.
    """
    folder = run_folder / "unpacked"
    folder.mkdir(exist_ok=True)

    def unpack(name: str) -> Path:
        target = folder / f"{name}.sqlite"
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                part = folder / f"{name}.part"
                packed = shared_data / "nsys" / f"{name}.sqlite.xz"
                with lzma.open(packed) as source, part.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
                part.rename(target)
        return target

    return unpack


@cache
def _no_gpu() -> str | None:
    """Why GPU tests cannot run here; None where they can."""
    try:
        import torch
    except ImportError:
        return "needs PyTorch with CUDA; PyTorch is not installed"
    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU; PyTorch finds no CUDA device"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked ``gpu`` where there is none; the closing summary shows the reason."""
    if item.get_closest_marker("gpu") and (reason := _no_gpu()):
        pytest.skip(reason)

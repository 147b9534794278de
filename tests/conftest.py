"""What every test shares: an isolated cache, the shared captures, the gate before GPU tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from tests.cli.command import Stepscope
from tests.support.captures import SHARED, unpack
from tests.support.costs import Costs
from tests.support.snapshots import Snapshot, compared

# A busy machine is no reason to fail: pytest-timeout bounds the time of a whole test. Continuous
# integration tries the same examples every time, half as many; a person's runs look for new ones.
_CI = bool(os.environ.get("CI"))
settings.register_profile(
    "stepscope",
    deadline=None,
    print_blob=True,
    derandomize=_CI,
    max_examples=50 if _CI else 100,
)
settings.load_profile("stepscope")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--cpu FILE`` measures (``support/costs.py``), ``--snapshots`` writes (``snapshots.py``)."""
    parser.addoption("--cpu", metavar="FILE", help="append CPU seconds by test and fixture to FILE")
    parser.addoption("--snapshots", action="store_true", help="write snapshots, compare nothing")


def pytest_configure(config: pytest.Config) -> None:
    """What tests start is told of signals as usual, however the tests themselves were started.

    ``nohup`` and a shell's background have signals ignored, which every child inherits. A handler
    is not inherited; it does nothing, so that the tests go on as whoever started them wished.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if measured := config.getoption("--cpu"):
        config.pluginmanager.register(Costs(Path(measured).absolute()))
    gc.disable()  # all that is made until the tests begin stays


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first: at the end one of them would keep a worker after all others."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


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
        # what a test run leaves need not outlive a power cut; a disk takes milliseconds for each
        patch.setattr(os, "fsync", lambda _: None)
        # tests start Python many times: it need not compile the package each time
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session")
def reader(_isolated: None) -> Stepscope:
    """The command line with the cache of the whole test run, for tests that only read captures.

    Those of imports and of the cache itself take ``stepscope``, whose cache is empty.
    """
    return Stepscope(Path(os.environ["STEPSCOPE_CACHE_DIR"]))


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """Compares a text with the file of that name beside the test, or writes that file."""
    return compared(request.path, write=request.config.getoption("--snapshots"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real captures beside the repository."""
    if not (SHARED / "h200").is_dir():
        pytest.skip("needs the captures of ../shared/data/h200, which are not here")
    return SHARED / "h200"


@pytest.fixture(scope="session")
def unpacked(shared_data: Path) -> Callable[[str], Path]:
    """A function from a capture's name (``healthy``) to its Nsight Systems export, unpacked."""
    return lambda name: unpack(shared_data / "nsys" / f"{name}.sqlite.xz")


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

"""The lock fits the project, and the wheel works on its own."""

from __future__ import annotations

import ast
import importlib.util
import json
import lzma
import os
import platform
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.support.captures import BUNDLED

import stepscope
from stepscope.capture.collector.build import PARTS, compiler, file_name
from stepscope.native import library

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")
PIN = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)[^\n]*\n(?: +--hash=sha256:[0-9a-f]{64}[ \\]*\n)+", re.MULTILINE
)
SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command that sees neither the repository nor this environment's settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    ("there", "failing", "tried"),
    [
        (True, "", ["uv"]),
        (True, "uv", ["uv", "pip"]),
        (False, "", ["fetch", "fetched"]),
        (False, "fetch", ["fetch", "pip"]),
        (False, "fetched", ["fetch", "fetched", "pip"]),
    ],
)
def test_the_lock_is_installed_with_hashes_by_uv_or_else_by_pip(
    there: bool, failing: str, tried: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    python = tmp_path / "python"
    commands: list[tuple[str, list[str]]] = []

    def call(command: list[str], *_: object, **__: object) -> int:
        by = {"uv": "uv", str(python): "pip"}.get(command[0], "fetched")
        by = "fetch" if str(dev.UV_LOCK) in command else by
        commands.append((by, command))
        return int(by == failing)

    monkeypatch.setattr(dev, "call", call)
    monkeypatch.setattr(dev, "create", lambda _: None)
    monkeypatch.setattr(dev, "usable", lambda: False)
    monkeypatch.setattr(dev, "VENV", tmp_path / "venv")
    monkeypatch.setattr(dev, "PYTHON", python)
    monkeypatch.setattr(dev, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(dev.shutil, "which", lambda _: "uv" if there else None)
    dev.prepare()
    assert [by for by, _ in commands] == [*tried, tried[-1]]  # the last installs Stepscope, too
    for _, command in commands[:-1]:
        assert command[-3] == "--require-hashes"
    assert commands[-2][1][-1] == str(dev.LOCK)
    assert "--no-index" in commands[-1][1]
    assert dev.STAMP.read_text() == dev.digest()


def test_lock_pins_what_the_project_asks_for() -> None:
    pins = {canonicalize_name(name): version for name, version in PIN.findall(LOCK)}
    extras = PROJECT["project"]["optional-dependencies"]
    for line in (
        *PROJECT["project"]["dependencies"],
        *extras["dev"],
        *extras["bench"],
        *PROJECT["build-system"]["requires"],
    ):
        asked = Requirement(line)
        pinned = pins.get(canonicalize_name(asked.name))
        assert pinned, f"{asked.name} is not in the lock; run python3 dev.py lock"
        assert asked.specifier.contains(pinned), f"{line}, locked {pinned}"


@pytest.mark.parametrize("name", ["dev", "uv"])
def test_locks_hold_only_names_versions_and_hashes(name: str) -> None:
    lock = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
    rest = PIN.sub("", lock)
    assert len(rest) < len(lock)
    assert [line for line in rest.splitlines() if not re.match(r" *#", line)] == []
    assert "://" not in lock


def test_an_old_python_can_parse_dev_py_up_to_its_version_check() -> None:
    ast.parse((ROOT / "dev.py").read_text(encoding="utf-8"), feature_version=(3, 7))


def test_an_environment_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """``.venv`` is deleted and made again at will, so it must be one that dev.py made."""
    for name in ("dev.py", "pyproject.toml", "requirements/dev.lock", "requirements/uv.lock"):
        copy = tmp_path / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    theirs = tmp_path / ".venv" / "theirs"
    theirs.parent.mkdir()
    theirs.touch()
    done = subprocess.run(
        [sys.executable, tmp_path / "dev.py", "lint"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "move it away" in done.stderr
    assert [theirs] == list(theirs.parent.iterdir())


def closure(requirements: Sequence[str], seen: set[str]) -> Iterator[Distribution]:
    """The installed distributions that the requirements bring in, each once."""
    for line in requirements:
        asked = Requirement(line)
        name = canonicalize_name(asked.name)
        if name in seen or (asked.marker and not asked.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        found = distribution(name)
        yield found
        yield from closure(found.requires or [], seen)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", folder], ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a fresh environment: the wheel and what it declares to need, no more.

    The needed libraries are linked from this environment, so nothing is downloaded.
    """
    folder = tmp_path_factory.mktemp("fresh")
    libraries = folder / "libraries"
    libraries.mkdir()
    for found in closure(PROJECT["project"]["dependencies"], set()):
        for top in {file.parts[0] for file in found.files or [] if file.parts[0] != ".."}:
            link = libraries / top
            if not link.exists() and top != "__pycache__":
                link.symlink_to(Path(str(found.locate_file(top))))
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    run(
        [
            *(sys.executable, "-m", "pip", "--python", python, "install"),
            *("--quiet", "--no-deps", "--no-index", wheel),
        ],
        folder,
    )
    site = Path(run([python, "-c", SITE], folder).strip())
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return python.parent


@pytest.mark.slow
def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src" / "stepscope"
    page = package / "server" / "ui"  # its source; what is built from it ships
    ours = {
        f"stepscope/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".so")
        if not path.is_relative_to(page)
    }
    assert "stepscope/server/static/app.js" in ours
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    built = {name for name in names if name.endswith(".so")}
    assert {name for name in names if name.startswith("stepscope/")} - built == ours
    if compiler() is None:
        assert not built
        assert wheel.name.endswith("py3-none-any.whl")
    else:
        assert built == {
            *(f"stepscope/capture/collector/{file_name(part)}" for part in PARTS),
            *(f"stepscope/native/{library.file_name(name)}" for name in library.names()),
        }
        # for any Python, and for every system with a C library of the last ten years
        assert f"-py3-none-manylinux_2_17_{platform.machine()}." in wheel.name
    assert any(name.endswith("/licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_wheel_runs_without_the_repository(installed: Path, tmp_path: Path) -> None:
    code = "import stepscope; print(stepscope.__file__)"
    where = Path(run([installed / "python", "-c", code], tmp_path).strip())
    assert where.is_relative_to(installed.parent)
    assert stepscope.__version__ in run([installed / "stepscope", "--version"], tmp_path)
    assert "GPU" in run([installed / "stepscope", "demo"], tmp_path)
    diagnosis = json.loads(run([installed / "stepscope", "demo", "--format", "json"], tmp_path))
    assert diagnosis["verdict"] == "input_starvation"
    if compiler() is not None:  # the wheel brings the collector, compiled
        checks = json.loads(run([installed / "stepscope", "doctor", "--format", "json"], tmp_path))
        (collector,) = (c for c in checks["checks"] if c["name"] == "backend collector")
        assert f"{installed.parent}/" in collector["message"]
    assert list(tmp_path.iterdir()) == []
    capture = BUNDLED.name.removesuffix(".xz")
    (tmp_path / capture).write_bytes(lzma.decompress(BUNDLED.read_bytes()))
    run([installed / "stepscope", "ui", capture, "--static", "page.html"], tmp_path)
    assert b"<title>Stepscope</title>" in (tmp_path / "page.html").read_bytes()

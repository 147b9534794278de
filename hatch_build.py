"""Build hook: compile the collector into the wheel where there is a compiler."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COLLECTOR = Path("src/stepscope/capture/collector")


class CollectorHook(BuildHookInterface[Any]):
    """Adds the compiled collector to a wheel; without a compiler the wheel is pure Python.

    Such a wheel works: the collector is compiled when it is first needed, or ``stepscope doctor``
    says what is missing.
    """

    PLUGIN_NAME = "custom"
    _scratch: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel with the platform it is for; it needs no certain Python."""
        if self.target_name != "wheel" or version == "editable":
            return
        # a folder of its own: several builds may run at once, and the sources stay as they were
        self._scratch = Path(tempfile.mkdtemp(prefix="stepscope-build-"))
        build = _build_module(Path(self.root) / COLLECTOR)
        libraries = []
        for part in build.PARTS:
            library = build.compile_into(self._scratch, part)
            if library.path is None:
                self.app.display_warning(f"the wheel brings no compiled {part}: {library.remedy}")
                return
            libraries.append(library.path)
            inside = Path("stepscope/capture/collector") / library.path.name
            build_data["force_include"][str(library.path)] = str(inside)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{build.platform_tag(libraries)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: it is in the wheel."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _build_module(folder: Path) -> ModuleType:
    """The package's own build code, without importing the package."""
    spec = importlib.util.spec_from_file_location("collector_build", folder / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module

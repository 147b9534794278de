"""Build hook: compile the collector and the analyses' compiled code into the wheel."""

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
NATIVE = Path("src/stepscope/native")


class CollectorHook(BuildHookInterface[Any]):
    """Adds the compiled libraries to a wheel; without a compiler the wheel is pure Python.

    Such a wheel works: a library is compiled when it is first needed, or ``stepscope doctor`` says
    what is missing.
    """

    PLUGIN_NAME = "custom"
    _scratch: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel with the platform it is for; it needs no certain Python."""
        if self.target_name != "wheel" or version == "editable":
            return
        # a folder of its own: several builds may run at once, and the sources stay as they were
        self._scratch = Path(tempfile.mkdtemp(prefix="stepscope-build-"))
        build = _module("collector_build", Path(self.root) / COLLECTOR / "build.py")
        native = _module("native_library", Path(self.root) / NATIVE / "library.py")
        libraries = []
        for part in build.PARTS:
            library = build.compile_into(self._scratch, part)
            if library.path is None:
                self.app.display_warning(f"the wheel brings no compiled {part}: {library.remedy}")
                return
            libraries.append((COLLECTOR, library.path))
        for name in native.names():
            found = native.compile_into(self._scratch, name)
            if found.path is None:
                self.app.display_warning(f"the wheel brings no compiled {name}: {found.why}")
                return
            libraries.append((NATIVE, found.path))
        for folder, path in libraries:
            build_data["force_include"][str(path)] = str(folder.relative_to("src") / path.name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{build.platform_tag([path for _, path in libraries])}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: it is in the wheel."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _module(name: str, path: Path) -> ModuleType:
    """A module of the package that builds, without importing the package."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module

"""The compiled library loads where the wheel may be installed."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from stepscope.capture.collector.build import PARTS, compiler, find, platform_tag


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no versions")
@pytest.mark.parametrize("part", PARTS)
def test_no_newer_c_library_is_needed(part: str) -> None:
    """Ubuntu 20.04 has 2.31, RHEL 8 2.28; what is built here shall load there."""
    library = find(part).path
    assert library is not None
    assert platform_tag([library]) == f"manylinux_2_17_{platform.machine()}"
    text = library.read_bytes()
    assert b"libdl.so.2\0" in text  # where these functions were before 2.34
    assert b"libpthread.so.0\0" in text
    assert b"libstdc++" not in text


def test_the_tag_tells_the_newest_version_that_is_needed(tmp_path: Path) -> None:
    one, other = tmp_path / "a.so", tmp_path / "b.so"
    one.write_bytes(b"\0GLIBC_2.2.5\0GLIBC_2.28\0")
    other.write_bytes(b"\0GLIBC_2.4\0")
    assert platform_tag([other]) == f"manylinux_2_17_{platform.machine()}"
    assert platform_tag([one, other]) == f"manylinux_2_28_{platform.machine()}"
    other.write_bytes(b"")
    assert platform_tag([other]).startswith("linux_")

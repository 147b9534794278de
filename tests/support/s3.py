"""An S3 server of this process; skips, and says why, where there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The file system of an empty server, to which ``s3://`` leads for as long as the block."""
    server = pytest.importorskip("moto.server", reason="needs moto[server]")
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs")
    made = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    made.start()
    try:
        host, port = made.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        s3fs.S3FileSystem.clear_instance_cache()  # those of an earlier server
        yield s3fs.S3FileSystem()
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        made.stop()

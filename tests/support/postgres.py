"""A private PostgreSQL server for tests: own data, own socket, no network, no rights."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


def programs() -> Path | None:
    """Folder with initdb and pg_ctl: Debian keeps them off the path."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    complete = (f for f in folders if (f / "initdb").exists() and (f / "pg_ctl").exists())
    return next(complete, None)


class Server:
    """A running server; raises RuntimeError with the reason where none can be started."""

    def __init__(self) -> None:
        folder = programs()
        if folder is None:
            raise RuntimeError("needs PostgreSQL's server (Debian: apt-get install postgresql)")
        self._programs = folder
        # PostgreSQL refuses to run as root
        self._user = "nobody" if os.getuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="stepscope-pg-", dir="/tmp"))
        if self._user:
            os.chown(self.folder, pwd.getpwnam(self._user).pw_uid, -1)
        self._data = self.folder / "data"
        self._log = self.folder / "log"
        self._run(
            "initdb", "-D", str(self._data), "-U", "tester", "-A", "trust", "-N", "-E", "UTF8"
        )
        self.start()
        self._databases = 0

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments], user=self._user, cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, check=False, timeout=120,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr[-300:]}")

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off"
        self._run(
            "pg_ctl", "-w", "-D", str(self._data), "-l", str(self._log), "-o", options, "start"
        )

    def stop(self) -> None:
        """Stop at once, as when the machine is lost: connections break, nothing is flushed."""
        self._run("pg_ctl", "-w", "-D", str(self._data), "-m", "immediate", "stop", check=False)

    def url(self, database: str) -> str:
        return f"postgresql://tester@/{database}?host={self.folder}"

    def database(self) -> str:
        """URL of a new, empty database."""
        import psycopg

        self._databases += 1
        name = f"t{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        return self.url(name)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

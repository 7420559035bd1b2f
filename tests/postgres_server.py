"""A PostgreSQL server for a test: its own cluster on a private port, deleted with its directory."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from signal import Signals

import psutil

from tests.ports import free_port

START_WITHIN_SECONDS = 180.0
STOP_WITHIN_SECONDS = 180.0
NAME = "tangram"
PASSWORD = "secret of a test"
_DEBIAN = Path("/usr/lib/postgresql")


def find_program(name: str) -> Path | None:
    """Return a server program: the newest that Debian installed, else one on PATH."""
    installed = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    if installed:
        return installed[-1]
    found = shutil.which(name)
    return Path(found) if found else None


class PostgresServer:
    """A PostgreSQL with a folder of its own, which root can share with the server's user."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tangram-postgres-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address for Django, as DATABASE_URL takes it."""
        word = PASSWORD.replace(" ", "%20")
        return f"postgresql://{NAME}:{word}@127.0.0.1:{self.port}/{NAME}"

    def create(self) -> PostgresServer:
        """Make the cluster and its one database; the server is then running."""
        word = self.directory / "word"
        word.write_text(PASSWORD)
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
            os.chown(word, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "--pgdata", str(self._data), "--username", NAME, "--auth", "scram-sha-256",
                  "--pwfile", str(word), "--encoding", "UTF8", "--locale", "C")  # fmt: skip
        self.start()
        self._run("createdb", "--host", "127.0.0.1", "--port", str(self.port),
                  "--username", NAME, NAME)  # fmt: skip
        return self

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        program = _program("postgres")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "postgres.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*_as_its_user(), str(program), "-D", str(self._data), *flags],
                stdout=log, stderr=log, start_new_session=True, cwd="/",
            )  # fmt: skip
        self._wait_until_ready()

    def stop(self) -> None:
        """End it in order, connections and all, and delete its data."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(Signals.SIGINT)
        self.process.wait(STOP_WITHIN_SECONDS)
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """End the server and everything it started as a power cut would."""
        family = self._family()
        for process in family:
            process.kill()
        assert self.process is not None
        self.process.wait(STOP_WITHIN_SECONDS)
        psutil.wait_procs(family, STOP_WITHIN_SECONDS)

    def signal(self, number: Signals) -> None:
        """Send a signal to the server and to everything it started."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _family(self) -> list[psutil.Process]:
        assert self.process is not None
        server = psutil.Process(self.process.pid)
        return [server, *server.children(recursive=True)]

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        until = time.monotonic() + START_WITHIN_SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError((self.directory / "postgres.log").read_text())
            ready = subprocess.run(
                [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
            )
            if ready.returncode == 0:
                return
            time.sleep(0.02)
        raise RuntimeError("postgres was not ready in time")

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [*_as_its_user(), str(_program(name)), *arguments], capture_output=True, text=True,
            env={**os.environ, "PGPASSWORD": PASSWORD}, cwd="/", check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr}")


def _program(name: str) -> Path:
    found = find_program(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: apt-get install postgresql")
    return found


def _as_its_user() -> list[str]:
    """Return what runs a command as Debian's user of the server, who root may become."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"]

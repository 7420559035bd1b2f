"""A real Redis of a test's own: private socket, no port, every write on disk."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import redis

#: A server on this disk answers within milliseconds; a machine under load gets much more.
START_WITHIN_SECONDS = 120.0
STOP_WITHIN_SECONDS = 120.0


class RedisServer:
    """A Redis with its data in ``directory``, so that it can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "redis.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"unix://{self.socket}"

    def client(self) -> redis.Redis:
        """Return a new client."""
        return redis.Redis.from_url(self.url)

    def start(self) -> RedisServer:
        """Start the server and wait until it answers."""
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise FileNotFoundError("tests need redis-server on PATH")
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        with (self.directory / "redis.log").open("ab") as log:
            self.process = subprocess.Popen([program, *self._options()], stdout=log, stderr=log)
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """End the server in order."""
        self._end(kill=False)

    def kill(self) -> None:
        """End the server as a power cut would."""
        self._end(kill=True)

    def _options(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        return [part for name, value in options.items() for part in (f"--{name}", value)]

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        until = time.monotonic() + START_WITHIN_SECONDS
        while True:
            if self.process.poll() is not None:
                raise RuntimeError((self.directory / "redis.log").read_text())
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > until:
                    self.kill()
                    raise
                time.sleep(0.005)

    def _end(self, *, kill: bool) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        if kill:
            process.kill()
        else:
            process.terminate()
        process.wait(STOP_WITHIN_SECONDS)

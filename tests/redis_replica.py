"""A real master of Redis and its replica, which a test stops, continues and promotes."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any, cast

from tests.ports import free_port
from tests.redis_server import START_WITHIN_SECONDS, RedisServer


class PortServer(RedisServer):
    """A server that others reach by TCP, as replicas must."""

    def __init__(self, directory: Path, *more: str) -> None:
        super().__init__(directory)
        self.port = free_port()
        self._more = more

    def _options(self) -> list[str]:
        port = ["--port", str(self.port), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"]
        return [*super()._options(), *port, *self._more]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process."""
        assert self.process is not None
        self.process.send_signal(number)


class ReplicatedRedis:
    """A master, and a replica that follows it."""

    def __init__(self, directory: Path) -> None:
        self.master = PortServer(directory / "m")
        self.replica = PortServer(directory / "s", "--replicaof", f"127.0.0.1 {self.master.port}")

    def start(self) -> ReplicatedRedis:
        """Start both, and wait until the replica follows."""
        self.master.start()
        self.replica.start()
        until = time.monotonic() + START_WITHIN_SECONDS
        with self.master.client() as client:
            while (
                cast("Any", client.info("replication")).get("slave0", {}).get("state") != "online"
            ):
                assert time.monotonic() < until, "the replica does not follow"
                time.sleep(0.01)
        return self

    def pause(self) -> None:
        """Let the replica confirm nothing; the master still counts it."""
        self.replica.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.replica.signal(signal.SIGCONT)

    def promote(self) -> None:
        """Make the replica a master, as Sentinel does; the former one does not learn of it."""
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")

    def stop(self) -> None:
        """End both. A server that has just copied another one would refuse to end in order."""
        self.replica.kill()
        self.master.kill()

"""A console of a test's own: Redis, rows, web process, and someone who publishes frames."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
from channels_redis.pubsub import RedisPubSubChannelLayer

from tangram_web.live.frames import FrameFold
from tangram_web.live.publisher import FramePublisher
from tests.redis_server import RedisServer
from tests.unit.live.journal import WALL_OFFSET, Journal

ROOT = Path(__file__).resolve().parents[3]
READY_WITHIN_SECONDS = 60.0
PREFIX = "tangram"

_PREPARE = """
import django
django.setup()
from django.contrib.auth import get_user_model
from django.core.management import call_command
from tangram_web.dashboard.services import entry_link
call_command("migrate", verbosity=0)
user = get_user_model().objects.create_user("ops", password="ops-password", is_staff=True)
print(entry_link(user))
"""


@dataclass
class Console:
    """A running web process; ``entry`` signs the first browser in."""

    directory: Path
    redis: RedisServer
    url: str = ""
    entry: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Settings of every process of this console."""
        return os.environ | {
            "TANGRAM_HOME": str(self.directory / "home"),
            "TANGRAM_REDIS_URL": self.redis.url,
            "TANGRAM_KEY_PREFIX": PREFIX,
            "DJANGO_SETTINGS_MODULE": "tangram_web.settings",
        }

    def start(self) -> Console:
        """Make the rows, start the web process and wait until it answers."""
        prepared = subprocess.run(
            [sys.executable, "-c", _PREPARE],
            cwd=ROOT, env=self.environment, check=True, capture_output=True, text=True,
        )  # fmt: skip
        self.entry = prepared.stdout.strip().splitlines()[-1]
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "uvicorn", "--factory", "--port", str(port)]
        command += ["--log-level", "warning", "tangram_web.asgi:django_application"]
        with (self.directory / "web.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdout=log, stderr=log
            )
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """End the web process."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)

    @property
    def log(self) -> str:
        """What the web process wrote."""
        return (self.directory / "web.log").read_text()

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        until = time.monotonic() + READY_WITHIN_SECONDS
        while True:
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(self.log)
            try:
                httpx.get(f"{self.url}/login/", timeout=5).raise_for_status()
                return
            except httpx.TransportError:
                time.sleep(0.02)


class Broadcast:
    """The journal of a system that is not there, folded and published as the loop's thread does."""

    def __init__(self, redis: RedisServer) -> None:
        self.journal = Journal(at=time.time() - WALL_OFFSET - 60)
        self._fold = FrameFold()
        self._folded = 0
        layer = RedisPubSubChannelLayer(hosts=[redis.url], prefix=f"{PREFIX}:live")
        self._publisher = FramePublisher(layer, redis.client(), PREFIX)
        # The browser's driver keeps an event loop running in the test's own thread.
        self._thread = ThreadPoolExecutor(max_workers=1)

    def publish(self) -> None:
        """Fold what was written and publish how things stand."""
        self._thread.submit(self._publish).result()

    def close(self) -> None:
        """Close the publisher's connections."""
        self._thread.submit(self._publisher.close).result()
        self._thread.shutdown()

    def _publish(self) -> None:
        for entry in self.journal.entries[self._folded :]:
            self._fold.fold(entry)
        self._folded = len(self.journal.entries)
        self._publisher.publish(self._fold.frames(self.journal.at))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

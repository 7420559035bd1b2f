"""An engine that cannot do what is needed is refused at once, by its name."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from domain.ports import DriverContext
from managers.cpu.containers import ContainerDriver
from managers.cpu.containers.docker_engine import DockerRefused, DockerUnavailable

#: As Podman 4.3.1 answers, shortened.
VERSION = {
    "Version": "4.3.1",
    "ApiVersion": "1.41",
    "MinAPIVersion": "1.24",
    "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}, {"Name": "Conmon"}],
}


class _Podman(BaseHTTPRequestHandler):
    """Answers every question with what it is."""

    def do_GET(self) -> None:
        body = json.dumps(VERSION if self.path.endswith("/version") else {}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "a unix socket"

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[Path]:
    """The socket of an engine that calls itself Podman."""
    place = tmp_path / "podman.sock"
    with ThreadingUnixStreamServer(str(place), _Podman) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield place
        server.shutdown()
        thread.join()


def a_driver(socket: Path, directory: Path) -> ContainerDriver:
    settings = {"docker_host": f"unix://{socket}", "docker_image": "swe:1"}
    return ContainerDriver(DriverContext("n1", directory, {}, settings))


async def test_podman_is_refused_with_the_reason(podman: Path, tmp_path: Path) -> None:
    with pytest.raises(DockerRefused, match="is Podman: its API keeps no attached shell"):
        await a_driver(podman, tmp_path / "state").open()


async def test_an_engine_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DockerUnavailable, match=r"missing\.sock"):
        await a_driver(tmp_path / "missing.sock", tmp_path / "state").open()


async def test_a_refused_driver_leaves_its_lock(podman: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(DockerRefused):
            await a_driver(podman, tmp_path / "state").open()

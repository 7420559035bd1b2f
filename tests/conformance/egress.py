"""The rules of ``network: egress`` as tests: derive from `EgressConformance` and fill in the top.

A driver under these tests must run ``python3``. Names are resolved by a stand-in, to servers on loopback.
"""

from __future__ import annotations

import contextlib
import ensurepip
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec, ExecSpec, Outcome
from domain.confinement import NETWORK_EGRESS
from domain.egress import EgressRules
from domain.ports import Driver, ExecResult, Proxying, RunReport
from managers.cpu.egress.gateway import PORT
from managers.cpu.egress.proxy import EgressProxy, Resolve, is_public
from managers.cpu.egress.usage import EgressUsage
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.egress_origin import NAME, Origin, a_certificate, a_python_index

PYTHON = "/usr/bin/python3"
#: Prints what a URL answers, as far as it arrives.
FETCH = """
import http.client, sys, urllib.error, urllib.request
try:
    body = urllib.request.urlopen(sys.argv[1], timeout=60).read()
except urllib.error.HTTPError as error:
    body = error.read()
except http.client.IncompleteRead as error:
    body = error.partial
sys.stdout.buffer.write(body)
"""
DIRECT = """
import socket, sys
for address in (("127.0.0.1", %d), ("192.0.2.1", 80), ("169.254.169.254", 80)):
    try:
        socket.create_connection(address, 3).close()
        print("reached", address)
    except OSError as error:
        print(error.strerror)
"""

CHANGE = """
import fcntl, socket, struct
try:
    fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 0))
    print("changed")
except OSError as error:
    print(error.strerror)
"""
TWO_CONNECTIONS = """
import socket
first = socket.create_connection(("127.0.0.1", 3128))
first.sendall(b"CONNECT {target} HTTP/1.1\\r\\n\\r\\n")
assert b" 200 " in first.recv(1000)
second = socket.create_connection(("127.0.0.1", 3128))
second.sendall(b"GET http://{target}/word HTTP/1.1\\r\\n\\r\\n")
print(second.recv(1000).decode().splitlines()[0])
"""


class ProxyingDriver(Driver, Proxying, Protocol):
    """A driver with a proxy."""


class Door:
    """A driver whose proxy finds every name on loopback, and the commands that it runs."""

    def __init__(self, make: Callable[[EgressProxy], ProxyingDriver]) -> None:
        #: Name → addresses; other names have none.
        self.names = {NAME: ["127.0.0.1"]}
        #: Loopback is allowed: the stand-ins are there.
        self.allowed = {"127.0.0.1"}
        self.resolver: Resolve = self._find
        self.usage = EgressUsage()
        self.proxy = EgressProxy(self.usage, self._resolve, self._may_reach)
        self.driver = make(self.proxy)
        self.rules = EgressRules()
        self._count = 0

    async def _resolve(self, host: str, port: int) -> list[str]:
        return await self.resolver(host, port)

    async def _find(self, host: str, port: int) -> list[str]:
        return self.names.get(host, [])

    def _may_reach(self, address: str) -> bool:
        return address in self.allowed or is_public(address)

    async def report(self, *command: str, network: str = NETWORK_EGRESS) -> RunReport:
        """Run a command in the environment."""
        self._count += 1
        spec = ExecSpec(command, env={"HOME": "/workspace"})
        order = an_order(name=f"act_{self._count}", spec=spec, timeout_seconds=300)
        environment = EnvironmentSpec(network=network)
        return await self.driver.run(
            replace(order, environment=environment, egress=self.rules), lambda: None
        )

    async def run(self, *command: str) -> ExecResult:
        """Run a command in the environment and return its result."""
        report = await self.report(*command)
        assert report.outcome is Outcome.COMPLETED, report
        assert report.result is not None
        return report.result

    async def fetch(self, origin: Origin, name: str = NAME) -> ExecResult:
        """Ask the stand-in for a word, through the proxy."""
        return await self.run(PYTHON, "-c", FETCH, f"http://{name}:{origin.port}/word")


@pytest.fixture
def origin() -> Iterator[Origin]:
    """A server without TLS."""
    origin = Origin()
    yield origin
    origin.close()


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Origin]:
    """A server with TLS."""
    origin = Origin(a_certificate(tmp_path))
    yield origin
    origin.close()


def naming(origin: Origin, **bounds: int) -> EgressRules:
    """Return rules that name the stand-in."""
    return EgressRules((f"{NAME}:{origin.port}",), **bounds)


def listening() -> list[int]:
    """Return the descriptors of this process that listen on the port of the proxy, in any network."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                address = one.getsockname()
                found += [int(name)] if address[1:2] == (PORT,) else []
    return found


class EgressConformance(ABC):
    """What every driver with egress networks must do."""

    @abstractmethod
    def make(self, proxy: EgressProxy) -> ProxyingDriver:
        """Return a driver that is not open, with this proxy."""

    @pytest.fixture
    async def door(self) -> AsyncIterator[Door]:
        """An open driver."""
        door = Door(self.make)
        await door.driver.open()
        yield door
        await door.driver.remove_environment(TRAJECTORY)
        await door.driver.close()

    async def test_an_allowed_host_is_reached_by_plain_http(
        self, door: Door, origin: Origin
    ) -> None:
        origin.files["/word"] = b"hello"
        door.rules = naming(origin)

        assert (await door.fetch(origin)).stdout == "hello"
        assert origin.asked == [("/word", f"{NAME}:{origin.port}")]

    async def test_nothing_is_reached_but_through_the_proxy(
        self, door: Door, origin: Origin
    ) -> None:
        door.rules = naming(origin)

        result = await door.run(PYTHON, "-c", DIRECT % origin.port)

        assert result.stdout.splitlines() == [
            "Connection refused", "Network is unreachable", "Network is unreachable",
        ]  # fmt: skip
        assert origin.asked == []

    async def test_the_command_cannot_change_its_network(self, door: Door, origin: Origin) -> None:
        door.rules = naming(origin)

        assert (await door.run(PYTHON, "-c", CHANGE)).stdout == "Operation not permitted\n"
        assert "CapEff:\t0000000000000000" in (await door.run("cat", "/proc/self/status")).stdout

    async def test_a_host_that_the_pool_does_not_name_is_refused_and_counted(
        self, door: Door, origin: Origin
    ) -> None:
        door.names["other.example.org"] = ["127.0.0.1"]
        door.rules = naming(origin)

        said = (await door.fetch(origin, name="other.example.org")).stdout

        assert "the pool's egress.hosts does not name it" in said
        assert origin.asked == []
        facts = door.usage.facts()
        assert (facts["connections"], facts["refused"]) == (0, 1)
        assert facts["last_refusals"][0]["target"] == f"other.example.org:{origin.port}"
        assert facts["last_refusals"][0]["environment"] == TRAJECTORY

    @pytest.mark.parametrize(
        "addresses",
        [
            ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["fd00:ec2::254"], ["224.0.0.1"], ["0.0.0.0"],
            ["93.184.216.34", "192.168.1.1"], ["::ffff:10.0.0.1"], ["64:ff9b::a00:1"], ["100.64.0.1"],
        ],
        ids=",".join,
    )  # fmt: skip
    async def test_an_allowed_name_at_a_private_address_is_refused(
        self, door: Door, origin: Origin, addresses: list[str]
    ) -> None:
        door.names[NAME] = addresses
        door.rules = naming(origin)

        assert "its address is not public" in (await door.fetch(origin)).stdout

    async def test_a_second_answer_of_dns_does_not_replace_the_checked_address(
        self, door: Door, origin: Origin
    ) -> None:
        """The name is resolved once for a connection, and the connection goes to what was checked."""
        asked: list[str] = []

        async def rebinding(host: str, port: int) -> list[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

        door.resolver = rebinding
        origin.files["/word"] = b"hello"
        door.rules = naming(origin)

        assert (await door.fetch(origin)).stdout == "hello"
        assert asked == [NAME]
        assert "its address is not public" in (await door.fetch(origin)).stdout

    async def test_the_bytes_of_an_environment_are_bounded_over_its_commands(
        self, door: Door, origin: Origin
    ) -> None:
        origin.files["/word"] = b"x" * 40_000
        door.rules = naming(origin, bytes=60_000)

        assert len((await door.fetch(origin)).stdout) == 40_000
        assert len((await door.fetch(origin)).stdout) < 40_000
        assert "has moved its 60000 bytes" in (await door.fetch(origin)).stdout

    async def test_the_connections_of_an_environment_are_bounded(
        self, door: Door, origin: Origin
    ) -> None:
        origin.files["/word"] = b"hello"
        door.rules = naming(origin, connections=1)
        script = TWO_CONNECTIONS.format(target=f"{NAME}:{origin.port}")

        assert "429 Too Many Requests" in (await door.run(PYTHON, "-c", script)).stdout

    async def test_a_network_without_rules_is_refused_by_the_node(self, door: Door) -> None:
        order = an_order("true")
        environment = EnvironmentSpec(network=NETWORK_EGRESS)

        report = await door.driver.run(replace(order, environment=environment), lambda: None)

        assert report.outcome is Outcome.INFRA_FAILED
        assert "egress.hosts" in str(report.detail)

    async def test_nothing_is_left_of_a_network_after_its_environment(
        self, door: Door, origin: Origin
    ) -> None:
        origin.files["/word"] = b"hello"
        door.rules = naming(origin)
        await door.fetch(origin)
        await door.driver.remove_environment(TRAJECTORY)

        assert listening() == []
        assert door.usage.facts()["open"] == 0

    async def test_pip_installs_through_a_tunnel(self, door: Door, secure: Origin) -> None:
        secure.files = a_python_index()
        door.rules = naming(secure)
        wheel = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
        await door.driver.put_file(TRAJECTORY, wheel.name, wheel.read_bytes())

        result = await door.run(
            PYTHON, f"/workspace/{wheel.name}/pip", "install", "--no-cache-dir", "--target", "lib",
            "--index-url", f"https://{NAME}:{secure.port}/simple", "--trusted-host", NAME, "tiny",
        )  # fmt: skip

        assert result.exit_code == 0, result
        code = "import sys; sys.path.insert(0, 'lib'); import tiny; print(tiny.WORD)"
        assert (await door.run(PYTHON, "-c", code)).stdout == "from the index\n"

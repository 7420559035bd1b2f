"""A port of an environment is reached in its own network, and no other port is."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from domain.errors import InvalidRequest, Unavailable
from domain.ports.networks import NoListener
from managers.cpu.egress.gateway import PORT as EGRESS_PORT
from managers.cpu.ports.connector import EnvironmentNetwork, PortConnector
from managers.cpu.ports.listeners import is_listener
from managers.cpu.process.bubblewrap import find_bubblewraps
from tests.conformance.isolations import isolations

SERVER = """
import socket, sys
made = socket.create_server((sys.argv[1], int(sys.argv[2])), family=
    socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print("listening", flush=True)
while True:
    one, _ = made.accept()
    one.sendall(sys.argv[3].encode())
    one.close()
"""
Start = Callable[..., EnvironmentNetwork]

pytestmark = pytest.mark.skipif(
    "bwrap" not in isolations(), reason="bubblewrap does not work on this machine"
)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a server in a network of its own (or that of the host)."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(
        address: str, port: int, text: str, *options: str, has_egress: bool = False
    ) -> EnvironmentNetwork:
        program = find_bubblewraps()[0].program
        command = [program, "--ro-bind", "/", "/", "--unshare-user", *options, "--proc", "/proc"]
        command += ["--dev", "/dev", sys.executable, "-c", SERVER, address, str(port), text]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        return EnvironmentNetwork(
            _innermost(process.pid), lambda: process.poll() is None,
            lambda: [process.pid, *_below(process.pid)], has_egress,
        )  # fmt: skip

    yield begin
    for process in running:
        for pid in _below(process.pid):
            with suppress(ProcessLookupError):  # it ended with one that was killed before it
                os.kill(pid, 9)
        process.kill()
        process.communicate()


def _below(pid: int) -> list[int]:
    try:
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _innermost(pid: int) -> int:
    return (_below(pid) or [pid])[-1]


@pytest.fixture
async def connector() -> AsyncIterator[PortConnector]:
    made = PortConnector()
    yield made
    made.close()


def answer(connected: socket.socket) -> bytes:
    connected.settimeout(10)
    with connected:
        return connected.recv(100)


async def test_equal_ports_of_two_environments_are_two_servers(
    connector: PortConnector, start: Start
) -> None:
    first = start("127.0.0.1", 8000, "first", "--unshare-net")
    second = start("0.0.0.0", 8000, "second", "--unshare-net", "--unshare-pid", "--disable-userns")
    for _ in range(3):
        assert answer(await connector.connect("a", first, 8000)) == b"first"
        assert answer(await connector.connect("b", second, 8000)) == b"second"


async def test_a_server_may_listen_on_the_other_loopback(
    connector: PortConnector, start: Start
) -> None:
    network = start("::1", 8000, "six", "--unshare-net")
    assert answer(await connector.connect("a", network, 8000)) == b"six"


async def test_a_port_of_the_host_is_not_reached_from_a_network_of_its_own(
    connector: PortConnector, start: Start
) -> None:
    network = start("127.0.0.1", 8000, "inside", "--unshare-net")
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        with pytest.raises(NoListener):
            await connector.connect("a", network, port)


async def test_an_environment_in_the_host_network_has_only_its_own_ports(
    connector: PortConnector, start: Start
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        free = found.getsockname()[1]
    network = start("127.0.0.1", free, "its own")
    assert answer(await connector.connect("a", network, free)) == b"its own"
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        with pytest.raises(NoListener, match="only its own ports"):
            await connector.connect("a", network, port)
        assert is_listener(port, [os.getpid()])
        assert not is_listener(port, network.processes())
    with pytest.raises(NoListener):
        await connector.connect("a", network, port)


async def test_a_port_that_another_process_shares_is_not_its_own(start: Start) -> None:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        second.bind(("127.0.0.1", port))
        first.listen()
        second.listen()
        held = is_listener(port, [os.getpid()])
        second_only = is_listener(port, [1])
    assert (held, second_only) == (True, False)


async def test_an_ended_environment_has_no_ports_and_leaves_no_helper(
    connector: PortConnector, start: Start
) -> None:
    network = start("127.0.0.1", 8000, "x", "--unshare-net")
    answer(await connector.connect("a", network, 8000))
    before = _helpers()
    connector.end("a")
    assert (len(before), _helpers()) == (1, [])
    dead = EnvironmentNetwork(network.pid, lambda: False, list)
    with pytest.raises(Unavailable, match="has ended"):
        await connector.connect("a", dead, 8000)
    assert _helpers() == []


async def test_an_idle_helper_ends_and_another_one_follows(start: Start) -> None:
    connector = PortConnector(idle_seconds=0.0)
    network = start("127.0.0.1", 8000, "x", "--unshare-net")
    assert answer(await connector.connect("a", network, 8000)) == b"x"
    async with asyncio.timeout(10):
        while _helpers():
            await asyncio.sleep(0.005)
    assert answer(await connector.connect("a", network, 8000)) == b"x"
    connector.close()


async def test_an_environment_that_was_started_again_is_reached_again(
    connector: PortConnector, start: Start
) -> None:
    first = start("127.0.0.1", 8000, "first", "--unshare-net")
    assert answer(await connector.connect("a", first, 8000)) == b"first"
    second = start("127.0.0.1", 8000, "second", "--unshare-net")
    assert answer(await connector.connect("a", second, 8000)) == b"second"
    assert len(_helpers()) == 1


async def test_the_proxy_of_the_node_is_no_port_of_the_environment(
    connector: PortConnector, start: Start
) -> None:
    network = start("127.0.0.1", EGRESS_PORT, "proxy", "--unshare-net", has_egress=True)
    with pytest.raises(InvalidRequest, match="proxy"):
        await connector.connect("a", network, EGRESS_PORT)


async def test_a_helper_has_no_rights_over_the_machine(
    connector: PortConnector, start: Start
) -> None:
    network = start("127.0.0.1", 8000, "x", "--unshare-net")
    answer(await connector.connect("a", network, 8000))
    [helper] = _helpers()
    status = Path(f"/proc/{helper}/status").read_text()
    if os.geteuid() == 0:
        assert "CapEff:\t0000000000000000" in status
        assert "Uid:\t65534" in status
    assert "NoNewPrivs:\t1" in status
    assert os.readlink(f"/proc/{helper}/ns/pid") == os.readlink("/proc/self/ns/pid")


def _helpers() -> list[int]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any("namespace_sockets" in word for word in child.cmdline()):
                found.append(child.pid)
    return found

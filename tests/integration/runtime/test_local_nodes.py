"""A node worker and the leader of its machine over the socket, each end by itself, beside a real Redis."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import redis

from domain.action import Outcome
from domain.codec import COMMANDS_FIELD, decode_command
from domain.events import ActionFinished
from domain.ids import ActionId
from domain.redis_keys import Keys
from scheduler.runtime.local_nodes import leader_side, node_side
from scheduler.runtime.local_nodes.leader_side import LocalNodes
from scheduler.runtime.node.reporter import Reporter
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.redis.connection import AsyncRedisConnection
from tests.redis_server import RedisServer

NEWEST = "9999999999999-0"


class Ends:
    """Both ends; the leader's is served between the steps of a test."""

    def __init__(self, path: Path, keys: Keys, client: redis.Redis, url: str) -> None:
        self.keys, self.redis = keys, client
        self.nodes = LocalNodes(path, keys)
        self.nodes.open()
        self._silent, self._other = socket.socketpair()
        self.client = connect_async(url)
        self.reporter = Reporter(self.client, keys, path)
        self.commands = AsyncRedisConnection(self.client)
        self.stream = keys.commands("n1", "identity")
        self.reported: list[str] = []
        self.settled: list[str] = []

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.nodes.wait(self._silent.fileno(), 0.001)
                self.reported += [_name(message) for message in self.nodes.reports()]
                await asyncio.sleep(0)

    def report(self, name: str) -> None:
        event = ActionFinished(action_id=ActionId(name), node="n1", outcome=Outcome.COMPLETED)
        self.reporter.report(event, lambda: self.settled.append(name))

    async def connect(self, settled_id: str = NEWEST) -> None:
        self.reporter.stream = self.stream
        await self.reporter.leader.tend()

        def opened() -> bool:
            self.nodes.committed(settled_id)
            return self.reporter.leader.is_open

        await self.until(opened)

    def inbox(self) -> list[str]:
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", self.redis.xrange(self.keys.inbox))
        return [_name(message) for _, fields in entries for message in fields.values()]

    def command(self, body: bytes, *, sent: bool = True) -> str:
        written = self.redis.xadd(self.stream, {COMMANDS_FIELD: body})
        entry_id = cast("bytes", written).decode()
        if sent:
            self.nodes.send([(self.stream, entry_id, body)])
        return entry_id

    async def read(self, after: str, count: int) -> list[bytes]:
        """Return ``count`` commands behind ``after``, as a node reads them."""
        bodies: list[bytes] = []
        while len(bodies) < count:
            found = await self.reporter.leader.next_commands(self.commands, self.stream, after)
            bodies += [fields[COMMANDS_FIELD] for _, fields in found]
            after = found[-1][0] if found else after
        return bodies

    async def end(self) -> None:
        self.nodes.close()
        self.commands.close()
        self._silent.close()
        self._other.close()
        await self.client.aclose()


def _name(message: bytes) -> str:
    event = decode_command(message)
    assert isinstance(event, ActionFinished)
    return event.action_id


@pytest.fixture
async def ends(
    tmp_path: Path, keys: Keys, redis_client: redis.Redis, runtime_redis: RedisServer
) -> AsyncIterator[Ends]:
    async with both(tmp_path / "s", keys, redis_client, runtime_redis.url) as ends:
        yield ends


@asynccontextmanager
async def both(path: Path, keys: Keys, client: redis.Redis, url: str) -> AsyncIterator[Ends]:
    ends = Ends(path, keys, client, url)
    serving = asyncio.create_task(ends.reporter.run())
    yield ends
    serving.cancel()
    await asyncio.wait({serving})
    await ends.end()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confirmations are not delayed."""
    monkeypatch.setattr(leader_side, "CONFIRM_SECONDS", 0.0)


async def test_a_report_is_settled_when_the_journal_has_it(ends: Ends, at_once: None) -> None:
    await ends.connect()
    ends.report("a")
    await ends.until(lambda: ends.reported)
    assert ends.settled == []
    ends.nodes.committed(NEWEST)
    await ends.until(lambda: ends.settled)
    assert (ends.reported, ends.settled, ends.inbox()) == (["a"], ["a"], [])


async def test_reports_without_a_confirmation_go_to_the_inbox_in_order(
    ends: Ends, at_once: None
) -> None:
    await ends.connect()
    ends.report("confirmed")
    await ends.until(lambda: ends.reported)
    ends.nodes.committed(NEWEST)
    await ends.until(lambda: ends.settled)
    ends.report("taken")
    await ends.until(lambda: len(ends.reported) == 2)
    ends.nodes.close()
    ends.report("later")
    await ends.until(lambda: len(ends.settled) == 3)
    assert ends.inbox() == ["taken", "later"]
    assert ends.settled == ["confirmed", "taken", "later"]


async def test_reports_of_the_inbox_are_settled_before_those_of_the_socket(ends: Ends) -> None:
    ends.report("first")
    await ends.until(lambda: ends.settled)
    ends.reporter.stream = ends.stream
    await ends.reporter.leader.tend()
    ends.report("second")
    rounds = iter(range(20))

    def tried() -> bool:
        ends.nodes.committed("0-0")
        return next(rounds, None) is None

    await ends.until(tried)
    assert not ends.reporter.leader.is_open
    await ends.connect()
    await ends.until(lambda: ends.reported)
    assert (ends.inbox(), ends.reported) == (["first"], ["second"])


async def test_a_leader_that_takes_no_reports_is_left(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_side, "OPEN_WITHIN_SECONDS", 0.01)
    ends.reporter.stream = ends.stream
    await ends.reporter.leader.tend()
    ends.report("a")
    await ends.until(lambda: ends.settled)
    assert (ends.inbox(), ends.reporter.leader.is_connected) == (["a"], False)


async def test_a_leader_that_confirms_nothing_is_left(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_side, "CONFIRM_WITHIN_SECONDS", -1.0)
    await ends.connect()
    ends.report("a")
    await ends.until(lambda: ends.reported)
    await ends.reporter.leader.tend()
    await ends.until(lambda: ends.settled)
    assert ends.inbox() == ["a"]


async def test_commands_arrive_once_and_in_order_whichever_way_they_come(ends: Ends) -> None:
    bodies = [b"before", b"sent", b"missed", b"behind it", b"x" * (2 * leader_side.MOST_BODY_BYTES)]
    ends.command(bodies[0], sent=False)
    await ends.connect()
    ends.command(bodies[1])
    ends.command(bodies[2], sent=False)
    ends.command(bodies[3])
    last = ends.command(bodies[4])
    assert await ends.read("0-0", 5) == bodies
    ends.command(b"alone")
    assert await ends.read(last, 1) == [b"alone"]


async def test_a_command_of_another_leader_is_read_with_the_next_heartbeat(ends: Ends) -> None:
    await ends.connect()
    reading = asyncio.create_task(ends.read("0-0", 1))
    ends.command(b"by another", sent=False)
    async with asyncio.timeout(60):
        while not reading.done():
            await ends.reporter.leader.tend()
            await asyncio.sleep(0)
    assert await reading == [b"by another"]


async def test_a_node_that_connects_again_replaces_its_connection(ends: Ends) -> None:
    await ends.connect()
    ends.reporter.leader.close("a test ends it")
    await ends.connect()
    ends.command(b"sent")
    assert await ends.read("0-0", 1) == [b"sent"]
    assert len(ends.nodes._nodes) == 1


async def test_what_is_no_frame_ends_the_connection(ends: Ends, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(tmp_path / "s"))
        stranger.send(b"\0\0\0\x03abc")
        stranger.setblocking(False)

        def ended() -> bool:
            try:
                return stranger.recv(10) == b""
            except BlockingIOError:
                return False

        await ends.until(ended)


async def test_a_path_that_is_too_long_leaves_redis(keys: Keys, tmp_path: Path) -> None:
    nodes = LocalNodes(tmp_path / ("x" * 120), keys)
    nodes.open()
    assert not nodes.is_open


async def test_a_node_that_reads_nothing_is_left_at_once(ends: Ends) -> None:
    await ends.connect()
    ends.report("a")
    await ends.until(lambda: ends.reported)
    (node,) = ends.nodes._nodes.values()
    node.connection.shutdown(socket.SHUT_RDWR)
    ends.nodes.committed(NEWEST)  # a confirmation goes with the next command
    body = b"x"
    ends.nodes.send([(ends.stream, "1-1", body), (ends.stream, "2-1", body)])
    assert ends.nodes._nodes == {}
    await ends.until(lambda: ends.settled)
    assert ends.inbox() == ["a"]

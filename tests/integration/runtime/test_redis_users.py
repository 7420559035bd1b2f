"""Parts with Redis users of their own: a whole system works with them, Redis logs no refusal, and a node is refused what is not its own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from domain.action import Action, Kind, Outcome
from domain.codec import encode
from domain.confirmation import Confirmation
from domain.dead_letters import decode_letter
from domain.errors import Conflict
from domain.event_base import EventBase
from domain.events import ActionFinished, ActionSubmitted
from domain.ids import ActionId
from domain.redis_access import RedisRole, acl_line, user_name
from domain.redis_grants import grants_of
from domain.redis_keys import Keys
from managers.cpu.fake import FakeDriver
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.node_access import NodeAccessKeeper
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.redis.confirmation import NotConfirmed
from tangram_web.pools import node_access
from tests.integration.runtime.rig import LoopThread, Rig
from tests.redis_server import RedisServer

KEYS = Keys("acl")
PASSWORD = "of-a-test"
NODES = ("n1", "n2")
EXEC = {"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["true"]}}


def has_binding(client: redis.Redis) -> bool:
    """Whether the worker of a node waits at its queue of Celery."""
    return bool(client.exists(f"{KEYS.prefix}:jobs:_kombu.binding.node"))


class GuardedRedis(RedisServer):
    """A Redis with an aclfile; the default user is that of the test itself."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        users: list[tuple[RedisRole, str]] = [(RedisRole.NODE, node) for node in NODES]
        users += [(role, "") for role in RedisRole if role is not RedisRole.NODE]
        lines = [
            acl_line(user_name(KEYS, role, node), PASSWORD, grants_of(role, KEYS, node))
            for role, node in users
        ]
        directory.mkdir(parents=True, exist_ok=True)
        default = "user default on nopass ~* &* +@all"
        (directory / "users.acl").write_text("\n".join([default, *lines, ""]))

    def url_of(self, role: RedisRole, node: str = "") -> str:
        """Return the address for the user of a role."""
        return f"unix://{user_name(KEYS, role, node)}:{PASSWORD}@{self.socket}"

    def refusals(self) -> list[str]:
        """Return what Redis refused: user, command, and key or channel."""
        with self.client() as client:
            found: Any = client.acl_log()
        return [f"{each['username']} {each['reason']} {each['object']}" for each in found]

    def _options(self) -> list[str]:
        return [*super()._options(), "--aclfile", str(self.directory / "users.acl")]


class GuardedRig(Rig):
    """A system whose parts have users of their own, and a second node that is taken over."""

    def __init__(self, server: GuardedRedis, directory: Path) -> None:
        node, web = server.url_of(RedisRole.NODE, "n1"), server.url_of(RedisRole.WEB)
        super().__init__(server.url, KEYS, directory, node, web)
        self.server = server
        self.second = redis.Redis.from_url(server.url_of(RedisRole.NODE, "n2"))

    def start_loop(self) -> LoopThread:
        """Start a loop."""
        self.loop = LoopThread(self.server.url_of(RedisRole.LOOP), KEYS)
        return self.loop

    def forge(self, *events: EventBase) -> None:
        """Report something as the second node."""
        self.second.sadd(KEYS.reporting_nodes, "n2", b"\xff")
        self.second.xadd(
            KEYS.reports("n2"), {str(n): encode(each) for n, each in enumerate(events)}
        )

    async def until_collected(self) -> None:
        """Wait until the leader has taken what the second node reported."""
        async with asyncio.timeout(120):
            while self.redis.xlen(KEYS.reports("n2")):
                await asyncio.sleep(0.005)

    def close(self) -> None:
        self.second.close()
        super().close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    server = GuardedRedis(tmp_path_factory.mktemp("acl"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def rig(guarded: GuardedRedis, tmp_path: Path) -> AsyncIterator[GuardedRig]:
    with guarded.client() as client:
        client.flushall()
        client.acl_log_reset()
    made = GuardedRig(guarded, tmp_path)
    made.start_loop()
    await made.start_node()
    yield made
    await made.end()


async def test_actions_end_are_cancelled_and_have_files_and_redis_refuses_nothing(
    rig: GuardedRig,
) -> None:
    body = EXEC | {"trajectory": "trj-1"}
    endless = EXEC | {"exec": {"command": ["sleep", "600"]}}
    async with rig.client() as client:
        done = (await client.post("/actions?wait=60", json=body)).json()
        put = await client.put("/trajectories/trj-1/files/a", content=b"1")
        got = await client.get("/trajectories/trj-1/files/a")
        running = (await client.post("/actions", json=endless)).json()["id"]
        await rig.until_started(running)
        await client.post(f"/actions/{running}/cancel")
        cancelled = (await client.get(f"/actions/{running}?wait=60")).json()
        node = (await client.get("/status")).status_code
    assert done["outcome"] == "completed"
    assert (put.status_code, got.content) == (201, b"1")
    assert cancelled["outcome"] == "cancelled"
    assert node == 200
    assert rig.server.refusals() == []


async def test_a_node_that_ends_in_order_withdraws_its_door(rig: GuardedRig) -> None:
    assert rig.redis.exists(KEYS.node_door("n1"), KEYS.snapshot_door("n1")) == 2
    assert rig.redis.hlen(KEYS.node_doors) == 0
    await rig.stop_node()
    assert rig.redis.exists(KEYS.node_door("n1"), KEYS.snapshot_door("n1")) == 0
    assert rig.server.refusals() == []


async def test_reports_wait_for_a_leader_and_arrive_once(rig: GuardedRig) -> None:
    async with rig.client() as client:
        body = EXEC | {"exec": {"command": ["sleep", "600"]}}
        action = (await client.post("/actions", json=body)).json()["id"]
        await rig.until_started(action)
        assert rig.loop is not None
        rig.loop.stop()
        await rig.end_action(action)
        async with asyncio.timeout(120):
            while not rig.redis.xlen(KEYS.reports("n1")):
                await asyncio.sleep(0.005)
        rig.start_loop()
        view = (await client.get(f"/actions/{action}?wait=60")).json()
    assert view["outcome"] == "completed"
    assert rig.redis.xlen(KEYS.reports("n1")) == 0
    assert rig.server.refusals() == []


async def test_the_end_that_a_node_reports_of_an_action_of_another_node_is_ignored(
    rig: GuardedRig,
) -> None:
    """It names the other node, then itself: the first is refused as it arrives, the second is not of the node of the action."""
    async with rig.client() as client:
        body = EXEC | {"exec": {"command": ["sleep", "600"]}}
        action = (await client.post("/actions", json=body)).json()["id"]
        await rig.until_started(action)
        ends = [
            ActionFinished(action_id=ActionId(action), node=node, outcome=Outcome.COMPLETED)
            for node in NODES
        ]
        rig.forge(*ends)
        await rig.until_collected()
        assert (await client.get("/status")).status_code == 200
        after = (await client.get(f"/actions/{action}")).json()
        await rig.end_action(action)
        own = (await client.get(f"/actions/{action}?wait=60")).json()
    assert after["state"] == "running"
    assert own["outcome"] == "completed"
    assert rig.loop is not None
    assert rig.loop.loop.stats.refused_reports == 1


async def test_a_node_cannot_submit_actions(
    rig: GuardedRig, caplog: pytest.LogCaptureFixture
) -> None:
    action = Action(
        id=ActionId("act_0"), project="default", task="t", pool="default", kind=Kind.NOOP
    )
    rig.forge(ActionSubmitted(action=action))
    await rig.until_collected()
    assert rig.loop is not None
    assert rig.loop.loop.stats.refused_reports == 1
    assert "refused 1 reports of node n2" in caplog.text
    async with rig.client() as client:
        assert (await client.get("/actions/act_0")).status_code == 404


async def test_a_report_that_cannot_be_read_is_set_aside_if_it_names_its_sender(
    rig: GuardedRig,
) -> None:
    unknown = {"event": "OfALaterVersion", "node": "n2"}
    rig.second.sadd(KEYS.reporting_nodes, "n2")
    for node in NODES:
        rig.second.xadd(KEYS.reports("n2"), {"0": msgspec.msgpack.encode(unknown | {"node": node})})
    async with asyncio.timeout(120):
        while not rig.redis.hlen(KEYS.dead_letters):
            await asyncio.sleep(0.005)
    await rig.until_collected()
    letters: Any = rig.redis.hvals(KEYS.dead_letters)
    assert [decode_letter(each).kind for each in letters] == ["OfALaterVersion"]


async def test_a_node_worker_runs_with_the_user_of_its_name(
    rig: GuardedRig, tmp_path: Path
) -> None:
    """The whole process, with its queue of Celery, and with what it got when it joined."""
    command = [
        sys.executable, "-m", "celery", "-A", "tangram_web.celery", "--skip-checks", "worker", "-Q", "node",
        "-n", "n2@%h", "-P", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat",
    ]  # fmt: skip
    environment = os.environ | {
        "TANGRAM_ROLE": "node", "TANGRAM_HOME": str(tmp_path / "home"), "TANGRAM_NODE": "n2",
        "TANGRAM_JOIN": "https://tangram.example",
        "TANGRAM_NODE_CPUS": "1", "TANGRAM_NODE_ISOLATION": "process", "TANGRAM_NODE_GPUS": "0",
    }  # fmt: skip
    admission = {
        "node": "n2", "pool": "", "isolation": "", "key_prefix": KEYS.prefix, "user": user_name(KEYS, RedisRole.NODE, "n2"),
        "redis": {"url": f"unix://{rig.server.socket}", "ca": ""},
    }  # fmt: skip
    joined = {"token_sha256": "", "password": PASSWORD, "admission": admission}
    folder = tmp_path / "home" / "nodes" / "n2"
    folder.mkdir(parents=True)
    (folder / "joined.json").write_text(json.dumps(joined))
    with (tmp_path / "node.log").open("wb") as log:
        worker = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(180):
            while not (rig.redis.exists(KEYS.node_door("n2")) and has_binding(rig.redis)):
                assert worker.returncode is None, (tmp_path / "node.log").read_text()
                await asyncio.sleep(0.05)
    finally:
        if worker.returncode is None:
            worker.terminate()
        await worker.wait()
    assert rig.server.refusals() == []


@pytest.fixture
async def access(guarded: GuardedRedis, rig: GuardedRig, settings: Any) -> AsyncIterator[None]:
    """The keeper of node access, and a web process with its user."""
    settings.TANGRAM_REDIS_URL = guarded.url_of(RedisRole.WEB)
    settings.TANGRAM_KEY_PREFIX = KEYS.prefix
    client = connect_async(guarded.url_of(RedisRole.ACCESS))
    keeping = asyncio.create_task(
        NodeAccessKeeper(client, KEYS, pass_seconds=0.02, compare_seconds=0.02).run()
    )
    async with asyncio.timeout(60):
        while not rig.redis.exists(KEYS.access_keeper):
            await asyncio.sleep(0.005)
    yield
    keeping.cancel()
    await asyncio.wait({keeping})
    await client.aclose()
    rig.redis.acl_load()


def is_admitted(url: str) -> bool:
    """Whether a user of Redis has this password."""
    with redis.Redis.from_url(url) as client, suppress(redis.AuthenticationError):
        return bool(client.ping())
    return False


def revoke(node: str) -> bool:
    return node_access.is_deleted(node, node_access.fence(node))


def digest(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


async def test_a_revoked_node_writes_nothing_and_its_actions_end_once_and_run_again_where_they_may(
    rig: GuardedRig, access: None
) -> None:
    endless = EXEC | {"exec": {"command": ["sleep", "600"]}}
    own = rig.server.url_of(RedisRole.NODE, "n1")
    connected = redis.Redis.from_url(own, retry=None)
    connected.set(KEYS.alive("n1"), 1)
    async with rig.client() as client:
        lost = (await client.post("/actions", json=endless)).json()["id"]
        again = (await client.post("/actions", json=endless | {"replay_safe": True})).json()["id"]
        for each in (lost, again):
            await rig.until_started(each)
        assert await asyncio.to_thread(revoke, "n1")
        with pytest.raises(redis.ConnectionError):
            connected.xadd(KEYS.reports("n1"), {"0": b""})
        with pytest.raises(redis.AuthenticationError):
            connected.xadd(KEYS.reports("n1"), {"0": b""})
        ended = (await client.get(f"/actions/{lost}?wait=60")).json()
        assert (ended["outcome"], ended["detail"]) == ("unknown", "node n1 was revoked")
        assert (await client.get(f"/actions/{again}")).json()["state"] == "queued"
        # What it finishes now, it can tell no one; nor does what others write in its place pass.
        rig.redis.sadd(KEYS.reporting_nodes, "n1")
        late = ActionFinished(action_id=ActionId(again), node="n1", outcome=Outcome.COMPLETED)
        rig.redis.xadd(KEYS.reports("n1"), {"0": encode(late)})
        rig.forge(ActionFinished(action_id=ActionId("act_0"), node="n2", outcome=Outcome.UNKNOWN))
        await rig.until_collected()
        assert rig.redis.xlen(KEYS.reports("n1")) == 1
        await rig.stop_node()
        with pytest.raises(Conflict, match="an operator made"):
            await asyncio.to_thread(node_access.admit, "n2", digest("its-own"))
        await asyncio.to_thread(node_access.admit, "n1", digest("its-own"))
        await asyncio.to_thread(node_access.admit, "n1", digest("its-own"))
        with pytest.raises(Conflict, match="node n1 has joined already"):
            await asyncio.to_thread(node_access.admit, "n1", digest("of another"))
        assert rig.redis.exists(KEYS.reports("n1")) == 0
        rig.node_url = own.replace(PASSWORD, "its-own")
        rig.driver = FakeDriver(rig.driver.script)
        await rig.start_node()
        await rig.end_action(again)
        done = (await client.get(f"/actions/{again}?wait=60")).json()
        after = (await client.get(f"/actions/{lost}")).json()
    connected.close()
    assert (done["outcome"], after["outcome"]) == ("completed", "unknown")
    refused = [each.split()[0] for each in rig.server.refusals()]
    assert not {user_name(KEYS, each) for each in RedisRole}.intersection(refused)


async def test_an_aclfile_gives_no_node_its_former_password_back(
    rig: GuardedRig, access: None
) -> None:
    assert await asyncio.to_thread(revoke, "n2")
    await asyncio.to_thread(node_access.admit, "n2", digest("its-own"))
    rig.redis.acl_load()
    own = rig.server.url_of(RedisRole.NODE, "n2").replace(PASSWORD, "its-own")
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(is_admitted, own):
            await asyncio.sleep(0.005)
    assert not is_admitted(rig.server.url_of(RedisRole.NODE, "n2"))


FOREIGN: list[tuple[str, Callable[[redis.Redis], object]]] = [
    ("reading the commands of another node", lambda n: n.xrange(KEYS.commands("n1", "i"))),
    ("writing commands to another node", lambda n: n.xadd(KEYS.commands("n1", "i"), {"c": b""})),
    ("writing commands to itself", lambda n: n.xadd(KEYS.commands("n2", "i"), {"c": b""})),
    ("reporting as another node", lambda n: n.xadd(KEYS.reports("n1"), {"0": b""})),
    ("reading the reports of another node", lambda n: n.xrange(KEYS.reports("n1"))),
    ("a sign of life of another node", lambda n: n.set(KEYS.alive("n1"), 1)),
    ("reading the door of another node", lambda n: n.get(KEYS.node_door("n1"))),
    ("replacing the door of another node", lambda n: n.set(KEYS.node_door("n1"), b"")),
    ("replacing the snapshot door of another node", lambda n: n.set(KEYS.snapshot_door("n1"), b"")),
    ("reading all doors", lambda n: n.hgetall(KEYS.node_doors)),
    ("writing the inbox", lambda n: n.xadd(KEYS.inbox, {"0": b""})),
    ("reading the inbox", lambda n: n.xrange(KEYS.inbox)),
    ("emptying the inbox", lambda n: n.delete(KEYS.inbox)),
    ("asking the leader", lambda n: n.xadd(KEYS.questions, {"0": b""})),
    ("reading the journal", lambda n: n.xrange(KEYS.journal)),
    ("writing the journal", lambda n: n.xadd(KEYS.journal, {"e": b""})),
    ("reading the configuration", lambda n: n.get(KEYS.config)),
    ("writing the configuration", lambda n: n.set(KEYS.config, b"")),
    ("reading the snapshot", lambda n: n.get(KEYS.snapshot)),
    ("raising the epoch", lambda n: n.incr(KEYS.epoch)),
    ("reading dead letters", lambda n: n.hgetall(KEYS.dead_letters)),
    ("deleting signs of life", lambda n: n.delete(KEYS.workers)),
    ("removing nodes from those that report", lambda n: n.srem(KEYS.reporting_nodes, "n1")),
    ("reading streamed responses", lambda n: n.xrange(KEYS.response_stream("act_0"))),
    ("enqueuing jobs", lambda n: n.lpush(f"{KEYS.prefix}:jobs:jobs", b"")),
    ("running scripts", lambda n: n.eval("return redis.call('GET', KEYS[1])", 1, KEYS.config)),
    ("listening to replies", lambda n: n.execute_command("SUBSCRIBE", KEYS.replies("web"))),
    ("naming all keys", lambda n: n.keys()),
    ("the secret of facades", lambda n: n.get(KEYS.facade_secret)),
    ("changing settings", lambda n: n.config_set("appendonly", "no")),
    ("reading settings", lambda n: n.config_get("dir")),
    ("making users", lambda n: n.acl_setuser("other", enabled=True)),
    ("ending connections of others", lambda n: n.client_kill_filter(_id="1")),
    ("following keys", lambda n: n.execute_command("CLIENT", "TRACKING", "ON", "BCAST")),
    ("storing scripts", lambda n: n.script_load("return 1")),
    ("watching all commands", lambda n: n.execute_command("MONITOR")),
    ("deleting all", lambda n: n.flushall()),
]


@pytest.mark.parametrize(
    "attempt", [each for _, each in FOREIGN], ids=[name for name, _ in FOREIGN]
)
def test_a_node_is_refused(guarded: GuardedRedis, attempt: Callable[[redis.Redis], object]) -> None:
    with (
        redis.Redis.from_url(guarded.url_of(RedisRole.NODE, "n2")) as node,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        attempt(node)


@pytest.mark.parametrize("role", [RedisRole.WEB, RedisRole.ROLLOUT, RedisRole.PROJECTOR])
def test_only_loops_write_the_journal(guarded: GuardedRedis, role: RedisRole) -> None:
    with redis.Redis.from_url(guarded.url_of(role)) as part:
        assert part.xrange(KEYS.journal, count=1) is not None
        with pytest.raises(redis.exceptions.NoPermissionError):
            part.xadd(KEYS.journal, {"e": b""})
        with pytest.raises(redis.exceptions.NoPermissionError):
            part.xadd(KEYS.commands("n1", "i"), {"c": b""})


def test_the_monitoring_reads_lengths_and_no_message(guarded: GuardedRedis) -> None:
    with redis.Redis.from_url(guarded.url_of(RedisRole.MONITORING)) as monitoring:
        assert monitoring.xlen(KEYS.inbox) >= 0
        assert isinstance(monitoring.info("memory"), dict)
        with pytest.raises(redis.exceptions.NoPermissionError):
            monitoring.xrange(KEYS.inbox)
        with pytest.raises(redis.exceptions.NoPermissionError):
            monitoring.set(KEYS.leader, b"")


def test_users_may_hold_release_and_wait_for_replicas(guarded: GuardedRedis) -> None:
    one = Confirmation(replicas=1, milliseconds=1)
    with redis.Redis.from_url(guarded.url_of(RedisRole.LOOP)) as client:
        leader = Leadership(client, Keys(KEYS.prefix), "confirmed", confirmation=one)
        client.delete(KEYS.leader)
        assert leader.try_elect()
        with pytest.raises(NotConfirmed):
            leader.commit(b"entry", "0-0", [(KEYS.commands("n1", "i"), b"order")])
        leader.confirmation = Confirmation()
        leader.release_held()
        assert client.xlen(KEYS.journal) > 0
        assert not client.exists(KEYS.held)
    with redis.Redis.from_url(guarded.url_of(RedisRole.WEB)) as client:
        client.set(KEYS.barrier, 1)
        assert client.wait(1, 1) == 0

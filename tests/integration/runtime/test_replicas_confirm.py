"""What is answered, shown or forgotten is on a replica before, where replicas must confirm it (decision 0333)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from contract.batch_views import BatchManifest
from domain.action import Action, Kind, Outcome
from domain.codec import encode
from domain.confirmation import Confirmation
from domain.errors import Unavailable
from domain.events import ActionFinished, ActionSubmitted
from domain.ids import ActionId
from domain.redis_keys import Keys
from domain.snapshots import SnapshotFacts
from scheduler.runtime.batches.batch_store import BatchStore
from scheduler.runtime.gateway.submitter import Submitter
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.node.commands import save_position
from scheduler.runtime.node.reporter import Reporter
from scheduler.runtime.redis.clients import connect, connect_async
from scheduler.runtime.redis.confirmation import ConfirmedCalls, NotConfirmed, reason_of
from scheduler.runtime.redis.facade_records import FacadeRecords, TimedRecords
from scheduler.runtime.redis.image_registry import ImageRegistry, StoredImage
from scheduler.runtime.redis.journal import START, Journal
from scheduler.runtime.redis.snapshot_registry import SnapshotRegistry
from tangram_web.lib.redis_replication import RedisReplication, read_replication, why_refused
from tests.integration.runtime.rig import LoopThread, Rig
from tests.redis_replica import ReplicatedRedis
from tests.redis_server import RedisServer

ONE = Confirmation(replicas=1, milliseconds=100)
#: A busy machine may be late.
PATIENT = Confirmation(replicas=1, milliseconds=60_000)
STREAM = "stream-of-a-node"


@pytest.fixture(scope="module")
def both_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedRedis]:
    both = ReplicatedRedis(tmp_path_factory.mktemp("b")).start()
    yield both
    both.stop()


@pytest.fixture
def servers(both_servers: ReplicatedRedis) -> Iterator[ReplicatedRedis]:
    yield both_servers
    both_servers.resume()


@pytest.fixture
def client(servers: ReplicatedRedis) -> Iterator[redis.Redis]:
    with connect(servers.master.url) as client:
        yield client


@asynccontextmanager
async def submitting(
    server: RedisServer, keys: Keys, confirmation: Confirmation
) -> AsyncIterator[Submitter]:
    client = connect_async(server.url)
    submitter = Submitter(client, keys, confirmation=confirmation)
    serving = asyncio.ensure_future(submitter.run())
    yield submitter
    serving.cancel()
    await asyncio.wait({serving})
    await client.aclose()


def leader(client: redis.Redis, keys: Keys, name: str, confirmation: Confirmation) -> Leadership:
    leads = Leadership(client, keys, name, confirmation=confirmation)
    client.delete(keys.leader)
    assert leads.try_elect()
    return leads


def shown(client: redis.Redis, stream: str) -> list[tuple[bytes, bytes]]:
    """Return ids and bodies of a stream, as its readers see them."""
    entries = cast("list[Any]", client.xrange(stream))
    return [(entry_id, next(iter(fields.values()))) for entry_id, fields in entries]


async def test_a_request_is_accepted_once_a_replica_has_it(
    servers: ReplicatedRedis, keys: Keys, client: redis.Redis
) -> None:
    servers.pause()
    key = keys.idempotency("p", "k")
    async with submitting(servers.master, keys, ONE) as submitter:
        for messages in ([b"with a key"], [b"repeated"]):
            with pytest.raises(Unavailable, match="0 of 1 replicas of Redis have confirmed"):
                await submitter.append(messages, key=key, remember=b"first")
        with pytest.raises(Unavailable):
            await submitter.append([b"without"])
    # Another process wrote nothing itself on its connection, and answers no earlier.
    async with submitting(servers.master, keys, ONE) as other:
        with pytest.raises(Unavailable):
            await other.append([b"repeated"], key=key, remember=b"second")
    servers.resume()
    async with submitting(servers.master, keys, PATIENT) as submitter:
        assert await submitter.append([b"repeated"], key=key, remember=b"third") == b"first"
    assert [body for _, body in shown(client, keys.inbox)] == [b"with a key", b"without"]


async def test_requests_that_arrive_together_share_one_confirmation(
    servers: ReplicatedRedis, keys: Keys, client: redis.Redis
) -> None:
    def waits() -> int:
        found = cast("Any", client.info("commandstats")).get("cmdstat_wait", {"calls": 0})
        return int(found["calls"])

    before = waits()
    async with submitting(servers.master, keys, PATIENT) as submitter:
        await asyncio.gather(*(submitter.append([b"m"]) for _ in range(100)))
    assert waits() - before <= 2


async def test_a_master_without_enough_replicas_refuses_with_a_reason(
    servers: ReplicatedRedis, keys: Keys, client: redis.Redis
) -> None:
    client.config_set("min-replicas-to-write", 2)
    try:
        async with submitting(servers.master, keys, ONE) as submitter:
            with pytest.raises(Unavailable, match="fewer replicas follow it than its min-rep"):
                await submitter.append([b"m"])
            with pytest.raises(Unavailable, match="start its replicas"):  # inside a script
                await submitter.append([b"m"], key=keys.idempotency("p", "k"), remember=b"first")
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert not client.exists(keys.inbox)


async def test_a_submission_gets_503_with_the_reason_while_redis_refuses_writes(
    servers: ReplicatedRedis, keys: Keys, client: redis.Redis, tmp_path: Path
) -> None:
    rig = Rig(servers.master.url, keys, tmp_path)
    rig.loop = LoopThread(rig.url, keys)
    noop = {"task": "t", "kind": "noop"}
    async with rig.client() as http:
        accepted = await http.post("/actions", json=noop)
        client.config_set("min-replicas-to-write", 2)
        try:
            refused = await http.post("/actions", json=noop)
        finally:
            client.config_set("min-replicas-to-write", 0)
        again = await http.post("/actions", json=noop)
    await rig.end()
    assert [each.status_code for each in (accepted, refused, again)] == [202, 503, 202]
    assert refused.headers["retry-after"] == "1"
    assert "min-replicas-to-write" in refused.json()["detail"]


FACTS = SnapshotFacts(name="s", project="p", node="n1", trajectory="t", size_bytes=1, made_at=1.0)
BATCH = BatchManifest(
    id="bat_1", project="p", created_at="", expires_at="", ranks=1, owners=[], rows=[], left_out=[], tokens=0,
    bytes=0, weights_versions=None,
)  # fmt: skip
#: What a web process answers a client with after a write of its own.
WRITES: dict[str, Callable[[Any, Keys, ConfirmedCalls], Awaitable[object]]] = {
    "secret": lambda c, k, made: FacadeRecords(c, k, "d", made).secret(),
    "put": lambda c, k, made: FacadeRecords(c, k, "d", made).put("p", "n", {}),
    "add": lambda c, k, made: FacadeRecords(c, k, "d", made).add("p", "n", {}),
    "remove": lambda c, k, made: FacadeRecords(c, k, "d", made).remove("p", "n"),
    "timed": lambda c, k, made: TimedRecords(c, k, "d", made).add("p", "n", {}, 9),
    "replace": lambda c, k, made: TimedRecords(c, k, "d", made).replace("p", "n", {}, {}, 9),
    "end": lambda c, k, made: TimedRecords(c, k, "d", made).remove("p", "n", {}),
    "note": lambda c, k, made: TimedRecords(c, k, "d", made).note(["w"], 9),
    "batch": lambda *made: BatchStore(*made).put(BATCH, 1.0, 2.0**40),
    "key of a batch": lambda *made: BatchStore(*made).first_of("p", "k", "bat_1", "d", 9),
    "image": lambda *made: ImageRegistry(*made).add(StoredImage("i", "", 1, "")),
    "removed image": lambda *made: ImageRegistry(*made).remove("i"),
    "removed snapshot": lambda *made: SnapshotRegistry(*made).remove(FACTS),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_door_answers_once_a_replica_has_what_it_wrote(
    servers: ReplicatedRedis, keys: Keys, client: redis.Redis, write: Any
) -> None:
    there = connect_async(servers.master.url)
    refused = (Unavailable, redis.RedisError)
    servers.pause()
    for _ in range(2):  # also for what another process has written
        with pytest.raises(refused, match="0 of 1 replicas of Redis have confirmed"):
            await write(there, keys, ConfirmedCalls(there, keys, ONE))
    servers.resume()
    await write(there, keys, ConfirmedCalls(there, keys, PATIENT))

    client.config_set("min-replicas-to-write", 2)
    try:
        with pytest.raises(refused) as error:
            await write(there, keys, ConfirmedCalls(there, keys, ONE))
        cause = error.value
        said = reason_of(cause) if isinstance(cause, redis.RedisError) else str(cause)
        assert said.endswith("its min-replicas-to-write: start its replicas, and let them reach it")
    finally:
        client.config_set("min-replicas-to-write", 0)
        await there.aclose()


def test_the_doctor_and_pages_read_how_redis_is_replicated(
    servers: ReplicatedRedis, keys: Keys, client: redis.Redis
) -> None:
    assert read_replication(client) == RedisReplication(replicas=1)
    assert not why_refused(client, keys)
    client.config_set("min-replicas-to-write", 2)
    sentinel = client.pubsub()
    try:
        sentinel.subscribe("__sentinel__:hello")
        sentinel.get_message(timeout=60)
        assert read_replication(client) == RedisReplication(1, True, True)
        assert "fewer replicas follow it than its min-replicas-to-write" in why_refused(
            client, keys
        )
    finally:
        client.config_set("min-replicas-to-write", 0)
        sentinel.close()


def test_nothing_sees_a_decision_that_no_replica_has(
    servers: ReplicatedRedis, keys: Keys, client: redis.Redis
) -> None:
    servers.pause()
    first = leader(client, keys, "a", ONE)
    client.xadd(keys.inbox, {"0": b"handled"}, id="5-0")
    client.xadd(keys.inbox, {"0": b"later"}, id="7-0")
    with pytest.raises(NotConfirmed):
        first.commit(b"entry", "7-0", [(STREAM + keys.prefix, b"order")])
    second = leader(client, keys, "b", ONE)
    with pytest.raises(NotConfirmed):
        second.release_held()
    assert shown(client, keys.journal) == shown(client, STREAM + keys.prefix) == []
    assert len(shown(client, keys.inbox)) == 2

    servers.resume()
    third = leader(client, keys, "c", PATIENT)
    third.release_held()
    third.release_held()
    entry, order = shown(client, keys.journal), shown(client, STREAM + keys.prefix)
    assert [body for _, body in (*entry, *order)] == [b"entry", b"order"]
    assert [body for _, body in shown(client, keys.inbox)] == [b"later"]
    assert third.commit(b"next", "7-0", []) == [shown(client, keys.journal)[-1][0].decode()]


def test_a_promoted_replica_shows_what_its_master_had_shown_under_the_same_ids(
    tmp_path: Path, keys: Keys
) -> None:
    """1. A replica has what is held. 2. It is promoted. 3. The former master releases: readers see it, the replica gets nothing."""
    servers = ReplicatedRedis(tmp_path).start()
    try:
        with connect(servers.master.url) as old, connect(servers.replica.url) as new:
            first = leader(old, keys, "a", PATIENT)
            first.commit(b"one", "0-0", [(STREAM, b"order 1")])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(first, "_released", list)  # it stops between the two steps
                first.commit(b"two", "0-0", [(STREAM, b"order 2")])
            first._connection.confirm(PATIENT)
            servers.promote()
            first.confirmation = Confirmation()  # it has had its confirmation
            first.release_held()
            second = leader(new, keys, "b", Confirmation())
            second.release_held()
            assert shown(new, keys.journal) == shown(old, keys.journal)
            assert shown(new, STREAM) == shown(old, STREAM)
            assert [body for _, body in shown(new, STREAM)] == [b"order 1", b"order 2"]
    finally:
        servers.stop()


def test_what_is_held_is_dropped_when_the_journal_has_gone_on_without_it(
    redis_client: redis.Redis, keys: Keys
) -> None:
    stopped = leader(redis_client, keys, "a", Confirmation(replicas=1, milliseconds=1))
    with pytest.raises(NotConfirmed):
        stopped.commit(b"never seen", "0-0", [])
    earlier_version = leader(redis_client, keys, "b", Confirmation())
    earlier_version.commit(b"instead", "0-0", [])
    leader(redis_client, keys, "c", Confirmation()).release_held()
    assert [body for _, body in shown(redis_client, keys.journal)] == [b"instead"]
    assert not redis_client.exists(keys.held)


async def test_a_node_keeps_its_report_until_a_replica_has_it(
    servers: ReplicatedRedis, keys: Keys, client: redis.Redis
) -> None:
    there = connect_async(servers.master.url)
    reporter = Reporter(there, keys, confirmation=ONE)
    sent = asyncio.Event()
    event = ActionFinished(action_id=ActionId("a"), node="n1", outcome=Outcome.COMPLETED)
    servers.pause()
    reporter.report(event, sent.set)
    serving = asyncio.ensure_future(reporter.run())
    await until(lambda: client.xlen(keys.inbox) == 1)
    with pytest.raises(NotConfirmed):
        await save_position(there, STREAM, "1-0", ONE)
    assert not sent.is_set()
    servers.resume()
    async with asyncio.timeout(60):
        await sent.wait()
    assert client.xlen(keys.inbox) == 1
    serving.cancel()
    await asyncio.wait({serving})
    await there.aclose()


async def test_a_loop_ends_what_was_accepted_once_its_replica_is_back(
    servers: ReplicatedRedis, keys: Keys, client: redis.Redis
) -> None:
    servers.pause()
    loop = LoopThread(servers.master.url, keys, confirmation=ONE)
    action = Action(id=ActionId("a"), project="default", task="t", kind=Kind.NOOP)
    client.xadd(keys.inbox, {"0": encode(ActionSubmitted(action=action))})
    try:
        await until(lambda: int(cast("bytes", client.get(keys.epoch) or b"0")) >= 2)
        assert shown(client, keys.journal) == []
        servers.resume()
        await until(lambda: client.xlen(keys.journal) > 0)
    finally:
        loop.stop()
    journal = Journal(client, keys)
    events = [each for _, entry in journal.after(START) for each in entry.events]
    journal.close()
    assert [each.action.id for each in events if isinstance(each, ActionSubmitted)] == ["a"]


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)

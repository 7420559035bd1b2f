"""An unreadable message is set aside and the others go on; an unreadable journal entry stops its readers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
import redis

from domain.codec import JournalEntry, encode
from domain.dead_letters import DeadLetter, dead_letter, decode_letter, encode_letter
from domain.errors import Unreadable
from domain.events import ActionSubmitted, ConfigApplied, Event, NodeJoined, TimeAdvanced
from domain.redis_keys import Keys
from managers.registry import load
from scheduler.core.machine import Machine
from scheduler.runtime import journal_consumer as following
from scheduler.runtime.journal_consumer import JournalConsumer
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.recovery import recover
from scheduler.runtime.node.commands import CommandReader
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.redis.journal import START
from tests.builders import a_node, an_action, granted
from tests.integration.runtime.rig import CONFIG, LoopThread, Rig
from tests.redis_server import RedisServer

NOOP = {"task": "t", "kind": "noop"}
DAMAGED = b"\xc1 no message"
#: As a version may write that comes after this one.
OF_TOMORROW = msgspec.msgpack.encode({"event": "ActionFolded", "action_id": "act_7"})


def letters(client: redis.Redis, keys: Keys) -> list[DeadLetter]:
    stored = cast("dict[bytes, bytes]", client.hgetall(keys.dead_letters))
    return [decode_letter(letter) for letter in stored.values()]


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("message", [DAMAGED, OF_TOMORROW], ids=["damaged", "of another version"])
async def test_the_leader_sets_unreadable_messages_aside(rig: Rig, message: bytes) -> None:
    entry = cast(
        "bytes", rig.redis.xadd(rig.keys.inbox, {"0": message, "1": encode(TimeAdvanced())})
    )
    async with rig.client() as client:
        answer = await client.post("/actions?wait=60", json=NOOP)
    (letter,) = letters(rig.redis, rig.keys)

    assert answer.json()["outcome"] == "completed"
    assert (letter.source, letter.entry_id, letter.place) == ("inbox", entry.decode(), "0")
    assert letter.body == message
    assert letter.reason
    assert letter.action_id == ("act_7" if message is OF_TOMORROW else "")


def test_a_leader_that_is_fenced_sets_nothing_aside(redis_client: redis.Redis, keys: Keys) -> None:
    stale = Leadership(redis_client, keys, "a")
    stale.try_elect()
    redis_client.delete(keys.leader)
    Leadership(redis_client, keys, "b").try_elect()
    with pytest.raises(Exception, match="another leader"):
        stale.set_aside(dead_letter("inbox", "1-0", "0", DAMAGED, ValueError(), 0.0))
    assert not letters(redis_client, keys)


def orders_of_tomorrow(action_id: str) -> bytes:
    """An order to run whose action is of a kind that this version does not know, and a good one."""
    action = {"id": action_id, "project": "default", "task": "t", "kind": "fold", "cost": {}}
    return msgspec.msgpack.encode([{"epoch": 1, "run": {"action": action, "allocations": []}}])


async def test_a_node_gives_orders_back_that_it_cannot_read(rig: Rig) -> None:
    """1. Something damaged comes. 2. Orders that it knows only the names of. 3. It goes on."""
    assert rig.loop is not None
    identity = rig.loop.loop.term.machine.state.supply.nodes["n1"].inventory.identity
    stream = rig.keys.commands("n1", identity)
    rig.redis.xadd(stream, {"c": DAMAGED})
    rig.redis.xadd(stream, {"c": orders_of_tomorrow("act_7")})
    async with rig.client() as client:
        answer = await client.post("/actions?wait=60", json=NOOP)
    await until(lambda: len(letters(rig.redis, rig.keys)) == 2)

    assert answer.json()["outcome"] == "completed"
    assert {letter.source for letter in letters(rig.redis, rig.keys)} == {"node/n1"}


async def test_an_order_that_was_given_back_is_not_run_by_a_later_version(
    runtime_redis: RedisServer, redis_client: redis.Redis, keys: Keys
) -> None:
    """It was reported as never started, so it may be granted elsewhere by now."""
    client = connect_async(runtime_redis.url)
    fields = {b"c": orders_of_tomorrow("act_7")}
    old = CommandReader(client, keys, "n1")
    await old.open()
    (unknown,) = old.read("5-0", fields).unknown
    (report,) = await old.set_aside("5-0", [unknown])

    assert (report.action_id, report.attempt, report.never_started) == ("act_7", 1, True)
    readable = {b"c": fields[b"c"].replace(b"fold", b"noop")}
    new = CommandReader(client, keys, "n1")
    assert len(new.read("5-0", readable).known) == 1, "a worker that knows nothing would run it"
    await new.open()
    assert new.read("5-0", readable).known == []
    (again,) = await new.set_aside("5-0", new.read("5-0", readable).unknown)
    assert again.action_id == "act_7"
    assert len(letters(redis_client, keys)) == 1
    await client.aclose()


def test_no_loop_leads_over_an_unreadable_entry(redis_client: redis.Redis, keys: Keys) -> None:
    entry = cast("bytes", redis_client.xadd(keys.journal, {"e": DAMAGED}))
    with pytest.raises(Unreadable, match=f"entry {entry.decode()} cannot be read"):
        recover(redis_client, keys, load(()).make_ledger, CONFIG)


def test_a_journal_without_a_snapshot_begins_with_its_own_configuration(
    redis_client: redis.Redis, keys: Keys
) -> None:
    """A loop was killed before its first snapshot; what was configured after its first grant did not forbid that grant."""
    make_ledger = load(()).make_ledger
    machine = Machine(make_ledger, CONFIG)
    first: list[Event] = [
        ConfigApplied(at=1.0, config=CONFIG),
        NodeJoined(at=1.0, node=a_node("n1")),
    ]
    second: list[Event] = [ActionSubmitted(at=2.0, action=an_action("act_1"))]
    for seq, events in ((1, first), (2, second)):
        decisions = machine.handle(*events)
        entry = JournalEntry(seq, 1, float(seq), 0.0, "0-0", events, decisions)
        redis_client.xadd(keys.journal, {"e": encode(entry)})
    assert granted(decisions) == ["act_1"]
    drained = type(CONFIG.drained_nodes)(["n1"])
    later = msgspec.structs.replace(CONFIG, revision=CONFIG.revision + 1, drained_nodes=drained)

    recovered = recover(redis_client, keys, make_ledger, later)

    assert recovered.replayed == 2


def test_no_loop_leads_over_a_hole(redis_client: redis.Redis, keys: Keys) -> None:
    for seq in (1, 3):
        empty = JournalEntry(seq, 1, 1.0, 0.0, "0-0", [TimeAdvanced(at=1.0)], [])
        redis_client.xadd(keys.journal, {"e": encode(empty)})
    with pytest.raises(Unreadable, match=r"hole before entry .*: number 2 should follow"):
        recover(redis_client, keys, load(()).make_ledger, CONFIG)


def test_no_loop_leads_from_an_unreadable_snapshot(redis_client: redis.Redis, keys: Keys) -> None:
    redis_client.set(keys.snapshot, DAMAGED)
    with pytest.raises(Unreadable, match="the snapshot cannot be read"):
        recover(redis_client, keys, load(()).make_ledger, CONFIG)


async def test_a_loop_that_must_not_lead_says_so_and_lets_others_lead(
    runtime_redis: RedisServer, redis_client: redis.Redis, keys: Keys
) -> None:
    """1. It cannot read an entry. 2. A loop that could is elected. 3. The entry is another: it leads."""
    entry = cast("bytes", redis_client.xadd(keys.journal, {"e": DAMAGED}))
    loop = LoopThread(runtime_redis.url, keys)

    def reported() -> bool:
        rows = cast("dict[bytes, bytes]", redis_client.hgetall(keys.workers))
        return any(b'"refusing"' in row and entry in row for row in rows.values())

    try:
        await until(reported)
        other = Leadership(redis_client, keys, "other", lease_seconds=600.0)
        await until(other.try_elect)
        epoch = other.epoch
        redis_client.xdel(keys.journal, entry)
        other.resign()
        # Redis has its name a moment before the loop knows its epoch.
        await until(lambda: loop.loop.leadership.epoch == epoch + 1)
        assert redis_client.get(keys.leader) == loop.loop.leadership.name.encode()
        assert loop.thread.is_alive()
    finally:
        loop.stop()


def an_entry(seq: int) -> bytes:
    return encode(JournalEntry(seq, 1, 1.0, 0.0, "0-0", [], []))


async def test_the_projector_waits_at_a_hole_until_an_operator_sets_it_aside(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "UNREADABLE_SECONDS", 0.01)
    redis_client.xadd(keys.journal, {"e": an_entry(1)})
    hole = cast("bytes", redis_client.xadd(keys.journal, {"e": DAMAGED})).decode()
    redis_client.xadd(keys.journal, {"e": an_entry(3)})
    seen: list[int] = []
    follower = JournalConsumer(
        redis_client, keys, "rows", lambda: START, lambda es: seen.extend(e.seq for _, e in es)
    )
    stop = threading.Event()
    thread = threading.Thread(target=follower.run, args=(stop,), daemon=True)
    thread.start()

    def reported() -> bool:
        rows = cast("dict[bytes, bytes]", redis_client.hgetall(keys.workers))
        return any(hole.encode() in row for row in rows.values())

    try:
        await until(reported)
        assert seen == [1]
        letter = dead_letter("journal", hole, "e", DAMAGED, ValueError("damaged"), 0.0)
        redis_client.hset(keys.dead_letters, letter.name, encode_letter(letter))
        await until(lambda: seen == [1, 3])
    finally:
        stop.set()
        thread.join(120)


async def test_a_web_process_goes_past_and_waiting_clients_read_the_state(rig: Rig) -> None:
    lease = {"task": "t", "kind": "lease", "cost": {"api:search": 2}}
    lease["lease"] = {"ttl_seconds": 600}
    async with rig.client() as client:
        held = (await client.post("/actions?wait=60", json=lease)).json()["id"]
        waiting = (await client.post("/actions", json=lease)).json()["id"]
        tail = client._transport.app._context.tail  # type: ignore[attr-defined]
        looked = asyncio.ensure_future(client.get(f"/actions/{waiting}?wait=60"))
        await until(lambda: waiting in tail._waiters)
        rig.redis.xadd(rig.keys.journal, {"e": DAMAGED})
        view = (await looked).json()
        later = asyncio.ensure_future(client.get(f"/actions/{waiting}?wait=60"))
        await until(lambda: waiting in tail._waiters)
        await client.post(f"/leases/{held}/release")
        after = (await later).json()
    assert (view["state"], after["state"]) == ("queued", "running")


async def test_a_web_process_starts_behind_an_entry_that_cannot_be_read(rig: Rig) -> None:
    rig.redis.xadd(rig.keys.journal, {"e": DAMAGED})
    async with rig.client() as client:
        answer = await client.post("/actions?wait=60", json=NOOP)
    assert answer.json()["outcome"] == "completed"


async def test_an_answer_of_another_version_ends_no_web_process(rig: Rig) -> None:
    async with rig.client() as client:
        queries = client._transport.app._context.queries  # type: ignore[attr-defined]
        await queries._listening.wait()
        rig.redis.publish(queries.channel, DAMAGED)
        rig.redis.set(rig.keys.capacity, b'{"revision": "of tomorrow"}')
        client._transport.app._context._capacity_changed()  # type: ignore[attr-defined]
        assert (await client.get("/status")).status_code == 200

"""Rollouts end to end: submitted over HTTP, run by a worker, continued by another one, answered with every turn once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.errors import NotFound
from domain.redis_keys import Keys
from domain.rollout_events import RolloutWorkerLost
from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from rollout.ports import Assigned, Record, RolloutPort, Superseded
from scheduler.runtime.gateway import context
from scheduler.runtime.gateway.journal_tail import JournalTail
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.rollouts.membership import next_incarnation
from tangram_client.errors import InvalidRequestError, NotFoundError
from tests.integration.runtime.rig import LoopThread
from tests.integration.runtime.rollout_rig import ROLLOUTS, RolloutRig, finished, noop
from tests.redis_server import RedisServer

ONE = [{"id": "django-1", "data": {"question": "why"}}]


class Turns:
    """A worker's work: RUN has some turns, each one an action and a record; a test can stop it at one of them."""

    def __init__(self, turns: int, hold_at: int | None = None) -> None:
        self.turns, self.hold_at = turns, hold_at
        self.held, self.released = asyncio.Event(), asyncio.Event()
        #: Actions by turn, of all attempts.
        self.actions: list[tuple[int, str]] = []
        self.leases: list[str] = []

    async def __call__(self, port: RolloutPort, given: Assigned) -> None:
        rollout, attempt = given.rollout, given.attempt
        lease = await port.lease(rollout, attempt, Stage.RUN, 0)
        self.leases.append(lease.id)
        records = list(await port.read(rollout))
        turns = [each for each in records if each.kind == "call"]
        for turn in range(len(turns), self.turns):
            members = {"kind": "noop", "trajectory": rollout.id, "cost": {"api:search": 1}}
            action = await port.submit(rollout, attempt, f"run/{turn}", members)
            self.actions.append((turn, action))
            if turn == self.hold_at:
                self.held.set()
                await self.released.wait()
            record = Record("call", {"turn": turn, "action": action})
            await port.append(rollout, attempt, len(records), record)
            records.append(record)
        await port.append(
            rollout, attempt, len(records), Record("result", {"detail": {"turns": self.turns}})
        )
        await port.release(lease)
        result = RolloutResult(RolloutOutcome.COMPLETED, 0.5, turns=self.turns)
        await port.finished(rollout, attempt, result)


async def hold(port: RolloutPort, given: Assigned) -> None:
    """Take the lease of RUN and do nothing more."""
    await port.lease(given.rollout, given.attempt, Stage.RUN, 0)
    await asyncio.Event().wait()


async def until_assigned(rollouts: RolloutRig, worker: Any, number: int = 1) -> None:
    """Wait until a worker has taken so many rollouts."""
    async with asyncio.timeout(120):
        while len(worker.running) < number:
            await asyncio.sleep(0.005)


async def test_a_rollout_is_accepted_run_and_answered(rollouts: RolloutRig) -> None:
    await rollouts.start_worker(noop)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        found = await finished(client, rollout)
    assert (found.outcome, found.reward, found.worker, found.attempt) == ("completed", 1.0, "w1", 1)
    assert found.segments == ()
    assert found.body["detail"] == {"by": "noop"}
    first = rollouts.logs.first(rollout)
    assert first.kind == "request"
    assert first.header["instance"] == {"id": "django-1", "question": "why"}


async def test_samples_of_an_instance_are_a_group(rollouts: RolloutRig) -> None:
    await rollouts.start_worker(noop)
    async with rollouts.client() as client:
        two = [{"id": "a"}, {"id": "b"}]
        made = await client.rollouts.submit("t", "noop", two, samples=3)
        found = [await finished(client, each) for each in made]
    assert [(each.instance, each.sample) for each in found] == [
        (name, sample) for name in "ab" for sample in range(3)
    ]
    groups = [each.group for each in found]
    assert groups[0] == groups[2] != groups[3] == groups[5]


async def test_a_killed_worker_loses_no_turn_and_repeats_none(rollouts: RolloutRig) -> None:
    """It dies between the submission of an action and its record: the successor finds the same action."""
    before, after = Turns(6, hold_at=3), Turns(6)
    await rollouts.start_worker(before)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        await asyncio.wait_for(before.held.wait(), 120)
        await rollouts.start_worker(after, "w2")
        await rollouts.kill_worker(0)
        found = await finished(client, rollout)
    assert (found.outcome, found.worker, found.attempt, found.turns) == ("completed", "w2", 2, 6)
    calls = [each for each in rollouts.logs.read(rollout) if each.kind == "call"]
    assert [each.header["turn"] for each in calls] == list(range(6))
    assert before.actions[3] == after.actions[0]  # turn 3: one action, awaited by its id
    assert [turn for turn, _ in after.actions] == [3, 4, 5]
    assert before.leases == after.leases  # adopted before it expired


async def test_a_leader_that_takes_over_knows_rollouts_workers_and_leases(
    rollouts: RolloutRig,
) -> None:
    turns = Turns(4, hold_at=1)
    await rollouts.start_worker(turns)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        await asyncio.wait_for(turns.held.wait(), 120)
        assert rollouts.rig.loop is not None
        await asyncio.to_thread(rollouts.rig.loop.stop)
        waiting = (await client.rollouts.submit("t", "noop", ONE))[0]
        rollouts.rig.loop = LoopThread(rollouts.rig.url, rollouts.rig.keys, ROLLOUTS)
        turns.released.set()
        found = [await finished(client, each) for each in (rollout, waiting)]
    assert [(each.outcome, each.attempt) for each in found] == [("completed", 1)] * 2
    assert [turn for turn, _ in turns.actions].count(2) == 2  # each turn once in each rollout


async def test_a_lease_that_expired_is_followed_by_another(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.runtime.rollouts.stage_leases.TTL_SECONDS", 0.2)
    before, after = Turns(2, hold_at=1), Turns(2)
    await rollouts.start_worker(before)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        await asyncio.wait_for(before.held.wait(), 120)
        await rollouts.kill_worker(0)
        lease = before.leases[0]
        async with asyncio.timeout(120):
            while (await client.get(lease)).outcome != "timeout":
                await asyncio.sleep(0.01)
        await rollouts.start_worker(after, "w2")
        found = await finished(client, rollout)
    assert (found.outcome, found.attempt) == ("completed", 2)
    assert after.leases[0] != lease


async def test_leases_are_renewed_together_and_outlive_their_time(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.runtime.rollouts.stage_leases.TTL_SECONDS", 0.4)
    worker = await rollouts.start_worker(hold)
    async with rollouts.client() as client:
        made = await client.rollouts.submit("t", "noop", ONE, samples=2)
        await until_assigned(rollouts, worker, 2)
        held = worker.port._leases._held
        async with asyncio.timeout(120):
            while len(held) < 2:
                await asyncio.sleep(0.005)
        leases = list(held)
        ends = [(await client.get(lease)).result["expires_at"] for lease in leases]
        async with asyncio.timeout(120):
            for lease, end in zip(leases, ends, strict=True):
                while (await client.get(lease)).result["expires_at"] == end:
                    await asyncio.sleep(0.05)
        views = [await client.get(lease) for lease in leases]
        for rollout in made:
            await client.rollouts.cancel(rollout)
    assert [view.state for view in views] == ["running", "running"]


async def test_a_lease_that_was_lost_is_submitted_again_while_its_stage_runs(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing could be renewed for longer than its time to live; the work was not stopped."""
    monkeypatch.setattr("scheduler.runtime.rollouts.stage_leases.TTL_SECONDS", 0.3)
    monkeypatch.setattr("scheduler.runtime.rollouts.stage_leases.RENEWALS_PER_TTL", 0.001)
    worker = await rollouts.start_worker(hold)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        held = worker.port._leases._held
        async with asyncio.timeout(120):
            while not held or next(iter(held.values())).again < 2:
                await asyncio.sleep(0.01)
        found = await client.rollouts.get(rollout)
    assert (found.state, found.attempt) == ("assigned", 1)
    assert rollout in worker.running
    assert worker.withdrawn == []


async def test_a_third_rollout_waits_for_the_stage_and_gets_it(rollouts: RolloutRig) -> None:
    worker = await rollouts.start_worker(hold)
    async with rollouts.client() as client:
        made = await client.rollouts.submit("t", "noop", ONE, samples=3)
        held = worker.port._leases._held
        async with asyncio.timeout(120):
            while len(held) < 2:
                await asyncio.sleep(0.005)
        first = next(iter(held.values())).rollout.id
        await client.rollouts.cancel(first)
        async with asyncio.timeout(120):
            while {each.rollout.id for each in held.values()} != set(made) - {first}:
                await asyncio.sleep(0.005)


async def test_a_cancelled_lease_cancels_its_rollout(rollouts: RolloutRig) -> None:
    worker = await rollouts.start_worker(hold)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        held = worker.port._leases._held
        async with asyncio.timeout(120):
            while not held:
                await asyncio.sleep(0.005)
        await client.cancel(next(iter(held)), reason="enough")
        found = await finished(client, rollout)
    assert (found.outcome, found.reason, found.reward) == ("cancelled", "enough", None)


async def test_a_cancel_answers_the_waiter_and_stops_the_work(rollouts: RolloutRig) -> None:
    worker = await rollouts.start_worker(hold)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        await until_assigned(rollouts, worker)
        waiting = asyncio.ensure_future(finished(client, rollout))
        await client.rollouts.cancel(rollout, reason="enough")
        found = await waiting
        await client.rollouts.cancel(rollout)
        assert (found.outcome, found.reason) == ("cancelled", "enough")
        async with asyncio.timeout(120):
            while worker.running:
                await asyncio.sleep(0.005)
    assert [each.rollout_id for each in worker.withdrawn] == [rollout]


async def test_a_parked_rollout_continues_when_it_is_resumed(rollouts: RolloutRig) -> None:
    turns = Turns(3, hold_at=1)
    worker = await rollouts.start_worker(turns)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        await asyncio.wait_for(turns.held.wait(), 120)
        await client.rollouts.park(rollout)
        async with asyncio.timeout(120):
            while (await client.rollouts.get(rollout)).state != "parked":
                await asyncio.sleep(0.005)
        turns.hold_at = None
        await client.rollouts.resume(rollout)
        found = await finished(client, rollout)
    assert (found.outcome, found.attempt) == ("completed", 2)
    assert worker.withdrawn[0].parked
    calls = [each for each in rollouts.logs.read(rollout) if each.kind == "call"]
    assert [each.header["turn"] for each in calls] == [0, 1, 2]


async def test_a_worker_that_stops_in_order_is_followed_at_once(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sign of life would last for minutes; its message is quicker."""
    monkeypatch.setattr("scheduler.runtime.rollouts.membership.ALIVE_SECONDS", 600.0)
    before, after = Turns(2, hold_at=0), Turns(2)
    await rollouts.start_worker(before)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        await asyncio.wait_for(before.held.wait(), 120)
        await rollouts.start_worker(after, "w2")
        await rollouts.stop_worker(0)
        found = await finished(client, rollout)
    assert (found.outcome, found.worker) == ("completed", "w2")


async def test_a_worker_that_was_away_writes_nothing_more(rollouts: RolloutRig) -> None:
    """Its rollout was assigned to another worker: neither log nor result of the former one count."""
    held = Turns(3, hold_at=1)
    worker = await rollouts.start_worker(held)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        await asyncio.wait_for(held.held.wait(), 120)
        assigned = worker.port._assignments
        given = Assigned(await _rollout(rollouts, rollout), 1)
        await rollouts.start_worker(Turns(3), "w2")
        await worker.port._calls.send(_lost(assigned))
        found = await finished(client, rollout)
        with pytest.raises(Superseded):
            await worker.port.append(given.rollout, 1, 3, Record("call", {"turn": 1}))
        with pytest.raises(Superseded):
            rollouts.logs.append(rollout, 1, 5, Record("call", {"turn": 1}))
        with pytest.raises(Superseded):
            await worker.port.finished(given.rollout, 1, RolloutResult(RolloutOutcome.FAILED))
    assert (found.outcome, found.attempt) == ("completed", 2)
    assert assigned.joined.is_set() or assigned.lost.is_set()


async def test_a_worker_that_was_counted_as_lost_joins_again(rollouts: RolloutRig) -> None:
    worker = await rollouts.start_worker(noop)
    assigned = worker.port._assignments
    await worker.port._calls.send(_lost(assigned))
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        found = await finished(client, rollout)
    assert (found.outcome, found.worker) == ("completed", "w1")


async def test_an_acknowledged_rollout_keeps_its_result_and_loses_its_log(
    rollouts: RolloutRig,
) -> None:
    await rollouts.start_worker(noop)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        await finished(client, rollout)
        assert await client.rollouts.acknowledge([rollout, f"rol_{7:028x}"]) == [rollout]
        found = await client.rollouts.get(rollout)
    assert (found.reward, found.segments) == (1.0, None)
    with pytest.raises(NotFound):
        rollouts.logs.read(rollout)


async def test_other_projects_see_and_end_nothing(rollouts: RolloutRig) -> None:
    worker = await rollouts.start_worker(hold)
    async with rollouts.client() as client, rollouts.client("stranger") as stranger:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        await until_assigned(rollouts, worker)
        with pytest.raises(NotFoundError):
            await stranger.rollouts.get(rollout)
        await stranger.rollouts.cancel(rollout)
        assert await stranger.rollouts.list() == []
        assert [each.id for each in await client.rollouts.list()] == [rollout]
        await client.rollouts.cancel(rollout)
        assert (await finished(client, rollout)).outcome == "cancelled"
        with pytest.raises(NotFoundError):
            await stranger.rollouts.get(rollout)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"handler": "unknown"}, "/handler"),
        ({"samples": 1001}, "/samples"),
        ({"instances": [{"id": "a"}, {"id": "b"}], "group": "g"}, "/group"),
        ({"environment": {"memory_bytes": -1}}, "/environment/memory_bytes"),
        ({"limits": {"run_seconds": 0}}, "/limits/run_seconds"),
    ],
)
async def test_a_request_that_cannot_be_run_is_refused(
    rollouts: RolloutRig, fields: dict[str, Any], pointer: str
) -> None:
    await rollouts.start_worker(noop)
    async with rollouts.client() as client:
        given = {"task": "t", "handler": "noop", "instances": ONE, **fields}
        with pytest.raises(InvalidRequestError) as refused:
            await client.rollouts.submit(**given)
    assert [each["pointer"] for each in refused.value.problem.errors] == [pointer]
    assert not list((rollouts.folder / "rollouts").glob("*"))


async def test_a_repeated_request_makes_no_second_rollouts(rollouts: RolloutRig) -> None:
    async with rollouts.client() as client:
        first = await client.rollouts.submit("t", "noop", ONE, idempotency_key="k")
        assert await client.rollouts.submit("t", "noop", ONE, idempotency_key="k") == first
        assert [each.id for each in await client.rollouts.list()] == first


async def test_run_takes_a_seat_of_a_backend_and_waits_without_one(rollouts: RolloutRig) -> None:
    seats: list[Any] = []

    async def seated(port: RolloutPort, given: Assigned) -> None:
        lease = await port.lease(given.rollout, given.attempt, Stage.RUN, 0)
        seats.append(lease.seat)
        await port.release(lease)
        await port.finished(given.rollout, given.attempt, RolloutResult(RolloutOutcome.COMPLETED))

    worker = await rollouts.start_worker(seated)
    async with rollouts.client() as client, rollouts.client("cluster") as operator:
        [rollout] = await client.rollouts.submit("t", "noop", ONE, llm="small")
        await until_assigned(rollouts, worker)
        assert seats == []
        name = await operator.backends.add("small", "http://10.0.0.7:8000/v1", seats=4)
        assert name == "10.0.0.7:8000"
        await finished(client, rollout)
        [seat] = seats
        assert (seat.backend, seat.address, seat.weights_version) == (
            name,
            "http://10.0.0.7:8000",
            1,
        )
        [found] = await worker.port.backends("small")
        assert found == seat


async def test_backends_are_drained_cleared_and_removed(rollouts: RolloutRig) -> None:
    async with rollouts.client("cluster") as client, rollouts.client() as trainer:
        await client.backends.add("small", "http://a:1", name="a", seats=2)
        await client.backends.add("small", "http://b:1", name="b")
        await client.backends.drain("small", "a")
        [pool] = await client.backends.list()
        assert [(each["name"], each.get("drained", False)) for each in pool["backends"]] == [
            ("a", True),
            ("b", False),
        ]
        await client.backends.resume("small", "a")
        await client.backends.remove("small", "b")
        [pool] = await client.backends.list()
        assert [(each["name"], each.get("drained", False)) for each in pool["backends"]] == [
            ("a", False)
        ]
        await client.backends.clear("small")
        await client.backends.add("small", "http://c:1")
        [pool] = await client.backends.list()
        assert [(each["name"], each["weights_version"]) for each in pool["backends"]] == [
            ("c:1", 2)
        ]
        with pytest.raises(NotFoundError):
            await client.backends.drain("small", "a")
        with pytest.raises(NotFoundError):
            await client.backends.clear("large")
        with pytest.raises(Exception, match="scope operate"):
            await trainer.backends.clear("small")


async def test_a_silent_worker_is_lost_and_its_rollouts_are_assigned_again(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the sign of life in Redis ends it, after a while without one."""
    monkeypatch.setattr("scheduler.runtime.loop.housekeeping.SILENT_SECONDS", 0.2)
    before = Turns(2, hold_at=0)
    await rollouts.start_worker(before)
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        await asyncio.wait_for(before.held.wait(), 120)
        await rollouts.kill_worker(0)
        async with asyncio.timeout(120):
            while (found := await client.rollouts.get(rollout)).state != "waiting":
                await asyncio.sleep(0.02)
    assert "no rollout worker" in found.body["waiting"]


async def _rollout(rollouts: RolloutRig, rollout: str) -> Any:
    """Return the facts of a rollout as its worker has them."""
    running = rollouts.workers[0].worker.result()
    [held] = [each for each in running.port._leases._held.values() if each.rollout.id == rollout]
    return held.rollout


def _lost(assigned: Any) -> Any:
    return RolloutWorkerLost(worker=assigned.worker, incarnation=assigned.incarnation)


async def test_incarnations_of_workers_rise_and_names_that_are_gone_leave_nothing(
    runtime_redis: RedisServer, keys: Keys
) -> None:
    """A pod has another name after each restart. The hash had a field for each name before."""
    client = connect_async(runtime_redis.url)
    try:
        await client.hset(keys.rollout_incarnations, mapping={"pod-1": 3, "pod-2": 17})
        found = await asyncio.gather(*(next_incarnation(client, keys) for _ in range(20)))
        size = await client.hlen(keys.rollout_incarnations)
    finally:
        await client.aclose()
    assert sorted(found) == list(range(18, 38))
    assert size == 1


async def test_completions_that_wait_see_a_row_as_soon_as_it_is_written(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row comes after the last entry of an idle journal: no further entry wakes the request."""

    async def never(tail: JournalTail, _: float) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(JournalTail, "next_entries", never)
    monkeypatch.setattr(context, "ROW_SECONDS", 120.0)
    rows, keys = rollouts.rig.rollout_rows, rollouts.rig.keys
    rows.behind = True
    rollouts.rig.redis.hset(keys.positions, "projector", "0-0")
    await rollouts.start_worker(noop)
    async with rollouts.client() as client, asyncio.timeout(120):
        start = (await client.rollouts.completions("now")).next
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        asked = asyncio.ensure_future(client.rollouts.completions(start, wait_seconds=60))
        await finished(client, rollout)
        rows.behind = False
        rollouts.rig.redis.hset(keys.positions, "projector", f"{10**15}-0")
        assert [each.id for each in (await asked).items] == [rollout]
